"""Items after the fixed part of their chain, kept in a folder that runs and processes share."""

from __future__ import annotations

import json
import os
import secrets
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monai.data import CacheNTransDataset as MonaiCacheNTransDataset
from monai.data import PersistentDataset as MonaiPersistentDataset
from monai.data.meta_obj import get_track_meta
from monai.data.utils import pickle_hashing
from monai.transforms import Compose, reset_ops_id
from monai.utils import convert_to_tensor
from torch.serialization import DEFAULT_PROTOCOL

from voxelocity.monai.content import digest
from voxelocity.monai.datasets.dataset import Dataset, as_it_is
from voxelocity.monai.fingerprint import fingerprint, source_facts
from voxelocity.monai.items.files import ABSENT, ItemFiles
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.sources import FolderFacts
from voxelocity_observe import __version__
from voxelocity_observe.core.errors import ConfigError

_FORMAT = 1
"""Incremented when the meaning of a file changes; older files are then ignored."""
_Transforms = Sequence[Callable[..., Any]] | Callable[..., Any]


class PersistentDataset(Dataset, MonaiPersistentDataset):  # type: ignore[misc]
    """MONAI's `PersistentDataset`, with MONAI's arguments: the fixed part of the chain runs once per item and folder.

    The name of a file is made of everything that determines its content: `hash_func` of the item, path, size, times and
    inode of every file that the item names, the fingerprint of the fixed part of the chain, `hash_transform` of it, and
    the options. A change of any of these gives another file; nothing stale is loaded. The chain is read when the data
    set is made, at `set_data`, and when `transform` is replaced; a folder that an item names is read again when a file
    is added or removed.

    If a chain cannot be fingerprinted (reported once, with the reason), its items are kept for this data set only: its
    files are removed when the data set goes.

    Several threads and processes may use one folder: a file appears whole, and one of them makes each item. A damaged
    file is reported and made again; a full disk is reported once, and the items are then prepared whenever they are
    needed.

    Items come as MONAI loads them, even the first time: tensors for arrays, `MetaTensor` with `track_meta=True`. Their
    memory is mapped copy-on-write: a change affects only the copy that was changed.

    Raises:
        ConfigError: `cache_dir` is a file.
        OutputError: `cache_dir` cannot be made.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: _Transforms,
        cache_dir: Path | str | None,
        hash_func: Callable[..., bytes] = pickle_hashing,
        pickle_module: str = "pickle",
        pickle_protocol: int = DEFAULT_PROTOCOL,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
        track_meta: bool = False,
        weights_only: bool = True,
    ) -> None:
        if cache_dir is not None and Path(cache_dir).exists() and not Path(cache_dir).is_dir():
            raise ConfigError(f"monai.PersistentDataset: cache_dir {cache_dir} is a file; give a folder")
        # `ItemFiles` makes the folder, and says what is wrong if it cannot.
        MonaiPersistentDataset.__init__(
            self,
            data=data,
            transform=transform,
            cache_dir=None,
            hash_func=hash_func,
            pickle_module=pickle_module,
            pickle_protocol=pickle_protocol,
            hash_transform=hash_transform,
            reset_ops_id=reset_ops_id,
            track_meta=track_meta,
            weights_only=weights_only,
        )
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._files: ItemFiles | None = None
        if self.cache_dir is not None:
            self._files = ItemFiles(
                self.cache_dir,
                weights_only=weights_only,
                pickle_module=pickle_module,
                pickle_protocol=pickle_protocol,
            )
        self._has_warned_of_doubts = False
        self._folders = FolderFacts()
        self._read_chain()

    @property
    def transform(self) -> Compose:
        """The chain. A replacement is read when it is set."""
        return self.__dict__["transform"]

    @transform.setter
    def transform(self, transform: Compose) -> None:
        self.__dict__["transform"] = transform
        self._chain_digest = ""

    def set_data(self, data: Sequence[Any]) -> None:
        """Takes other items and removes the files of this class from the folder; files of others stay."""
        self.data = data
        self._folders = FolderFacts()
        if self._files is not None:
            self._files.clear()
        self._read_chain()

    def _fixed_content(self) -> list[Any]:
        return self._data_chain().fixed_content()

    def _read_chain(self) -> None:
        """Sets the part of file names that identifies the chain."""
        own = type(self)._pre_transform
        # A subclass may have overridden the preparation.
        changed = [] if own.__module__.startswith("voxelocity.") else [own]
        found = fingerprint([*self._fixed_content(), *changed])
        # Set once, so that no other thread names a doubtful entry without it.
        self._salt = f"-once-{secrets.token_hex(8)}" if found.doubts else ""
        if found.doubts:
            self._forget_at_end()
        if found.doubts and self._files is not None and not self._has_warned_of_doubts:
            self._has_warned_of_doubts = True
            warnings.warn(
                f"{type(self).__name__}: prepared items are kept for this run only, because another run could not "
                f"check whether they are still valid: {'; '.join(found.doubts)}. Use only functions and plain values "
                "in the chain",
                stacklevel=2,
            )
        self._chain_digest = found.digest

    def _forget_at_end(self) -> None:
        if self._files is not None:
            weakref.finalize(self, _forget, self._files, self._salt, os.getpid())

    def _key(self, item: Any) -> str:
        """The name of the item's entry, in characters that a file name may have."""
        if self._chain_digest == "":
            self._read_chain()
        parts = [
            [_FORMAT, __version__],
            self.hash_func(item).hex(),
            source_facts(item, self._folders),
            self._chain_digest,
            self.transform_hash,
            [self.reset_ops_id, self.track_meta, get_track_meta()],
        ]
        return f"{digest(json.dumps(parts)).hex()}{self._salt}"

    def defer(self, index: int) -> Any:
        """As `Dataset.defer`, from the item's file if there is one."""
        return self._defer(self._cachecheck(self.data[index]))

    def _transform(self, index: int) -> Any:
        return self._post_transform(self._cachecheck(self.data[index]))

    def _pre_transform(self, item_transformed: Any) -> Any:
        prepared = self._data_chain().fixed(item_transformed)
        if self.reset_ops_id:
            reset_ops_id(prepared)
        return prepared

    def _post_transform(self, item_transformed: Any) -> Any:
        return self.make(self._defer(item_transformed))

    def _defer(self, prepared: Any) -> Any:
        # It was read for this call only.
        return self._data_chain().defer(prepared, private=as_it_is)

    def _cachecheck(self, item_transformed: Any) -> Any:
        """The item after the fixed part of the chain, from its file if there is one."""
        if self._files is None:
            return self._pre_transform(deep_copy(item_transformed))
        key = self._key(item_transformed)
        with self._files.entry(key) as found:
            if found is ABSENT:
                prepared = self._pre_transform(deep_copy(item_transformed))
                found = convert_to_tensor(prepared, convert_numeric=False, track_meta=self.track_meta)
                self._files.save(key, found)
        return found


