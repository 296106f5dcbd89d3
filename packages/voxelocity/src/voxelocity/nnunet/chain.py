"""nnU-Net's chain of transforms, translated: its own objects draw the numbers, and our engine applies them in one pass.

Nothing is taken over from a table of published numbers: whatever trainer built the chain, with whatever settings, its
transforms are asked for their parameters in their order, so that the distributions are theirs. From the first
transform on that the engine has no counterpart for, nnU-Net's own code does the rest, sample by sample.

Source: batchgeneratorsv2, which nnU-Net v2 trains with (Isensee et al., 10.5281/zenodo.3632567).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from voxelocity.core.region import Index3, Region
from voxelocity.data.augment import AugmentParams, needed_boxes
from voxelocity.nnunet.targets import LABEL_BEYOND, ChainEnd, Transform, name_of, take_end

# Theirs that need no other tensors than those of the sample.
_ON_ANY_DEVICE = ("MaskImageTransform", "RemoveLabelTransform", "DownsampleSegForDSTransform")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sample of a batch, while its parameters are drawn.

    Attributes:
        params: of the batch.
        number: of the sample in it.
        is_flat: whether nnU-Net sees patches (y, z), which the engine takes as (1, y, z).
    """

    params: AugmentParams
    number: int
    is_flat: bool

    def axes(self, values: Sequence[float]) -> list[float]:
        """Values of nnU-Net's axes on (x, y, z); those of x are 0 where it has none."""
        return [*([0.0] * self.is_flat), *values]


Fill = Callable[[Mapping[str, Any], Row], None]


def _fill_channels(name: str, key: str) -> Fill:
    """Sets a parameter of the channels that were chosen; there is none if none was."""

    def fill(drawn: Mapping[str, Any], row: Row) -> None:
        if drawn[key] is not None:
            getattr(row.params, name)[row.number, drawn["apply_to_channel"].numpy()] = drawn[key].numpy()

    return fill


def _fill_noise(drawn: Mapping[str, Any], row: Row) -> None:
    row.params.noise_std[row.number] = drawn["sigmas"] or 0.0
    row.params.noise_seed[row.number] = np.random.randint(2**31)


def _fill_blur(drawn: Mapping[str, Any], row: Row) -> None:
    channels = np.flatnonzero(drawn["apply_to_channel"].numpy())
    for channel, sigmas in zip(channels, drawn["sigmas"], strict=True):
        row.params.blur_sigma_voxel[row.number, channel] = row.axes(sigmas)


def _fill_low_resolution(drawn: Mapping[str, Any], row: Row) -> None:
    # The last axis is never left out.
    for channel, scales in zip(drawn["apply_to_channel"], drawn["scales"], strict=True):
        row.params.low_resolution[row.number, channel] = scales[-1]


def _fill_flips(drawn: Mapping[str, Any], row: Row) -> None:
    row.params.flips[row.number, [axis + row.is_flat for axis in drawn["axes"]]] = True


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A transform of batchgeneratorsv2 that the engine has a step for.

    Attributes:
        name: of its class.
        stage: of the engine's steps, which follow each other in one order.
        is_like: whether an object with these attributes does what the engine does.
        fill: sets the sample's parameters to what the object drew.
    """

    name: str
    stage: int
    is_like: Callable[[Transform], bool] = lambda transform: True
    fill: Fill


_KINDS = (
    _Kind(name="GaussianNoiseTransform", stage=1, fill=_fill_noise,
          is_like=lambda transform: transform.synchronize_channels and transform.p_per_channel >= 1.0),
    _Kind(name="GaussianBlurTransform", stage=2, fill=_fill_blur,
          is_like=lambda transform: not transform.synchronize_channels),
    _Kind(name="MultiplicativeBrightnessTransform", stage=3, fill=_fill_channels("scale", "multipliers")),
    _Kind(name="ContrastTransform", stage=4, fill=_fill_channels("contrast", "multipliers"),
          is_like=lambda transform: transform.preserve_range),
    _Kind(name="SimulateLowResolutionTransform", stage=5, fill=_fill_low_resolution,
          is_like=lambda transform: transform.synchronize_axes and _ignored_axes(transform) in ((), (0,))),
    _Kind(name="GammaTransform", stage=6, fill=_fill_channels("gamma_inverted", "gamma"),
          is_like=lambda transform: transform.p_invert_image >= 1.0 and transform.p_retain_stats >= 1.0),
    _Kind(name="GammaTransform", stage=7, fill=_fill_channels("gamma", "gamma"),
          is_like=lambda transform: transform.p_invert_image <= 0.0 and transform.p_retain_stats >= 1.0),
    # Last in nnU-Net's chain and first in the engine: what lies between treats both directions of an axis alike.
    _Kind(name="MirrorTransform", stage=8, fill=_fill_flips),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A transform, its counterpart, and how often it is made."""

    transform: Transform
    kind: _Kind
    chance: Transform | None

    def draw(self, placeholder: torch.Tensor, row: Row) -> None:
        """Sets the sample's parameters, by the random numbers that nnU-Net itself would take."""
        if self.chance is None or self.chance.get_parameters()["apply_transform"]:
            self.kind.fill(self.transform.get_parameters(image=placeholder), row)


