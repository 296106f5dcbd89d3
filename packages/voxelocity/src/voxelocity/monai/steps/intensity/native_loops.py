"""Compiled loops of intensity steps, in `steps.c`: programs, fills, noise, and filters with zeros beyond the border.

All work in place on float32 in C order, except `smooth`. A wrong dtype, order or shape is a ValueError, and nothing
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, need_shapes
from voxelocity.data.augment.noise import PIECES
from voxelocity.monai.steps.intensity.pointwise import Floats

_Integers = npt.NDArray[np.int64]
_Doubles = npt.NDArray[np.float64]
LINEAR, LINEAR_BUT_ZERO, CLIP, KEEP_ABOVE, KEEP_BELOW, POWER, CURVE = range(7)
"""The steps of a program."""
_F4, _I8, _F8, _OUT = "in float32", "in int64", "in float64", "out float32"

_run_program = NativeLoop("run_program", _OUT, "int", _I8, _I8, "int", _F4, "int", "out float64", "int")
_fill_outside = NativeLoop("fill_outside", _OUT, _I8, _I8, "int", _F8, "int", "double", "double")
_add_rician = NativeLoop("add_rician", _OUT, "int", "in int32", "float", "float", "seed", "int", "int")
_blur_in_zeros = NativeLoop("blur_in_zeros", _OUT, _I8, _F4, _F4, _F4, "float", "int")
_smooth = NativeLoop("smooth", _F4, _I8, _F4, "int", _OUT)


def run_program(
    flat: Floats, codes: _Integers, starts: _Integers, numbers: Floats, facts: _Doubles, takes: int
) -> None:
    """Applies the steps of a program to a channel, chunk by chunk, and computes statistics of the result.

    Args:
        flat: of the channel.
        codes: (n,) of the steps.
        starts: (n,) where the numbers of each step begin.
        numbers: float32, of all steps.
        facts: (5,) float64, filled where `takes` is not 0: number of voxels, smallest, largest, mean, variance.
        takes: 0 for no statistics, 1 for those of all voxels, 2 for those of voxels that are not 0.
    """
    need_shapes("run_program", starts=(starts, codes.shape), facts=(facts, (5,)))
    _run_program(flat, flat.size, codes, starts, codes.size, numbers, numbers.size, facts, takes)


def fill_outside(patch: Floats, places: _Integers, noise: _Doubles, low: float, width: float) -> None:
    """As `augment.native_loops.fill_boxes`, for all voxels outside the boxes; `noise` has a number for each voxel of
    the patch, or none."""
    need_shapes("fill_outside", places=(places, (len(places), 2, 3)), patch=(patch, patch.shape[:4]))
    _fill_outside(patch, _sizes(*patch.shape), places, len(places), noise, noise.size, low, width)


def add_rician(flat: Floats, mean: float, std: float, seed: int, numbers: tuple[int, int]) -> None:
    """The magnitude, with noise of these two channels in the real and in the imaginary part."""
    _add_rician(flat, flat.size, PIECES, float(mean), float(std), seed, *numbers)


def blur_in_zeros(channel: Floats, weights: Sequence[Floats], alpha: float | None) -> None:
    """`field.Blur` on a channel (nx, ny, nz): an odd number of symmetric weights for each axis; `alpha` sharpens."""
    nx, ny, nz = channel.shape
    radii = [len(along) // 2 for along in weights]
    for along, radius in zip(weights, radii, strict=True):
        need_shapes("blur_in_zeros", weights=(along, (2 * radius + 1,)))
    _blur_in_zeros(channel, _sizes(nx, ny, nz, *radii), *weights, float(alpha or 0.0), alpha is not None)


def smooth(fields: Floats, weights: Floats, out: Floats) -> None:
    """Fills `out` with fields (c, x, y, z) smoothed along x, y and z, with zeros beyond them.

    The products of a voxel are summed in the kernel's order, each added before it is rounded, as torch's convolutions
    do with several threads, so that the results are equal bit for bit.

    Args:
        fields: float32.
        weights: (2 * radius + 1,) float32, symmetric.
        out: another array of the fields' shape.
    """
    need_shapes("smooth", out=(out, fields.shape), fields=(fields, fields.shape[:4]))
    need_shapes("smooth", weights=(weights, (2 * (len(weights) // 2) + 1,)))
    _smooth(fields, _sizes(*fields.shape), weights, len(weights), out)


def _sizes(*numbers: Any) -> _Integers:
    return np.array(numbers, dtype=np.int64)
