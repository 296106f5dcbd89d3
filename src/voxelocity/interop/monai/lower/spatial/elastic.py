"""`Rand3DElastic`, `Rand2DElastic` and their dictionary forms as warps with shifts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.networks.layers.convutils import gaussian_1d
from monai.transforms.croppad.array import CenterSpatialCrop
from monai.transforms.spatial.array import Rand2DElastic, Rand3DElastic
from monai.transforms.spatial.dictionary import Rand2DElasticd, Rand3DElasticd
from monai.utils import ensure_tuple_rep, fall_back_tuple

from voxelocity.data.augment.smooth import smoothed
from voxelocity.data.augment.steps import Places
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.spatial.rounding import product_is_fused
from voxelocity.interop.monai.lower.spatial.sampling import (
    centered_places,
    device_why_not,
    first_reason,
    mode_why_not,
    own_sketch,
    resampled,
    rounding_why_not,
)

Floats = npt.NDArray[np.float32]
NOWHERE = None
"""MONAI leaves the affine of an elastic result as it was, whatever turned or moved it."""


def rand_3d_elastic(transform: Any, value: Any) -> Any:
    """`Rand3DElastic`."""
    sketch = own_sketch(value)
    before = sketch.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    transform.randomize(grid_size=shape)
    places = _places_3d(transform, shape, before, is_bent=transform._do_transform)
    return resampled(sketch, places, shape, transform.mode, transform.padding_mode, NOWHERE)


def rand_3d_elasticd(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Rand3DElasticd`: MONAI draws the whole field even if it does nothing with it."""
    inner, made = transform.rand_3d_elastic, dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return made
    transform.randomize(None)
    shape = fall_back_tuple(inner.spatial_size, own_sketch(made[first_key]).spatial_shape)
    inner.randomize(shape)
    bent = _places_3d(inner, shape, shape, is_bent=transform._do_transform)
    return _for_each(transform, made, bent, shape)


def rand_2d_elastic(transform: Any, value: Any) -> Any:
    """`Rand2DElastic`."""
    sketch = own_sketch(value)
    before = sketch.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    transform.randomize(spatial_size=shape)
    places = _places_2d(transform, shape, before, is_bent=transform._do_transform)
    return resampled(sketch, places, shape, transform.mode, transform.padding_mode, NOWHERE)


def rand_2d_elasticd(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Rand2DElasticd`."""
    inner, made = transform.rand_2d_elastic, dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return made
    transform.randomize(None)
    shape = fall_back_tuple(inner.spatial_size, own_sketch(made[first_key]).spatial_shape)
    inner.randomize(shape)
    bent = _places_2d(inner, shape, shape, is_bent=transform._do_transform)
    return _for_each(transform, made, bent, shape)


def _for_each(transform: Any, made: dict[Hashable, Any], places: Places, shape: tuple[int, ...]) -> dict[Hashable, Any]:
    """Warps of the same places, in arrays of each key's own shape."""
    known: dict[tuple[int, ...], Places] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        sketch = own_sketch(made[key])
        before = sketch.spatial_shape
        if before not in known:
            known[before] = in_array(places, before)
        made[key] = resampled(sketch, known[before], shape, mode, padding_mode, NOWHERE)
    return made


def in_array(places: Places, source_shape: Sequence[int]) -> Places:
    """The same places from the center of an array of another shape."""
    scale = np.array([2.0 / max(2, side) for side in (*source_shape, 1)[:3]])
    return Places(**{**vars(places), "scale": scale})


def _places_3d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_bent: bool) -> Places:
    if not is_bent:
        return centered_places(np.eye(4), shape, before)
    kernel = gaussian_1d(torch.tensor(transform.sigma), truncated=3.0).numpy()
    shifts = smoothed(transform.rand_offset, kernel)
    shifts *= np.float32(transform.magnitude)
    maker = transform.rand_affine_grid
    maker(shape, lazy=True)
    return centered_places(maker.affine, shape, before, shifts=shifts)


def _places_2d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_bent: bool) -> Places:
    """Places of a plane: MONAI's grid, used as the shifts of a grid whose own coordinates are 0."""
    if not is_bent:
        return centered_places(np.eye(3), shape, before)
    grid = transform.rand_affine_grid(grid=transform.deform_grid(spatial_size=shape))
    spacing = list(ensure_tuple_rep(transform.deform_grid.spacing, 2))
    finer = torch.nn.functional.interpolate(
        grid[None], scale_factor=spacing, mode="bicubic", align_corners=False, recompute_scale_factor=True
    )
    found = torch.as_tensor(CenterSpatialCrop(roi_size=shape)(finer[0])).as_subclass(torch.Tensor).numpy()
    shifts = np.zeros((3, *shape, 1), np.float32)
    shifts[:2, :, :, 0] = found[:2]
    plain = centered_places(np.eye(3), shape, before, shifts=shifts)
    still = tuple(np.zeros_like(line) for line in plain.lines)
    return Places(**{**vars(plain), "lines": still})


def _why_not(transform: Any, name: str) -> str:
    inner = getattr(transform, name, transform)
    return first_reason(
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.device),
        rounding_why_not(map(product_is_fused, (2, 3))),
    )


LOWERINGS: Lowerings = {
    Rand3DElastic: Lowering(rand_3d_elastic, lambda transform: _why_not(transform, "rand_3d_elastic")),
    Rand3DElasticd: Lowering(rand_3d_elasticd, lambda transform: _why_not(transform, "rand_3d_elastic")),
    Rand2DElastic: Lowering(rand_2d_elastic, lambda transform: _why_not(transform, "rand_2d_elastic")),
    Rand2DElasticd: Lowering(rand_2d_elasticd, lambda transform: _why_not(transform, "rand_2d_elastic")),
}