def _ignored_axes(transform: Transform) -> tuple[int, ...]:
    return tuple(transform.ignore_axes or ())


class NnunetChain:
    """A chain of batchgeneratorsv2 for patches of one shape.

    Args:
        transforms: nnU-Net's, in order.
        crop: (x, y, z) of the box that nnU-Net cuts from a volume for a sample.
        patch: (x, y, z) of what the network gets.
        is_flat: whether x is an axis of one voxel that nnU-Net's transforms do not see.

    Attributes:
        end: what follows all that is drawn, made for a batch at once.
        rest: transforms left to nnU-Net, in order, sample by sample.
    """

    def __init__(self, transforms: Sequence[Transform], *, crop: Index3, patch: Index3, is_flat: bool) -> None:
        self._crop, self._patch, self._is_flat = crop, patch, is_flat
        left = list(transforms)
        self._warp, self._warps_planes = _take_warp(left, patch[1:] if is_flat else patch)
        self._steps: list[_Step] = []
        self.end = ChainEnd()
        if self._warp is not None or crop == patch:
            self._steps = _take_steps(left)
            self.end = take_end(left, patch)
        self.rest = left

    @property
    def can_finish_on_device(self) -> bool:
        """Whether what is left to nnU-Net is plain torch, which runs wherever the sample is."""
        return all(name_of(transform) in _ON_ANY_DEVICE for transform in self.rest)

    @property
    def region(self) -> Region:
        """Where the patch lies in the crop when nothing moves it."""
        start = [side // 2 - wanted // 2 for side, wanted in zip(self._crop, self.shape, strict=True)]
        x, y, z = start
        a, b, c = self.shape
        return Region((x, y, z), (x + a, y + b, z + c))

    @property
    def shape(self) -> Index3:
        """(x, y, z) of what the engine makes: the patch, or the crop where nnU-Net's own code takes it from there."""
        return self._patch if self._warp is not None else self._crop

    def unchanged(self, num_samples: int, num_channels: int) -> AugmentParams:
        """Parameters that change nothing, to be drawn into."""
        ignored = [_ignored_axes(step.transform) for step in self._steps if step.kind.fill is _fill_low_resolution]
        # The first axis of nnU-Net's transforms is y where patches are flat.
        first_is_coarse = not self._is_flat and (0,) not in ignored
        second_is_coarse = not (self._is_flat and (0,) in ignored)
        return AugmentParams.identity(
            num_samples, num_channels, votes=True, coarse_axes=(first_is_coarse, second_is_coarse, True)
        )

    def draw(self, params: AugmentParams, number: int) -> None:
        """Sets the parameters of a sample, from numpy's and torch's global generators, as nnU-Net does."""
        row = Row(params=params, number=number, is_flat=self._is_flat)
        if self._warp is not None:
            self._draw_warp(self._warp, row)
        placeholder = self._placeholder(params.num_channels, self.shape)
        for step in self._steps:
            step.draw(placeholder, row)

    def needed(self, params: AugmentParams) -> list[Region]:
        """The part of its crop that each sample needs."""
        return needed_boxes(params, [self.region] * params.num_samples, [self._crop] * params.num_samples)

    def finish(self, image: torch.Tensor, stored: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What nnU-Net's loader returns as "data" and "target" of a batch.

        Args:
            image: (b, c, x, y, z) float32, as the engine made it; it may be changed.
            stored: (b, k, x, y, z) uint8, nnU-Net's labels plus 1; it may be changed.
        """
        self.end.mask(image, stored)
        targets = self.end.targets(stored)
        if self._is_flat:
            image, targets = image[:, :, 0], [target[:, :, 0] for target in targets]
        if self.rest:
            return self._finish_samples(image, targets[0])
        return image, targets[0] if self.end.scales is None else targets

    def _finish_samples(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The same by nnU-Net's own code for the rest of the chain."""
        samples: list[dict[str, Any]] = []
        for own_image, own_label in zip(image, label, strict=True):
            sample: dict[str, Any] = {"image": own_image, "segmentation": own_label}
            for transform in self.rest:
                sample = transform(**sample)
            samples.append(sample)
        # Mostly it has left the images where they were made.
        if not all(sample["image"].is_set_to(own) for sample, own in zip(samples, image, strict=True)):
            image = torch.stack([sample["image"] for sample in samples])
        targets = [sample["segmentation"] for sample in samples]
        if isinstance(targets[0], list):
            return image, [torch.stack(scale) for scale in zip(*targets, strict=True)]
        return image, torch.stack(targets)

    def _placeholder(self, num_channels: int, shape: Index3) -> torch.Tensor:
        """What transforms read shapes from; takes no memory."""
        sides = shape[1:] if self._is_flat else shape
        return torch.zeros(()).expand(num_channels, *sides)

    def _draw_warp(self, warp: Transform, row: Row) -> None:
        image = self._placeholder(row.params.num_channels, self._crop)
        if self._warps_planes:
            image = image.flatten(0, 1)
        affine = warp.get_parameters(image=image)["affine"]
        if affine is None:
            return
        matrix = np.eye(3)
        matrix[3 - len(affine) :, 3 - len(affine) :] = affine
        row.params.is_warped[row.number], row.params.matrix[row.number] = True, matrix
        # nnU-Net turns patches about the middle of the crop, which lies half a voxel beside that of a whole region.
        region = self.region
        middle = [(side - 1) / 2 for side in self._crop]
        own = [(start + stop - 1) / 2 for start, stop in zip(region.start, region.stop, strict=True)]
        moved = [there - here for there, here in zip(middle, own, strict=True)]
        if self._warps_planes:
            moved[0] = 0.0
        row.params.offset_voxel[row.number] = moved


def _take_warp(left: list[Transform], patch: Sequence[int]) -> tuple[Transform | None, bool]:
    """The spatial transform that begins the list, taken from it, and whether it acts on planes of a volume.

    A copy for patches of one voxel: it draws the same numbers and computes the places of no voxels.
    """
    names = [name_of(transform) for transform in left[:3]]
    in_planes = names == ["Convert3DTo2DTransform", "SpatialTransform", "Convert2DTo3DTransform"]
    if not in_planes and names[:1] != ["SpatialTransform"]:
        return None, False
    warp = left[1 if in_planes else 0]
    sides = tuple(patch[1:] if in_planes else patch)
    if not _is_like_ours(warp) or tuple(warp.patch_size) != sides:
        return None, False
    del left[: 3 if in_planes else 1]
    small = copy.copy(warp)
    small.patch_size, small._grid_cache = (1,) * len(sides), {}
    return small, in_planes


def _is_like_ours(warp: Transform) -> bool:
    """Whether places, interpolation and what lies beyond the volume are those of the engine."""
    image_beyond = 0.0 if warp.padding_mode_image == "zeros" else warp.padding_value_image
    return bool(
        warp.p_elastic_deform == 0
        and not warp.random_crop
        and warp.mode_image == "bilinear"
        and warp.mode_seg == "bilinear"
        and warp.padding_mode_image in ("zeros", "constant")
        and math.isclose(image_beyond, 0.0)
        and warp.border_mode_seg == "constant"
        and warp.padding_value_seg == LABEL_BEYOND
        and not warp.align_corners
    )


def _take_steps(left: list[Transform]) -> list[_Step]:
    """The steps that the engine can make in this order, taken from the beginning of the list."""
    steps: list[_Step] = []
    while left:
        chance = left[0] if name_of(left[0]) == "RandomTransform" else None
        transform = left[0] if chance is None else chance.transform
        stage = steps[-1].kind.stage if steps else 0
        kinds = (kind for kind in _KINDS if kind.name == name_of(transform) and kind.stage > stage)
        kind = next((kind for kind in kinds if kind.is_like(transform)), None)
        if kind is None:
            break
        steps.append(_Step(transform=transform, kind=kind, chance=chance))
        del left[0]
    return steps
