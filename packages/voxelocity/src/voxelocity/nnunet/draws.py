"""What is drawn for a sample of nnU-Net's chain: by its own objects, or by us from the same numbers in fewer calls.

The slow reference of a quick draw is `get_parameters` of the object itself. A quick one takes as many numbers from
numpy's and torch's global generators, so that equal seeds still give nnU-Net's own batches. Before it stands in for an
object, both draw a few samples from equal seeds: an object that draws in another way is asked as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from voxelocity.data.augment import AugmentParams
from voxelocity.nnunet.targets import Transform, name_of

Draw = Callable[[AugmentParams, int], None]
"""Sets the parameters of a sample, by its number in the batch."""
DRAWN = (
    *("is_warped", "matrix", "offset_voxel", "flips", "noise_std", "noise_seed", "blur_sigma_voxel"),
    *("scale", "contrast", "low_resolution", "gamma_inverted", "gamma"),
)
"""The parameters that a draw may set."""
_SEEDS = 2**31
_NUM_TRIALS = 24
# Between two ways to the same number, far below what the engine can tell apart.
_ROUNDING = 1e-5
_uniform = np.random.random_sample
_Number = Callable[[], float]


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


@dataclass(frozen=True, kw_only=True)
class PatchForm:
    """What a draw depends on besides its object.

    Attributes:
        image: (c, ...) that takes no memory; transforms read shapes from it.
        is_flat: as in `Row`.
        asks_nnunet: whether every number is drawn by nnU-Net's own objects.
    """

    image: torch.Tensor
    is_flat: bool
    asks_nnunet: bool

    @property
    def num_channels(self) -> int:
        return len(self.image)


Fill = Callable[[Mapping[str, Any], Row], None]
Quick = Callable[[Transform, _Number, PatchForm], Draw | None]


def _fill_channels(name: str, key: str) -> Fill:
    """Sets a parameter of the channels that were chosen; there is none if none was."""

    def fill(drawn: Mapping[str, Any], row: Row) -> None:
        if drawn[key] is not None:
            getattr(row.params, name)[row.number, drawn["apply_to_channel"].numpy()] = drawn[key].numpy()

    return fill


def _fill_noise(drawn: Mapping[str, Any], row: Row) -> None:
    row.params.noise_std[row.number] = drawn["sigmas"] or 0.0
    row.params.noise_seed[row.number] = np.random.randint(_SEEDS)


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


def _fill_warp(drawn: Mapping[str, Any], row: Row) -> None:
    if (affine := drawn["affine"]) is not None:
        row.params.is_warped[row.number] = True
        row.params.matrix[row.number, 3 - len(affine) :, 3 - len(affine) :] = affine


def _rand(num: int) -> Callable[[], list[float]]:
    """Draws as `torch.rand(num)`, or as that many calls of `torch.rand(1)`, in a fraction of the time."""
    numbers = torch.empty(num)
    memory = numbers.numpy()

    def draw() -> list[float]:
        numbers.uniform_()
        found: list[float] = memory.tolist()
        return found

    return draw


def _between(low: float, high: float) -> _Number:
    """Draws as `np.random.uniform`."""
    width = high - low
    return lambda: low + width * _uniform()


def _number(value: Any) -> _Number | None:
    """Draws as `sample_scalar` of batchgeneratorsv2; None for what it leaves to code of others."""
    if isinstance(value, int | float):
        return lambda: float(value)
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] <= value[1]:
        low, high = map(float, value)
        return (lambda: low) if low == high else _between(low, high)
    if name_of(value) == "BGContrast" and isinstance(value.contrast_range, tuple | list):
        low, high = map(float, value.contrast_range)
        below, above = _between(low, 1.0), _between(max(low, 1.0), high)
        return lambda: below() if _uniform() < 0.5 and low < 1.0 else above()
    return None


def _channels(transform: Transform, form: PatchForm) -> Callable[[], list[int]]:
    """Draws which channels a transform changes."""
    draw = _rand(form.num_channels)
    # Torch compares in float32.
    chance = float(np.float32(transform.p_per_channel))
    return lambda: [channel for channel, number in enumerate(draw()) if number < chance]


def _quick_noise(transform: Transform, std: _Number, form: PatchForm) -> Draw:
    channels = _channels(transform, form)

    def draw(params: AugmentParams, number: int) -> None:
        channels()
        params.noise_std[number] = std()
        params.noise_seed[number] = np.random.randint(_SEEDS)

    return draw


def _quick_blur(transform: Transform, sigma: _Number, form: PatchForm) -> Draw:
    channels, num_axes, is_round = _channels(transform, form), form.image.ndim - 1, transform.synchronize_axes

    def draw(params: AugmentParams, number: int) -> None:
        for channel in channels():
            sigmas = [sigma()] * num_axes if is_round else [sigma() for _ in range(num_axes)]
            params.blur_sigma_voxel[number, channel, 3 - num_axes :] = sigmas

    return draw


def _quick_channels(name: str) -> Quick:
    def quick(transform: Transform, value: _Number, form: PatchForm) -> Draw | None:
        if transform.synchronize_channels or getattr(transform, "allowed_channels", None) is not None:
            return None
        channels = _channels(transform, form)
        # Of a gamma: whether it is inverted and keeps moments, which is certain here, but drawn.
        others = [_rand(2 * num if "gamma" in name else 0) for num in range(form.num_channels + 1)]

        def draw(params: AugmentParams, number: int) -> None:
            if chosen := channels():
                others[len(chosen)]()
                getattr(params, name)[number, chosen] = [value() for _ in chosen]

        return draw

    return quick


def _quick_flips(transform: Transform, _: _Number, form: PatchForm) -> Draw:
    axes = [axis + form.is_flat for axis in transform.allowed_axes]
    draw_each = _rand(len(axes))

    def draw(params: AugmentParams, number: int) -> None:
        for axis, drawn in zip(axes, draw_each(), strict=True):
            if drawn < 0.5:
                params.flips[number, axis] = True

    return draw


def _quick_warp(warp: Transform, angle: _Number, form: PatchForm) -> Draw | None:
    zoom, num_axes = _number(warp.scaling), form.image.ndim - 1
    if zoom is None:
        return None
    p_rotation, p_scaling, p_axis = warp.p_rotation, warp.p_scaling, warp.p_rot_per_axis
    p_common = warp.p_synchronize_scaling_across_axes

    def draw(params: AugmentParams, number: int) -> None:
        # The third is whether the patch is deformed, for which the chance is 0.
        is_turned, is_zoomed, _ = _uniform() < p_rotation, _uniform() < p_scaling, _uniform()
        if not (is_turned or is_zoomed):
            return
        angles, zooms = [0.0] * 3, [1.0] * 3
        if is_turned:
            angles = [angle() for _ in range(num_axes)]
            if p_axis < 1:
                angles = [0.0 if _uniform() > p_axis else own for own in angles]
        if is_zoomed:
            is_common = _uniform() <= p_common
            zooms = [zoom()] * num_axes if is_common else [zoom() for _ in range(num_axes)]
        params.is_warped[number] = True
        params.matrix[number] = _matrix(angles, zooms) if num_axes == 3 else _plane_matrix(angles[-1], zooms)

    return draw


def _matrix(angles: Sequence[float], zooms: Sequence[float]) -> list[list[float]]:
    """Zooms along (x, y, z), then turns about x, y and z."""
    (sx, sy, sz), (cx, cy, cz), (a, b, c) = map(math.sin, angles), map(math.cos, angles), zooms
    return [
        [a * cz * cy, b * (cz * sy * sx - sz * cx), c * (cz * sy * cx + sz * sx)],
        [a * sz * cy, b * (sz * sy * sx + cz * cx), c * (sz * sy * cx - cz * sx)],
        [a * -sy, b * cy * sx, c * cy * cx],
    ]


def _plane_matrix(angle: float, zooms: Sequence[float]) -> list[list[float]]:
    """The same of planes (y, z)."""
    sine, cosine, (b, c) = math.sin(angle), math.cos(angle), zooms[-2:]
    return [[1.0, 0.0, 0.0], [0.0, b * cosine, c * -sine], [0.0, b * sine, c * cosine]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A transform of batchgeneratorsv2 that the engine has a step for.

    Attributes:
        name: of its class.
        stage: of the engine's steps, which follow each other in one order.
        is_like: whether an object with these attributes does what the engine does.
        fill: sets the sample's parameters to what the object drew.
        values: the attribute that says which numbers it draws; "" if none does.
        quick: draws as such an object; None if its attributes are not known there.
    """

    name: str
    stage: int
    is_like: Callable[[Transform], bool] = lambda transform: True
    fill: Fill
    values: str = ""
    quick: Quick

    def draw_of(self, transform: Transform, form: PatchForm) -> Draw:
        """What draws for the object: itself, or we in its place."""

        def ask(params: AugmentParams, number: int) -> None:
            row = Row(params=params, number=number, is_flat=form.is_flat)
            self.fill(transform.get_parameters(image=form.image), row)

        value = _number(getattr(transform, self.values, None) if self.values else 0.0)
        if value is None or form.asks_nnunet or not _has_own_class(transform):
            return ask
        quick = self.quick(transform, value, form)
        return ask if quick is None or not agree(ask, quick, form.num_channels) else quick


