"""A kept entry as the volume that readers see, and what all tiers that keep entries as files have in common."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec
from voxelocity.data.cache.chunked import UndecodableError, decode, decode_file
from voxelocity.data.cache.entry import (
    DamagedEntryError,
    EntryBytes,
    Format,
    Header,
    check_arrays,
    checked_key,
    pack,
    read_header,
)
from voxelocity.data.cache.entry_files import FileBytes
from voxelocity.data.cache.locks import KeyLocks, folder_error
from voxelocity_observe.core.errors import CacheError
from voxelocity_observe.core.warn_once import Warn, WarnOnce

ReadBox = Callable[[Region], tuple[Array, Array | None]]


def mapped_volume(header: Header, content: memoryview) -> Volume:
    """The volume of a "raw" entry, its arrays read-only views of bytes that stay where they are."""
    return Volume(
        case_id=header.case_id,
        image=header.tensor("image", content),
        label=header.tensor("label", content) if "label" in header.table else None,
        grid=header.spec.grid,
        scaling=header.scaling,
        trace=header.trace,
        foreground=header.foreground(content),
    )


@dataclass(kw_only=True, eq=False)
class EntryVolume:
    """A `StoredVolume` that decodes or copies each box on read; a fresh one for each `get`. Safe to use from threads.

    Its entry may be damaged, or removed by another process, while it is in use.

    Attributes:
        case_id: the case these voxels belong to.
        num_bytes: of the entry as it is kept.
        foreground: its foreground indices.
        read_box: the stored voxels of a box, as fresh arrays. It raises DamagedEntryError or UndecodableError if they
            are damaged, OSError if they cannot be read, CacheError if the entry is gone.
        on_damage: called when a read finds damaged voxels, so that the entry is made again.
        renew: gives the same volume in memory from the error that a read raised; without it the error is raised. The
            owner of the cache sets it.
    """

    case_id: str
    spec: VolumeSpec
    scaling: tuple[Scaling, ...]
    trace: tuple[Mapping[str, Any], ...]
    num_bytes: int
    foreground: Mapping[int, Array]
    read_box: ReadBox
    on_damage: Callable[[], None]
    renew: Callable[[CacheError], Volume] | None = None

    @property
    def grid(self) -> Grid:
        return self.spec.grid

    def renamed(self, case_id: str) -> EntryVolume:
        return self if case_id == self.case_id else replace(self, case_id=case_id)

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume, as fresh arrays; only the chunks it touches are decoded.

        Raises:
            CacheError: the voxels are damaged, and the entry was dropped; or it cannot be read any more.
        """
        try:
            return self._read(region)
        except CacheError as error:
            if self.renew is None:
                raise
            return self.renew(error).read(region)

    def load(self) -> Volume:
        """The whole volume in its own memory.

        Raises:
            CacheError: as `read`.
        """
        try:
            image, label = self._read(Region.whole(self.grid.shape))
        except CacheError as error:
            if self.renew is None:
                raise
            return self.renew(error).renamed(self.case_id)
        return Volume(
            case_id=self.case_id,
            image=image,
            label=label,
            grid=self.grid,
            scaling=self.scaling,
            trace=self.trace,
            foreground=self.foreground,
        )

    def _read(self, region: Region) -> tuple[Array, Array | None]:
        try:
            return self.read_box(region)
        except (UndecodableError, DamagedEntryError) as error:
            self.on_damage()
            raise CacheError(
                f"cache.entry: the entry of case '{self.case_id}' is damaged and was dropped ({error}); it is "
                "prepared again when the case is used"
            ) from error
        except OSError as error:
            raise CacheError(
                f"cache.entry: the entry of case '{self.case_id}' cannot be read ({error}); it is prepared again "
                "when the case is used"
            ) from error


class Store(Protocol):
    """Bytes by key on a disk, whatever they mean. Safe to use from several threads and processes at once."""

    def keys(self) -> list[str]:
        """All keys."""
        ...

    def reading(self, key: str) -> AbstractContextManager[EntryBytes | None]:
        """Within the block, the bytes under this key, or None."""
        ...

    def write(self, key: str, parts: Sequence[memoryview]) -> None:
        """Puts these bytes under the key; they are there as a whole, and survive a loss of power, or not at all."""
        ...

    def drop(self, key: str) -> None:
        """Removes what is under this key, if anything is."""
        ...


StoreT = TypeVar("StoreT", bound=Store, covariant=True)


