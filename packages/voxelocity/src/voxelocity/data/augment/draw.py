"""The random numbers of an augmentation, drawn separately from their use, for all samples of a batch at once.

A sample's numbers are the first words of the Philox stream of its own key. What each word is for depends only on the
channels and the patch, so a batch is a table of words: compared with its columns' probabilities and scaled to their
ranges as a whole, it gives every change as a slice.
`testing.draw_reference` draws the same numbers one sample after another.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import first_words
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import NUM_BIAS_COEFFICIENTS, AugmentParams, Floats, swap_table
from voxelocity.data.augment.tables import elastic_points

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
_SHIFT = np.uint64(11)
_EYE = np.eye(3)


def sample(
    draws: Sequence[Draw],
    *,
    seed: int,
    num_channels: int,
    patch_shape: Index3,
    config: AugmentConfig,
    spacing_mm: Spacing | Sequence[Spacing] | None = None,
    swapped_classes: Sequence[int] = (),
) -> AugmentParams:
    """Parameters for these draws. Those of one draw depend only on (seed, epoch, case, draw) and the arguments.

    Args:
        draws: one per sample of the batch.
        seed: of the run.
        num_channels: c.
        patch_shape: (x, y, z) of the patches, which an elastic deformation spans.
        config: how often and how strong; if it is not enabled, the result changes nothing.
        spacing_mm: along (x, y, z), of all patches or of each draw. Rotations are then rigid in millimeters; without
            it voxels count as cubes.
        swapped_classes: for each class index, its replacement if a patch is flipped across the volume's x axis, from
            left to right (`core.laterality.swapped_classes`); empty for none.
    """
    if not config.enabled:
        return _nothing(len(draws), num_channels)
    has_elastic = config.elastic_probability > 0.0
    points = elastic_points(patch_shape, config.elastic_spacing_voxel) if has_elastic else (0, 0, 0)
    table = _Table(draws, seed, config, _layout_of(config, num_channels, 3 * math.prod(points)))
    flips, turns = table.is_below("flips"), table.quarter_turns()
    matrix, offset_voxel, is_moved = _warp(
        table, turns, np.array((1.0, 1.0, 1.0) if spacing_mm is None else spacing_mm, ndmin=2)
    )
    is_elastic, elastic = table.fields("is_elastic", "elastic", (3, *points))
    has_bias, bias = table.fields("has_bias", "bias", (num_channels, NUM_BIAS_COEFFICIENTS))
    # Which axis of the patch runs from left to right in the volume; turning a body does not swap its sides.
    sagittal = np.abs(turns[:, 0]).argmax(axis=1)
    return AugmentParams(
        is_warped=is_moved | is_elastic,
        matrix=matrix,
        offset_voxel=offset_voxel,
        flips=flips,
        is_swapped=flips[np.arange(len(flips)), sagittal] & (len(swapped_classes) > 0),
        swapped_classes=swap_table(swapped_classes),
        is_elastic=is_elastic,
        elastic=elastic,
        votes=config.label_interpolation == "vote",
        has_bias=has_bias,
        bias=bias,
        noise_std=np.where(table.is_below("has_noise"), table.values("noise_std"), 0.0)[:, 0].astype(np.float32),
        noise_seed=_below_int64_max(table.words("noise_seed")[:, 0]),
        **_tones(table, num_channels),
        **_filters(table, num_channels),
        gamma_keeps_moments=config.gamma_keeps == "moments",
    )


@functools.lru_cache(maxsize=8)
def _nothing(num_samples: int, num_channels: int) -> AugmentParams:
    """Parameters that change nothing, made once for all batches; read-only."""
    params = AugmentParams.identity(num_samples, num_channels)
    for value in vars(params).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return params


_TONES = ("intensity_scale", "intensity_shift", "contrast", "gamma_inverted", "gamma")
_PLAIN = np.array([[1.0], [0.0], [1.0], [1.0], [1.0]])
"""What leaves a channel unchanged, of each."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """What each word of a sample is for, in the order in which they are drawn.

    Every number is drawn, used or not, so that changing one probability does not affect the other changes.

    Attributes:
        slices: by name.
        limit: (n,), the probability that a choice is made, of words that choose.
        rises: (n,) bool, whether that probability rises with the epochs.
        low: (n,), the lower end of the range, of words that are values.
        span: (n,), from there to the upper end.
        factor: (n,), of the result.
    """

    slices: dict[str, slice]
    limit: Doubles
    rises: Bools
    low: Doubles
    span: Doubles
    factor: Doubles


_Word = tuple[float, bool, float, float, float]


def _choice(probability: float, *, rises: bool = True) -> _Word:
    return (probability, rises, 0.0, 1.0, 1.0)


def _value(ends: tuple[float, float], factor: float = 1.0) -> _Word:
    return (0.0, False, ends[0], ends[1] - ends[0], factor)


def _layout(config: AugmentConfig, c: int, num_elastic: int) -> _Layout:
    """The layout for c channels and so many coordinates of control points."""
    ends = (config.intensity_scale_range, config.intensity_shift_range, config.contrast_range)
    ranges = dict(zip(_TONES, (*ends, config.gamma_range, config.gamma_range), strict=True))
    tones = [
        [_choice(getattr(config, f"{name}_probability")), *[_value(range_)] * c] for name, range_ in ranges.items()
    ]
    either_way, even = (-1.0, 1.0), _choice(0.5, rises=False)
    strength, shift = config.bias_strength, config.elastic_voxel
    words: dict[str, list[_Word]] = {
        "flips": [_choice(probability, rises=False) for probability in config.flip_probability],
        "are_turned": [_choice(probability, rises=False) for probability in config.quarter_turn_probability],
        "turns": [_value(either_way)] * 2,
        "parts": [_choice(config.rotation_share, rises=False), _choice(config.scale_share, rises=False)],
        "angles_degrees": [_value(either_way, degrees) for degrees in config.rotation_degrees],
        "zoom": [_value(config.scale_range)],
        "shear": [_value((-config.shear, config.shear))] * 9,
        "offset": [_value(either_way, voxels) for voxels in config.translate_voxel],
        "is_affine": [_choice(config.affine_probability)],
        "has_noise": [_choice(config.noise_probability)],
        "noise_std": [_value(config.noise_std_range)],
        "noise_seed": [_value(either_way)],
        "tones": [*itertools.chain(*tones)],
        "has_bias": [_choice(config.bias_probability)],
        "bias": [_value((-strength, strength))] * (NUM_BIAS_COEFFICIENTS * c),
        "has_blur": [_choice(config.blur_probability)],
        "are_blurred": [even] * c,
        "sigma": [_value(config.blur_sigma_range)] * (3 * c),
        "is_coarse": [_choice(config.low_resolution_probability)],
        "are_coarse": [even] * c,
        "zooms": [_value(config.low_resolution_range)] * c,
    }
    if num_elastic:
        words |= {"elastic": [_value((-shift, shift))] * num_elastic}
        words |= {"is_elastic": [_choice(config.elastic_probability)]}
    slices, start = {}, 0
    for name, columns in words.items():
        slices[name] = slice(start, start + len(columns))
        start += len(columns)
    limit, rises, low, span, factor = np.array([*itertools.chain(*words.values())]).T
    return _Layout(slices, limit, rises != 0.0, low, span, factor)


_last: tuple[AugmentConfig, int, int, _Layout] | None = None


def _layout_of(config: AugmentConfig, num_channels: int, num_elastic: int) -> _Layout:
    """As `_layout`. The last one is kept, as a run has one; a configuration need not have a hash."""
    global _last
    last = _last
    if last is not None and last[0] is config and last[1:3] == (num_channels, num_elastic):
        return last[3]
    layout = _layout(config, num_channels, num_elastic)
    _last = (config, num_channels, num_elastic, layout)
    return layout


class _Table:
    """The words of a batch (b, n), as choices and as values."""

    def __init__(self, draws: Sequence[Draw], seed: int, config: AugmentConfig, layout: _Layout) -> None:
        keys = [(draw.epoch, draw.case, draw.draw) for draw in draws]
        self._words = first_words(seed, stage="augment", keys=keys, num_words=len(layout.limit))
        self._slices = layout.slices
        # As NumPy's generators make numbers from 0 to 1, and `Generator.uniform` those between two ends.
        numbers = (self._words >> _SHIFT).astype(np.float64) * 2.0**-53
        self._values = (layout.low + layout.span * numbers) * layout.factor
        limit = layout.limit
        if any(draw.epoch < config.ramp_epochs for draw in draws):
            shares = np.array([min(1.0, draw.epoch / config.ramp_epochs) for draw in draws])
            limit = np.where(layout.rises, shares[:, None] * limit, limit)
        self._is_below = numbers < limit

    def is_below(self, name: str) -> Bools:
        """Which choices of this name are made: (b, count)."""
        return self._is_below[:, self._slices[name]]

    def values(self, name: str) -> Doubles:
        """(b, count)."""
        return self._values[:, self._slices[name]]

    def fields(self, choice: str, values: str, shape: tuple[int, ...]) -> tuple[Bools, Floats]:
        """Which samples are chosen (b,), and their values (b, *shape), 0 for the others; none if the shape is empty."""
        is_chosen, found = np.zeros(len(self._words), np.bool_), np.zeros((len(self._words), *shape), np.float32)
        if math.prod(shape) > 0:
            is_chosen = self.is_below(choice)[:, 0]
            if is_chosen.any():
                found[is_chosen] = self.values(values)[is_chosen].reshape(-1, *shape)
        return is_chosen, found

    def words(self, name: str) -> Words:
        """(b, count)."""
        return self._words[:, self._slices[name]]

    def quarter_turns(self) -> Doubles:
        """The products of whole quarter turns about x, y and z (b, 3, 3); their entries are exactly 0, 1 and -1."""
        are_turned = self.is_below("are_turned")
        if not are_turned.any():
            return np.tile(_EYE, (len(are_turned), 1, 1))
        quarters = np.where(are_turned, _one_to_three(self.words("turns")), 0)
        return np.rint(_rotations(quarters * (np.pi / 2.0)))


def _one_to_three(words: Words) -> npt.NDArray[np.int64]:
    """As `Generator.integers(1, 4, size=3)`, from the first three halves of two words: (b, 3).

    NumPy draws a half again if it is 0, which happens once in 4 billion times; here it then is 1.
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    halves = np.stack([words[:, 0] & mask, words[:, 0] >> half, words[:, 1] & mask], axis=1)
    return (1 + (halves * np.uint64(3) >> half)).astype(np.int64)


