"""Images along streamlines: what a denoiser sees at its points, and how far points lie from a mask."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nibabel import orientations
from nibabel.affines import apply_affine
from scipy.ndimage import distance_transform_edt

from voxelocity.core.axis_order import turn_onto
from voxelocity.core.volume import Grid
from voxelocity.data.decode import read_scan
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.document.curves import VIEWS, Shadow

# Of an image, so that a few bright voxels do not set its scale.
_DARKEST, _BRIGHTEST = 1.0, 99.0
# Of the points of streamlines; an image of another space holds fewer.
_LEAST_WITHIN = 0.95
_SHADOW_PIXELS = 96


class ImageSampler(torch.nn.Module):
    """An image, asked at points in RAS mm; zero outside.

    Args:
        channels: (c, x, y, z) float32.
        affine: from a voxel index to RAS mm.
    """

    channels: torch.Tensor
    to_grid: torch.Tensor
    offset: torch.Tensor

    def __init__(self, channels: torch.Tensor, affine: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.num_channels = len(channels)
        self.register_buffer("channels", channels[None])
        inverse = np.linalg.inv(affine)
        # From mm to torch's coordinates, which run from -1 to 1 between the centers of the outer voxels.
        half = (np.array(channels.shape[1:]) - 1) / 2.0
        self.register_buffer("to_grid", torch.tensor(inverse[:3, :3] / half[:, None], dtype=torch.float32))
        self.register_buffer("offset", torch.tensor(inverse[:3, 3] / half - 1.0, dtype=torch.float32))

    def forward(self, points_mm: torch.Tensor) -> torch.Tensor:
        """The image (b, c, p) at points (b, 3, p), between voxels by trilinear interpolation."""
        coordinates = points_mm.transpose(1, 2) @ self.to_grid.T + self.offset
        # torch's last coordinate is the first axis.
        grid = coordinates.flip(-1).reshape(1, 1, 1, -1, 3)
        found = torch.nn.functional.grid_sample(self.channels, grid, align_corners=True)
        num, _, length = points_mm.shape
        return found.reshape(self.num_channels, num, length).transpose(0, 1)


def read_volume(image: Path | None, direction: Path | None) -> ImageSampler | None:
    """The image that leads a denoiser: an intensity such as T1 or FA, and the main direction of diffusion.

    A direction has no sign, so its six products of two coordinates in RAS take its place.

    Args:
        image: (x, y, z), or None.
        direction: (x, y, z, 3), unit vectors along the axes of its voxels as FSL writes them, or None. FSL's first axis
            is reversed where the affine has a positive determinant.

    Raises:
        ScanError: an image cannot be read or has another shape.
    """
    paths = [path for path in (image, direction) if path is not None]
    if not paths:
        return None
    parts: list[np.ndarray[Any, Any]] = []
    grid: Grid | None = None
    for path in paths:
        own, values = _read(path)
        wanted = 4 if path == direction else 3
        if values.ndim != wanted or (wanted == 4 and values.shape[3] != 3):
            raise ScanError(
                f"tractography: {path} has the shape {values.shape}; {'a direction' if wanted == 4 else 'an image'} "
                f"must be {'(x, y, z, 3)' if wanted == 4 else '(x, y, z)'}"
            )
        grid = grid or own
        order = turn_onto(own, grid)
        if order is None:
            raise ScanError(
                f"tractography: {paths[0]} and {path} have different grids ({grid.shape} and {own.shape}); resample "
                "one to the other"
            )
        channels = _products(values, own.matrix) if path == direction else _scaled(values)[None]
        parts.append(order.turn(channels))
    assert grid is not None
    return ImageSampler(torch.from_numpy(np.concatenate(parts)), grid.matrix)


def _scaled(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """From 0 to about 1."""
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    inside = values[values != 0.0]
    low, high = np.percentile(inside, [_DARKEST, _BRIGHTEST]) if inside.size else (0.0, 1.0)
    return np.clip((values - min(low, 0.0)) / max(high - min(low, 0.0), 1e-6), 0.0, 1.5).astype(np.float32)


def _products(vectors: np.ndarray[Any, Any], affine: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    if np.linalg.det(axes) > 0.0:
        # Source: FSL's FDT, "what conventions do the bvecs use": components are along radiological axes of voxels.
        axes[:, 0] *= -1.0
    ras = np.nan_to_num(vectors) @ axes.T
    pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]
    return np.stack([ras[..., a] * ras[..., b] for a, b in pairs]).astype(np.float32)


def find_outside_mm(mask: Path, points_mm: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How far points (..., 3) in RAS mm lie from the mask, by the voxel of each: 0 inside, infinite outside its grid.

    Raises:
        ScanError: the mask cannot be read, is not (x, y, z), or is empty.
    """
    grid, far = _read_distances(mask)
    index = np.rint(apply_affine(np.linalg.inv(grid.matrix), points_mm)).astype(int)
    is_within = ((index >= 0) & (index < far.shape)).all(axis=-1)
    index = np.clip(index, 0, np.array(far.shape) - 1)
    found: np.ndarray[Any, Any] = np.where(is_within, far[index[..., 0], index[..., 1], index[..., 2]], np.inf)
    return found


