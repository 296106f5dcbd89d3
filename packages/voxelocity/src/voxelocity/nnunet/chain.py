"""nnU-Net's chain of transforms, translated: numbers are drawn as it draws them, and our engine makes one pass of them.

Nothing is taken over from a table of published numbers: whatever trainer built the chain, with whatever settings, its
transforms are asked in their order, for their parameters or what these are drawn from (`draws`). From the first
transform on that the engine has no counterpart for, nnU-Net's own code does the rest, sample by sample.

Source: batchgeneratorsv2, which nnU-Net v2 trains with (Isensee et al., 10.5281/zenodo.3632567).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxelocity.core.region import Index3, Region
from voxelocity.data.augment import AugmentParams, needed_boxes
from voxelocity.nnunet.draws import DRAWN, KINDS, WARP, ChainStep, Draw, PatchForm, ignored_axes
from voxelocity.nnunet.targets import LABEL_BEYOND, ChainEnd, Transform, name_of, take_end

# Theirs that need no other tensors than those of the sample.
_ON_ANY_DEVICE = ("MaskImageTransform", "RemoveLabelTransform", "DownsampleSegForDSTransform")


class NnunetChain:
    """A chain of batchgeneratorsv2 for patches of one shape.

    Args:
        transforms: nnU-Net's, in order.
        crop: (x, y, z) of the box that nnU-Net cuts from a volume for a sample.
        patch: (x, y, z) of what the network gets.
        is_flat: whether x is an axis of one voxel that nnU-Net's transforms do not see.
        asks_nnunet: whether every number is drawn by nnU-Net's own objects, which takes longer.

    Attributes:
        region: where the patch lies in the crop when nothing moves it.
        end: what follows all that is drawn, made for a batch at once.
        rest: transforms left to nnU-Net, in order, sample by sample.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        *,
        crop: Index3,
        patch: Index3,
        is_flat: bool,
        asks_nnunet: bool = False,
    ) -> None:
        self._crop, self._patch, self._is_flat, self._asks_nnunet = crop, patch, is_flat, asks_nnunet
        left = list(transforms)
        self._warp, self._warps_planes = _take_warp(left, patch[1:] if is_flat else patch)
        self._steps: list[ChainStep] = []
        self.end = ChainEnd()
        if self._warp is not None or crop == patch:
            self._steps = _take_steps(left)
            self.end = take_end(left, patch)
        self.rest = left
        self.region = self._middle()
        self._draws: dict[int, list[Draw]] = {}
        self._templates: dict[tuple[int, int], AugmentParams] = {}

    @property
    def can_finish_on_device(self) -> bool:
        """Whether what is left to nnU-Net is plain torch, which runs wherever the sample is."""
        return all(name_of(transform) in _ON_ANY_DEVICE for transform in self.rest)

    @property
    def shape(self) -> Index3:
        """(x, y, z) of what the engine makes: the patch, or the crop where nnU-Net's own code takes it from there."""
        return self._patch if self._warp is not None else self._crop

    def unchanged(self, num_samples: int, num_channels: int) -> AugmentParams:
        """Parameters that change nothing, to be drawn into."""
        sizes = num_samples, num_channels
        if sizes not in self._templates:
            self._templates[sizes] = self._template(*sizes)
        kept = vars(self._templates[sizes])
        # What no draw sets, all batches share.
        return AugmentParams(**(kept | {name: kept[name].copy() for name in DRAWN}))

    def draw(self, params: AugmentParams, number: int) -> None:
        """Sets the parameters of a sample, from numpy's and torch's global generators, as nnU-Net does."""
        num_channels = params.num_channels
        if num_channels not in self._draws:
            self._draws[num_channels] = self._open_draws(num_channels)
        for draw in self._draws[num_channels]:
            draw(params, number)

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

    def _template(self, num_samples: int, num_channels: int) -> AugmentParams:
        ignored = [ignored_axes(step.transform) for step in self._steps if hasattr(step.transform, "ignore_axes")]
        # The first axis of nnU-Net's transforms is y where patches are flat.
        first_is_coarse = not self._is_flat and (0,) not in ignored
        second_is_coarse = not (self._is_flat and (0,) in ignored)
        params = AugmentParams.identity(
            num_samples, num_channels, votes=True, coarse_axes=(first_is_coarse, second_is_coarse, True)
        )
        for value in vars(params).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return params

    def _open_draws(self, num_channels: int) -> list[Draw]:
        image = self._placeholder(num_channels, self.shape)
        draws = [step.draw_of(self._form(image)) for step in self._steps]
        if self._warp is not None:
            whole = self._placeholder(num_channels, self._crop)
            form = self._form(whole.flatten(0, 1) if self._warps_planes else whole)
            draws.insert(0, self._and_offset(WARP.draw_of(self._warp, form)))
        return draws

    def _form(self, image: torch.Tensor) -> PatchForm:
        return PatchForm(image=image, is_flat=self._is_flat, asks_nnunet=self._asks_nnunet)

    def _and_offset(self, draw_matrix: Draw) -> Draw:
        # nnU-Net turns patches about the middle of the crop, which lies half a voxel beside that of a whole region.
        middle = [(side - 1) / 2 for side in self._crop]
        own = [(start + stop - 1) / 2 for start, stop in zip(self.region.start, self.region.stop, strict=True)]
        moved = [there - here for there, here in zip(middle, own, strict=True)]
        if self._warps_planes:
            moved[0] = 0.0

        def draw(params: AugmentParams, number: int) -> None:
            draw_matrix(params, number)
            if params.is_warped[number]:
                params.offset_voxel[number] = moved

        return draw

    def _middle(self) -> Region:
        start = [side // 2 - wanted // 2 for side, wanted in zip(self._crop, self.shape, strict=True)]
        x, y, z = start
        a, b, c = self.shape
        return Region((x, y, z), (x + a, y + b, z + c))


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


def _take_steps(left: list[Transform]) -> list[ChainStep]:
    """The steps that the engine can make in this order, taken from the beginning of the list."""
    steps: list[ChainStep] = []
    while left:
        chance = left[0] if name_of(left[0]) == "RandomTransform" else None
        transform = left[0] if chance is None else chance.transform
        stage = steps[-1].kind.stage if steps else 0
        kinds = (kind for kind in KINDS if kind.name == name_of(transform) and kind.stage > stage)
        kind = next((kind for kind in kinds if kind.is_like(transform)), None)
        if kind is None:
            break
        steps.append(ChainStep(transform=transform, kind=kind, chance=chance))
        del left[0]
    return steps
