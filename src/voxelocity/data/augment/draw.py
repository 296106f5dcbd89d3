"""The random numbers of an augmentation, drawn separately from their use, for all samples of a batch at once.

A sample's numbers are the first words of the Philox stream of its own key. What each word is for depends only on the
channels and the patch, so a batch is a table of words, and each change is a few operations on columns of it.
`testing.draw_reference` draws the same numbers one sample after another.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import first_words
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import NUM_BIAS_COEFFICIENTS, AugmentParams
from voxelocity.data.augment.tables import elastic_points

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


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
    params = AugmentParams.identity(
        len(draws),
        num_channels,
        elastic_points=elastic_points(patch_shape, config.elastic_spacing_voxel)
        if config.elastic_probability > 0.0
        else (0, 0, 0),
        swapped_classes=swapped_classes,
        votes=config.label_interpolation == "vote",
        gamma_keeps_moments=config.gamma_keeps == "moments",
    )
    spacing = np.array((1.0, 1.0, 1.0) if spacing_mm is None else spacing_mm, dtype=np.float64)
    num_words = _num_words(num_channels, params.elastic[0].size if len(draws) else 0)
    keys = [(draw.epoch, draw.case, draw.draw) for draw in draws]
    columns = _Columns(first_words(seed, stage="augment", keys=keys, num_words=num_words))
    shares = np.array([1.0 if draw.epoch >= config.ramp_epochs else draw.epoch / config.ramp_epochs for draw in draws])
    # Every number is drawn, used or not, so that changing one probability does not affect the other changes.
    _warp(params, columns, config, shares, np.broadcast_to(spacing, (len(draws), 3)))
    has_noise = columns.next(1)[:, 0] < shares * config.noise_probability
    params.noise_std[has_noise] = _uniform(columns.next(1)[:, 0], config.noise_std_range)[has_noise]
    params.noise_seed[:] = _below_int64_max(columns.next_words(1)[:, 0])
    # The rest draws a number of values that depends on channels and patch.
    _change(params, columns, config, shares)
    if params.elastic.size > 0:
        ends = -config.elastic_voxel, config.elastic_voxel
        shifts = columns.next(params.elastic[0].size)
        params.is_elastic[:] = columns.next(1)[:, 0] < shares * config.elastic_probability
        chosen = params.is_elastic
        params.elastic[chosen] = _uniform(shifts[chosen], ends).reshape(-1, *params.elastic.shape[1:])
        params.is_warped[chosen] = True
    assert columns.is_used_up
    return params


@functools.lru_cache(maxsize=8)
def _nothing(num_samples: int, num_channels: int) -> AugmentParams:
    """Parameters that change nothing, made once for all batches; read-only."""
    params = AugmentParams.identity(num_samples, num_channels)
    for value in vars(params).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return params


class _Columns:
    """A table of words (b, n), used from left to right."""

    def __init__(self, words: Words) -> None:
        self._words, self._used = words, 0
        # As NumPy's generators make numbers from 0 to 1.
        self._numbers: Doubles = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    @property
    def is_used_up(self) -> bool:
        return self._used == int(self._words.shape[1])

    def next(self, count: int) -> Doubles:
        """The next numbers of each sample (b, count), from 0 to 1, which is left out."""
        self._used += count
        return self._numbers[:, self._used - count : self._used]

    def next_words(self, count: int) -> Words:
        """The next words of each sample (b, count)."""
        self._used += count
        return self._words[:, self._used - count : self._used]


def _num_words(num_channels: int, num_elastic: int) -> int:
    """Words that a sample takes: flips, quarter turns, affine, offset and its choice, noise; changes; deformation."""
    channels = 5 * (1 + num_channels) + (1 + NUM_BIAS_COEFFICIENTS * num_channels) + (1 + 4 * num_channels)
    channels += 1 + 2 * num_channels
    return 3 + 5 + 15 + 4 + 3 + channels + (num_elastic + 1 if num_elastic else 0)


def _uniform(numbers: Doubles, ends: tuple[float, float]) -> Doubles:
    """As `numpy.random.Generator.uniform`."""
    low, high = ends
    return low + (high - low) * numbers


def _warp(params: AugmentParams, columns: _Columns, config: AugmentConfig, shares: Doubles, spacings: Doubles) -> None:
    params.flips[:] = columns.next(3) < config.flip_probability
    matrix = _quarter_turns(columns, config)
    if params.swapped_classes.size > 0:
        # Which axis of the patch runs from left to right in the volume; turning a body does not swap its sides.
        sagittal = np.abs(matrix[:, 0]).argmax(axis=1)
        params.is_swapped[:] = params.flips[np.arange(len(sagittal)), sagittal]
    are_chosen, angles, zoom, shear = columns.next(2), columns.next(3), columns.next(1), columns.next(9)
    offset = _uniform(columns.next(3), (-1.0, 1.0)) * config.translate_voxel
    is_affine = columns.next(1)[:, 0] < shares * config.affine_probability
    if is_affine.any():
        rows = np.flatnonzero(is_affine)
        drawn = are_chosen[rows], angles[rows], zoom[rows, 0], shear[rows]
        matrix[rows] = _affine(*drawn, config, spacings[rows]) @ matrix[rows]
        params.offset_voxel[rows] = offset[rows]
    params.matrix[:] = matrix
    params.is_warped[:] = (matrix != np.eye(3)).any(axis=(1, 2)) | params.offset_voxel.any(axis=1)


def _change(params: AugmentParams, columns: _Columns, config: AugmentConfig, shares: Doubles) -> None:
    b, c = params.gamma.shape
    for target, probability, ends in (
        (params.scale, config.intensity_scale_probability, config.intensity_scale_range),
        (params.shift, config.intensity_shift_probability, config.intensity_shift_range),
        (params.contrast, config.contrast_probability, config.contrast_range),
        (params.gamma_inverted, config.gamma_inverted_probability, config.gamma_range),
        (params.gamma, config.gamma_probability, config.gamma_range),
    ):
        is_used, values = columns.next(1)[:, 0] < shares * probability, columns.next(c)
        if is_used.any():
            target[is_used] = _uniform(values[is_used], ends)
    has_bias, values = columns.next(1)[:, 0] < shares * config.bias_probability, columns.next(c * NUM_BIAS_COEFFICIENTS)
    if has_bias.any():
        params.has_bias[:] = has_bias
        bias = _uniform(values[has_bias], (-config.bias_strength, config.bias_strength))
        params.bias[has_bias] = bias.reshape(-1, c, NUM_BIAS_COEFFICIENTS)
    has_blur, is_blurred = columns.next(1) < (shares * config.blur_probability)[:, None], columns.next(c) < 0.5
    values = columns.next(3 * c)
    if has_blur.any():
        sigma = _uniform(values, config.blur_sigma_range).reshape(b, c, 3)
        params.blur_sigma_voxel[:] = np.where((has_blur & is_blurred)[:, :, None], sigma, 0.0)
    is_coarse = columns.next(1) < (shares * config.low_resolution_probability)[:, None]
    are_coarse, values = columns.next(c) < 0.5, columns.next(c)
    if is_coarse.any():
        zoom = _uniform(values, config.low_resolution_range)
        params.low_resolution[:] = np.where(is_coarse & are_coarse, zoom, 1.0)


def _quarter_turns(columns: _Columns, config: AugmentConfig) -> Doubles:
    """The products of whole quarter turns about x, y and z (b, 3, 3); their entries are exactly 0, 1 and -1."""
    are_turned, words = columns.next(3) < config.quarter_turn_probability, columns.next_words(2)
    if not are_turned.any():
        return np.repeat(np.eye(3)[None], len(words), axis=0)
    quarters = np.where(are_turned, _one_to_three(words), 0)
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
    half, is_odd = words >> np.uint64(1), (words & np.uint64(1)) == 1
    # word * 2**63 is half * 2**64, plus 2**63 if odd; the word that is subtracted from it borrows if it is larger.
    borrows = words > np.where(is_odd, np.uint64(2**63), np.uint64(0))
    return (half - borrows).astype(np.int64)


def _affine(
    are_chosen: Doubles, angles: Doubles, zoom: Doubles, shear: Doubles, config: AugmentConfig, spacings: Doubles
) -> Doubles:
    """Rotation, zoom and shear, drawn in millimeters, as matrices on voxel offsets from patch to volume: (n, 3, 3)."""
    is_rotated, is_scaled = (are_chosen < (config.rotation_share, config.scale_share)).T
    angles = np.deg2rad(_uniform(angles, (-1.0, 1.0)) * config.rotation_degrees)
    rotation = _rotations(np.where(is_rotated[:, None], angles, 0.0))
    zoom = np.where(is_scaled, _uniform(zoom, config.scale_range), 1.0)
    sheared = np.eye(3) + _uniform(shear, (-config.shear, config.shear)).reshape(-1, 3, 3) * (1.0 - np.eye(3))
    in_mm = np.swapaxes(rotation, 1, 2) @ sheared / zoom[:, None, None]
    in_voxels: Doubles = in_mm * spacings[:, None, :] / spacings[:, :, None]
    return in_voxels


def _rotations(angles_rad: Doubles) -> Doubles:
    """The rotations (n, 3, 3) about x, then y, then z, each from the next axis toward the one after it."""
    cos, sin = np.cos(angles_rad), np.sin(angles_rad)
    turns = np.zeros((len(angles_rad), 3, 3, 3))
    for axis in range(3):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turns[:, axis, axis, axis] = 1.0
        turns[:, axis, first, first] = turns[:, axis, second, second] = cos[:, axis]
        turns[:, axis, first, second], turns[:, axis, second, first] = -sin[:, axis], sin[:, axis]
    rotations: Doubles = turns[:, 2] @ (turns[:, 1] @ turns[:, 0])
    return rotations
