"""Items after the fixed part of their chain, kept in one LMDB file."""

from __future__ import annotations

import io
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.data import LMDBDataset as MonaiLMDBDataset
from monai.data.utils import pickle_hashing
from monai.utils import convert_to_tensor, optional_import
from torch.serialization import DEFAULT_PROTOCOL

from voxelocity.data.cache import LmdbFile, PassingLocks, open_lmdb_file
from voxelocity.monai.datasets.persistent import PersistentDataset
from voxelocity.monai.items.files import refused_class
from voxelocity.monai.items.kept import deep_copy
from voxelocity_observe.core.errors import CacheError, CacheFullError, ConfigError

_PREFIX = "voxelocity-"


class LMDBDataset(PersistentDataset, MonaiLMDBDataset):  # type: ignore[misc]
    """MONAI's `LMDBDataset`, with MONAI's arguments: all items are prepared at once, into one file.

    Entries are named as in `PersistentDataset`. Writers of several processes take turns, the map is as large as the
    disk, and any number of data sets of one process share an open file. A full disk is reported once, and items that do
    not fit are prepared whenever they are needed. As with MONAI, numbers come back as tensors.

    Args:
        lmdb_kwargs: options of `lmdb.open`. A `map_size` counts only if it is larger than the disk. `readonly` and
            `subdir` are set here; `lock=False` is refused.

    Raises:
        ConfigError: `cache_dir` is not given, or an option is refused.
        CacheError: the package lmdb is missing, the file is not an LMDB file, or it cannot be written.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Sequence[Callable[..., Any]] | Callable[..., Any],
        cache_dir: Path | str = "cache",
        hash_func: Callable[..., bytes] = pickle_hashing,
        db_name: str = "monai_cache",
        progress: bool = True,
        pickle_protocol: int = DEFAULT_PROTOCOL,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
        lmdb_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not cache_dir:
            raise ConfigError("monai.LMDBDataset: cache_dir must be given: a folder on a local disk")
        self.lmdb_kwargs = _checked_options(lmdb_kwargs or {})
        self.db_file = Path(cache_dir) / f"{db_name}.lmdb"
        self.progress = progress
        self._handle = _Handle()
        self._is_full = False
        PersistentDataset.__init__(
            self,
            data=data,
            transform=transform,
            cache_dir=cache_dir,
            hash_func=hash_func,
            pickle_protocol=pickle_protocol,
            hash_transform=hash_transform,
            reset_ops_id=reset_ops_id,
        )
        self._fill(show_progress=progress)
        self.close()

    def set_data(self, data: Sequence[Any]) -> None:
        """Takes other items, removes the entries of this class from the file, and prepares those items."""
        self.data = data
        self._read_chain()
        _drop_entries(self._open(), "")
        self._is_full = False
        self._fill(show_progress=self.progress)

    def info(self) -> dict[str, Any]:
        """LMDB's facts about the file, with `size` (the number of items) and `filename`."""
        found = {**self._open().info(), "size": len(self.data), "filename": str(self.db_file.absolute())}
        self.close()
        return found

    def close(self) -> None:
        """Closes the file; it opens again when it is needed."""
        self._handle.file = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": _Handle()}

    def _open(self) -> LmdbFile:
        file = self._handle.file
        if file is None or file.pid != os.getpid():
            assert self.cache_dir is not None
            path = self.cache_dir.resolve() / self.db_file.name
            try:
                file = self._handle.file = open_lmdb_file(path, **self.lmdb_kwargs)
            except OSError as error:
                raise CacheError(
                    f"monai.LMDBDataset: {path} cannot be opened ({error.strerror}); give a writable "
                    "cache_dir with free space, on a local disk"
                ) from error
        return file

    def _fill(self, *, show_progress: bool) -> None:
        items: Any = self.data
        if show_progress:
            tqdm, has_tqdm = optional_import("tqdm", name="tqdm")
            items = tqdm(items) if has_tqdm else items
        for item in items:
            if not self._is_full:
                self._get_or_make(item)

    def _cachecheck(self, item_transformed: Any) -> Any:
        """The item after the fixed part of the chain, from the file; prepared now if it is not there."""
        value = self._get_or_make(item_transformed)
        try:
            return torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged value makes the reader raise
            refused = refused_class(error)
            raise CacheError(
                f"monai.LMDBDataset: an item holds a {refused}, and {self.db_file} can hold only tensors and plain "
                "data; convert it in the deterministic part of the chain"
                if refused
                else f"monai.LMDBDataset: an entry of {self.db_file} cannot be loaded ({error}); remove the file"
            ) from error

    def _get_or_make(self, item: Any) -> bytes:
        """The bytes of the item's entry, which one thread of all processes makes if it is missing."""
        assert self.cache_dir is not None
        file, key = self._open(), f"{_PREFIX}{self._key(item)}"
        found = _read(file, key)
        if found is not None:
            return found
        with PassingLocks(self.cache_dir).hold(key):
            found = _read(file, key)
            if found is None:
                buffer = io.BytesIO()
                prepared = convert_to_tensor(self._pre_transform(deep_copy(item)))
                torch.save(prepared, buffer, pickle_protocol=self.pickle_protocol)
                found = buffer.getvalue()
                self._write(file, key, found)
        return found

    def _write(self, file: LmdbFile, key: str, value: bytes) -> None:
        try:
            file.write(key, [memoryview(value)])
        except CacheFullError as error:
            if not self._is_full:
                self._is_full = True
                warnings.warn(
                    f"LMDBDataset: {error}. Items that do not fit are prepared again in every epoch", stacklevel=2
                )

    def _forget_at_end(self) -> None:
        assert self.cache_dir is not None
        path = self.cache_dir.resolve() / self.db_file.name
        weakref.finalize(self, _forget, path, dict(self.lmdb_kwargs), self._salt, os.getpid())


class _Handle:
    """An open file, hidden from MONAI, which looks for random states in all attributes of a data set."""

    __slots__ = ("file",)

    def __init__(self) -> None:
        self.file: LmdbFile | None = None


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("lock") is False:
        raise ConfigError(
            "monai.LMDBDataset: lmdb_kwargs lock = False is not possible: two writing processes would corrupt the "
            "file; leave it out"
        )
    kept = {name: value for name, value in options.items() if name not in ("readonly", "subdir", "path")}
    return kept if kept.get("map_size") else {name: value for name, value in kept.items() if name != "map_size"}


def _read(file: LmdbFile, key: str) -> bytes | None:
    with file.reading(key) as value:
        return None if value is None else bytes(value)


def _drop_entries(file: LmdbFile, ending: str) -> None:
    keys = file.keys()
    for key in keys:
        if key.startswith(_PREFIX) and key.endswith(ending):
            file.drop(key)


def _forget(path: Path, options: dict[str, Any], salt: str, pid: int) -> None:
    """Removes the entries of a data set that is gone, in the process that made it and not in those forked from it."""
    if os.getpid() == pid and path.exists():
        _drop_entries(open_lmdb_file(path, **options), salt)
