"""Legendre polynomials at the voxels of an axis."""

from __future__ import annotations

import functools

import numpy as np

from voxelocity.data.augment.steps.intensity.pointwise import Floats


@functools.lru_cache(maxsize=64)
def legendre_table(side: int, num_degrees: int) -> Floats:
    """Of degree 0 to `num_degrees - 1`, on an axis from -1 to 1, -1 for a single voxel: (side, num_degrees) float32.

    Do not write to it: it is cached for the next caller.
    """
    places = np.linspace(-1.0, 1.0, side, dtype=np.float32).astype(np.float64)
    table: Floats = np.ascontiguousarray(np.polynomial.legendre.legvander(places, num_degrees - 1), dtype=np.float32)
    return table
