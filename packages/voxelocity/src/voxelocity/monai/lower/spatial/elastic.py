"""Elastic deformations as warps with shifts. MONAI leaves the affine unchanged, whatever turned or moved the result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from monai.networks.layers.convutils import gaussian_1d
from monai.transforms.croppad.array import CenterSpatialCrop
from monai.transforms.spatial.array import Rand2DElastic, Rand3DElastic
from monai.transforms.spatial.dictionary import Rand2DElasticd, Rand3DElasticd
from monai.utils import ensure_tuple_rep, fall_back_tuple

from voxelocity.data.augment.smooth import smoothed
from voxelocity.monai.lower.lowering import first_reason, lowers
from voxelocity.monai.lower.sketch import Sketch, continued
from voxelocity.monai.lower.spatial.sampling import (
    centered_places,
    device_why_not,
    mode_why_not,
    product_is_fused,
    resampled,
    rounding_why_not,
)
from voxelocity.monai.steps import SamplingGrid

_PlacesOf = Callable[..., SamplingGrid]
"""(array transform, shape of the result, shape of the array, is_bent=...) to the places."""


def _why_not(transform: Any, inner: Any) -> str:
    return first_reason(
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.device),
        rounding_why_not(product_is_fused),
    )


def _why_not_on(device: torch.device) -> str:
    return f"its deformation is smoothed and turned on {device}, where sums round in another order"


def _bent(transform: Any, value: Any, places_of: _PlacesOf) -> Sketch:
    sketch = continued(value)
    before = sketch.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    transform.randomize(shape)
    places = places_of(transform, shape, before, is_bent=transform._do_transform)
    return resampled(sketch, places, shape, transform.mode, transform.padding_mode, None)


def _bent_d(transform: Any, data: dict[Hashable, Any], inner: str, places_of: _PlacesOf) -> dict[Hashable, Any]:
    """MONAI draws the whole field even if it does nothing with it. All keys have the same places from their centers."""
    array, made = getattr(transform, inner), dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return made
    transform.randomize(None)
    shape = fall_back_tuple(array.spatial_size, Sketch.of(made[first_key]).spatial_shape)
    array.randomize(shape)
    places = places_of(array, shape, shape, is_bent=transform._do_transform)
    known: dict[tuple[int, ...], SamplingGrid] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        sketch = continued(made[key])
        before = sketch.spatial_shape
        if before not in known:
            scale = np.array([2.0 / max(2, side) for side in (*before, 1)[:3]])
            known[before] = SamplingGrid(**{**vars(places), "scale": scale})
        made[key] = resampled(sketch, known[before], shape, mode, padding_mode, None)
    return made


def _places_3d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_bent: bool) -> SamplingGrid:
    if not is_bent:
        return centered_places(np.eye(4), shape, before)
    kernel = gaussian_1d(torch.tensor(transform.sigma), truncated=3.0).numpy()
    shifts = smoothed(transform.rand_offset, kernel)
    shifts *= np.float32(transform.magnitude)
    maker = transform.rand_affine_grid
    maker(shape, lazy=True)
    return centered_places(maker.affine, shape, before, shifts=shifts)


def _places_2d(transform: Any, shape: tuple[int, ...], before: Sequence[int], *, is_bent: bool) -> SamplingGrid:
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
    return SamplingGrid(**{**vars(plain), "lines": still})


for _array, _dictionary, _inner, _places_of in (
    (Rand2DElastic, Rand2DElasticd, "rand_2d_elastic", _places_2d),
    (Rand3DElastic, Rand3DElasticd, "rand_3d_elastic", _places_3d),
):
    lowers(_array, why_not=_why_not, why_not_on=_why_not_on)(functools.partial(_bent, places_of=_places_of))
    _in_dictionary = functools.partial(_bent_d, inner=_inner, places_of=_places_of)
    lowers(_dictionary, inner=_inner, why_not=_why_not, why_not_on=_why_not_on)(_in_dictionary)
