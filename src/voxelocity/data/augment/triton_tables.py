"""What the Triton kernels look up, as arrays for all samples of a batch. Knows nothing about devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import ResidentSource, Source, scalings
from voxelocity.data.augment.tables import DEGREES, blur_weights, low_positions

# Of each coefficient, in `tables.coefficient_cube`.
_PLACES_IN_CUBE = np.array([(i * 4 + j) * 4 + k for i, j, k in DEGREES])

Bools = npt.NDArray[np.bool_]
Stored = npt.NDArray[np.int64]
"""(b, 12): where the voxels of each sample lie, in voxels of a piece of memory: the image's offset and its steps along
channels, x, y and z; the label's offset and steps along x, y and z; the size of the box."""


def placed(
    stored: Stored, sources: Sequence[Source | ResidentSource], regions: Sequence[Region], params: AugmentParams
) -> tuple[Array, Array, Array]:
    """The tables `places` and `steps` of `triton_warp.gather`, and `places` of `triton_crop.crop`, each of all samples.

    Each kernel reads those of its samples; the others hold numbers without a meaning.
    """
    starts = np.array([source.start for source in sources], dtype=np.float64)
    corners = np.array([(region.start, region.stop) for region in regions], dtype=np.float64)
    middle = (corners[:, 0] + corners[:, 1] - 1.0) / 2.0 + params.offset_voxel.astype(np.float64) - starts
    signs = np.where(params.flips, -1.0, 1.0)
    base = np.floor(middle)
    slots = np.where(params.is_elastic, np.cumsum(params.is_elastic) - 1, -1)
    places = np.concatenate([stored, base.astype(np.int64), slots[:, None]], axis=1)
    step = params.matrix.astype(np.float64) * signs[:, None, :]
    steps = np.concatenate([middle - base, step.reshape(-1, 9)], axis=1).astype(np.float32)
    side = corners[:, 1] - corners[:, 0]
    return places, steps, _cropped(stored, middle - signs * (side - 1.0) / 2.0, signs.astype(np.int64), side)


def _cropped(stored: Stored, first: Array, signs: Stored, side: Array) -> Array:
    """`triton_crop.CROP_NAMES`, from where the first voxel of each patch lies in its box."""
    first, side = np.rint(first).astype(np.int64), side.astype(np.int64)
    size = stored[:, 9:]
    start = np.where(signs > 0, -first, first - size + 1)
    stop = np.where(signs > 0, size - first, first + 1)
    image_steps, label_steps = stored[:, 2:5], stored[:, 6:9]
    return np.concatenate(
        [
            stored[:, 0:1] + (first * image_steps).sum(axis=1, keepdims=True),
            stored[:, 1:2],
            signs * image_steps,
            stored[:, 5:6] + (first * label_steps).sum(axis=1, keepdims=True),
            signs * label_steps,
            np.clip(start, 0, side),
            np.clip(stop, 0, side),
        ],
        axis=1,
    )


def scales(sources: Sequence[Source | ResidentSource], params: AugmentParams) -> npt.NDArray[np.float32]:
    """Decoding, combined with the brightness of channels where nothing comes in between: (b, c, 3)."""
    is_folded = ~(are_blurred(params) | are_changed(params))
    factor = np.where(is_folded, params.scale, 1.0)
    made = np.empty((*factor.shape, 3), dtype=np.float32)
    made[..., :2] = scalings(sources, params.num_channels) * factor[..., None]
    made[..., 2] = np.where(is_folded, params.shift, 0.0)
    return made


def are_blurred(params: AugmentParams) -> Bools:
    """Which channels get a blur: (b, c)."""
    is_blurred: Bools = np.asarray((params.blur_sigma_voxel > 0.0).any(axis=2))
    return is_blurred


def are_changed(params: AugmentParams) -> Bools:
    """Which channels get a bias or noise: (b, c)."""
    is_changed: Bools = np.asarray(params.has_bias | (params.noise_std > 0.0))
    return np.repeat(is_changed[:, None], params.num_channels, axis=1)


def values(params: AugmentParams) -> Array:
    """`triton_intensity.VALUE_NAMES` of each channel: (b, c, 8)."""
    made = np.empty((*params.gamma.shape, 8), dtype=np.float32)
    made[..., 0], made[..., 3] = params.noise_std[:, None], params.has_bias[:, None]
    made[..., 1], made[..., 2] = params.scale, params.shift
    made[..., 4], made[..., 5], made[..., 6] = params.contrast, params.gamma_inverted, params.gamma
    made[..., 7] = are_blurred(params)
    return made


def cubes(params: AugmentParams) -> Array:
    """`tables.coefficient_cube` of each channel: (b, c, 64), zero without a bias."""
    cubes = np.zeros((params.num_samples, params.num_channels, 64), dtype=np.float32)
    if params.has_bias.any():
        rows = np.flatnonzero(params.has_bias)
        cubes[rows[:, None, None], np.arange(params.num_channels)[:, None], _PLACES_IN_CUBE] = params.bias[rows]
    return cubes


def taps(params: AugmentParams, shape: Index3) -> tuple[Array, Array]:
    """Weights (n, 3, taps) of each blurred channel, and their radii (n, 3)."""
    kernels = [
        [blur_weights(float(sigma), side) for sigma, side in zip(sigmas, shape, strict=True)]
        for sigmas in params.blur_sigma_voxel[are_blurred(params)]
    ]
    num_taps = max((kernel.size for three in kernels for kernel in three), default=1)
    taps, radii = np.zeros((len(kernels), 3, num_taps), np.float32), np.zeros((len(kernels), 3), np.int32)
    for place, three in enumerate(kernels):
        for axis, kernel in enumerate(three):
            taps[place, axis, : kernel.size], radii[place, axis] = kernel, kernel.size // 2
    return taps, radii


def coarse_tables(params: AugmentParams, shape: Index3) -> tuple[Array, Array, Array]:
    """`low_positions` along x, y and z of each coarse channel: three arrays (n, nx + ny + nz)."""
    zooms = params.low_resolution[params.low_resolution != 1.0]
    tables = [[low_positions(side, float(zoom)) for side in shape] for zoom in zooms]
    below, above, shares = (
        np.array([np.concatenate([axis[number] for axis in axes]) for axes in tables]) for number in range(3)
    )
    return below.astype(np.int32), above.astype(np.int32), shares.astype(np.float32)
