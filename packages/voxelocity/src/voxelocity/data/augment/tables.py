"""What the engines' loops look up for each voxel of an axis: splines, Legendre polynomials, blurs, low resolutions.

An elastic deformation is a uniform cubic B-spline: control points on a coarse grid, smooth between them. Source:
Rueckert et al., "Nonrigid registration using free-form deformations", IEEE TMI 18(8), 1999.

The smooth brightness field of an MR coil is exp of a polynomial of degree 3 over the patch. Source: van Leemput et al.,
"Automated model-based bias field correction of MR images of the brain", IEEE TMI 18(10), 1999; the same form as MONAI's
RandBiasField.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3
from voxelocity.data.augment.params import Floats

Indices = npt.NDArray[np.int32]

DEGREES = tuple((i, j, k) for i in range(4) for j in range(4) for k in range(4) if i + j + k <= 3)
"""Degrees along (x, y, z) of each product of Legendre polynomials, in the order of the coefficients."""
TRUNCATE = 4.0
"""Standard deviations of a blur."""


def elastic_points(patch_shape: Index3, spacing_voxel: float) -> Index3:
    """Control points along (x, y, z) of a patch, no farther apart than `spacing_voxel`."""
    x, y, z = (max(1, math.ceil((side - 1) / spacing_voxel)) + 3 for side in patch_shape)
    return (x, y, z)


def spline_weights(side: int, points: int) -> Floats:
    """The share of each control point in each voxel of an axis: (side, points) float32, four nonzero per row."""
    first, shares = four_weights(side, points)
    table = np.zeros((side, points), dtype=np.float32)
    for number in range(4):
        table[np.arange(side), first + number] = shares[:, number]
    return table


def four_weights(side: int, points: int) -> tuple[Indices, Floats]:
    """For each voxel of an axis the first of the four control points that move it (side,), and their shares (side, 4).

    The first and the last voxel lie on the second and the second-to-last control point.
    """
    intervals = points - 3
    place = np.arange(side, dtype=np.float64) * (intervals / max(1, side - 1))
    first = np.minimum(place.astype(np.int64), intervals - 1)
    t = place - first
    shares = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1) / 6.0
    return first.astype(np.int32), shares.astype(np.float32)


def legendre(side: int) -> Floats:
    """The Legendre polynomials of degree 0 to 3 at the voxels of an axis that runs from -1 to 1: (side, 4) float32."""
    t = np.linspace(-1.0, 1.0, side) if side > 1 else np.zeros(1)
    return np.stack([np.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2], axis=1).astype(np.float32)


@functools.lru_cache(maxsize=64)
def legendre_table(side: int, num_degrees: int) -> Floats:
    """As `legendre`, of degree 0 to `num_degrees - 1` and rounded as in MONAI; -1 for a single voxel.

    Do not write to it: it is cached for the next caller.
    """
    places = np.linspace(-1.0, 1.0, side, dtype=np.float32).astype(np.float64)
    table: Floats = np.ascontiguousarray(np.polynomial.legendre.legvander(places, num_degrees - 1), dtype=np.float32)
    return table


def coefficient_cube(coefficients: Floats) -> Floats:
    """The 20 coefficients by degrees along (x, y, z): (4, 4, 4), zero where the degrees add up to more than 3."""
    cube = np.zeros((4, 4, 4), dtype=np.float32)
    for value, degrees in zip(coefficients, DEGREES, strict=True):
        cube[degrees] = value
    return cube


def blur_weights(sigma_voxel: float, side: int) -> Floats:
    """Weights from -r to r, summing to one; r is four standard deviations, rounded, and below `side`."""
    radius = min(int(TRUNCATE * sigma_voxel + 0.5), side - 1)
    if sigma_voxel <= 0.0 or radius <= 0:
        return np.ones(1, dtype=np.float32)
    offsets = np.arange(-radius, radius + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (offsets / sigma_voxel) ** 2)
    normalized: Floats = (weights / weights.sum()).astype(np.float32)
    return normalized


def low_positions(side: int, zoom: float) -> tuple[Indices, Indices, Floats]:
    """For each voxel of an axis: the two kept voxels it lies between, and the weight of the second. Each (side,).

    `round(side * zoom)` voxels are kept, those nearest to the centers of that many equal parts ("nearest-exact" of
    torch's `interpolate`). Interpolation between them is linear, without aligned corners, as in torch.
    """
    num_low = max(1, math.floor(side * zoom + 0.5))
    kept = np.minimum(((np.arange(num_low) + 0.5) * (side / num_low)).astype(np.int64), side - 1)
    place = np.clip((np.arange(side) + 0.5) * (num_low / side) - 0.5, 0.0, num_low - 1.0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, num_low - 1)
    return kept[below].astype(np.int32), kept[above].astype(np.int32), (place - below).astype(np.float32)
