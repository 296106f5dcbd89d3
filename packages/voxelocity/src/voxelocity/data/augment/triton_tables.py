"""What the Triton kernels look up, as arrays for all samples of a batch. Knows nothing about devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.augment.params import DEGREES, TRUNCATE, AugmentParams, ResidentSource, Source, scalings
from voxelocity_observe.core.errors import DatasetError

# Of each coefficient, in `params.coefficient_cube`.
_PLACES_IN_CUBE = np.array([(i * 4 + j) * 4 + k for i, j, k in DEGREES])

Bools = npt.NDArray[np.bool_]
Stored = npt.NDArray[np.int64]
"""(b, 12): where the voxels of each sample lie, in voxels of a piece of memory: the image's offset and its steps along
channels, x, y and z; the label's offset and steps along x, y and z; the size of the box."""


def check_reach(stored: Stored, is_warped: Bools) -> None:
    """Returns if the kernels can count the voxels between the first and the last of each box in int32.

    `triton_crop.crop` counts those of a plane across x, `triton_warp.gather` all of them.

    Raises:
        DatasetError: a box is too large.
    """
    reach = np.maximum(np.abs(stored[:, 2:5]), np.abs(stored[:, 6:9])) * (stored[:, 9:] - 1)
    reach[~is_warped, 0] = 0
    if reach.size and reach.max() >= 2**31:
        row = int(reach.max(axis=1).argmax())
        shape = " x ".join(map(str, stored[row, 9:].tolist()))
        raise DatasetError(
            f"augment: a patch needs {shape} voxels of a scan, whose first and last lie {int(reach.max()):,} "
            "apart in memory; the kernels of the engine triton count to 2^31. Set data.augment.engine=torch, or a "
            "coarser data.prepare.spacing_mm"
        )


def placed(
    stored: Stored, sources: Sequence[Source | ResidentSource], regions: Sequence[Region], params: AugmentParams
) -> tuple[Array, Array, Array]:
    """The tables `places` and `steps` of `triton_warp.gather`, and `places` of `triton_crop.crop`, each of all samples.

    Each kernel reads those of its samples; the others hold numbers without a meaning.
    """
    starts = np.array([source.start for source in sources])
    first, stop = np.array([region.start + region.stop for region in regions]).reshape(-1, 2, 3).swapaxes(0, 1)
    signs = np.where(params.flips, -1, 1)
    places, steps = np.empty((len(stored), 16), np.int64), np.empty((len(stored), 12), np.float32)
    # Twice the middle is whole: nothing is rounded before the shift is added.
    middle = (first + stop - 1) / 2.0 + params.offset_voxel - starts
    base = np.floor(middle)
    places[:, :12], places[:, 12:15], places[:, 15] = stored, base, np.cumsum(params.is_elastic) - 1
    places[~params.is_elastic, 15] = -1
    steps[:, :3] = middle - base
    steps[:, 3:] = (params.matrix * signs[:, None, :]).reshape(-1, 9)
    return places, steps, _cropped(stored, np.where(params.flips, stop - 1, first) - starts, signs, stop - first)


def _cropped(stored: Stored, first: Stored, signs: Stored, side: Stored) -> Stored:
    """`triton_crop.CROP_NAMES`, from where the first voxel of each patch lies in its box."""
    crops, size = np.empty((len(stored), 15), np.int64), stored[:, 9:]
    crops[:, :9] = stored[:, :9]
    crops[:, 0] += (first * stored[:, 2:5]).sum(axis=1)
    crops[:, 5] += (first * stored[:, 6:9]).sum(axis=1)
    crops[:, 2:5] *= signs
    crops[:, 6:9] *= signs
    is_forward = signs > 0
    np.minimum(np.maximum(np.where(is_forward, -first, first - size + 1), 0), side, out=crops[:, 9:12])
    np.minimum(np.maximum(np.where(is_forward, size - first, first + 1), 0), side, out=crops[:, 12:])
    return crops


class ChangeKernel(IntEnum):
    """The kernels that change listed channels, in their order, and `measure`, which only reads them."""

    POINTS = 0
    BLUR = 1
    COARSEN = 2
    BEND = 3
    BEND_AGAIN = 4
    RESTORE = 5
    MEASURE = 6


class Lists(NamedTuple):
    """Which channels each kernel changes.

    Attributes:
        chosen: (7, b, c), by `ChangeKernel`.
        sizes: of the lists.
        entries: (7, n) int32, of `triton_intensity`, where n is a multiple of 4, so that each list is aligned.
        is_changed: (b, c), whether any kernel changes it.
    """

    chosen: Bools
    sizes: list[int]
    entries: npt.NDArray[np.int32]
    is_changed: Bools