def ignored_axes(transform: Transform) -> tuple[int, ...]:
    """The axes of which a low resolution keeps all voxels."""
    return tuple(transform.ignore_axes or ())


WARP = Kind(name="SpatialTransform", stage=0, fill=_fill_warp, values="rotation", quick=_quick_warp)
"""Its `is_like` is asked before (`chain`)."""
KINDS = (
    Kind(name="GaussianNoiseTransform", stage=1, fill=_fill_noise, values="noise_variance", quick=_quick_noise,
         is_like=lambda transform: transform.synchronize_channels and transform.p_per_channel >= 1.0),
    Kind(name="GaussianBlurTransform", stage=2, fill=_fill_blur, values="blur_sigma", quick=_quick_blur,
         is_like=lambda transform: not transform.synchronize_channels),
    Kind(name="MultiplicativeBrightnessTransform", stage=3, fill=_fill_channels("scale", "multipliers"),
         values="multiplier_range", quick=_quick_channels("scale")),
    Kind(name="ContrastTransform", stage=4, fill=_fill_channels("contrast", "multipliers"),
         values="contrast_range", quick=_quick_channels("contrast"),
         is_like=lambda transform: transform.preserve_range),
    Kind(name="SimulateLowResolutionTransform", stage=5, fill=_fill_low_resolution,
         values="scale", quick=_quick_channels("low_resolution"),
         is_like=lambda transform: transform.synchronize_axes and ignored_axes(transform) in ((), (0,))),
    Kind(name="GammaTransform", stage=6, fill=_fill_channels("gamma_inverted", "gamma"),
         values="gamma", quick=_quick_channels("gamma_inverted"),
         is_like=lambda transform: transform.p_invert_image >= 1.0 and transform.p_retain_stats >= 1.0),
    Kind(name="GammaTransform", stage=7, fill=_fill_channels("gamma", "gamma"),
         values="gamma", quick=_quick_channels("gamma"),
         is_like=lambda transform: transform.p_invert_image <= 0.0 and transform.p_retain_stats >= 1.0),
    # Last in nnU-Net's chain and first in the engine: what lies between treats both directions of an axis alike.
    Kind(name="MirrorTransform", stage=8, fill=_fill_flips, quick=_quick_flips),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChainStep:
    """A transform, its kind, and the object that says how often it is made, if any does."""

    transform: Transform
    kind: Kind
    chance: Transform | None = None

    def draw_of(self, form: PatchForm) -> Draw:
        """What draws for a sample."""
        change = self.kind.draw_of(self.transform, form)
        if self.chance is None:
            return change
        happens = _chance(self.chance, form)

        def draw(params: AugmentParams, number: int) -> None:
            if happens():
                change(params, number)

        return draw


def _chance(chance: Transform, form: PatchForm) -> Callable[[], bool]:
    """Draws whether a change is made."""
    draw_one, limit = _rand(1), float(chance.apply_probability)

    def ask() -> bool:
        return bool(chance.get_parameters()["apply_transform"])

    def quick() -> bool:
        return draw_one()[0] < limit

    def marked(happens: Callable[[], bool]) -> Draw:
        def draw(params: AugmentParams, number: int) -> None:
            params.is_warped[number] = happens()

        return draw

    if form.asks_nnunet or not _has_own_class(chance):
        return ask
    return quick if agree(marked(ask), marked(quick), form.num_channels) else ask


def _has_own_class(transform: Transform) -> bool:
    """Whether the object draws as its class does, and not in a way that was set on itself."""
    return name_of(transform) != "" and "get_parameters" not in vars(transform)


def agree(ask: Draw, quick: Draw, num_channels: int) -> bool:
    """Whether both draw the same from equal seeds, and leave the generators in the same state, which is then restored.

    A few milliseconds.
    """
    state, found = np.random.get_state(), []
    with torch.random.fork_rng(devices=[]):
        for draw in (ask, quick):
            params, following = AugmentParams.identity(_NUM_TRIALS, num_channels), []
            for number in range(_NUM_TRIALS):
                np.random.seed(number)
                # Of the CPU alone.
                torch.default_generator.manual_seed(number)
                draw(params, number)
                following += [_uniform(), float(torch.rand(()))]
            found.append((params, following))
    np.random.set_state(state)
    (theirs, after), (ours, own_after) = found
    drawn = ((getattr(theirs, name), getattr(ours, name)) for name in DRAWN)
    return after == own_after and all(np.allclose(*pair, rtol=_ROUNDING, atol=_ROUNDING) for pair in drawn)
