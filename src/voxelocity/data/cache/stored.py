"""A kept entry as the volume that readers see: views of bytes that stay, decoded or copied boxes of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxelocity.core.errors import CacheError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec
from voxelocity.data.cache.chunked import UndecodableError, decode
from voxelocity.data.cache.entry import DamagedEntryError, Header

Borrow = Callable[[], AbstractContextManager[tuple[Header, memoryview]]]


def mapped_volume(header: Header, content: memoryview) -> Volume:
    """The volume of a "raw" entry, its arrays read-only views of bytes that stay where they are."""
    tensors = header.tensors(content)
    return Volume(
        case_id=header.case_id,
        image=tensors["image"],
        label=tensors.get("label"),
        grid=header.spec.grid,
        scaling=header.scaling,
        trace=header.trace,
        foreground=header.foreground(tensors),
    )


@dataclass(frozen=True, kw_only=True)
class EntryVolume:
    """A `StoredVolume` that decodes or copies what is read of it, from several threads at once.

    Attributes:
        case_id: the case these voxels belong to.
        header: all of the entry but its arrays.
        foreground: its foreground indices.
        borrow: gives the entry's bytes, and the header they have now, for the time of a block.
        on_damage: called when a read finds them damaged, so that the entry is made again.
    """

    case_id: str
    header: Header
    foreground: Mapping[int, Array]
    borrow: Borrow
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
            CacheError: the voxels are damaged, and the entry was dropped; or it was removed meanwhile.
        """
        try:
            with self.borrow() as (header, content):
                return _read_box(header, content, region)
        except (UndecodableError, DamagedEntryError) as error:
            self.on_damage()
            raise CacheError(
                f"cache.entry: the entry of case '{self.case_id}' is damaged and was dropped ({error}); it is made "
                "anew when the case is taken again"
            ) from error

    def load(self) -> Volume:
        """All of it in memory of its own.

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


def _read_box(header: Header, content: memoryview, region: Region) -> tuple[Array, Array | None]:
    tensors = header.tensors(content)
    label = tensors.get("label")
    if header.format == "raw":
        box = (..., *region.slices)
        return np.array(tensors["image"][box], order="C"), None if label is None else np.array(label[box], order="C")
    image = decode(
        tensors["image"].data, (0, *region.start), (header.spec.num_channels, *region.stop), header.spec.dtype
    )
    if label is None or header.label_dtype is None:
        return image, None
    return image, decode(label.data, region.start, region.stop, header.label_dtype)
