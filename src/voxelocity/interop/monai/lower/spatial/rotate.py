"""`RandRotate`, `Rotate` and their dictionary forms as warps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from monai.transforms.spatial.array import RandRotate, Rotate
from monai.transforms.spatial.dictionary import RandRotated, Rotated
from monai.transforms.utils import create_rotate
from monai.utils import ensure_tuple_rep

from voxelocity.data.augment.steps import Places
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.spatial.rounding import affine_grid_is_fused
from voxelocity.interop.monai.lower.spatial.sampling import (
    as_float,
    each,
    first_reason,
    is_float32,
    lazy_why_not,
    lifted_matrix,
    mode_why_not,
    own_sketch,
    resampled,
    rounding_why_not,
    unit_places,
)

Known = dict[tuple[tuple[int, ...], bool], tuple[Places, tuple[int, ...], Any]]


def rotate(transform: Any, value: Any) -> Any:
    """`Rotate`."""
    modes = transform.mode, transform.padding_mode, transform.align_corners
    return _rotated(value, transform.angle, transform.keep_size, modes, {}, transform.rotate_order)


def rotated(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Rotated`."""
    inner, made, known = transform.rotator, dict(data), Known()
    modes = transform.mode, transform.padding_mode, transform.align_corners
    for key, *of_key in transform.key_iterator(made, *modes):
        made[key] = _rotated(made[key], inner.angle, inner.keep_size, of_key, known, inner.rotate_order)
    return made


def rand_rotate(transform: Any, value: Any) -> Any:
    """`RandRotate`."""
    transform.randomize()
    if not transform._do_transform:
        return as_float(value)
    modes = transform.mode, transform.padding_mode, transform.align_corners
    return _rotated(value, _angles(transform, value), transform.keep_size, modes, {})


def rand_rotated(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`RandRotated`."""
    inner, made, known = transform.rand_rotate, dict(data), Known()
    transform.randomize(None)
    inner.randomize()
    modes = transform.mode, transform.padding_mode, transform.align_corners
    for key, *of_key in transform.key_iterator(made, *modes):
        if transform._do_transform:
            made[key] = _rotated(made[key], _angles(inner, made[key]), inner.keep_size, of_key, known)
        else:
            made[key] = as_float(made[key])
    return made


def _angles(transform: Any, value: Any) -> Any:
    return transform.x if own_sketch(value).num_spatial == 2 else (transform.x, transform.y, transform.z)


def _rotated(
    value: Any,
    angle: Any,
    keeps_size: bool,
    modes: Sequence[Any],
    known: Known,
    rotate_order: str = "XYZ",
) -> Any:
    sketch = own_sketch(value)
    mode, padding_mode, align_corners = modes
    before = sketch.spatial_shape
    named = (before, bool(align_corners))
    if named not in known:
        turn = create_rotate(len(before), ensure_tuple_rep(angle, 2 * len(before) - 3), rotate_order=rotate_order)
        shape = before if keeps_size else _whole(turn, before)
        there, back = np.eye(len(turn)), np.eye(len(turn))
        there[:-1, -1] = (np.array(before) - 1) / 2
        back[:-1, -1] = -(np.array(shape) - 1) / 2
        matrix = there @ np.asarray(turn) @ back
        known[named] = unit_places(matrix, shape, before, align_corners=bool(align_corners)), shape, matrix
    places, shape, matrix = known[named]
    return resampled(sketch, places, shape, mode, padding_mode, lifted_matrix(matrix))


def _whole(turn: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What holds the whole of a turned array of `shape`."""
    corners = np.stack(np.meshgrid(*[(0, side) for side in shape], indexing="ij")).reshape(len(shape), -1)
    spread = np.ptp(np.asarray(turn)[:-1, :-1] @ corners, axis=1) + 0.5
    return tuple(int(side) for side in spread)


def _why_not(transform: Any) -> str:
    return first_reason(
        lazy_why_not(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        "" if all(map(is_float32, each(transform.dtype))) else "only dtype float32 is lowered",
        "" if None not in each(transform.align_corners) else "align_corners=None is left to torch",
        rounding_why_not(map(affine_grid_is_fused, (2, 3))),
    )


LOWERINGS: Lowerings = {
    Rotate: Lowering(rotate, _why_not),
    Rotated: Lowering(rotated, _why_not),
    RandRotate: Lowering(rand_rotate, _why_not),
    RandRotated: Lowering(rand_rotated, _why_not),
}
