"""The smooth brightness field of an MR coil: exp of a polynomial of degree 3 over the patch.

Source: van Leemput et al., "Automated model-based bias field correction of MR images of the brain", IEEE TMI 18(10),
1999; the same form as MONAI's RandBiasField.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DEGREES = tuple((i, j, k) for i in range(4) for j in range(4) for k in range(4) if i + j + k <= 3)
"""Degrees along (x, y, z) of each product of Legendre polynomials, in the order of the coefficients."""


def legendre(side: int) -> npt.NDArray[np.float32]:
    """The Legendre polynomials of degree 0 to 3 at the voxels of an axis that runs from -1 to 1: (side, 4) float32."""
    t = np.linspace(-1.0, 1.0, side) if side > 1 else np.zeros(1)
    return np.stack([np.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2], axis=1).astype(np.float32)


def coefficient_cube(coefficients: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The 20 coefficients by degrees along (x, y, z): (4, 4, 4), zero where the degrees add up to more than 3."""
    cube = np.zeros((4, 4, 4), dtype=np.float32)
    for value, degrees in zip(coefficients, DEGREES, strict=True):
        cube[degrees] = value
    return cube