def lists(params: AugmentParams) -> Lists:
    """The channels that each kernel changes."""
    contrasted, coarse = params.contrast != 1.0, params.low_resolution != 1.0
    inverted, straight = params.gamma_inverted != 1.0, params.gamma != 1.0
    bent, late_contrast = inverted | straight, contrasted & ~coarse
    chosen = np.empty((len(ChangeKernel), *bent.shape), dtype=np.bool_)
    chosen[ChangeKernel.POINTS] = (params.has_bias | (params.noise_std > 0.0))[:, None]
    np.any(params.blur_sigma_voxel > 0.0, axis=2, out=chosen[ChangeKernel.BLUR])
    chosen[ChangeKernel.COARSEN], chosen[ChangeKernel.BEND] = coarse, bent | late_contrast
    np.logical_and(inverted, straight, out=chosen[ChangeKernel.BEND_AGAIN])
    chosen[ChangeKernel.RESTORE] = bent if params.gamma_keeps_moments else False
    # Channels that are coarsened without contrast are measured during coarsening, not here.
    chosen[ChangeKernel.MEASURE] = contrasted | (bent & ~coarse)
    is_changed: Bools = np.asarray(chosen[: ChangeKernel.MEASURE].any(axis=0))
    numbers = np.arange(0, 4 * bent.size, 4, dtype=np.int32).reshape(bent.shape)
    entries = np.empty((len(ChangeKernel), -(-bent.size // 4) * 4), dtype=np.int32)
    flags = {ChangeKernel.BEND: late_contrast, ChangeKernel.RESTORE: chosen[ChangeKernel.BEND_AGAIN]}
    is_later, sizes = np.zeros_like(is_changed), [0] * len(ChangeKernel)
    for which in reversed(ChangeKernel):
        if not chosen[which].any():
            continue
        coded = numbers + ~is_later if which != ChangeKernel.MEASURE else numbers
        coded = coded + 2 * flags[which] if which in flags else coded
        found = coded[chosen[which]]
        sizes[which] = len(found)
        entries[which, : len(found)] = found
        if which != ChangeKernel.MEASURE:
            np.logical_or(is_later, chosen[which], out=is_later)
    return Lists(chosen, sizes, entries, is_changed)


def scales(
    sources: Sequence[Source | ResidentSource], params: AugmentParams, changes: Lists
) -> npt.NDArray[np.float32]:
    """Decoding, combined with the brightness of channels where nothing comes in between: (b, c, 4)."""
    is_apart = changes.chosen[ChangeKernel.POINTS] | changes.chosen[ChangeKernel.BLUR]
    factor = np.where(is_apart, 1.0, params.scale)
    made = np.empty((*factor.shape, 4), dtype=np.float32)
    np.multiply(scalings(sources, params.num_channels), factor[..., None], out=made[..., :2], casting="same_kind")
    made[..., 2] = np.where(is_apart, 0.0, params.shift)
    made[..., 3] = ~changes.is_changed
    return made


def values(params: AugmentParams, is_blurred: Bools) -> Array:
    """`triton_intensity.VALUE_NAMES` of each channel: (b, c, 8)."""
    made = np.empty((*params.gamma.shape, 8), dtype=np.float32)
    made[..., 0], made[..., 3] = params.noise_std[:, None], params.has_bias[:, None]
    made[..., 1], made[..., 2] = params.scale, params.shift
    made[..., 4], made[..., 5], made[..., 6] = params.contrast, params.gamma_inverted, params.gamma
    made[..., 7] = is_blurred
    return made


def cubes(params: AugmentParams) -> Array:
    """`params.coefficient_cube` of each channel: (b, c, 64), zero without a bias."""
    cubes = np.zeros((params.num_samples, params.num_channels, 64), dtype=np.float32)
    if params.has_bias.any():
        rows = np.flatnonzero(params.has_bias)
        cubes[rows[:, None, None], np.arange(params.num_channels)[:, None], _PLACES_IN_CUBE] = params.bias[rows]
    return cubes


def taps(params: AugmentParams, is_blurred: Bools, shape: Index3) -> tuple[Array, Array]:
    """`params.blur_weights` along each axis of each blurred channel: (n, 3, taps), and their radii (n, 3)."""
    sigmas = params.blur_sigma_voxel[is_blurred].astype(np.float64)
    radii = np.minimum((TRUNCATE * sigmas + 0.5).astype(np.int64), np.array(shape) - 1)
    offsets = np.arange(2 * int(radii.max()) + 1) - radii[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(-0.5 * (offsets / sigmas[..., None]) ** 2)
    # Without a blur, the voxel itself.
    weights[radii == 0] = 1.0
    weights[offsets > radii[..., None]] = 0.0
    # Each sum over its own weights alone, so that its rounding does not depend on those of others.
    sizes = (2 * radii + 1).tolist()
    sums = [[weights[n, axis, :size].sum() for axis, size in enumerate(three)] for n, three in enumerate(sizes)]
    return (weights / np.array(sums)[..., None]).astype(np.float32), radii.astype(np.int32)


def coarse_tables(params: AugmentParams, shape: Index3) -> tuple[Array, Array, Array]:
    """`params.low_positions` along x, y and z of each coarse channel: three arrays (n, nx + ny + nz)."""
    middle, side, axis = _along(shape)
    zooms = params.low_resolution[params.low_resolution != 1.0].astype(np.float64)
    # `take` gives C order, in which kernels read; an index of the second axis does not.
    num_low = np.maximum(1.0, np.floor(np.array(shape) * zooms[:, None] + 0.5))
    num_low = np.where(params.coarse_axes, num_low, shape).take(axis, axis=1)
    place = np.clip(middle * (num_low / side) - 0.5, 0.0, num_low - 1.0)
    below = np.floor(place)
    above = np.minimum(below + 1.0, num_low - 1.0)
    share = side / num_low
    kept = [np.minimum(((low + 0.5) * share).astype(np.int32), side.astype(np.int32) - 1) for low in (below, above)]
    return kept[0], kept[1], (place - below).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _along(shape: Index3) -> tuple[Array, Array, Array]:
    """Of each voxel of x, then y, then z: where its middle is, how many there are along its axis, and which it is."""
    middle = np.concatenate([np.arange(side) + 0.5 for side in shape])
    axis = np.repeat(np.arange(3), shape)
    return middle, np.array(shape, dtype=np.float64)[axis], axis
