"""Prepared items as files of a folder, one each, in torch's own format. Knows no transforms.

A file appears whole or not at all. It is mapped when it is loaded, so a read touches only what it needs, and holds
plain data that `torch.load` takes with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from isal import isal_zlib
from monai.data.utils import SUPPORTED_PICKLE_MOD
from monai.utils import look_up_option

from voxelocity.data.cache import PassingLocks
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import remove_abandoned, whole_file, with_causes

ABSENT: Final = object()
"""What `load` returns if there is no entry."""
_NAME = re.compile(r"voxelocity-(?P<key>[0-9a-f]+(-once-[0-9a-f]+)?)\.(pt|ok)")
_MAX_TEMP_AGE_S = 86400.0
_LOCAL_HEADER_BYTES = 30
_READ_BYTES = 2**20
# Whatever a damaged file makes the reader of archives or of pickles raise; disk errors are not among these.
_DAMAGE = (
    RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile,
    EOFError, ValueError, LookupError, AttributeError, ImportError, TypeError,
)  # fmt: skip


class ItemFiles:
    """Items by key. Safe to use from several threads and processes at once.

    Args:
        folder: created if it is missing.
        weights_only: whether files that hold anything but plain data are refused.
        pickle_module: for what is not a tensor, by its name in `monai.data.utils.SUPPORTED_PICKLE_MOD`.
        pickle_protocol: for what is not a tensor.
        owner: whose folder it is, as messages name it, and `argument`, where it was given.

    Raises:
        OutputError: the folder cannot be created, or is not a folder.
    """

    # MONAI seeds whatever it finds in the attributes of a data set, and in theirs; it skips what has none.
    __slots__ = (
        "_folder",
        "_has_warned",
        "_locks",
        "_owner",
        "_pickle_module",
        "_pickle_protocol",
        "_verified",
        "_weights_only",
    )

    def __init__(
        self,
        folder: Path,
        *,
        weights_only: bool,
        pickle_module: str,
        pickle_protocol: int,
        owner: str = "PersistentDataset",
        argument: str = "cache_dir",
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._weights_only = weights_only
        self._pickle_module = pickle_module
        self._pickle_protocol = pickle_protocol
        self._has_warned = False
        self._verified: dict[str, str] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{owner}: {argument} {folder} cannot be used ({error.strerror}); give a writable folder"
            ) from error
        self._locks = PassingLocks(folder)
        # Another user's may stay.
        with contextlib.suppress(OSError):
            remove_abandoned(folder, names=("voxelocity-",), older_than_s=_MAX_TEMP_AGE_S)

    @contextlib.contextmanager
    def entry(self, key: str) -> Iterator[Any]:
        """The item, or `ABSENT` for the one thread of all processes that makes it; the others wait for its block."""
        found = self.load(key)
        if found is not ABSENT:
            yield found
            return
        with self._locks.hold(f"voxelocity-{key}"):
            # Another thread or process may have made it while this one waited.
            yield self.load(key) if self.path(key).exists() else ABSENT

    def path(self, key: str) -> Path:
        """Where the entry is, or would be."""
        return self._folder / f"voxelocity-{key}.pt"

    def load(self, key: str) -> Any:
        """The item, its tensors mapped from the file copy-on-write, or `ABSENT`. Warns of a damaged file and drops it.

        Raises:
            OSError: the file is there and cannot be opened.
        """
        path = self.path(key)
        try:
            self._verify(path)
            return torch.load(path, mmap=True, weights_only=self._weights_only)
        except FileNotFoundError:
            return ABSENT
        except _DAMAGE as error:
            refused = refused_class(error)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            if refused:
                why = f"it holds a {refused}; convert it in the chain, or set weights_only=False"
            warnings.warn(f"{self._owner}: {path} cannot be loaded ({why}); its item is prepared again", stacklevel=2)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return ABSENT

    def _verify(self, path: Path) -> None:
        """Raises ValueError for a file whose bytes are not those that were written.

        torch checks the checksums of what it reads, but not of what it maps. The file is read once: a small file next
        to it records, by inode, size and times, that it was whole, for later processes, which may be the workers of
        each epoch.
        """
        status = path.stat()
        seen = f"whole: {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
        if self._verified.get(path.name) == seen:
            return
        mark = path.with_suffix(".ok")
        if _text_of(mark) != seen:
            damaged = first_damaged(path)
            if damaged:
                raise ValueError(f"the checksum of {damaged} in it is wrong")
            # If the folder is not writable, each process reads the file once.
            with contextlib.suppress(OSError):
                mark.write_text(seen)
        self._verified[path.name] = seen

    def save(self, key: str, item: Any) -> None:
        """Writes the item, or warns once that it could not; the item is then prepared again when it is needed."""
        try:
            module = look_up_option(self._pickle_module, SUPPORTED_PICKLE_MOD)
            if module is pickle:
                module = _EnumsByValue
            with whole_file(self.path(key)) as file, with_causes(file) as watched:
                torch.save(item, watched, pickle_module=module, pickle_protocol=self._pickle_protocol)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._owner}: items cannot be written to {self._folder} ({error.strerror or error}); the "
                    "missing ones are prepared again in every epoch",
                    stacklevel=2,
                )

    def clear(self, is_meant: Callable[[str], bool] = lambda _key: True) -> None:
        """Removes entries, and nothing else in the folder. Mapped items stay valid."""
        with contextlib.suppress(FileNotFoundError):  # of the folder, which a user may have removed
            for path in self._folder.iterdir():
                found = _NAME.fullmatch(path.name)
                if found and is_meant(found["key"]):
                    with contextlib.suppress(OSError):
                        path.unlink()


class _EnumsByValue:
    """The module pickle for `torch.save`; Python before 3.11.4 pickles enums by getattr, which weights_only refuses."""

    __name__ = pickle.__name__

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


def _text_of(path: Path) -> str:
    """The text of the file; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def refused_class(error: Exception) -> str:
    """The class of an object that torch refused to load with `weights_only=True`; "" for another error."""
    found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    return found[1] if found else ""


def first_damaged(path: Path) -> str:
    """The name of the first record whose checksum is not the one that was written, or "".

    Reads the whole file, at the speed of memory. Skips records without a checksum, which torch can be set to leave out.

    Raises:
        FileNotFoundError: there is no such file.
        zipfile.BadZipFile: it is truncated, or not an archive.
    """
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for record in archive.infolist():
            file.seek(record.header_offset)
            header = file.read(_LOCAL_HEADER_BYTES)
            # The last four bytes: how long the name is, and the extra field after it.
            file.seek(int.from_bytes(header[-4:-2], "little") + int.from_bytes(header[-2:], "little"), os.SEEK_CUR)
            if record.CRC and _checksum(file, record.file_size) != record.CRC:
                return record.filename
    return ""


def _checksum(file: BinaryIO, num_bytes: int) -> int:
    found, num_left = 0, num_bytes
    while data := file.read(min(num_left, _READ_BYTES)):
        found = isal_zlib.crc32(data, found)
        num_left -= len(data)
    return found