class CacheNTransDataset(PersistentDataset, MonaiCacheNTransDataset):  # type: ignore[misc]
    """MONAI's `CacheNTransDataset`: a `PersistentDataset` that keeps the result of the first N transforms, random too.

    Raises:
        ConfigError: `cache_n_trans` is negative or more than there are transforms.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: _Transforms,
        cache_n_trans: int,
        cache_dir: Path | str | None,
        hash_func: Callable[..., bytes] = pickle_hashing,
        pickle_module: str = "pickle",
        pickle_protocol: int = DEFAULT_PROTOCOL,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
    ) -> None:
        self.cache_n_trans = cache_n_trans
        PersistentDataset.__init__(
            self,
            data=data,
            transform=transform,
            cache_dir=cache_dir,
            hash_func=hash_func,
            pickle_module=pickle_module,
            pickle_protocol=pickle_protocol,
            hash_transform=hash_transform,
            reset_ops_id=reset_ops_id,
        )

    def _fixed_content(self) -> list[Any]:
        num = len(self.transform.transforms)
        if not 0 <= self.cache_n_trans <= num:
            raise ConfigError(
                f"monai.CacheNTransDataset: cache_n_trans = {self.cache_n_trans} is not valid for {num} transforms; "
                f"give 0 to {num}"
            )
        return self._data_chain().fixed_content(end=self.cache_n_trans)

    def _pre_transform(self, item_transformed: Any) -> Any:
        prepared = self._data_chain().fixed(item_transformed, end=self.cache_n_trans)
        reset_ops_id(prepared)
        return prepared

    def _defer(self, prepared: Any) -> Any:
        return self._data_chain().defer(prepared, start=self.cache_n_trans, private=as_it_is)


def _forget(files: ItemFiles, salt: str, pid: int) -> None:
    """Removes the entries of a data set that is gone, in the process that made it and not in those forked from it."""
    if os.getpid() == pid:
        files.clear(lambda key: key.endswith(salt))