def _below_int64_max(words: Words) -> npt.NDArray[np.int64]:
    """As `Generator.integers(2**63 - 1)`, from a word each: the upper half of their product with 2**63 - 1.

    NumPy draws again in two of 2**64 cases.
    """
    return np.array([word * (2**63 - 1) >> 64 for word in words.tolist()], dtype=np.int64)


def _tones(table: _Table, num_channels: int) -> dict[str, Floats]:
    """Brightness, contrast and both gammas, by the names of the parameters."""
    # Each has a word that says whether it is used, then one for each channel.
    shape = (-1, len(_TONES), 1 + num_channels)
    is_used, values = table.is_below("tones").reshape(shape)[..., :1], table.values("tones").reshape(shape)[..., 1:]
    tones = np.where(is_used, values, _PLAIN).transpose(1, 0, 2).astype(np.float32, order="C")
    return dict(zip(("scale", "shift", "contrast", "gamma_inverted", "gamma"), tones, strict=True))


def _filters(table: _Table, num_channels: int) -> dict[str, Floats]:
    """Blur and low resolution, by the names of the parameters."""
    is_blurred = table.is_below("has_blur") & table.is_below("are_blurred")
    sigma = np.where(is_blurred[..., None], table.values("sigma").reshape(-1, num_channels, 3), 0.0)
    is_coarse = table.is_below("is_coarse") & table.is_below("are_coarse")
    zoom = np.where(is_coarse, table.values("zooms"), 1.0)
    return {"blur_sigma_voxel": sigma.astype(np.float32), "low_resolution": zoom.astype(np.float32)}


