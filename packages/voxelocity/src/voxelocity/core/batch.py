"""A batch of patches, and the record of where each came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.core.region import Region
from voxelocity.core.volume import Array

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One patch to be cut, as the key of its random numbers: the case, the pass, and the patch of that case."""

    case_id: str
    case: int
    epoch: int
    draw: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The numbers and the memory order of a batch's images.

    Attributes:
        dtype: torch's name.
        channels_last: whether they are in channels_last_3d, not in C order.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    channels_last: bool = False

    def empty(self, shape_bcxyz: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """Images of any content."""
        import torch

        order = torch.channels_last_3d if self.channels_last else torch.contiguous_format
        return torch.empty(shape_bcxyz, dtype=getattr(torch, self.dtype), device=device, memory_format=order)


PLAIN: Final = ImageFormat()
"""float32 in C order, which everything takes."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Patches stacked along the first axis.

    Attributes:
        image: (b, c, x, y, z) floating point.
        label: (b, x, y, z) class indices, uint8, or int32 of more than 256 classes.
        draws: b records, one per patch, in order.
        regions: b boxes on the prepared grids, where each patch was cut; they may reach beyond the volume.
        step: index of this batch in the run, from 0.
    """

    image: torch.Tensor
    label: torch.Tensor
    draws: tuple[Draw, ...]
    regions: tuple[Region, ...]
    step: int

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(draw.case_id for draw in self.draws)

    def with_(self, **changes: Any) -> Batch:
        """A copy with some fields replaced."""
        return replace(self, **changes)


def label_dtype(num_indices: int) -> torch.dtype:
    """How a batch keeps this many class indices: as uint8, or as int32, since torch computes little with uint16."""
    import torch

    return torch.uint8 if num_indices <= MAX_BYTE_CLASSES else torch.int32


def label_tensor(label: Array) -> torch.Tensor:
    """A copy of class indices of any integer type as a batch keeps them, in C order, in main memory."""
    import torch

    kept = np.uint8 if label.dtype == np.uint8 else np.int32
    return torch.from_numpy(np.array(label, dtype=kept, order="C"))
