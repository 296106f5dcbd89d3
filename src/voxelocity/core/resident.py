"""Voxels that stay in a device's memory, and where they are in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from voxelocity.core.region import Index3, Region

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ResidentBox:
    """The stored voxels of a box of a volume, as part of one flat block of device memory.

    Offsets and steps count elements: those of the image in `dtype`, those of the label in bytes.

    Attributes:
        memory: (n,) uint8 on the device, n a multiple of 16. It is not written while a reference to this box exists.
        dtype: NumPy's name for the dtype of the image.
        shape: of the box.
        image_offset: of voxel (0, 0, 0) of channel 0.
        image_steps: between neighbors along (c, x, y, z).
        label_offset: of voxel (0, 0, 0).
        label_steps: along (x, y, z).
    """

    memory: torch.Tensor
    dtype: str
    shape: Index3
    image_offset: int
    image_steps: tuple[int, int, int, int]
    label_offset: int
    label_steps: Index3


@runtime_checkable
class ResidentVolume(Protocol):
    """A stored volume in a device's memory."""

    def locate(self, region: Region) -> ResidentBox:
        """Where the stored voxels of a box inside the volume are."""
        ...
