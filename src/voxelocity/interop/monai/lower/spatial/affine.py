"""`RandAffine`, `Affine` and their dictionary forms as warps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from monai.transforms.spatial.array import Affine, RandAffine
from monai.transforms.spatial.dictionary import Affined, RandAffined
from monai.utils import fall_back_tuple

from voxelocity.data.augment.steps import Places
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.spatial.rounding import product_is_fused
from voxelocity.interop.monai.lower.spatial.sampling import (
    about_centers,
    as_float,
    centered_places,
    device_why_not,
    first_reason,
    is_float32,
    lazy_why_not,
    mode_why_not,
    own_sketch,
    resampled,
    rounding_why_not,
)


def rand_affine(transform: Any, value: Any) -> Any:
    """`RandAffine`: if it does nothing, MONAI still moves the affine by the matrix that was drawn last."""
    transform.randomize()
    sketch = own_sketch(value)
    before = sketch.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    maker = transform.rand_affine_grid
    if transform._do_transform:
        maker(shape, lazy=True)
    if not transform._do_transform and shape == before:
        sketch.relocate(about_centers(maker.affine, before, shape))
        return as_float(sketch)
    matrix = maker.affine if transform._do_transform else torch.eye(len(shape) + 1)
    places = centered_places(matrix, shape, before)
    whereabouts = about_centers(maker.affine, before, shape)
    return resampled(sketch, places, shape, transform.mode, transform.padding_mode, whereabouts)


def rand_affined(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`RandAffined`: one matrix for all keys, though MONAI draws and drops another one for each."""
    made = dict(data)
    first_key = transform.first_key(made)
    if first_key == ():
        return made
    transform.randomize(None)
    inner = transform.rand_affine
    inner.randomize()
    maker = inner.rand_affine_grid
    first_shape = own_sketch(made[first_key]).spatial_shape
    shape = fall_back_tuple(inner.spatial_size, first_shape)
    is_resampled = transform._do_transform or shape != first_shape
    matrix: Any = torch.eye(len(shape) + 1)
    if transform._do_transform:
        maker(shape, lazy=True)
        matrix = maker.affine
    known: dict[tuple[int, ...], Places] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        if not is_resampled:
            made[key] = as_float(made[key])
            continue
        inner.randomize()
        sketch = own_sketch(made[key])
        before = sketch.spatial_shape
        if before not in known:
            known[before] = centered_places(matrix, shape, before)
        made[key] = resampled(
            sketch, known[before], shape, mode, padding_mode, about_centers(maker.affine, before, shape)
        )
        transform._do_transform = is_resampled
    return made


def affine(transform: Any, value: Any) -> Any:
    """`Affine`, which computes in float32."""
    return _affine(transform, value, transform.mode, transform.padding_mode, {})


def affined(transform: Any, data: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """`Affined`."""
    made = dict(data)
    known: dict[tuple[int, ...], Places] = {}
    for key, mode, padding_mode in transform.key_iterator(made, transform.mode, transform.padding_mode):
        made[key] = _affine(transform.affine, made[key], mode, padding_mode, known)
    return made


def _affine(transform: Any, value: Any, mode: Any, padding_mode: Any, known: dict[tuple[int, ...], Places]) -> Any:
    sketch = own_sketch(value)
    before = sketch.spatial_shape
    shape = fall_back_tuple(transform.spatial_size, before)
    _, matrix = transform.affine_grid(spatial_size=shape, lazy=True)
    if before not in known:
        known[before] = centered_places(
            _aligned(torch.as_tensor(np.asarray(matrix), dtype=torch.float32), shape, transform),
            shape,
            before,
            is_wide=False,
            align_corners=transform.resampler.align_corners,
            is_normalized=not transform.norm_coord,
        )
    return resampled(sketch, known[before], shape, mode, padding_mode, about_centers(matrix, before, shape))


def _aligned(matrix: torch.Tensor, shape: Sequence[int], transform: Any) -> torch.Tensor:
    if not transform.affine_grid.align_corners:
        return matrix
    return matrix @ torch.diag(torch.tensor([*(max(side, 2) / (max(side, 2) - 1) for side in shape), 1.0]))


def _rand_why_not(transform: Any) -> str:
    inner = getattr(transform, "rand_affine", transform)
    return first_reason(
        lazy_why_not(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.rand_affine_grid.device),
        rounding_why_not(map(product_is_fused, (2, 3))),
    )


def _why_not(transform: Any) -> str:
    inner = getattr(transform, "affine", transform)
    is_pair = inner is transform and not transform.image_only
    return first_reason(
        lazy_why_not(transform),
        mode_why_not(transform.mode, transform.padding_mode),
        device_why_not(inner.affine_grid.device),
        "image_only=False returns the matrix too" if is_pair else "",
        ""
        if is_float32(inner.affine_grid.dtype) and is_float32(inner.resampler.dtype)
        else "only dtype float32 is lowered",
        rounding_why_not(map(product_is_fused, (2, 3))),
    )


LOWERINGS: Lowerings = {
    RandAffine: Lowering(rand_affine, _rand_why_not),
    RandAffined: Lowering(rand_affined, _rand_why_not),
    Affine: Lowering(affine, _why_not),
    Affined: Lowering(affined, _why_not),
}
