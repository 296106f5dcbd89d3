"""Elastic deformations as warps with shifts. MONAI leaves the affine unchanged, whatever turned or moved the result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.networks.layers.convutils import gaussian_1d
from monai.utils import ensure_tuple_rep, fall_back_tuple

from voxelocity.monai.lower.lowering import first_reason, lowers
from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending
from voxelocity.monai.lower.spatial.sampling import (
    add_warp,
    centered_positions,
    device_why_not,
    mode_why_not,
    product_is_fused,
    rounding_why_not,
)
from voxelocity.monai.steps import SamplingGrid
from voxelocity.monai.steps.smooth import smoothed

_PositionsOf = Callable[..., SamplingGrid]
"""(array transform, shape of the result, shape of the array, is_deformed=...) to the positions."""


def _why_not(transform: Any, inner: Any) -> str:
    return first_reason(
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.device),
        rounding_why_not(product_is_fused),
    )


def _why_not_on(device: torch.device) -> str:
    return f"its deformation is smoothed and turned on {device}, where sums round in another order"


def _add_elastic(transform: Any, value: Any, positions_of: _PositionsOf) -> PendingTensor:
    pending = to_pending(value)
    before = pending.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    transform.randomize(shape)
    positions = positions_of(transform, shape, before, is_deformed=transform._do_transform)
    return add_warp(pending, positions, shape, transform.mode, transform.padding_mode, None)


def _add_elastic_d(
    transform: Any, data: dict[Hashable, Any], inner: str, positions_of: _PositionsOf
) -> dict[Hashable, Any]:
    """MONAI draws the whole field even if it does nothing with it. All keys share positions from their centers."""
    array, made = getattr(transform, inner), dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return dict(transform(finish(made)))
    transform.randomize(None)
    shape = fall_back_tuple(array.spatial_size, PendingTensor.of(made[first_key]).spatial_shape)
    array.randomize(shape)
    positions = positions_of(array, shape, shape, is_deformed=transform._do_transform)
    known: dict[tuple[int, ...], SamplingGrid] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        pending = to_pending(made[key])
        before = pending.spatial_shape
        if before not in known:
            scale = np.array([2.0 / max(2, side) for side in (*before, 1)[:3]])
            known[before] = SamplingGrid(**{**vars(positions), "scale": scale})
        made[key] = add_warp(pending, known[before], shape, mode, padding_mode, None)
    return made


def _positions_3d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_deformed: bool) -> SamplingGrid:
    if not is_deformed:
        return centered_positions(np.eye(4), shape, before)
    kernel = gaussian_1d(torch.tensor(transform.sigma), truncated=3.0).numpy()
    shifts = smoothed(transform.rand_offset, kernel)
    shifts *= np.float32(transform.magnitude)
    maker = transform.rand_affine_grid
    maker(shape, lazy=True)
    return centered_positions(maker.affine, shape, before, shifts=shifts)


def _positions_2d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_deformed: bool) -> SamplingGrid:
    """Positions of a plane: MONAI's grid, used as the shifts of a grid whose own coordinates are 0."""
    if not is_deformed:
        return centered_positions(np.eye(3), shape, before)
    grid = transform.rand_affine_grid(grid=transform.deform_grid(spatial_size=shape))
    spacing = list(ensure_tuple_rep(transform.deform_grid.spacing, 2))
    finer = torch.nn.functional.interpolate(
        grid[None], scale_factor=spacing, mode="bicubic", align_corners=False, recompute_scale_factor=True
    )
    found = torch.as_tensor(mt.CenterSpatialCrop(roi_size=shape)(finer[0])).as_subclass(torch.Tensor).numpy()
    shifts = np.zeros((3, *shape, 1), np.float32)
    shifts[:2, :, :, 0] = found[:2]
    plain = centered_positions(np.eye(3), shape, before, shifts=shifts)
    still = tuple(np.zeros_like(line) for line in plain.lines)
    return SamplingGrid(**{**vars(plain), "lines": still})


for _array, _dictionary, _inner, _positions_of in (
    (mt.Rand2DElastic, mt.Rand2DElasticd, "rand_2d_elastic", _positions_2d),
    (mt.Rand3DElastic, mt.Rand3DElasticd, "rand_3d_elastic", _positions_3d),
):
    lowers(_array, why_not=_why_not, why_not_on=_why_not_on)(
        functools.partial(_add_elastic, positions_of=_positions_of)
    )
    _in_dictionary = functools.partial(_add_elastic_d, inner=_inner, positions_of=_positions_of)
    lowers(_dictionary, inner=_inner, why_not=_why_not, why_not_on=_why_not_on)(_in_dictionary)
