"""Affine transforms and rotations as warps."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.transforms.utils import create_rotate
from monai.utils import ensure_tuple_rep, fall_back_tuple

from voxelocity.monai.lower.lowering import adds_steps, blindly, first_reason, lowers, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending
from voxelocity.monai.lower.spatial.sampling import (
    about_centers,
    add_warp,
    affine_grid_is_fused,
    centered_positions,
    device_why_not,
    dtype_why_not,
    each,
    lifted_matrix,
    mode_why_not,
    product_is_fused,
    rotation_is_fused,
    rotation_why_not_on,
    rounding_why_not,
    to_float32,
    unit_positions,
)
from voxelocity.monai.steps import SamplingGrid

_MODES = ("mode", "padding_mode")
_ROTATION_MODES = (*_MODES, "align_corners")
_Shape = tuple[int, ...]
_Turned = dict[tuple[_Shape, bool, torch.device], tuple[SamplingGrid, _Shape, Any]]


def _why_not_rand_affine(transform: Any, inner: Any) -> str:
    return first_reason(
        why_not_lazy(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.rand_affine_grid.device),
        rounding_why_not(product_is_fused),
    )


@lowers(mt.RandAffine, why_not=_why_not_rand_affine)
def _rand_affine(transform: Any, value: Any) -> PendingTensor:
    """If it does nothing, MONAI still moves the affine by the matrix that was drawn last."""
    transform.randomize()
    pending = to_pending(value)
    before = pending.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    maker = transform.rand_affine_grid
    if transform._do_transform:
        maker(shape, lazy=True)
    to_source = about_centers(maker.affine, before, shape)
    if not transform._do_transform and shape == before:
        pending.relocate(to_source)
        return to_float32(transform, pending)
    matrix = maker.affine if transform._do_transform else torch.eye(len(shape) + 1)
    positions = centered_positions(matrix, shape, before)
    return add_warp(pending, positions, shape, transform.mode, transform.padding_mode, to_source)


@lowers(mt.RandAffined, inner="rand_affine", why_not=_why_not_rand_affine)
def _rand_affine_d(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """One matrix for all keys, though MONAI draws and drops another one for each."""
    made = dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return dict(transform(finish(made)))
    transform.randomize(None)
    inner = transform.rand_affine
    inner.randomize()
    maker = inner.rand_affine_grid
    first_shape = PendingTensor.of(made[first_key]).spatial_shape
    shape = fall_back_tuple(inner.spatial_size, first_shape)
    is_resampled = transform._do_transform or shape != first_shape
    matrix: Any = torch.eye(len(shape) + 1)
    if transform._do_transform:
        maker(shape, lazy=True)
        matrix = maker.affine
    known: dict[_Shape, SamplingGrid] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        pending = to_pending(made[key])
        if not is_resampled:
            made[key] = to_float32(transform, pending)
            continue
        inner.randomize()
        before = pending.spatial_shape
        if before not in known:
            known[before] = centered_positions(matrix, shape, before)
        to_source = about_centers(maker.affine, before, shape)
        made[key] = add_warp(pending, known[before], shape, mode, padding_mode, to_source)
        transform._do_transform = is_resampled
    return made


def _why_not_affine(transform: Any, inner: Any) -> str:
    is_pair = inner is transform and not transform.image_only
    return first_reason(
        why_not_lazy(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.affine_grid.device),
        "image_only=False returns the matrix too" if is_pair else "",
        dtype_why_not((inner.affine_grid.dtype, inner.resampler.dtype)),
        rounding_why_not(product_is_fused),
    )


@adds_steps(mt.Affine, "affine", per_key=_MODES, why_not=_why_not_affine)
def _affine(
    transform: Any, pending: PendingTensor, known: dict[_Shape, SamplingGrid], mode: Any, padding_mode: Any
) -> PendingTensor:
    """It computes in float32."""
    before = pending.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    _, matrix = transform.affine_grid(spatial_size=shape, lazy=True)
    if before not in known:
        known[before] = centered_positions(
            _aligned(torch.as_tensor(np.asarray(matrix), dtype=torch.float32), shape, transform),
            shape,
            before,
            is_wide=False,
            align_corners=transform.resampler.align_corners,
            is_normalized=not transform.norm_coord,
        )
    return add_warp(pending, known[before], shape, mode, padding_mode, about_centers(matrix, before, shape))


def _aligned(matrix: torch.Tensor, shape: Sequence[int], transform: Any) -> torch.Tensor:
    if not transform.affine_grid.align_corners:
        return matrix
    return matrix @ torch.diag(torch.tensor([*(max(side, 2) / (max(side, 2) - 1) for side in shape), 1.0]))


def _why_not_rotation(transform: Any, inner: Any) -> str:
    return first_reason(
        why_not_lazy(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        dtype_why_not(transform.dtype),
        "" if None not in each(transform.align_corners) else "align_corners=None is left to torch",
        rounding_why_not(affine_grid_is_fused),
    )


_of_rotation = functools.partial(
    adds_steps, per_key=_ROTATION_MODES, why_not=_why_not_rotation, why_not_on=rotation_why_not_on
)


@_of_rotation(mt.Rotate, "rotator")
def _rotate(transform: Any, pending: PendingTensor, known: _Turned, *modes: Any) -> PendingTensor:
    return _add_rotation(pending, transform.angle, transform.keep_size, modes, known, transform.rotate_order)


@_of_rotation(mt.RandRotate, "rand_rotate", draw=blindly, draws="always", idle=to_float32, idle_of_key=to_float32)
def _rand_rotate(transform: Any, pending: PendingTensor, known: _Turned, *modes: Any) -> PendingTensor:
    angles = transform.x if pending.num_spatial == 2 else (transform.x, transform.y, transform.z)
    return _add_rotation(pending, angles, transform.keep_size, modes, known)


def _add_rotation(
    pending: PendingTensor,
    angle: Any,
    keeps_size: bool,
    modes: Sequence[Any],
    known: _Turned,
    rotate_order: str = "XYZ",
) -> PendingTensor:
    mode, padding_mode, align_corners = modes
    before = pending.spatial_shape
    device = pending.source.device
    case = (before, bool(align_corners), device)
    if case not in known:
        turn = create_rotate(len(before), ensure_tuple_rep(angle, 2 * len(before) - 3), rotate_order=rotate_order)
        shape = before if keeps_size else _whole(turn, before)
        there, back = np.eye(len(turn)), np.eye(len(turn))
        there[:-1, -1] = (np.array(before) - 1) / 2
        back[:-1, -1] = -(np.array(shape) - 1) / 2
        matrix = there @ np.asarray(turn) @ back
        is_fused = None if device.type == "cpu" else rotation_is_fused(len(before), device)
        positions = unit_positions(matrix, shape, before, align_corners=bool(align_corners), is_fused=is_fused)
        known[case] = positions, shape, matrix
    positions, shape, matrix = known[case]
    return add_warp(pending, positions, shape, mode, padding_mode, lifted_matrix(matrix))


def _whole(turn: Any, shape: _Shape) -> _Shape:
    """What holds the whole of a turned array of `shape`."""
    corners = np.stack(np.meshgrid(*[(0, side) for side in shape], indexing="ij")).reshape(len(shape), -1)
    spread = np.ptp(np.asarray(turn)[:-1, :-1] @ corners, axis=1) + 0.5
    return tuple(int(side) for side in spread)
