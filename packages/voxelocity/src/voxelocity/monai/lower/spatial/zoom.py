"""Zooms, resizes and low resolution: axis by axis, by tables of voxels and weights."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.transforms.utils import scale_affine
from monai.utils import ensure_tuple, ensure_tuple_rep, fall_back_tuple

from voxelocity.monai.lower.lowering import adds_steps, blindly, first_reason, seeing, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.lower.spatial.sampling import (
    Matrix,
    device_why_not,
    dtype_why_not,
    each,
    lifted_matrix,
    named,
    to_float32,
)
from voxelocity.monai.steps import AxisWeights, Resize

_LINEAR = ("linear", "bilinear", "trilinear")
_MODES = (*_LINEAR, "nearest", "nearest-exact", "area")
_PADDINGS = ("constant", "edge", "replicate", "reflect")


def _modes_why_not(modes: Any, align_corners: Any) -> str:
    names, aligned = tuple(map(named, each(modes))), each(align_corners)
    # Each is one for all keys, or one for each.
    num_keys = max(len(names), len(aligned))
    for _, mode, is_aligned in zip(range(num_keys), itertools.cycle(names), itertools.cycle(aligned), strict=False):
        if mode not in _MODES:
            return f"mode {mode!r} is not one of {', '.join(_MODES)}"
        if mode not in _LINEAR and is_aligned is not None:
            return f"align_corners does not apply to mode {mode!r}: torch raises the error"
    return ""


def _zoom_why_not(transform: Any, inner: Any) -> str:
    padding = [mode for mode in map(named, each(transform.padding_mode)) if mode not in _PADDINGS]
    return first_reason(
        why_not_lazy(transform),
        _modes_why_not(transform.mode, transform.align_corners),
        f"padding_mode {padding[0]!r} is not one of {', '.join(_PADDINGS)}" if padding else "",
        f"arguments of the padding are not lowered: {', '.join(inner.kwargs)}" if inner.kwargs else "",
        dtype_why_not(transform.dtype),
    )


_of_zoom = functools.partial(adds_steps, per_key=("mode", "padding_mode", "align_corners"), why_not=_zoom_why_not)


@_of_zoom(mt.Zoom, "zoomer")
def _zoom(transform: Any, pending: PendingTensor, params: Any, *modes: Any) -> PendingTensor:
    return _add_zoom(pending, transform.zoom, transform.keep_size, *modes)


@_of_zoom(
    mt.RandZoom, "rand_zoom", draw=seeing, draws="always", needs_key=True, idle=to_float32, idle_of_key=to_float32
)
def _rand_zoom(transform: Any, pending: PendingTensor, params: None, *modes: Any) -> PendingTensor:
    return _add_zoom(pending, transform._zoom, transform.keep_size, *modes)


def _add_zoom(
    pending: PendingTensor, factor: Any, keeps_size: bool, mode: Any, padding_mode: Any, align_corners: Any
) -> PendingTensor:
    before = pending.spatial_shape
    factors = ensure_tuple_rep(factor, pending.num_spatial)
    sizes = [math.floor(float(side) * zoom) for side, zoom in zip(before, factors, strict=True)]
    if min(sizes) < 1:
        raise ValueError(
            f"voxelocity.monai: zooming an image of shape {before} by {factors} leaves nothing of it; raise min_zoom"
        )
    matrix = lifted_matrix(scale_affine(before, sizes, align_corners=bool(align_corners)))
    tables = []
    for axis, (side, size) in enumerate(zip(before, sizes, strict=True)):
        table = interpolation(side, size, named(mode), bool(align_corners))
        if keeps_size and size != side:
            rows = padded_rows(size, side, named(padding_mode))
            table = table.rows(rows)
            shift = np.eye(4)
            shift[axis, 3] = size // 2 - side // 2 if size > side else -((side - size) // 2)
            matrix = matrix @ shift
        tables.append(table)
    _add(pending, tables, matrix)
    return pending


def _resize_why_not(transform: Any, inner: Any) -> str:
    return first_reason(
        why_not_lazy(transform),
        _modes_why_not(transform.mode, transform.align_corners),
        "anti_aliasing smooths first" if any(each(transform.anti_aliasing)) else "",
        dtype_why_not(transform.dtype),
    )


@adds_steps(mt.Resize, "resizer", per_key=("mode", "align_corners"), why_not=_resize_why_not)
def _resize(transform: Any, pending: PendingTensor, params: Any, mode: Any, align_corners: Any) -> PendingTensor:
    before = pending.spatial_shape
    if transform.size_mode == "all":
        if len(ensure_tuple(transform.spatial_size)) != len(before):
            # It adds axes, or refuses.
            return PendingTensor.of(transform(finish(pending), mode, align_corners))
        shape = tuple(int(side) for side in fall_back_tuple(transform.spatial_size, before))
    else:
        scale = transform.spatial_size / max(before)
        shape = tuple(round(side * scale) for side in before)
    matrix = lifted_matrix(scale_affine(before, shape, align_corners=bool(align_corners)))
    if shape == before:
        pending.relocate(matrix)
        return to_float32(transform, pending)
    sides = zip(before, shape, strict=True)
    _add(pending, [interpolation(side, size, named(mode), bool(align_corners)) for side, size in sides], matrix)
    return pending


def _low_resolution_why_not(transform: Any, inner: Any) -> str:
    return first_reason(
        _modes_why_not((transform.downsample_mode, transform.upsample_mode), None), device_why_not(transform.device)
    )


# Each key has another resolution; if it does nothing, MONAI converts in the dictionary form alone.
@adds_steps(
    mt.RandSimulateLowResolution,
    "sim_lowres_tfm",
    draw=blindly,
    draws="each",
    needs_key=True,
    idle_of_key=to_float32,
    why_not=_low_resolution_why_not,
)
def _coarsen(transform: Any, pending: PendingTensor, params: None) -> PendingTensor:
    tables = []
    for side in pending.spatial_shape:
        few = max(1, int(np.round(side * transform.zoom_factor)))
        down = interpolation(side, few, named(transform.downsample_mode), bool(transform.align_corners))
        up = interpolation(few, side, named(transform.upsample_mode), bool(transform.align_corners))
        tables.append(up.after(down))
    _add(pending, tables, np.eye(4), updates_affine=False)
    return pending


def _add(pending: PendingTensor, tables: Sequence[AxisWeights], matrix: Matrix, *, updates_affine: bool = True) -> None:
    x, y, z = (*tables, interpolation(1, 1, "nearest", False))[:3]
    pending.add(Resize(tables=(x, y, z), matrix=matrix), updates_affine=updates_affine)


@functools.lru_cache(maxsize=1024)
def interpolation(side: int, size: int, mode: str, align_corners: bool) -> AxisWeights:
    """From an axis of `side` voxels to `size`, as `torch.nn.functional.interpolate`; `mode` is one of `_MODES`."""
    if side == size:
        return AxisWeights(index=np.arange(side, dtype=np.int32)[:, None], weight=np.ones((side, 1), np.float32))
    if mode in _LINEAR:
        return _linear(side, size, align_corners)
    if mode == "area":
        return _area(side, size)
    # Torch itself says which voxel it takes: it counts in float32.
    counted = torch.arange(side, dtype=torch.float32)[None, None]
    taken = torch.nn.functional.interpolate(counted, size=size, mode=mode)[0, 0].numpy()
    return AxisWeights(index=taken.astype(np.int32)[:, None], weight=np.ones((size, 1), np.float32))


def padded_rows(size: int, side: int, mode: str) -> Any:
    """Which of `size` voxels are where an axis is cropped or padded about its middle to `side`; -1 for a 0.

    As MONAI's `ResizeWithPadOrCrop`: the window begins at the middle minus half its size, and the larger half of the
    pad comes last.
    """
    if size > side:
        start = max(size // 2 - side // 2, 0)
        return np.arange(start, start + side)
    before = (side - size) // 2
    positions = np.arange(side) - before
    if mode == "constant":
        return np.where((positions < 0) | (positions >= size), -1, positions)
    if mode == "reflect":
        if side - size - before >= size:
            raise ValueError(
                f"voxelocity.monai: padding_mode 'reflect' cannot pad {size} voxels to {side}: the image is too "
                "small for a mirror image; choose padding_mode='edge'"
            )
        positions = np.abs(positions)
        return np.where(positions >= size, 2 * (size - 1) - positions, positions)
    return np.clip(positions, 0, size - 1)


def _linear(side: int, size: int, align_corners: bool) -> AxisWeights:
    one = np.float32(1.0)
    numbers = np.arange(size, dtype=np.float32)
    if align_corners:
        place = numbers * (np.float32(side - 1) / np.float32(size - 1) if size > 1 else np.float32(0.0))
    else:
        half, scale = np.float32(0.5), np.float32(side) / np.float32(size)
        place = np.maximum(scale * (numbers + half) - half, np.float32(0.0))
    below = np.minimum(place.astype(np.int32), side - 1)
    above = np.minimum(below + 1, side - 1)
    share = np.clip(place - below.astype(np.float32), np.float32(0.0), one)
    return AxisWeights(index=np.stack([below, above], axis=1), weight=np.stack([one - share, share], axis=1))


def _area(side: int, size: int) -> AxisWeights:
    """Means of windows, as torch's `adaptive_avg_pool`."""
    numbers = np.arange(size)
    start, stop = numbers * side // size, -(-(numbers + 1) * side // size)
    taps = np.arange(int((stop - start).max()))
    index = start[:, None] + taps
    is_in = index < stop[:, None]
    weight = np.where(is_in, 1.0 / (stop - start)[:, None], 0.0).astype(np.float32)
    return AxisWeights(index=np.where(is_in, index, start[:, None]).astype(np.int32), weight=weight)
