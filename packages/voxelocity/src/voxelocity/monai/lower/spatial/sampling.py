"""What MONAI's resampling transforms share: their modes, the positions of their grids, and how they change the affine.

Positions halfway between two voxels, and so labels, depend on how this machine's matrix products round.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from monai.networks.utils import normalize_transform, to_norm_affine
from monai.utils import get_equivalent_dtype

from voxelocity.monai.lower.pending import PendingTensor, lifted_shape
from voxelocity.monai.steps import Beyond, Interpolation, SamplingGrid, Warp

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
_NUM_COLUMNS = 4096
"""Of the grid on which a product's rounding is found: thousands, as of an image."""
_SHAPES = {2: ((48, 40), (160, 150)), 3: ((12, 10, 14), (48, 40, 44))}
"""Of the grids on which a device's rounding is found, by their number of axes."""
_BEYONDS = ("zeros", "border", "reflection")
_INTERPOLATIONS: dict[str, Interpolation] = {
    "bilinear": "linear",
    "linear": "linear",
    "trilinear": "linear",
    "nearest": "nearest",
}


def to_float32(transform: Any, pending: PendingTensor) -> PendingTensor:
    """The tensor as MONAI's resampling transforms return it if they do nothing: float32."""
    pending.dtype = torch.float32
    return pending


def each(value: Any) -> tuple[Any, ...]:
    """The value of each key, given one for all or one for each."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def named(mode: Any) -> str:
    """The name of a mode, given as text or as one of MONAI's enums."""
    return str(getattr(mode, "value", mode))


def mode_why_not(modes: Any, padding_modes: Any) -> str:
    """Why these modes of sampling are not lowered, or ""."""
    for mode in each(modes):
        if named(mode) not in _INTERPOLATIONS:
            return f"mode {mode!r} interpolates by splines; only bilinear and nearest are lowered"
    for mode in each(padding_modes):
        if named(mode) not in _BEYONDS:
            return f"padding_mode {mode!r} is not one of {', '.join(_BEYONDS)}"
    return ""


def device_why_not(device: Any) -> str:
    """Why a transform with a device of its own is not lowered, or ""."""
    if device is not None and torch.device(device).type != "cpu":
        return f"device={device} moves the work there"
    return ""


def dtype_why_not(kinds: Any) -> str:
    """Why a transform that returns this `dtype`, or one of these, is not lowered, or ""."""
    for kind in each(kinds):
        if kind is None or get_equivalent_dtype(kind, torch.Tensor) != torch.float32:
            return "only dtype float32 is lowered"
    return ""


def rounding_why_not(is_fused: Callable[[int], bool | None]) -> str:
    """Why results cannot equal MONAI's on this machine, or ""."""
    if None in map(is_fused, (2, 3)):
        return "this machine's matrix products sum in an unknown order, so labels would differ"
    return ""


def add_warp(
    pending: PendingTensor,
    positions: SamplingGrid,
    shape: Sequence[int],
    mode: Any,
    padding_mode: Any,
    matrix: Matrix | None,
) -> PendingTensor:
    """The pending tensor with a warp added; its affine moves by `matrix` (4, 4), or not at all."""
    step = Warp(
        positions=positions,
        shape=lifted_shape(shape),
        interpolation=_INTERPOLATIONS[named(mode)],
        beyond=cast(Beyond, named(padding_mode)),
        matrix=np.eye(4) if matrix is None else matrix,
    )
    pending.add(step, updates_affine=matrix is not None)
    return pending


def centered_positions(
    matrix: Any,
    shape: Sequence[int],
    source_shape: Sequence[int],
    *,
    is_wide: bool = True,
    align_corners: bool = False,
    is_normalized: bool = False,
    shifts: Floats | None = None,
) -> SamplingGrid:
    """Positions as MONAI's `AffineGrid` and `Resample` make them: `matrix @ grid`, voxels counted from the center.

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
    return SamplingGrid(
        lines=(lines[0], lines[1], lines[2]),
        theta=lifted_matrix(matrix).astype(np.float32)[:3],
        order=(0, 1, 2),
        is_fused=bool(product_is_fused(num_spatial)),
        is_wide=is_wide,
        scale=scale,
        align_corners=align_corners,
        shifts=shifts,
        num_spatial=num_spatial,
    )


def unit_positions(
    matrix: Matrix,
    shape: Sequence[int],
    source_shape: Sequence[int],
    *,
    align_corners: bool,
    is_fused: bool | None = None,
) -> SamplingGrid:
    """Positions as MONAI's `AffineTransform` makes them in float32.

    Args:
        matrix: (n + 1, n + 1) float64, from voxels of the result to voxels of the array.
        shape: of the result.
        source_shape: of the array.
        align_corners: of the transform.
        is_fused: how the sums round, where that is another device's way; None for this processor's.
    """
    num_spatial = len(shape)
    of_source, _ = _normalizing(tuple(source_shape), align_corners)
    _, of_result = _normalizing(tuple(shape), align_corners)
    theta = (of_source @ torch.from_numpy(matrix.astype(np.float32))[None] @ of_result)[0].numpy()
    lines = [unit_line(side, align_corners) for side in (*shape, 1)[:3]]
    return SamplingGrid(
        lines=(lines[0], lines[1], lines[2]),
        theta=lifted_matrix(theta).astype(np.float32)[:3],
        order=(2, 1, 0),
        is_fused=bool(affine_grid_is_fused(num_spatial)) if is_fused is None else is_fused,
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
    moved: Matrix = there @ lifted_matrix(matrix) @ back
    return moved


def lifted_matrix(matrix: Any) -> Matrix:
    """(4, 4) float64 of a matrix of two or three spatial axes."""
    plain = np.asarray(matrix, dtype=np.float64)
    if len(plain) == 4:
        return plain
    made = np.eye(4)
    made[:2, :2], made[:2, 3] = plain[:2, :2], plain[:2, -1]
    return made


@functools.cache
def product_is_fused(num_spatial: int) -> bool | None:
    """Whether torch's `matrix @ grid` adds each product before it is rounded; None if it sums in another order.

    A matrix is (1 + num_spatial, 1 + num_spatial) float32 here, the grid has thousands of columns.
    """
    matrix, grid = _random(num_spatial)
    return _is_fused(matrix, grid, (torch.from_numpy(matrix) @ torch.from_numpy(grid)).numpy())


@functools.cache
def affine_grid_is_fused(num_spatial: int) -> bool | None:
    """As `product_is_fused`, for torch's `affine_grid`."""
    matrix, _ = _random(num_spatial)
    matrix = matrix[:num_spatial]
    shape = (64, 64) if num_spatial == 2 else (16, 16, 16)
    made = torch.nn.functional.affine_grid(torch.from_numpy(matrix)[None], [1, 1, *shape], align_corners=False)[0]
    lines = [unit_line(side, False) for side in shape]
    mesh = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(shape, np.float32)])
    return _is_fused(matrix, mesh.reshape(len(mesh), -1), made.reshape(-1, num_spatial).numpy().T)


