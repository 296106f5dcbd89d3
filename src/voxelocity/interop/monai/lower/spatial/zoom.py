"""`RandZoom`, `Zoom`, `Resize`, `RandSimulateLowResolution` and their dictionary forms: axis by axis, by tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from monai.transforms.spatial.array import RandSimulateLowResolution, RandZoom, Zoom
from monai.transforms.spatial.array import Resize as MonaiResize
from monai.transforms.spatial.dictionary import RandSimulateLowResolutiond, RandZoomd, Resized, Zoomd
from monai.transforms.utils import scale_affine
from monai.utils import ensure_tuple, ensure_tuple_rep, fall_back_tuple

from voxelocity.data.augment.steps import Resize, Table
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch
from voxelocity.interop.monai.lower.spatial.sampling import (
    as_float,
    device_why_not,
    each,
    first_reason,
    is_float32,
    lazy_why_not,
    lifted_matrix,
    own_sketch,
)
from voxelocity.interop.monai.lower.spatial.tables import LINEAR, MODES, PADDINGS, interpolation, padded_rows

Matrix = npt.NDArray[np.float64]


def zoom(transform: Any, value: Any) -> Any:
    """`Zoom`."""
    modes = transform.mode, transform.padding_mode, transform.align_corners
    return _zoomed(own_sketch(value), transform.zoom, transform.keep_size, *modes)


def zoomed(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Zoomd`."""
    inner, made = transform.zoomer, dict(data)
    modes = transform.mode, transform.padding_mode, transform.align_corners
    for key, *of_key in transform.key_iterator(made, *modes):
        made[key] = _zoomed(own_sketch(made[key]), inner.zoom, inner.keep_size, *of_key)
    return made


def rand_zoom(transform: Any, value: Any) -> Any:
    """`RandZoom`."""
    sketch = own_sketch(value)
    transform.randomize(_Shaped(sketch))
    if not transform._do_transform:
        return as_float(sketch)
    modes = transform.mode, transform.padding_mode, transform.align_corners
    return _zoomed(sketch, transform._zoom, transform.keep_size, *modes)


