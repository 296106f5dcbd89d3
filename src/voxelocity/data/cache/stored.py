"""A kept entry as the volume that readers see: views of mapped bytes, else decoded or copied boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxelocity.core.errors import CacheError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec
from voxelocity.data.cache.chunked import UndecodableError, decode, decode_file
from voxelocity.data.cache.entry import Content, DamagedEntryError, Header
from voxelocity.data.cache.mapping import FileBytes

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


@dataclass(frozen=True, kw_only=True)
class EntryVolume:
    """A `StoredVolume` that decodes or copies each box on read. Safe to use from several threads.

    Attributes:
        case_id: the case these voxels belong to.
        header: all of the entry except its arrays.
        foreground: its foreground indices.
        read_box: the stored voxels of a box, as fresh arrays. It raises DamagedEntryError or UndecodableError if they
            are damaged, OSError if they cannot be read, CacheError if the entry is gone.
        on_damage: called when a read finds damaged voxels, so that the entry is made again.
    """

    case_id: str
    header: Header
    foreground: Mapping[int, Array]
    read_box: ReadBox
    on_damage: Callable[[], None]

    @property
    def grid(self) -> Grid:
        return self.header.spec.grid

    @property
    def spec(self) -> VolumeSpec:
        return self.header.spec

    @property
    def scaling(self) -> tuple[Scaling, ...]:
        return self.header.scaling

    @property
    def trace(self) -> tuple[Mapping[str, Any], ...]:
        return self.header.trace

    @property
    def num_bytes(self) -> int:
        """Bytes of the entry as it is kept."""
        return self.header.num_bytes

    def renamed(self, case_id: str) -> EntryVolume:
        """The same voxels under another case id."""
        return replace(self, case_id=case_id)

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume, as fresh arrays; only the chunks it touches are decoded.

        Raises:
            CacheError: the voxels are damaged, and the entry was dropped; or it cannot be read any more.
        """
        try:
            return self.read_box(region)
        except (UndecodableError, DamagedEntryError) as error:
            self.on_damage()
            raise CacheError(
                f"cache.entry: the entry of case '{self.case_id}' is damaged and was dropped ({error}); it is made "
                "again when the case is taken"
            ) from error
        except OSError as error:
            raise CacheError(
                f"cache.entry: the entry of case '{self.case_id}' cannot be read ({error}); it is made again when the "
                "case is taken"
            ) from error

    def load(self) -> Volume:
        """The whole volume in its own memory.

        Raises:
            CacheError: as `read`.
        """
        image, label = self.read(Region.whole(self.grid.shape))
        return Volume(
            case_id=self.case_id,
            image=image,
            label=label,
            grid=self.grid,
            scaling=self.scaling,
            trace=self.trace,
            foreground=self.foreground,
        )


def read_box(header: Header, content: Content, region: Region) -> tuple[Array, Array | None]:
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
    name: str, header: Header, content: Content, start: tuple[int, ...], stop: tuple[int, ...], dtype: str
) -> Array:
    if header.format == "blosc2":
        if isinstance(content, FileBytes):
            return decode_file(content.path, header.place(name)[0], start, stop, dtype)
        return decode(content[slice(*header.place(name))], start, stop, dtype)
    if isinstance(content, FileBytes):
        return _gathered(content, header.place(name)[0], header.table[name]["shape"], start, stop, dtype)
    box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
    return np.array(header.tensor(name, content)[box], order="C")


def _gathered(
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
    places = []
    for index in np.ndindex(*num_outer):
        plane = np.ravel_multi_index([a + i for a, i in zip(start, index, strict=False)], shape[:-2])
        place = first + ((int(plane) * ny + start[-2]) * nz + start[-1]) * itemsize
        places.append((place, place + num_between * itemsize))
    for index, piece in zip(np.ndindex(*num_outer), content.pieces(places), strict=True):
        box[index] = np.ndarray((num_y, num_z), dtype, piece, strides=(nz * itemsize, itemsize))
    return box
