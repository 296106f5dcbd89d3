"""The random numbers of an augmentation, drawn one sample after another: what `data.augment.sample` must equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import generator
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.built_in import Patches
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import NUM_BIAS_COEFFICIENTS, AugmentParams

Matrix = npt.NDArray[np.float64]


def sample_one_by_one(
    draws: Sequence[Draw],
    *,
    seed: int,
    num_channels: int,
    patch_shape: Index3,
    config: AugmentConfig,
    spacing_mm: Spacing | Sequence[Spacing] | None = None,
    swapped_classes: Sequence[int] = (),
) -> AugmentParams:
    """As `data.augment.sample`, whose arguments it takes, with a generator of NumPy's for each draw."""
    if not config.enabled:
        return AugmentParams.identity(len(draws), num_channels)
    patches = Patches(config=config, num_channels=num_channels, shape=patch_shape)
    params = patches.unchanged(len(draws), swapped_classes)
    spacing = np.array((1.0, 1.0, 1.0) if spacing_mm is None else spacing_mm, dtype=np.float64)
    spacings = np.broadcast_to(spacing, (len(draws), 3))
    for row, draw in enumerate(draws):
        rng = generator(seed, stage="augment", epoch=draw.epoch, case=draw.case, draw=draw.draw)
        _fill_row(params, row, rng, config.at(draw.epoch), spacings[row])
        if config.cutout_probability > 0.0:
            rng = generator(seed, stage="augment cutout", epoch=draw.epoch, case=draw.case, draw=draw.draw)
            _fill_cutout(params, row, rng, config.at(draw.epoch), patch_shape)
    return params


def _fill_row(
    params: AugmentParams, row: int, rng: np.random.Generator, config: AugmentConfig, spacing: Matrix
) -> None:
    # Every number is drawn, used or not, so that changing one probability does not affect the other changes.
    params.flips[row] = rng.random(3) < config.flip_probability
    matrix = _quarter_turns(rng, config)
    # Which axis of the patch runs from left to right in the volume; turning a body does not swap its sides.
    sagittal = int(np.abs(matrix[0]).argmax())
    params.is_swapped[row] = params.flips[row, sagittal] and params.swapped_classes.size > 0
    affine = _affine(rng, config, spacing)
    offset_voxel = rng.uniform(-1.0, 1.0, size=3) * config.translate_voxel
    if rng.random() < config.affine_probability:
        matrix = affine @ matrix
        params.offset_voxel[row] = offset_voxel
    params.matrix[row] = matrix
    has_noise, noise_std = rng.random() < config.noise_probability, rng.uniform(*config.noise_std_range)
    params.noise_std[row] = noise_std if has_noise else 0.0
    params.noise_seed[row] = rng.integers(2**63 - 1)
    # The rest draws a number of values that depends on channels and patch.
    _fill_channels(params, row, rng, config)
    if params.elastic.size > 0:
        shifts = rng.uniform(-config.elastic_voxel, config.elastic_voxel, size=params.elastic.shape[1:])
        if rng.random() < config.elastic_probability:
            params.is_elastic[row] = True
            params.elastic[row] = shifts
    is_moved = not np.array_equal(matrix, np.eye(3)) or params.offset_voxel[row].any()
    params.is_warped[row] = is_moved or params.is_elastic[row]


def _fill_channels(params: AugmentParams, row: int, rng: np.random.Generator, config: AugmentConfig) -> None:
    c = params.num_channels
    for target, probability, ends in (
        (params.scale, config.intensity_scale_probability, config.intensity_scale_range),
        (params.shift, config.intensity_shift_probability, config.intensity_shift_range),
        (params.contrast, config.contrast_probability, config.contrast_range),
        (params.gamma_inverted, config.gamma_inverted_probability, config.gamma_range),
        (params.gamma, config.gamma_probability, config.gamma_range),
    ):
        is_used, values = rng.random() < probability, rng.uniform(*ends, size=c)
        if is_used:
            target[row] = values
    has_bias = rng.random() < config.bias_probability
    bias = rng.uniform(-config.bias_strength, config.bias_strength, size=(c, NUM_BIAS_COEFFICIENTS))
    if has_bias:
        params.has_bias[row] = True
        params.bias[row] = bias
    has_blur, is_blurred = rng.random() < config.blur_probability, rng.random(c) < 0.5
    sigma = rng.uniform(*config.blur_sigma_range, size=(c, 3))
    if has_blur:
        params.blur_sigma_voxel[row] = np.where(is_blurred[:, None], sigma, 0.0)
    is_coarse, are_coarse = rng.random() < config.low_resolution_probability, rng.random(c) < 0.5
    zoom = rng.uniform(*config.low_resolution_range, size=c)
    if is_coarse:
        params.low_resolution[row] = np.where(are_coarse, zoom, 1.0)


def _fill_cutout(
    params: AugmentParams, row: int, rng: np.random.Generator, config: AugmentConfig, shape: Index3
) -> None:
    is_cut, num = rng.random() < config.cutout_probability, config.cutout_boxes
    centers = (rng.random((num, 3)) * shape).astype(np.int64)
    shares = rng.uniform(*config.cutout_size_range, size=(num, 3))
    sizes = np.maximum((shares * shape + 0.5).astype(np.int64), 1)
    params.cutout_value[row] = config.cutout_value
    for box in range(num if is_cut else 0):
        for axis, side in enumerate(shape):
            start = centers[box, axis] - sizes[box, axis] // 2
            params.cutout[row, box, 0, axis] = max(0, start)
            params.cutout[row, box, 1, axis] = min(side, start + sizes[box, axis])


def _quarter_turns(rng: np.random.Generator, config: AugmentConfig) -> Matrix:
    """The product of whole quarter turns about x, y and z; its entries are exactly 0, 1 and -1."""
    are_turned, numbers = rng.random(3) < config.quarter_turn_probability, rng.integers(1, 4, size=3)
    quarters = np.where(are_turned, numbers, 0)
    return np.rint(_rotation(quarters * (np.pi / 2.0)))


def _affine(rng: np.random.Generator, config: AugmentConfig, spacing: Matrix) -> Matrix:
    """Rotation, zoom and shear, drawn in millimeters, as a matrix on voxel offsets from patch to volume."""
    is_rotated, is_scaled = rng.random(2) < (config.rotation_share, config.scale_share)
    angles = np.deg2rad(rng.uniform(-1.0, 1.0, size=3) * config.rotation_degrees)
    zoom = rng.uniform(*config.scale_range)
    shear = rng.uniform(-config.shear, config.shear, size=(3, 3))
    rotation = _rotation(angles if is_rotated else np.zeros(3))
    in_mm = rotation.T @ (np.eye(3) + shear * (1.0 - np.eye(3))) / (zoom if is_scaled else 1.0)
    in_voxels: Matrix = in_mm * spacing[None, :] / spacing[:, None]
    return in_voxels


def _rotation(angles_rad: npt.NDArray[np.float64]) -> Matrix:
    """The rotation about x, then y, then z, each from the next axis toward the one after it."""
    result = np.eye(3)
    for axis, angle in enumerate(angles_rad.tolist()):
        if angle == 0.0:
            continue
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[first, first] = turn[second, second] = np.cos(angle)
        turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
        result = turn @ result
    return result
