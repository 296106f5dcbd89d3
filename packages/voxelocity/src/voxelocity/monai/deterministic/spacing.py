"""`Spacing`: MONAI's new grid, sampled axis by axis where the axes keep their directions.

The positions of samples come from MONAI's and torch's own functions, applied to one axis at a time, and follow torch's
rules for padding (ATen `GridSampler.h`), so that they are the same to the last bit.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import torch
from monai.config import USE_COMPILED
from monai.data.utils import AFFINE_TOL
from monai.networks.utils import to_norm_affine
from monai.transforms import Spacing, Spacingd
from monai.transforms.inverse import TraceableTransform
from monai.transforms.spatial.array import SpatialResample
from monai.utils import get_equivalent_dtype

from voxelocity.core.memory_order import in_c_order
from voxelocity.core.volume import Array
from voxelocity.monai.deterministic.native_loops import sample_linear, sample_nearest
from voxelocity.monai.deterministic.shadow import is_whole_volume, replaces, shadow, voxels, why_not_lazy, with_meta

_DTYPES = frozenset({torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64})
_COMPUTE_DTYPES = (torch.float32, torch.float64)
_MODES = ("bilinear", "nearest")
_PADDINGS = ("zeros", "border", "reflection")
_SPATIAL_AXES = 3
_MAX_SLANT_VOXEL = 1e-7
"""How far other axes may move a sample before the axes count as rotated; rounding of a rotated affine: 1e-13."""
_MARGIN_VOXEL = 1e-9
"""Added to that when deciding whether a sample could fall to the other neighbor."""


def _why_not(transform: Spacing) -> str:
    resample = transform.sp_resample
    return why_not_lazy(resample) or _why_not_sampled((resample.mode,), (resample.padding_mode,))


def _why_not_dictionary(transform: Spacingd) -> str:
    return _why_not_sampled(transform.mode, transform.padding_mode)


@replaces(Spacing, Spacingd, held_as="spacing_transform", why_not=_why_not, why_not_dictionary=_why_not_dictionary)
def fast_spacing(transform: Spacing) -> Spacing:
    """The transform with a fast resampler."""
    return shadow(transform, sp_resample=FastResample(transform.sp_resample))


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
        own = self._resample
        align_corners = own.align_corners if align_corners is None else align_corners
        compute = get_equivalent_dtype(dtype or own.dtype or getattr(img, "dtype", None), torch.Tensor)
        plain_mode = _plain(own.mode if mode is None else mode)
        plain_padding = _plain(own.padding_mode if padding_mode is None else padding_mode)
        is_ours = (
            not (own.lazy if lazy is None else lazy)
            and not USE_COMPILED
            and compute in _COMPUTE_DTYPES
            and is_whole_volume(img, _DTYPES)
            and dst_affine is not None
            and not _why_not_sampled((plain_mode,), (plain_padding,))
            and isinstance(spatial_size, (list, tuple, np.ndarray))
            and len(spatial_size) == _SPATIAL_AXES
            and min(map(int, spatial_size)) > 0
        )
        plan = None
        if is_ours:
            size = tuple(map(int, spatial_size))
            plan = _plan(img, dst_affine, size, plain_mode, plain_padding, align_corners, compute)
        if plan is None:
            return own(img, dst_affine, spatial_size, mode, padding_mode, align_corners, dtype, lazy)
        xform, axes = plan
        extra = {
            "dtype": str(compute).removeprefix("torch."),
            "mode": plain_mode,
            "padding_mode": plain_padding,
            "align_corners": align_corners,
            "src_affine": img.affine.to(torch.float64).clone(),
        }
        meta = TraceableTransform.track_transform_meta(
            img,
            sp_size=torch.tensor(size),
            affine=xform,
            extra_info=extra,
            orig_size=img.peek_pending_shape(),
            transform_info=own.get_transform_info(),
        )
        source = in_c_order(voxels(img), voxels(img).dtype)
        out = np.empty((len(source), *size), dtype=np.float32)
        sample = sample_nearest if plain_mode == "nearest" else sample_linear
        for channel, new in zip(source, out, strict=True):
            sample(channel, new, *axes)
        return with_meta(out, meta)


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


def _plan(
    img: Any, dst_affine: Any, size: tuple[int, ...], mode: str, padding: str, align_corners: bool, compute: Any
) -> tuple[torch.Tensor, list[Any]] | None:
    """The matrix from new to old indices, and what a kernel reads along each axis; None if MONAI is to resample.

    That is if nothing changes, or if an axis does not come from a single old axis.
    """
    old, new = img.affine.to(torch.float64).numpy(), np.asarray(dst_affine, dtype=np.float64)
    shape = tuple(img.shape[1:])
    if new.shape != old.shape:
        return None
    try:
        matrix = np.linalg.solve(old, new)
    except np.linalg.LinAlgError:
        return None
    # MONAI returns such an image unchanged.
    if size == shape and (np.allclose(old, new, atol=AFFINE_TOL) or np.allclose(matrix, np.eye(4), atol=AFFINE_TOL)):
        return None
    xform = torch.as_tensor(matrix)
    theta = to_norm_affine(xform[None].to(compute), list(shape), list(size), align_corners, False)
    # Sets the diagonal to zero: subtracting it from the sum would lose the small entries next to it.
    aside = np.abs(theta[0, :_SPATIAL_AXES, :_SPATIAL_AXES].numpy().astype(np.float64))
    is_finite = np.isfinite(aside).all()
    np.fill_diagonal(aside, 0.0)
    # How far the other axes move a sample, at most.
    slants_voxel = aside.sum(axis=1) * np.array(shape) / 2
    if not is_finite or slants_voxel.max() > _MAX_SLANT_VOXEL:
        return None
    # torch counts axes from the last: x of its grid is our z.
    reverse = torch.arange(_SPATIAL_AXES - 1, -1, -1)
    theta[:, :_SPATIAL_AXES] = theta[:, reverse]
    theta[:, :, :_SPATIAL_AXES] = theta[:, :, reverse]
    axes: list[Any] = []
    for axis, (num_before, num_after, slant) in enumerate(zip(shape, size, slants_voxel, strict=True)):
        normalized = _normalized_positions(theta, axis, num_after, align_corners)
        positions = _padded(_in_voxels(normalized, num_before, align_corners), num_before, padding, align_corners)
        if mode == "nearest":
            from_middle = np.abs(positions - np.floor(positions) - 0.5)
            if slant != 0.0 and not (from_middle > slant + _MARGIN_VOXEL).all():
                return None
            axes.append(_nearest(positions, num_before))
        else:
            axes.append(_neighbors(positions, num_before))
    return xform, axes


def _nearest(positions: Array, num: int) -> Array:
    """Indices of the voxels to read, -1 for zero; of two at the same distance the even one, as in torch."""
    index: Array = np.rint(positions).astype(np.int64)
    index[(index < 0) | (index >= num)] = -1
    return index


def _neighbors(positions: Array, num: int) -> tuple[Array, Array, Array, Array]:
    """Indices (n,) of the two voxels around each sample and their weights in float64, 0 for those outside."""
    last = num - 1
    positions = positions.astype(np.float64)
    below = np.floor(positions)
    share = positions - below
    low, high = below.astype(np.int64), below.astype(np.int64) + 1
    weight_low = np.where((low >= 0) & (low <= last), 1.0 - share, 0.0)
    weight_high = np.where((high >= 0) & (high <= last), share, 0.0)
    return np.clip(low, 0, last), np.clip(high, 0, last), weight_low, weight_high


def _normalized_positions(theta: torch.Tensor, axis: int, num: int, align_corners: bool) -> Array:
    """Samples along an axis of a grid (z, y, x), from -1 to 1 over the old axis."""
    component = _SPATIAL_AXES - 1 - axis
    if num == 1:
        # In the middle; torch would warn.
        middle: Array = theta[0, component, _SPATIAL_AXES:].numpy()
        return middle
    size = [1, 1, *(num if other == axis else 2 for other in range(_SPATIAL_AXES))]
    grid = torch.nn.functional.affine_grid(theta[:, :_SPATIAL_AXES], size, align_corners=align_corners)
    line: Array = grid[0, ..., component].movedim(axis, 0)[:, 0, 0].numpy()
    return line


def _in_voxels(normalized: Array, num: int, align_corners: bool) -> Array:
    one, two, size = (normalized.dtype.type(number) for number in (1, 2, num))
    voxel: Array = ((normalized + one) * size - one) / two
    return ((normalized + one) / two) * (size - one) if align_corners else voxel


def _padded(positions: Array, num: int, padding: str, align_corners: bool) -> Array:
    """Positions after torch's rule for samples outside; where zeros are read, they stay outside."""
    if padding == "zeros":
        return positions
    number = positions.dtype.type
    if padding == "reflection":
        low, high = (number(0), number(num - 1)) if align_corners else (number(-0.5), number(num - 0.5))
        span = high - low
        if span == 0:
            positions = np.zeros_like(positions)
        else:
            away = np.abs(positions - low)
            rest, turns = np.fmod(away, span), np.floor(away / span)
            positions = np.where(turns % 2 == 0, rest + low, span - rest + low)
    inside: Array = np.clip(positions, number(0), number(num - 1))
    return inside
