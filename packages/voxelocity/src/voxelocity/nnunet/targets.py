"""The end of nnU-Net's chain for a whole batch at once: what masks remove, regions, the label of each scale.

The slow reference is nnU-Net's own code, sample by sample, which also makes every other end of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from voxelocity.core.region import Index3
from voxelocity.nnunet.cases import MOST_CLASSES

Transform = Any
"""An object of batchgeneratorsv2."""
_OWNER = "batchgeneratorsv2"
LABEL_BEYOND = -1
"""What nnU-Net's labels hold outside the volume, and outside the part of it that is not zero."""


@dataclass(frozen=True, kw_only=True)
class ChainEnd:
    """What becomes of a batch after all that is drawn. Its labels are stored: nnU-Net's plus 1, (b, k, x, y, z) uint8.

    Attributes:
        masked: channels that have the intensity `outside` where the label is -1.
        outside: that intensity.
        removes: whether -1 becomes 0.
        regions: the labels of each, if they become channels of their own.
        scales: (x, y, z) of the label of each scale of deep supervision, if there are several.
    """

    masked: tuple[int, ...] = ()
    outside: float = 0.0
    removes: bool = False
    regions: tuple[tuple[int, ...], ...] | None = None
    scales: tuple[Index3, ...] | None = None

    def mask(self, image: torch.Tensor, stored: torch.Tensor) -> None:
        """Changes the image (b, c, x, y, z) where the label is -1."""
        if self.masked:
            is_outside = stored[:, 0] == 0
            for channel in self.masked:
                image[:, channel].masked_fill_(is_outside, self.outside)

    def targets(self, stored: torch.Tensor) -> list[torch.Tensor]:
        """The label of each scale: (b, k, x, y, z) int16, or (b, regions, x, y, z) bool. Changes `stored`."""
        if self.removes:
            # In place, while they have one byte each.
            stored.clamp_min_(1).sub_(1)
        whole = tuple(stored.shape[2:])
        return [self._target(stored if scale == whole else picked(stored, scale)) for scale in self.scales or (whole,)]

    def _target(self, stored: torch.Tensor) -> torch.Tensor:
        above = 0 if self.removes else 1
        if self.regions is None:
            labels = stored.to(torch.int16, memory_format=torch.contiguous_format)
            return labels.sub_(above) if above else labels
        shape = (len(stored), len(self.regions), *stored.shape[2:])
        target = torch.empty(shape, dtype=torch.bool, device=stored.device)
        label = stored[:, 0]
        for region, (first, *others) in zip(target.unbind(1), self.regions, strict=True):
            # The first one is written where it belongs at once.
            torch.eq(label, first + above, out=region)
            for value in others:
                region.bitwise_or_(label == value + above)
        return target


def picked(label: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The label (..., x, y, z), a view, at equal steps: the voxels that "nearest-exact" takes.

    Args:
        label: of a patch whose sides are multiples of `shape`, as nnU-Net's patches are.
        shape: of the view, one length for each of its axes.
    """
    steps = [side // wanted for side, wanted in zip(label.shape[-len(shape) :], shape, strict=True)]
    assert [*label.shape[-len(shape) :]] == [step * wanted for step, wanted in zip(steps, shape, strict=True)]
    places: Any = (..., *(slice(step // 2, None, step) for step in steps))
    return label[places]


def take_end(left: list[Transform], shape: Index3) -> ChainEnd:
    """What the next transforms do, as far as they are known, taken from the list; regions and scales only at its end.

    Args:
        left: of a chain, from the first one on that draws nothing.
        shape: (x, y, z) of the patch; x is 1 if nnU-Net sees (y, z).
    """
    found: dict[str, Any] = {}
    if name_of_next(left) == "MaskImageTransform" and left[0].channel_idx_in_seg == 0:
        mask = left.pop(0)
        found |= {"masked": tuple(mask.apply_to_channels), "outside": float(mask.set_outside_to)}
    if _is_removal(left):
        del left[0]
        found["removes"] = True
    last, ends = left[:], dict(found)
    if name_of_next(last) == "ConvertSegmentationToRegionsTransform" and (regions := _regions_of(last[0])):
        del last[0]
        ends["regions"] = regions
    if name_of_next(last) == "DownsampleSegForDSTransform" and (scales := _scales_of(last[0], shape)):
        del last[0]
        ends["scales"] = scales
    if last:
        return ChainEnd(**found)
    left.clear()
    return ChainEnd(**ends)


def _is_removal(left: Sequence[Transform]) -> bool:
    """Whether the next one only makes 0 of -1, in all labels."""
    return (
        name_of_next(left) == "RemoveLabelTransform"
        and (left[0].label_value, left[0].set_to) == (LABEL_BEYOND, 0)
        and left[0].segmentation_channels is None
    )


def _regions_of(transform: Transform) -> tuple[tuple[int, ...], ...] | None:
    """The labels of each region; None if one has none, they are of another channel, or some cannot be stored."""
    regions = [[float(label) for label in labels] for labels in transform.regions]
    labels = {label for region in regions for label in region}
    are_stored = all(label in range(MOST_CLASSES + 1) for label in labels)
    if transform.channel_in_seg != 0 or not are_stored or not all(regions):
        return None
    return tuple(tuple(int(label) for label in region) for region in regions)


def _scales_of(transform: Transform, shape: Index3) -> tuple[Index3, ...] | None:
    """The shape of each scale; None if one does not divide the patch."""
    scales: list[Index3] = []
    for factors in transform.ds_scales:
        if not isinstance(factors, tuple | list):
            factors = [factors] * 3
        # As nnU-Net rounds; where it sees two axes, the first one here is 1.
        factors = [1] * (3 - len(factors)) + list(factors)
        x, y, z = (round(side * factor) for side, factor in zip(shape, factors, strict=True))
        scales.append((x, y, z))
    divide = all(part > 0 and side % part == 0 for scale in scales for side, part in zip(shape, scale, strict=True))
    return tuple(scales) if divide else None


def name_of(transform: Transform) -> str:
    """The class of a transform of batchgeneratorsv2; empty for one of anybody else, whatever its name."""
    kind = type(transform)
    return kind.__name__ if kind.__module__.partition(".")[0] == _OWNER else ""


def name_of_next(left: Sequence[Transform]) -> str:
    """The class of the first; empty if there is none."""
    return name_of(left[0]) if left else ""
