"""The built-in effects, an entry each: configuration, parameters, random numbers, words. Not how they are computed.

Effects are fused into few passes, so their loops stand in the engines. For each entry of `EFFECTS`, an engine must

- change samples whose parameters are not those of `params.unchanged`, and no others, as `AugmentParams` defines;
- compute in float32, whatever is stored, and agree with `testing.augment_reference` within the tolerances of
  `docs/augmentation.md`, for patches of any shape, partly or wholly beyond the volume;
- give a sample the same bits whatever else is in its batch, and allocate nothing that lasts.

"triton" also launches, for samples with the entry's `example`, every kernel that the entry can need, and never waits
for the device. `tests/data/augment/test_engines.py` tries every entry on every engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.core.rng import Doubles, NamedWords, Numbers, choice, value
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import NUM_BIAS_COEFFICIENTS, AugmentParams, Bools, elastic_points, unchanged

Drawn = dict[str, Any]
"""Parameters by name."""
_EITHER_WAY, _UNIT = (-1.0, 1.0), (0.0, 1.0)
_EVEN = choice(0.5, rises=False)
_EYE = np.eye(3)


@dataclass(frozen=True, kw_only=True)
class Patches:
    """What numbers are drawn for.

    Attributes:
        config: how often and how strong.
        num_channels: c.
        shape: (x, y, z) of the patches, which an elastic deformation spans.
        spacings_mm: (1 or b, 3) along (x, y, z), of all samples or of each.
        swaps_classes: whether a flip from left to right swaps classes.
    """

    config: AugmentConfig
    num_channels: int
    shape: Index3
    spacings_mm: Doubles = field(default_factory=lambda: np.ones((1, 3)))
    swaps_classes: bool = False

    @property
    def elastic_points(self) -> Index3:
        """Control points along each axis; none if no patch is ever deformed."""
        is_on = self.config.elastic_probability > 0.0
        return elastic_points(self.shape, self.config.elastic_spacing_voxel) if is_on else (0, 0, 0)

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters that are those of all samples."""
        config = self.config
        return {"votes": config.label_interpolation == "vote", "gamma_keeps_moments": config.gamma_keeps == "moments"}

    def unchanged(self, num_samples: int, swapped_classes: Sequence[int] = ()) -> AugmentParams:
        """Parameters that change nothing, in arrays that may be written and have room for what can be drawn."""
        return AugmentParams.identity(
            num_samples,
            self.num_channels,
            elastic_points=self.elastic_points,
            cutout_boxes=self.config.cutout_boxes if self.config.cutout_probability > 0.0 else 0,
            swapped_classes=swapped_classes,
            **self.settings,
        )


@dataclass(frozen=True, kw_only=True)
class BuiltInEffect:
    """An entry of the table.

    Attributes:
        name: of `data.augment.NAME_probability`, one for each axis or one for all.
        about: what it does, for the documentation.
        keys: its other keys in `data.augment`; some serve two effects.
        words: the words that it takes of its stream, by unique names.
        draw: its parameters, from these numbers and from the parameters of effects that are drawn before.
        example: for two samples, parameters that make the engine "triton" launch all of its kernels.
        is_searched: whether it is in the recipe that was searched on a CPU (docs/log); plans for a CPU leave out the
            others.
    """

    name: str
    about: str
    keys: tuple[str, ...] = ()
    words: Callable[[Patches], NamedWords]
    draw: Callable[[Numbers, Patches, Drawn], Drawn]
    example: Mapping[str, Any] = field(default_factory=dict)
    is_searched: bool = False

    @property
    def probability(self) -> str:
        """Its key."""
        return f"{self.name}_probability"

    def is_on(self, config: AugmentConfig) -> bool:
        """Whether any patch is ever changed."""
        probability = getattr(config, self.probability)
        return any(probability) if isinstance(probability, Sequence) else probability > 0.0

    @property
    def is_in_nnunet(self) -> bool:
        """Whether nnU-Net v2 has it: its augmentation is our default."""
        return self.is_on(AugmentConfig())


