"""What MONAI's resampling transforms share: their modes, the places of their grids, and how they change the affine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from monai.networks.utils import normalize_transform
from monai.utils import get_equivalent_dtype

from voxelocity.data.augment.steps import Beyond, Interpolation, Places, Warp
from voxelocity.interop.monai.lower.sketch import Sketch
from voxelocity.interop.monai.lower.spatial.rounding import affine_grid_is_fused, product_is_fused, unit_line

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
_BEYONDS = ("zeros", "border", "reflection")
_INTERPOLATIONS: dict[str, Interpolation] = {
    "bilinear": "linear",
    "linear": "linear",
    "trilinear": "linear",
    "nearest": "nearest",
}


def own_sketch(value: Any) -> Sketch:
    """A sketch that may be changed: of a tensor or an array, or a branch of the sketch that is given."""
    return value.branch() if isinstance(value, Sketch) else Sketch.of(value)


def as_float(value: Any) -> Sketch:
    """The tensor as MONAI's transforms return it if they do nothing: float32."""
    sketch = own_sketch(value)
    sketch.dtype = torch.float32
    return sketch


def each(value: Any) -> tuple[Any, ...]:
    """The value of each key, given one for all or one for each."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def mode_why_not(modes: Any, padding_modes: Any) -> str:
    """Why these modes of sampling are not lowered, or ""."""
    for mode in each(modes):
        if str(getattr(mode, "value", mode)) not in _INTERPOLATIONS:
            return f"mode {mode!r} interpolates by splines; only bilinear and nearest are lowered"
    for mode in each(padding_modes):
        if str(getattr(mode, "value", mode)) not in _BEYONDS:
            return f"padding_mode {mode!r} is not one of {', '.join(_BEYONDS)}"
    return ""


def lazy_why_not(transform: Any) -> str:
    """Why a transform that may be lazy is not lowered, or ""."""
    return "lazy=True leaves the resampling to MONAI" if getattr(transform, "lazy", False) else ""


def device_why_not(device: Any) -> str:
    """Why a transform with a device of its own is not lowered, or ""."""
    if device is not None and torch.device(device).type != "cpu":
        return f"device={device} moves the work there"
    return ""


def is_float32(kind: Any) -> bool:
    """Whether a transform's `dtype` says float32."""
    return kind is not None and bool(get_equivalent_dtype(kind, torch.Tensor) == torch.float32)


def rounding_why_not(is_fused: Iterable[bool | None]) -> str:
    """Why results cannot equal MONAI's on this machine, or ""."""
    if None in list(is_fused):
        return "this machine's matrix products sum in an unknown order, so labels would differ"
    return ""


def first_reason(*reasons: str) -> str:
    """The first that is not empty, or ""."""
    return next(filter(None, reasons), "")


def resampled(
    sketch: Sketch, places: Places, shape: Sequence[int], mode: Any, padding_mode: Any, matrix: Matrix | None
) -> Sketch:
    """The sketch with a warp added; its affine moves by `matrix` (4, 4), or not at all."""
    step = Warp(
        places=places,
        shape=Sketch._lifted_shape(tuple(shape)),
        interpolation=_INTERPOLATIONS[str(getattr(mode, "value", mode))],
        beyond=cast(Beyond, str(getattr(padding_mode, "value", padding_mode))),
        matrix=np.eye(4) if matrix is None else matrix,
    )
    sketch.add(step, is_told=matrix is not None)
    return sketch


def centered_places(
    matrix: Any,
    shape: Sequence[int],
    source_shape: Sequence[int],
    *,
    is_wide: bool = True,
    align_corners: bool = False,
    is_normalized: bool = False,
    shifts: Floats | None = None,
) -> Places:
    """Places as MONAI's `AffineGrid` and `Resample` make them: `matrix @ grid`, voxels counted from the center.

    Args:
        matrix: (n + 1, n + 1) of n spatial axes, as numbers of float32.
        shape: of the result.
        source_shape: of the array.
        is_wide: whether `Resample` computes in float64.
        align_corners: of `Resample`.
        is_normalized: whether the matrix gives coordinates as `grid_sample` takes them.
        shifts: (3, *shape) float32, of the grid before the product.
    """
    num_spatial = len(shape)
    lines = [np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2) for side in (*shape, 1)[:3]]
    scale = None if is_normalized else np.array([2.0 / max(2, side) for side in (*source_shape, 1)[:3]])
    return Places(
        lines=(lines[0], lines[1], lines[2]),
        theta=_lifted(matrix, num_spatial).astype(np.float32)[:3],
        order=(0, 1, 2),
        is_fused=bool(product_is_fused(num_spatial)),
        is_wide=is_wide,
        scale=scale,
        align_corners=align_corners,
        shifts=shifts,
        num_spatial=num_spatial,
    )


def unit_places(matrix: Matrix, shape: Sequence[int], source_shape: Sequence[int], *, align_corners: bool) -> Places:
    """Places as MONAI's `AffineTransform` makes them in float32.

    Args:
        matrix: (n + 1, n + 1) float64, from voxels of the result to voxels of the array.
        shape: of the result.
        source_shape: of the array.
        align_corners: of the transform.
    """
    num_spatial = len(shape)
    of_source, _ = _normalizing(tuple(source_shape), align_corners)
    _, of_result = _normalizing(tuple(shape), align_corners)
    theta = (of_source @ torch.from_numpy(matrix.astype(np.float32))[None] @ of_result)[0].numpy()
    lines = [unit_line(side, align_corners) for side in (*shape, 1)[:3]]
    return Places(
        lines=(lines[0], lines[1], lines[2]),
        theta=_lifted(theta, num_spatial).astype(np.float32)[:3],
        order=(2, 1, 0),
        is_fused=bool(affine_grid_is_fused(num_spatial)),
        is_wide=False,
        align_corners=align_corners,
        num_spatial=num_spatial,
    )


@functools.lru_cache(maxsize=256)
def _normalizing(shape: tuple[int, ...], align_corners: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix (1, n + 1, n + 1) float32 from voxels to -1 and 1, and its inverse, rounded as MONAI rounds them."""
    there = normalize_transform(shape, "cpu", torch.float32, align_corners, False)
    return there, torch.from_numpy(np.linalg.inv(there.numpy()))


def about_centers(matrix: Any, source_shape: Sequence[int], shape: Sequence[int]) -> Matrix:
    """(4, 4) float64 from voxels of the result to voxels of the array, of a matrix between their centers."""
    num_spatial = min(len(source_shape), len(shape))
    there, back = np.eye(4), np.eye(4)
    there[:num_spatial, 3] = [(side - 1) / 2 for side in source_shape]
    back[:num_spatial, 3] = [-(side - 1) / 2 for side in shape]
    moved: Matrix = there @ _lifted(matrix, len(matrix) - 1) @ back
    return moved


def lifted_matrix(matrix: Any) -> Matrix:
    """(4, 4) of a matrix of two or three spatial axes."""
    return _lifted(matrix, len(matrix) - 1)


def _lifted(matrix: Any, num_spatial: int) -> Matrix:
    plain = np.asarray(matrix, dtype=np.float64)
    if num_spatial == 3:
        return plain
    made = np.eye(4)
    made[:2, :2], made[:2, 3] = plain[:2, :2], plain[:2, -1]
    return made