def _warp(table: _Table, turns: Doubles, spacings: Doubles) -> tuple[Floats, Floats, Bools]:
    """`matrix` and `offset_voxel` of the parameters, and which samples they move; `spacings` of each, or of all."""
    matrix, rows = turns.copy(), np.flatnonzero(table.is_below("is_affine"))
    offset_voxel = np.zeros((len(matrix), 3), dtype=np.float32)
    if rows.size > 0:
        spacings = spacings[rows] if len(spacings) > 1 else spacings
        angles, zoom, shear = (table.values(name)[rows] for name in ("angles_degrees", "zoom", "shear"))
        matrix[rows] = _affine(table.is_below("parts")[rows], angles, zoom, shear, spacings) @ matrix[rows]
        offset_voxel[rows] = table.values("offset")[rows]
    is_moved = (matrix != _EYE).reshape(-1, 9).any(axis=1) | offset_voxel.any(axis=1)
    return matrix.astype(np.float32), offset_voxel, is_moved


def _affine(parts: Bools, angles_degrees: Doubles, zoom: Doubles, shear: Doubles, spacings: Doubles) -> Doubles:
    """Rotation, zoom and shear, drawn in millimeters, as matrices on voxel offsets from patch to volume: (n, 3, 3)."""
    rotation = _rotations(np.where(parts[:, :1], np.deg2rad(angles_degrees), 0.0))
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


def _rotations(angles_rad: Doubles) -> Doubles:
    """The rotations (n, 3, 3) about x, then y, then z, each from the next axis toward the one after it."""
    cos, sin = np.cos(angles_rad), np.sin(angles_rad)
    flat = np.zeros((len(angles_rad), 27))
    flat[:, _AXIS] = 1.0
    flat[:, _FIRST] = flat[:, _SECOND] = cos
    flat[:, _MINUS], flat[:, _PLUS] = -sin, sin
    turns = flat.reshape(-1, 3, 3, 3)
    rotations: Doubles = turns[:, 2] @ (turns[:, 1] @ turns[:, 0])
    return rotations