def rand_zoomed(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`RandZoomd`."""
    made, inner = dict(data), transform.rand_zoom
    first_key = transform.first_key(made)
    if first_key == ():
        return made
    transform.randomize(None)
    inner.randomize(_Shaped(own_sketch(made[first_key])))
    modes = transform.mode, transform.padding_mode, transform.align_corners
    for key, *of_key in transform.key_iterator(made, *modes):
        if transform._do_transform:
            made[key] = _zoomed(own_sketch(made[key]), inner._zoom, inner.keep_size, *of_key)
        else:
            made[key] = as_float(made[key])
    return made


class _Shaped:
    """What `RandZoom.randomize` reads of an image, from a sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self.ndim = 1 + sketch.num_spatial


def resize(transform: Any, value: Any) -> Any:
    """`Resize`."""
    return _resized(transform, own_sketch(value), transform.mode, transform.align_corners)


def resized(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Resized`."""
    made = dict(data)
    for key, mode, align_corners in transform.key_iterator(made, transform.mode, transform.align_corners):
        made[key] = _resized(transform.resizer, own_sketch(made[key]), mode, align_corners)
    return made


def low_resolution(transform: Any, value: Any) -> Any:
    """`RandSimulateLowResolution`: if it does nothing, MONAI returns what it was given."""
    transform.randomize()
    sketch = own_sketch(value)
    if not transform._do_transform:
        return sketch
    before = sketch.spatial_shape
    low = [max(1, int(np.round(side * transform.zoom_factor))) for side in before]
    tables = []
    for side, few in zip(before, low, strict=True):
        down = interpolation(side, few, _named(transform.downsample_mode), bool(transform.align_corners))
        up = interpolation(few, side, _named(transform.upsample_mode), bool(transform.align_corners))
        tables.append(up.after(down))
    _add(sketch, tables, np.eye(4), is_told=False)
    return sketch


def low_resolutions(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`RandSimulateLowResolutiond`, which draws another resolution for each key."""
    made = dict(data)
    if transform.first_key(made) == ():
        return made
    transform.randomize(None)
    for key in transform.key_iterator(made):
        made[key] = (
            low_resolution(transform.sim_lowres_tfm, made[key]) if transform._do_transform else as_float(made[key])
        )
    return made


def _zoomed(sketch: Sketch, factor: Any, keeps_size: bool, mode: Any, padding_mode: Any, align_corners: Any) -> Sketch:
    before = sketch.spatial_shape
    factors = ensure_tuple_rep(factor, sketch.num_spatial)
    sizes = [math.floor(float(side) * zoom) for side, zoom in zip(before, factors, strict=True)]
    if min(sizes) < 1:
        raise ValueError(
            f"voxelocity.monai: zooming an image of shape {before} by {factors} leaves nothing of it; raise min_zoom"
        )
    matrix = lifted_matrix(scale_affine(before, sizes, align_corners=bool(align_corners)))
    tables = []
    for axis, (side, size) in enumerate(zip(before, sizes, strict=True)):
        table = interpolation(side, size, _named(mode), bool(align_corners))
        if keeps_size and size != side:
            rows = padded_rows(size, side, _named(padding_mode))
            table = table.rows(rows)
            shift = np.eye(4)
            shift[axis, 3] = size // 2 - side // 2 if size > side else -((side - size) // 2)
            matrix = matrix @ shift
        tables.append(table)
    _add(sketch, tables, matrix)
    return sketch


def _resized(transform: Any, sketch: Sketch, mode: Any, align_corners: Any) -> Sketch:
    before = sketch.spatial_shape
    if transform.size_mode == "all":
        if len(ensure_tuple(transform.spatial_size)) > len(before):
            raise ValueError(
                f"voxelocity.monai: Resize to {transform.spatial_size} adds axes to an image of shape {before}, which "
                "is not lowered; give it the axes first, or leave this transform to MONAI"
            )
        shape = tuple(int(side) for side in fall_back_tuple(transform.spatial_size, before))
    else:
        scale = transform.spatial_size / max(before)
        shape = tuple(round(side * scale) for side in before)
    matrix = lifted_matrix(scale_affine(before, shape, align_corners=bool(align_corners)))
    if shape == before:
        sketch.relocate(matrix)
        return as_float(sketch)
    sides = zip(before, shape, strict=True)
    _add(sketch, [interpolation(side, size, _named(mode), bool(align_corners)) for side, size in sides], matrix)
    return sketch


def _add(sketch: Sketch, tables: Sequence[Table], matrix: Matrix, *, is_told: bool = True) -> None:
    x, y, z = (*tables, interpolation(1, 1, "nearest", False))[:3]
    sketch.add(Resize(tables=(x, y, z), matrix=matrix), is_told=is_told)


def _named(mode: Any) -> str:
    return str(getattr(mode, "value", mode))


def _modes_why_not(modes: Any, align_corners: Any) -> str:
    named, aligned = tuple(map(_named, each(modes))), each(align_corners)
    # Each is one for all keys, or one for each.
    num_keys = max(len(named), len(aligned))
    for _, mode, is_aligned in zip(range(num_keys), itertools.cycle(named), itertools.cycle(aligned), strict=False):
        if mode not in MODES:
            return f"mode {mode!r} is not one of {', '.join(MODES)}"
        if mode not in LINEAR and is_aligned is not None:
            return f"align_corners does not apply to mode {mode!r}: torch raises the error"
    return ""


def _zoom_why_not(transform: Any) -> str:
    inner = next((getattr(transform, name) for name in ("rand_zoom", "zoomer") if hasattr(transform, name)), transform)
    padding = [mode for mode in map(_named, each(transform.padding_mode)) if mode not in PADDINGS]
    return first_reason(
        lazy_why_not(transform),
        _modes_why_not(transform.mode, transform.align_corners),
        f"padding_mode {padding[0]!r} is not one of {', '.join(PADDINGS)}" if padding else "",
        f"arguments of the padding are not lowered: {', '.join(inner.kwargs)}" if inner.kwargs else "",
        "" if all(map(is_float32, each(transform.dtype))) else "only dtype float32 is lowered",
    )


def _resize_why_not(transform: Any) -> str:
    return first_reason(
        lazy_why_not(transform),
        _modes_why_not(transform.mode, transform.align_corners),
        "anti_aliasing smooths first" if any(each(transform.anti_aliasing)) else "",
        "" if all(map(is_float32, each(transform.dtype))) else "only dtype float32 is lowered",
    )


def _low_resolution_why_not(transform: Any) -> str:
    return first_reason(
        _modes_why_not((transform.downsample_mode, transform.upsample_mode), None), device_why_not(transform.device)
    )


LOWERINGS: Lowerings = {
    Zoom: Lowering(zoom, _zoom_why_not),
    Zoomd: Lowering(zoomed, _zoom_why_not),
    RandZoom: Lowering(rand_zoom, _zoom_why_not),
    RandZoomd: Lowering(rand_zoomed, _zoom_why_not),
    MonaiResize: Lowering(resize, _resize_why_not),
    Resized: Lowering(resized, _resize_why_not),
    RandSimulateLowResolution: Lowering(low_resolution, _low_resolution_why_not),
    RandSimulateLowResolutiond: Lowering(low_resolutions, _low_resolution_why_not),
}
