"""`Spacing`: MONAI's new grid, sampled axis by axis where the axes keep their directions."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

import numpy as np
import torch
from monai.config import USE_COMPILED
from monai.data.utils import AFFINE_TOL
from monai.transforms import Spacing, Spacingd
from monai.transforms.inverse import TraceableTransform
from monai.transforms.spatial.array import SpatialResample
from monai.utils import get_equivalent_dtype

from voxelocity.core.volume import Array
from voxelocity.data.prepare import in_c_order
from voxelocity.interop.monai.deterministic.numba_sample import sample_linear, sample_nearest
from voxelocity.interop.monai.deterministic.places import AxisPlaces, Padding, axis_places
from voxelocity.interop.monai.deterministic.shadow import is_whole_volume, shadow, voxels, with_meta

_DTYPES = frozenset({torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64})
_COMPUTE_DTYPES = (torch.float32, torch.float64)
_MODES = ("bilinear", "nearest")
_PADDINGS = ("zeros", "border", "reflection")
_SPATIAL_AXES = 3


def why_not_spacing(transform: Spacing) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    resample = transform.sp_resample
    return (
        "it is evaluated lazily (lazy=True)"
        if transform.lazy or resample.lazy
        else _why_not_sampled((resample.mode,), (resample.padding_mode,))
    )


def why_not_spacingd(transform: Spacingd) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    if transform.lazy or transform.spacing_transform.lazy:
        return "it is evaluated lazily (lazy=True)"
    return _why_not_sampled(transform.mode, transform.padding_mode)


def fast_spacing(transform: Spacing) -> Spacing:
    """The transform with a fast resampler."""
    return shadow(transform, sp_resample=FastResample(transform.sp_resample))


def fast_spacingd(transform: Spacingd) -> Spacingd:
    """The dictionary transform with a fast resampler."""
    return shadow(transform, spacing_transform=fast_spacing(transform.spacing_transform))


class FastResample:
    """A `SpatialResample` that takes volumes (c, x, y, z) of axis-aligned grids axis by axis. Thread-safe.

    Samples lie where torch takes them, to the last bit; linear ones are summed in float64 and rounded once. Everything
    else is MONAI's own: rotated axes, splines, other numbers of axes, tensors without metadata.
    """

    def __init__(self, resample: SpatialResample) -> None:
        self._resample = resample

    @property
    def align_corners(self) -> bool:
        """The default of a call that does not set it."""
        return bool(self._resample.align_corners)

    def __call__(
        self,
        img: Any,
        dst_affine: Any = None,
        spatial_size: Any = None,
        mode: Any = None,
        padding_mode: Any = None,
        align_corners: bool | None = None,
        dtype: Any = None,
        lazy: bool | None = None,
    ) -> Any:
        """What `SpatialResample` returns for this volume.

        Raises:
            Whatever `SpatialResample` raises.
        """
        own = self._resample
        mode = own.mode if mode is None else mode
        padding_mode = own.padding_mode if padding_mode is None else padding_mode
        align_corners = own.align_corners if align_corners is None else align_corners
        compute = get_equivalent_dtype(dtype or own.dtype or getattr(img, "dtype", None), torch.Tensor)
        is_ours = (
            not (own.lazy if lazy is None else lazy)
            and not USE_COMPILED
            and compute in _COMPUTE_DTYPES
            and is_whole_volume(img, _DTYPES)
            and dst_affine is not None
            and not _why_not_sampled((mode,), (padding_mode,))
            and _has_size(spatial_size)
        )
        plan = _plan(img, dst_affine, spatial_size, mode, padding_mode, align_corners, compute) if is_ours else None
        if plan is None:
            return own(img, dst_affine, spatial_size, mode, padding_mode, align_corners, dtype, lazy)
        xform, places = plan
        extra = {
            "dtype": str(compute).removeprefix("torch."),
            "mode": _plain(mode),
            "padding_mode": _plain(padding_mode),
            "align_corners": align_corners,
            "src_affine": img.affine.to(torch.float64).clone(),
        }
        meta = TraceableTransform.track_transform_meta(
            img,
            sp_size=torch.tensor([int(size) for size in spatial_size]),
            affine=xform,
            extra_info=extra,
            orig_size=img.peek_pending_shape(),
            transform_info=own.get_transform_info(),
        )
        return with_meta(_sampled(voxels(img), places, _plain(mode)), meta)


def _why_not_sampled(modes: Any, paddings: Any) -> str:
    for mode in modes:
        if _plain(mode) not in _MODES:
            return f"mode={_plain(mode)!r} is neither 'bilinear' nor 'nearest'"
    for padding in paddings:
        if _plain(padding) not in _PADDINGS:
            return f"padding_mode={_plain(padding)!r} is not one of {', '.join(map(repr, _PADDINGS))}"
    return ""


def _plain(option: Any) -> Any:
    return option.value if isinstance(option, Enum) else option


def _has_size(spatial_size: Any) -> bool:
    return (
        isinstance(spatial_size, (list, tuple, np.ndarray))
        and len(spatial_size) == _SPATIAL_AXES
        and all(int(size) > 0 for size in spatial_size)
    )


def _plan(
    img: Any, dst_affine: Any, spatial_size: Any, mode: Any, padding_mode: Any, align_corners: bool, compute: Any
) -> tuple[torch.Tensor, tuple[AxisPlaces, ...]] | None:
    """The matrix from new to old indices, and the samples; None if nothing changes or the axes are rotated."""
    old, new = img.affine.to(torch.float64).numpy(), np.asarray(dst_affine, dtype=np.float64)
    if new.shape != old.shape:
        return None
    shape, size = tuple(img.shape[1:]), tuple(int(n) for n in spatial_size)
    try:
        xform = np.linalg.solve(old, new)
    except np.linalg.LinAlgError:
        return None
    # MONAI returns such an image unchanged.
    if size == shape and (np.allclose(old, new, atol=AFFINE_TOL) or np.allclose(xform, np.eye(4), atol=AFFINE_TOL)):
        return None
    tensor = torch.as_tensor(xform)
    padding = cast(Padding, _plain(padding_mode))
    places = axis_places(tensor, shape, size, dtype=compute, padding=padding, align_corners=align_corners)
    if places is None or (_plain(mode) == "nearest" and not all(axis.is_nearest_certain for axis in places)):
        return None
    return tensor, places


def _sampled(image_cxyz: Array, places: tuple[AxisPlaces, ...], mode: str) -> Array:
    source = in_c_order(image_cxyz, image_cxyz.dtype)
    out = np.empty((len(source), *(len(axis.places_voxel) for axis in places)), dtype=np.float32)
    if mode == "nearest":
        indices = [axis.nearest() for axis in places]
        for channel, new in zip(source, out, strict=True):
            sample_nearest(channel, new, *indices)
        return out
    tables: Any = [table for axis in places for table in axis.neighbors()]
    for channel, new in zip(source, out, strict=True):
        sample_linear(channel, new, *tables)
    return out
