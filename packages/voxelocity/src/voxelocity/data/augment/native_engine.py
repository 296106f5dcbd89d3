"""The augmentation of one sample on a CPU, by compiled loops that hold no GIL: the fast path."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import interpolate, rows_of
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Scaling
from voxelocity.data.augment import native_loops as loops
from voxelocity.data.augment.params import (
    AugmentParams,
    Floats,
    Source,
    blur_weights,
    coefficient_cube,
    four_weights,
    legendre,
    low_positions,
    origin_and_step,
    spline_weights,
)

_KERNEL_DTYPES = frozenset(np.dtype(name) for name in loops.STORED_DTYPES)
_NO_NOISE = np.empty(0)
_LARGEST_KEPT_BYTES = 2**27
"""Larger scratch, as for a warp of a whole large scan, is freed when it is done."""
_own = threading.local()


def augment_sample(
    source: Source,
    region: Region,
    params: AugmentParams,
    row: int,
    out_image: Floats,
    out_label: npt.NDArray[np.uint8] | npt.NDArray[np.int32],
) -> None:
    """Fills a patch with sample `row`. Allocates nothing of the patch's size except one scratch channel per thread.

    Args:
        source: the box that the sample needs, from `params.needed_box`.
        region: of the patch in its volume.
        params: of the batch.
        row: of this sample.
        out_image: (c, x, y, z) in C order.
        out_label: (x, y, z) in C order; int32 for more than 256 classes.
    """
    sigmas = params.blur_sigma_voxel[row].tolist()
    has_bias = bool(params.has_bias[row])
    # Brightness joins the decoding of channels where at most noise comes in between.
    is_folded = [not (has_bias or any(sigma)) for sigma in sigmas]
    scale = _scale(source, params, row, is_folded)
    is_wide = out_label.dtype != np.uint8
    label: Array = scratch("moved label", out_label.shape, np.dtype(np.uint16)) if is_wide else out_label
    place = _warp if params.is_warped[row] else _crop
    place(source, region, params, row, scale, out_image, label)
    if is_wide:
        out_label[...] = label
        if params.is_swapped[row]:
            # Ignored voxels may follow the classes of the table.
            table = params.swapped_classes
            np.copyto(out_label, table.take(label, mode="clip"), where=label < len(table))
    elif params.is_swapped[row]:
        loops.swap_classes(label.reshape(-1), params.swapped_classes)
    for number, channel in enumerate(out_image):
        if has_bias:
            _apply_bias(channel, params, row, number)
        _change_intensities(channel, params, row, number, sigmas[number], is_folded=is_folded[number])
    if params.cutout.size > 0 and params.cutout[row].any():
        loops.fill_boxes(out_image, params.cutout[row], _NO_NOISE, float(params.cutout_value[row]), 0.0)


def _scale(source: Source, params: AugmentParams, row: int, is_folded: Sequence[bool]) -> Floats:
    """Decoding, combined with the brightness where it is folded: (c, 3) float32 as the loops take it."""
    scaling = source.scaling or (Scaling(),) * len(is_folded)
    brightness = zip(params.scale[row].tolist(), params.shift[row].tolist(), strict=True)
    rows = [
        (stored.slope * scale, stored.inter * scale, shift) if is_in else (stored.slope, stored.inter, 0.0)
        for stored, (scale, shift), is_in in zip(scaling, brightness, is_folded, strict=True)
    ]
    return np.array(rows, dtype=np.float32)


def _warp(
    source: Source,
    region: Region,
    params: AugmentParams,
    row: int,
    scale: Floats,
    out_image: Floats,
    out_label: Array,
) -> None:
    image = _compact(source.image, "image", _KERNEL_DTYPES)
    label = _compact(source.label, "label", loops.LABEL_DTYPES)
    origin, step = origin_and_step(params, row, region, source.start)
    control, none = np.zeros((3, 0, 0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.float32)
    spline = (none, none, np.zeros(0, dtype=np.int32), none)
    if params.is_elastic[row]:
        control = np.einsum("ij,jxyz->ixyz", params.matrix[row], params.elastic[row]).astype(np.float32)
        x, y, z = zip(out_label.shape, control.shape[1:], strict=True)
        spline = (spline_weights(*x), spline_weights(*y), *four_weights(*z))
    elastic, out = (control, *spline), (out_image, out_label)
    loops.warp(image, label, (origin, step), elastic, scale, out, votes=params.votes)


def _crop(
    source: Source,
    region: Region,
    params: AugmentParams,
    row: int,
    scale: Floats,
    out_image: Floats,
    out_label: Array,
) -> None:
    image, label = rows_of(source.image, _KERNEL_DTYPES), rows_of(source.label, loops.LABEL_DTYPES)
    (ax, ay, az), (bx, by, bz), (nx, ny, nz) = source.start, region.start, source.label.shape
    start, stop = (ax - bx, ay - by, az - bz), (ax - bx + nx, ay - by + ny, az - bz + nz)
    if source.label.size == 0:
        start = stop = (0, 0, 0)
    loops.crop(image, label, (start, stop), params.flips[row].tolist(), scale, (out_image, out_label))


def _apply_bias(channel: Floats, params: AugmentParams, row: int, number: int) -> None:
    along_x, along_y, along_z = (legendre(side) for side in channel.shape)
    cube = coefficient_cube(params.bias[row, number])
    loops.apply_bias(channel, cube, along_x, along_y, np.ascontiguousarray(along_z.T))


def _change_intensities(
    channel: Floats, params: AugmentParams, row: int, number: int, sigma: Sequence[float], *, is_folded: bool
) -> None:
    at, flat = (row, number), channel.reshape(-1)
    scale, std = params.scale.item(at), params.noise_std.item(row)
    if std > 0.0:
        loops.add_noise(flat, std * scale if is_folded else std, params.noise_seed[row], number)
    if any(sigma):
        _blur(channel, sigma)
    if not is_folded and (scale != 1.0 or params.shift.item(at) != 0.0):
        loops.scale_and_shift(flat, scale, params.shift.item(at))
    if (contrast := params.contrast.item(at)) != 1.0:
        loops.spread(flat, contrast)
    if params.low_resolution.item(at) != 1.0:
        fine = scratch("channel", channel.shape, channel.dtype)
        fine[...] = channel
        interpolate(fine, channel, list(map(low_positions, channel.shape, params.zooms(row, number))))
    for gamma, is_inverted in ((params.gamma_inverted.item(at), True), (params.gamma.item(at), False)):
        if gamma != 1.0:
            loops.bend(flat, gamma, is_inverted=is_inverted, keeps_moments=params.gamma_keeps_moments)


def _blur(channel: Floats, sigma_voxel: Sequence[float]) -> None:
    source, target = channel, scratch("channel", channel.shape, channel.dtype)
    for axis, sigma in enumerate(sigma_voxel):
        kernel = blur_weights(sigma, channel.shape[axis])
        if kernel.size > 1:
            loops.blur_mirrored(source, target, kernel, axis)
            source, target = target, source
    if source is not channel:
        channel[...] = source


def _compact(array: Array, name: str, dtypes: frozenset[np.dtype[Any]]) -> Array:
    """The array itself if it is in C order, else a copy that stays with this thread; float32 if in none of `dtypes`.

    The loops run faster on a copy, including the time to copy: a box of a large volume lies in pieces that are far
    apart, and for sides of a power of two most of them compete for the same few places in the processor's caches.
    """
    dtype = array.dtype if array.dtype in dtypes else np.dtype(np.float32)
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    copy = scratch(name, array.shape, dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def scratch(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized array that this thread keeps until it requests one of this name again."""
    num_bytes = math.prod(shape) * dtype.itemsize
    held: Array | None = getattr(_own, name, None)
    if held is None or held.size < num_bytes:
        held = np.empty(num_bytes, dtype=np.uint8)
        if num_bytes <= _LARGEST_KEPT_BYTES:
            setattr(_own, name, held)
    kept: Array = held[:num_bytes].view(dtype).reshape(shape)
    return kept