class EntryTier(ABC, Generic[StoreT]):
    """A tier whose entries are bytes in a folder on a disk. Safe to use from several threads and processes at once.

    An entry is checked when this tier first opens it, and dropped if it is damaged. See `DiskTier` and `LmdbTier`.
    """

    _name: ClassVar[str]
    """In messages."""

    def __init__(self, folder: Path, *, format: Format, num_lock_files: int, warn: Warn | None) -> None:
        self._folder = Path(folder).absolute()
        self._format = format
        self._checked: set[str] = set()
        self._warn = WarnOnce(warn)
        try:
            self._locks = KeyLocks(self._folder, num_files=num_lock_files, warn=warn)
            self._store = self._open_store()
        except OSError as error:
            raise folder_error(self._name, self._folder, error) from error

    def get(self, key: str) -> StoredVolume | None:
        """As `Tier.get`; the length and the header are checked each time, every byte at the first.

        Raises:
            CacheError: it is there and cannot be read.
        """
        try:
            with self._store.reading(checked_key(key)) as content:
                if content is None:
                    return None
                header = read_header(key, content)
                self._note_use(key)
                if key not in self._checked:
                    check_arrays(header, content, full=True)
                    self._checked.add(key)
                return self._volume(key, header, content)
        except DamagedEntryError as error:
            self._drop_damaged(key)
            self._warn(
                "damaged",
                f"{self._name}: {self._entry_text(key)} is damaged: {error}; it was removed and is prepared again; "
                "`voxelocity cache verify --full` finds others",
            )
            return None

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume; it survives a loss of power once this returns.

        In the format "raw" an array that is not in C order is copied for the duration of the call. Errors are those of
        `Tier.put`.
        """
        checked_key(key)
        parts = pack(key, volume, format=self._format)
        self._write(key, parts, sum(len(part) for part in parts), volume.case_id)

    def drop(self, key: str) -> None:
        """Removes this entry if there is one, damaged or not."""
        self._checked.discard(key)
        self._store.drop(checked_key(key))

    def keys(self) -> list[str]:
        return self._store.keys()

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry.

        It saves double work and guards nothing else: reading and writing are safe without it. Where it is not available
        (a full disk, another user's folder, a file system without locks), the caller proceeds without it.
        """
        return self._locks.hold(checked_key(key))

    def _entry_volume(
        self, key: str, header: Header, foreground: Mapping[int, Array], read_box: ReadBox
    ) -> EntryVolume:
        return EntryVolume(
            case_id=header.case_id,
            spec=header.spec,
            scaling=header.scaling,
            trace=header.trace,
            num_bytes=header.num_bytes,
            foreground=foreground,
            read_box=read_box,
            on_damage=functools.partial(self._drop_damaged, key),
        )

    def _note_use(self, key: str) -> None:
        """Records that this process uses the entry, where entries are removed to make room for others."""

    def _drop_damaged(self, key: str) -> None:
        # Where we may only read, the damaged entry stays, but it is never served.
        self._checked.discard(key)
        with contextlib.suppress(OSError, CacheError):
            self._store.drop(key)

    @abstractmethod
    def _open_store(self) -> StoreT: ...

    @abstractmethod
    def _volume(self, key: str, header: Header, content: EntryBytes) -> StoredVolume: ...

    @abstractmethod
    def _write(self, key: str, parts: Sequence[memoryview], num_bytes: int, case_id: str) -> None: ...

    @abstractmethod
    def _entry_text(self, key: str) -> str: ...


def read_box(header: Header, content: EntryBytes, region: Region) -> tuple[Array, Array | None]:
    """The stored voxels of a box of the entry in these bytes: image (c, *shape) and label (*shape), if it has one.

    Raises:
        UndecodableError: they do not decode.
        OSError: they cannot be read.
    """
    num_channels = header.spec.num_channels
    image = _box_of("image", header, content, (0, *region.start), (num_channels, *region.stop), header.spec.dtype)
    if header.label_dtype is None:
        return image, None
    return image, _box_of("label", header, content, region.start, region.stop, header.label_dtype)


def _box_of(
    name: str, header: Header, content: EntryBytes, start: tuple[int, ...], stop: tuple[int, ...], dtype: str
) -> Array:
    if header.format == "blosc2":
        if isinstance(content, FileBytes):
            return decode_file(content.path, header.place(name)[0], start, stop, dtype)
        return decode(content[slice(*header.place(name))], start, stop, dtype)
    if isinstance(content, FileBytes):
        return _gather(content, header.place(name)[0], header.table[name]["shape"], start, stop, dtype)
    box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
    return np.array(header.tensor(name, content)[box], order="C")


def _gather(
    content: FileBytes, first: int, shape: tuple[int, ...], start: tuple[int, ...], stop: tuple[int, ...], dtype: str
) -> Array:
    """A box of an array in C order in a file: one read per plane (y, z), of the lines that the box touches."""
    ny, nz = shape[-2:]
    itemsize = np.dtype(dtype).itemsize
    box = np.empty([b - a for a, b in zip(start, stop, strict=True)], dtype)
    if box.size == 0:
        return box
    *num_outer, num_y, num_z = box.shape
    num_between = (num_y - 1) * nz + num_z
    ranges = []
    for index in np.ndindex(*num_outer):
        plane = np.ravel_multi_index([a + i for a, i in zip(start, index, strict=False)], shape[:-2])
        begin = first + ((int(plane) * ny + start[-2]) * nz + start[-1]) * itemsize
        ranges.append((begin, begin + num_between * itemsize))
    for index, piece in zip(np.ndindex(*num_outer), content.pieces(ranges), strict=True):
        box[index] = np.ndarray((num_y, num_z), dtype, piece, strides=(nz * itemsize, itemsize))
    return box