def _draw_flips(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    return {"flips": numbers.is_below("flips")}


_FLIP = BuiltInEffect(
    name="flip",
    about="mirrored along an axis; paired classes are swapped",
    keys=("swap_pairs",),
    words=lambda patches: {"flips": [choice(chance, rises=False) for chance in patches.config.flip_probability]},
    draw=_draw_flips,
    example={"is_swapped": True},
    is_searched=True,
)


def _draw_quarter_turns(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    """Products of whole quarter turns about x, y and z; the entries of matrices are exactly 0, 1 and -1."""
    are_turned, flips = numbers.is_below("are_turned"), drawn["flips"]
    if are_turned.any():
        quarters = np.where(are_turned, numbers.one_to_three("turns"), 0)
        matrix = np.rint(rotations(quarters * (np.pi / 2.0)))
    else:
        matrix = np.tile(_EYE, (len(are_turned), 1, 1))
    # Which axis of the patch runs from left to right in the volume; turning a body does not swap its sides.
    sagittal = np.abs(matrix[:, 0]).argmax(axis=1)
    return {"matrix": matrix, "is_swapped": flips[np.arange(len(flips)), sagittal] & patches.swaps_classes}


_QUARTER_TURN = BuiltInEffect(
    name="quarter_turn",
    about="rotated by multiples of 90 degrees, without interpolation",
    words=lambda patches: {
        "are_turned": [choice(chance, rises=False) for chance in patches.config.quarter_turn_probability],
        "turns": [value(_UNIT)] * 2,
    },
    draw=_draw_quarter_turns,
    # Samples that are not warped have another kernel.
    example={"is_warped": (False, True)},
)


def _affine_words(patches: Patches) -> NamedWords:
    config = patches.config
    return {
        "parts": [choice(config.rotation_share, rises=False), choice(config.scale_share, rises=False)],
        "angles_degrees": [value(_EITHER_WAY, degrees) for degrees in config.rotation_degrees],
        "zoom": [value(config.scale_range)],
        "shear": [value((-config.shear, config.shear))] * 9,
        "offset": [value(_EITHER_WAY, voxels) for voxels in config.translate_voxel],
        "is_affine": [choice(config.affine_probability)],
    }


def _draw_affine(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    matrix, rows = drawn["matrix"], np.flatnonzero(numbers.is_below("is_affine"))
    offset_voxel = np.zeros((len(matrix), 3), dtype=np.float32)
    if rows.size > 0:
        spacings = patches.spacings_mm[rows] if len(patches.spacings_mm) > 1 else patches.spacings_mm
        angles, zoom, shear = (numbers.values(name)[rows] for name in ("angles_degrees", "zoom", "shear"))
        matrix[rows] = affine_matrices(numbers.is_below("parts")[rows], angles, zoom, shear, spacings) @ matrix[rows]
        offset_voxel[rows] = numbers.values("offset")[rows]
    is_moved = (matrix != _EYE).reshape(-1, 9).any(axis=1) | offset_voxel.any(axis=1)
    return {"matrix": matrix.astype(np.float32), "offset_voxel": offset_voxel, "is_warped": is_moved}


def affine_matrices(parts: Bools, angles_degrees: Doubles, zoom: Doubles, shear: Doubles, spacings: Doubles) -> Doubles:
    """Rotation, zoom and shear, drawn in millimeters, as matrices on voxel offsets from patch to volume: (n, 3, 3)."""
    rotation = rotations(np.where(parts[:, :1], np.deg2rad(angles_degrees), 0.0))
    sheared = _EYE + shear.reshape(-1, 3, 3) * (1.0 - _EYE)
    in_mm = np.swapaxes(rotation, 1, 2) @ sheared / np.where(parts[:, 1:], zoom, 1.0)[..., None]
    in_voxels: Doubles = in_mm * spacings[:, None, :] / spacings[:, :, None]
    return in_voxels


# In a flat (3, 3, 3) of the turns about x, y and z: their axis, cosines, and sines with either sign.
_AXIS, _FIRST, _SECOND, _MINUS, _PLUS = np.array(
    [
        [9 * axis + 3 * row + column for row, column in ((axis, axis), (i, i), (j, j), (i, j), (j, i))]
        for axis in range(3)
        for i, j in [((axis + 1) % 3, (axis + 2) % 3)]
    ]
).T


def rotations(angles_rad: Doubles) -> Doubles:
    """The rotations (n, 3, 3) about x, then y, then z, each from the next axis toward the one after it."""
    cos, sin = np.cos(angles_rad), np.sin(angles_rad)
    flat = np.zeros((len(angles_rad), 27))
    flat[:, _AXIS] = 1.0
    flat[:, _FIRST] = flat[:, _SECOND] = cos
    flat[:, _MINUS], flat[:, _PLUS] = -sin, sin
    turns = flat.reshape(-1, 3, 3, 3)
    made: Doubles = turns[:, 2] @ (turns[:, 1] @ turns[:, 0])
    return made


_AFFINE = BuiltInEffect(
    name="affine",
    about="rotated, zoomed, sheared and shifted",
    keys=(
        *("rotation_share", "rotation_degrees", "scale_share", "scale_range", "shear", "translate_voxel"),
        "label_interpolation",
    ),
    words=_affine_words,
    draw=_draw_affine,
    example={"is_warped": (False, True)},
    is_searched=True,
)


def _elastic_words(patches: Patches) -> NamedWords:
    config, num = patches.config, 3 * math.prod(patches.elastic_points)
    shifts = [value((-config.elastic_voxel, config.elastic_voxel))] * num
    # Without it nothing is drawn, and nothing in this stream comes after it.
    return {"elastic": shifts, "is_elastic": [choice(config.elastic_probability)]} if num else {}


def _draw_elastic(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    is_elastic, elastic = numbers.chosen("is_elastic", "elastic", (3, *patches.elastic_points))
    return {"is_elastic": is_elastic, "elastic": elastic, "is_warped": drawn["is_warped"] | is_elastic}


_ELASTIC = BuiltInEffect(
    name="elastic",
    about="a smooth deformation, a cubic B-spline between control points",
    keys=("elastic_spacing_voxel", "elastic_voxel", "label_interpolation"),
    words=_elastic_words,
    draw=_draw_elastic,
    example={"is_warped": (False, True), "is_elastic": (False, True)},
)


def _bias_words(patches: Patches) -> NamedWords:
    strength = patches.config.bias_strength
    coefficients = [value((-strength, strength))] * (NUM_BIAS_COEFFICIENTS * patches.num_channels)
    return {"has_bias": [choice(patches.config.bias_probability)], "bias": coefficients}


def _draw_bias(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    has_bias, bias = numbers.chosen("has_bias", "bias", (patches.num_channels, NUM_BIAS_COEFFICIENTS))
    return {"has_bias": has_bias, "bias": bias}


_BIAS = BuiltInEffect(
    name="bias",
    about="a smooth brightness field, like the coil sensitivity in MR",
    keys=("bias_strength",),
    words=_bias_words,
    draw=_draw_bias,
    example={"has_bias": True},
)


def _draw_noise(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    std = np.where(numbers.is_below("has_noise"), numbers.values("noise_std"), 0.0)[:, 0]
    return {"noise_std": std.astype(np.float32), "noise_seed": numbers.below_int64_max("noise_seed")}


_NOISE = BuiltInEffect(
    name="noise",
    about="Gaussian, counter-based: a voxel's value depends only on seed, channel and position; more than 2^24 "
    "values, up to 6.23 standard deviations",
    keys=("noise_std_range",),
    words=lambda patches: {
        "has_noise": [choice(patches.config.noise_probability)],
        "noise_std": [value(patches.config.noise_std_range)],
        "noise_seed": [value(_UNIT)],
    },
    draw=_draw_noise,
    example={"noise_std": 1.0},
    is_searched=True,
)


def _cutout_words(patches: Patches) -> NamedWords:
    config, num = patches.config, 3 * patches.config.cutout_boxes
    return {
        "has_cutout": [choice(config.cutout_probability)],
        "cutout_centers": [value(_UNIT)] * num,
        "cutout_sizes": [value(config.cutout_size_range)] * num,
    }


def _draw_cutout(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
    """The center is any voxel, so boxes reach beyond the patch, which DeVries and Taylor found to matter."""
    shape, num = np.array(patches.shape), patches.config.cutout_boxes
    centers = np.floor(numbers.values("cutout_centers").reshape(-1, num, 3) * shape)
    sizes = np.maximum(np.floor(numbers.values("cutout_sizes").reshape(-1, num, 3) * shape + 0.5), 1.0)
    start = centers - sizes // 2
    boxes = np.clip(np.stack([start, start + sizes], axis=2), 0, shape).astype(np.int64)
    boxes *= numbers.is_below("has_cutout")[:, :, None, None]
    return {"cutout": boxes, "cutout_value": np.full(len(boxes), patches.config.cutout_value, np.float32)}


_CUTOUT = BuiltInEffect(
    name="cutout",
    about="boxes filled with a constant in all channels; the label is unchanged (DeVries and Taylor 2017, "
    "arXiv:1708.04552)",
    keys=("cutout_boxes", "cutout_size_range", "cutout_value"),
    words=_cutout_words,
    draw=_draw_cutout,
    example={"cutout": ((0, 0, 0), (1, 1, 1))},
)


def _tone(name: str, about: str, param: str, *keys: str, **more: Any) -> BuiltInEffect:
    """An effect that draws whether it is made, and then a number of the range in its first key for each channel."""
    (nothing,) = unchanged([param], {"b": (), "c": ()}).values()

    def words(patches: Patches) -> NamedWords:
        chance, ends = (getattr(patches.config, key) for key in (f"{name}_probability", keys[0]))
        return {name: [choice(chance), *[value(ends)] * patches.num_channels]}

    def draw(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
        tones = np.where(numbers.is_below(name)[:, :1], numbers.values(name)[:, 1:], nothing)
        return {param: tones.astype(np.float32)}

    return BuiltInEffect(name=name, about=about, keys=keys, words=words, draw=draw, **more)


def _filter(name: str, about: str, param: str, key: str, *per: int, **more: Any) -> BuiltInEffect:
    """As `_tone`, but each channel has an even chance to be changed, and numbers of the shape `per`."""
    (nothing,) = unchanged([param], {"b": (), "c": ()}).values()

    def words(patches: Patches) -> NamedWords:
        chance, ends = (getattr(patches.config, named) for named in (f"{name}_probability", key))
        num = patches.num_channels
        return {name: [choice(chance), *[_EVEN] * num, *[value(ends)] * (num * math.prod(per))]}

    def draw(numbers: Numbers, patches: Patches, drawn: Drawn) -> Drawn:
        num, is_below = patches.num_channels, numbers.is_below(name)
        is_made = (is_below[:, :1] & is_below[:, 1 : 1 + num]).reshape(-1, num, *(1 for _ in per))
        values = numbers.values(name)[:, 1 + num :].reshape(-1, num, *per)
        return {param: np.where(is_made, values, nothing).astype(np.float32)}

    return BuiltInEffect(name=name, about=about, keys=(key,), words=words, draw=draw, **more)


EFFECTS: Final = (
    _FLIP,
    _QUARTER_TURN,
    _AFFINE,
    _ELASTIC,
    _BIAS,
    _NOISE,
    _filter("blur", "Gaussian, mirrored at the border of the patch", "blur_sigma_voxel", "blur_sigma_range", 3,
            example={"blur_sigma_voxel": 1.0}),
    _tone("intensity_scale", "multiplied by a factor", "scale", "intensity_scale_range", is_searched=True),
    _tone("intensity_shift", "plus a number", "shift", "intensity_shift_range", is_searched=True),
    _tone("contrast", "spread about the mean, clipped to the previous range", "contrast", "contrast_range",
          example={"contrast": 2.0}),
    # Channels that are not coarsened get their contrast from another kernel.
    _filter("low_resolution", "downsampled, then upsampled again", "low_resolution", "low_resolution_range",
            example={"low_resolution": ((1.0,), (0.5,))}),
    _tone("gamma_inverted", "gamma from the upper end of the intensities", "gamma_inverted", "gamma_range",
          "gamma_keeps", example={"gamma_inverted": 2.0}),
    _tone("gamma", "gamma from their lower end", "gamma", "gamma_range", "gamma_keeps", example={"gamma": 2.0},
          is_searched=True),
    _CUTOUT,
)  # fmt: skip
"""All built-in effects, in the order in which they are made."""

FIRST_STREAM: Final = (
    *("flip", "quarter_turn", "affine", "noise", "intensity_scale", "intensity_shift", "contrast", "gamma_inverted"),
    *("gamma", "bias", "blur", "low_resolution", "elastic"),
)
"""Effects that share a stream of random numbers, in the order of their words there. No effect is ever added: a number
taken in between would change what every seed means. An effect that is not listed has a stream of its own."""