def read_distance(mask: Path) -> ImageSampler:
    """The distance in mm to the nearest voxel of a mask that is not 0, with a gradient that leads there.

    Raises:
        ScanError: the mask cannot be read, is not (x, y, z), or is empty.
    """
    grid, far = _read_distances(mask)
    return ImageSampler(torch.from_numpy(far)[None], grid.matrix)


def _read_distances(mask: Path) -> tuple[Grid, np.ndarray[Any, Any]]:
    grid, values = _read(mask)
    if values.ndim != 3 or not values.any():
        raise ScanError(
            f"tractography: the mask {mask} has the shape {values.shape} and {np.count_nonzero(values)} "
            "voxels other than 0; give (x, y, z) with some"
        )
    return grid, distance_transform_edt(values == 0, sampling=grid.spacing_mm).astype(np.float32)


def _read(path: Path) -> tuple[Grid, np.ndarray[Any, Any]]:
    """The grid and the values (x, y, z), or (x, y, z, c) of several channels; checksums are verified."""
    voxels, grid = read_scan(path)
    values = np.asarray(voxels, np.float32)
    # Some tools write a fourth axis of one.
    return grid, values[0] if len(values) == 1 else np.moveaxis(values, 0, -1)


def find_image(data: Path, named: str) -> Path | None:
    """The image to show behind streamlines: the one that the model sees, or a T1 next to the data; None without any."""
    if named:
        return Path(named)
    found = sorted((data if data.is_dir() else data.parent).glob("*.nii*"))
    return next((path for path in found if "t1" in path.name.lower().split(".")[0].split("_")), None)


def find_mask(mask: str, image: Path | None, real_mm: np.ndarray[Any, Any]) -> Path | None:
    """The mask that streamlines should not leave: the one given, or an image that is 0 outside the brain, if any.

    Args:
        mask: of the settings.
        image: of `find_image`; taken if 95 % of the points of real streamlines lie in its voxels other than 0.
        real_mm: (..., 3) in RAS mm, of real streamlines.
    """
    if mask or image is None:
        return Path(mask) if mask else None
    try:
        outside_mm = find_outside_mm(image, real_mm)
    except ScanError:
        return None
    return image if (outside_mm == 0.0).mean() >= _LEAST_WITHIN else None


def read_shadows(image: Path, points_mm: np.ndarray[Any, Any]) -> dict[str, Shadow]:
    """An image as `VIEWS` looks at it, to lie behind streamlines; nothing where these leave its grid.

    Args:
        image: (x, y, z), such as T1.
        points_mm: (..., 3) in RAS mm.

    Raises:
        ScanError: the image cannot be read.
    """
    grid, values = _read(image)
    if values.ndim != 3:
        return {}
    index = apply_affine(np.linalg.inv(grid.matrix), points_mm)
    is_within = ((index > -0.5) & (index < np.array(values.shape) - 0.5)).all(axis=-1)
    if is_within.mean() < _LEAST_WITHIN:
        return {}
    turn = orientations.io_orientation(grid.matrix)
    turned = orientations.apply_orientation(_scaled(values), turn)
    # Of a tilted grid these are the edges of its box.
    corners = apply_affine(grid.matrix, np.array(list(itertools.product(*((-0.5, n - 0.5) for n in values.shape)))))
    low, high = corners.min(axis=0), corners.max(axis=0)
    shadows = {}
    for view, (right, up) in VIEWS.items():
        picture = turned.mean(axis=3 - right - up).T[::-1]
        every = max(1, max(picture.shape) // _SHADOW_PIXELS)
        picture = picture[::every, ::every] / max(float(picture.max()), 1e-6)
        extent_mm = (float(low[right]), float(high[right]), float(low[up]), float(high[up]))
        shadows[view] = Shadow(picture=picture, extent_mm=extent_mm)
    return shadows