def rotation_why_not_on(device: torch.device) -> str:
    """Why rotations on a device cannot be lowered, or ""."""
    if None in (rotation_is_fused(num_spatial, device) for num_spatial in (2, 3)):
        return f"matrix products on {device} round in a way that is not known, so labels would differ"
    return ""


def rotation_is_fused(num_spatial: int, device: torch.device) -> bool | None:
    """As `affine_grid_is_fused`, on a device, where MONAI makes the whole grid; None if it cannot be equalled.

    Asked once for each precision of matrix products: with TF32 it cannot.
    """
    # The older setting cannot be read where a program has changed this newer one, which can always be read.
    return _rotation_is_fused(num_spatial, device, torch.backends.cuda.matmul.fp32_precision)


@functools.cache
def _rotation_is_fused(num_spatial: int, device: torch.device, precision: str) -> bool | None:
    """Compares whole grids, by MONAI's own operations on the device, with ours."""
    rng = np.random.default_rng(1)
    fits = {True, False}
    for shape, align_corners in itertools.product(_SHAPES[num_spatial], (False, True)):
        source_shape = tuple(side + 3 for side in shape)
        for _ in range(3):
            matrix = np.eye(num_spatial + 1)
            matrix[:num_spatial] += rng.normal(scale=0.3, size=(num_spatial, num_spatial + 1))
            theirs = _grid_by_monai(matrix, shape, source_shape, align_corners, device)
            for is_fused in tuple(fits):
                positions = unit_positions(matrix, shape, source_shape, align_corners=align_corners, is_fused=is_fused)
                ours = positions.normalized(device)
                ours = ours if num_spatial == 3 else ours[:, :, 0, 1:]
                if not torch.equal(ours, theirs):
                    fits.discard(is_fused)
    return next(iter(fits)) if fits else None


def _grid_by_monai(
    matrix: Matrix, shape: Sequence[int], source_shape: Sequence[int], align_corners: bool, device: torch.device
) -> torch.Tensor:
    """(*shape, n) as MONAI's `AffineTransform` makes it of a voxel matrix."""
    theta = to_norm_affine(
        torch.from_numpy(matrix.astype(np.float32))[None].to(device),
        list(source_shape),
        list(shape),
        align_corners=align_corners,
        zero_centered=False,
    )
    num = len(shape)
    turned = list(range(num - 1, -1, -1))
    theta[:, :num] = theta[:, turned]
    theta[:, :, :num] = theta[:, :, turned]
    grid: torch.Tensor = torch.nn.functional.affine_grid(theta[:, :num], [1, 1, *shape], align_corners=align_corners)
    return grid[0]


@functools.lru_cache(maxsize=256)
def unit_line(side: int, align_corners: bool) -> Floats:
    """The coordinates of `side` voxels by torch's `affine_grid`: -1 to 1, of their faces or of their centers."""
    if side <= 1:
        return np.zeros(1, np.float32)
    line = torch.linspace(-1, 1, side)
    made: Floats = (line if align_corners else line * (side - 1) / side).numpy()
    return made


def _random(num_spatial: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    size = num_spatial + 1
    grid = rng.normal(scale=40.0, size=(size, _NUM_COLUMNS)).astype(np.float32)
    grid[-1] = 1.0
    return rng.normal(size=(size, size)).astype(np.float32), grid


def _is_fused(matrix: Floats, grid: Floats, made: Floats) -> bool | None:
    for is_fused in (True, False):
        total = np.zeros((len(matrix), grid.shape[1]), np.float32)
        for column, row in zip(matrix.T, grid, strict=True):
            # Exact in float64.
            product = column[:, None].astype(np.float64) * row.astype(np.float64)
            total = (total + product).astype(np.float32) if is_fused else total + product.astype(np.float32)
        if np.array_equal(total, made):
            return is_fused
    return None
