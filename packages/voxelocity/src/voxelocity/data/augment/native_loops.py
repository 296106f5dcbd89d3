"""Compiled loops of the augmentation: `warp.c` takes a patch from its volume, `intensity.c` changes its intensities.

Images are float32 in C order and labels uint8. A wrong dtype, order or shape is a ValueError, and nothing runs. The
arrays are not copied; all but the blur work in place; nothing holds the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, need_shapes
from voxelocity.core.volume import Array
from voxelocity.data.augment.noise import PIECES
from voxelocity.data.augment.params import Floats

_Labels = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
_Boxes = npt.NDArray[np.int64]

STORED_DTYPES = ("int16", "uint8", "float32")
"""Of the voxels that patches are taken from."""
LABEL_DTYPES: frozenset[np.dtype[Any]] = frozenset({np.dtype(np.uint8), np.dtype(np.uint16)})
_MOST_VOXELS = 2**31
_F4, _OUT = "in float32", "out float32"

_warp = NativeLoop(
    "warp", "in stored", "in any", "in int64", "in float64", "in float64", _F4, _F4, _F4, "in int32", _F4, _F4, _OUT,
    "out any", stored=STORED_DTYPES,
)  # fmt: skip
_crop = NativeLoop("crop", "in stored", "in any", "in int64", _F4, _OUT, "out any", stored=STORED_DTYPES)
_swap_classes = NativeLoop("swap_classes", "out uint8", "int", "in uint8")
_apply_bias = NativeLoop("apply_bias", _OUT, "in int64", _F4, "in int64", _F4, _F4, _F4)
_add_noise = NativeLoop("add_noise", _OUT, "int", "in int32", "float", "seed", "int")
_blur_mirrored = NativeLoop("blur_mirrored", _F4, _OUT, "in int64", _F4, "int", "int")
_scale_and_shift = NativeLoop("scale_and_shift", _OUT, "int", "float", "float")
_spread = NativeLoop("spread", _OUT, "int", "float")
_bend = NativeLoop("bend", _OUT, "int", "float", "int", "int")
_fill_boxes = NativeLoop("fill_boxes", _OUT, "in int64", "in int64", "int", "in float64", "int", "double", "double")
_change_color = NativeLoop("change_color", _OUT, "int", _F4, _F4, _F4, "float", "float", "int")


def _sizes(*numbers: Any) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


def _label_bytes(loop: str, label: Array, out: Array) -> int:
    """Of a voxel of both.

    Raises:
        ValueError: they are not of one type that the loops take.
    """
    if label.dtype != out.dtype or label.dtype not in LABEL_DTYPES:
        raise ValueError(f"loop {loop}: labels are {label.dtype} and {out.dtype}, not both uint8 or both uint16")
    return label.itemsize


def warp(
    image: Array,
    label: _Labels,
    places: tuple[Array, Array],
    elastic: tuple[Floats, Floats, Floats, npt.NDArray[np.int32], Floats],
    scale: Floats,
    out: tuple[Floats, _Labels],
    *,
    votes: bool,
) -> None:
    """Fills a patch from a box of stored voxels.

    Args:
        image: (c, bx, by, bz) stored voxels, fewer than 2**31 per channel. Beyond the box are intensity 0 and class 0.
        label: (bx, by, bz), uint8 or uint16.
        places: float64: (3,) place of patch voxel (0, 0, 0) in the box, and (3, 3), column j the step along patch
            axis j.
        elastic: (3, gx, gy, gz) float32 shifts in the box of the control points, size 0 for none;
            `params.spline_weights` (nx, gx) and (ny, gy); `params.four_weights` of z, (nz,) int32 and (nz, 4).
        scale: (c, 3): an intensity is `stored * scale[0] + scale[1]`, and everywhere plus `scale[2]`.
        out: (c, nx, ny, nz) image and (nx, ny, nz) label, of the type of `label`.
        votes: False takes the nearest voxel's label.
    """
    (origin, step), (control, weights_x, weights_y, first_z, weights_z), (out_image, out_label) = places, elastic, out
    num_channels, nx, ny, nz = out_image.shape
    grid = control.shape[1:]
    if label.size >= _MOST_VOXELS:
        raise ValueError(f"loop warp: a box of {label.size:,} voxels; it takes fewer than {_MOST_VOXELS:,}")
    need_shapes(
        "warp",
        image=(image, (num_channels, *label.shape)),
        origin=(origin, (3,)),
        step=(step, (3, 3)),
        control=(control, (3, *grid)),
        scale=(scale, (num_channels, 3)),
        out_label=(out_label, (nx, ny, nz)),
    )
    if control.size:
        need_shapes(
            "warp",
            weights_x=(weights_x, (nx, grid[0])),
            weights_y=(weights_y, (ny, grid[1])),
            first_z=(first_z, (nz,)),
            weights_z=(weights_z, (nz, 4)),
        )
    label_bytes, knots = _label_bytes("warp", label, out_label), grid if control.size else (0, 0, 0)
    sizes = _sizes(num_channels, *label.shape, *knots, nx, ny, nz, votes, label_bytes)
    _warp(
        image, label, sizes, origin, step, control, weights_x, weights_y, first_z, weights_z,
        scale, out_image, out_label,
    )  # fmt: skip


def crop(
    image: tuple[Array, Sequence[int]],
    label: tuple[Array, Sequence[int]],
    box: tuple[Sequence[int], Sequence[int]],
    flips: Sequence[bool],
    scale: Floats,
    out: tuple[Floats, _Labels],
) -> None:
    """Fills a patch whose voxels are those of a box, flipped or not. Other arguments are as in `warp`.

    Args:
        image: `native.rows_of` the box: flat memory that holds it, and the steps in it of channels, x and y.
        label: likewise, of x and y.
        box: where it begins in the patch before any flip, (x, y, z), and where it ends. Beyond it are intensity 0 and
            class 0.
        flips: of x, y, z.
        scale: as there.
        out: as there.
    """
    (line, steps), (label_line, label_steps), (start, stop), (out_image, out_label) = image, label, box, out
    num_channels, *shape = out_image.shape
    need_shapes("crop", scale=(scale, (num_channels, 3)), out_label=(out_label, shape))
    sides = [last - first for first, last in zip(start, stop, strict=True)]
    for name, memory, its_steps, lengths in (
        ("image", line, steps, [num_channels, *sides]),
        ("label", label_line, label_steps, sides),
    ):
        extent = 1 + sum((side - 1) * step for side, step in zip(lengths, [*its_steps, 1], strict=True))
        if min(sides) < 0 or min(its_steps) < 0 or (min(sides) > 0 and extent > memory.size):
            raise ValueError(
                f"loop crop: {name} of {memory.size} voxels with steps {its_steps} does not hold {start} to {stop}"
            )
    if len(flips) != 3:
        raise ValueError(f"loop crop: {len(flips)} flips, not 3")
    label_bytes = _label_bytes("crop", label_line, out_label)
    sizes = _sizes(num_channels, *shape, *start, *stop, *flips, *steps, *label_steps, label_bytes)
    _crop(line, label_line, sizes, scale, out_image, out_label)


def swap_classes(label: npt.NDArray[np.uint8], swapped: npt.NDArray[np.uint8]) -> None:
    """Replaces each class by its entry in `swapped` (256,)."""
    need_shapes("swap_classes", swapped=(swapped, (256,)))
    _swap_classes(label, label.size, swapped)


def apply_bias(channel: Floats, cube: Floats, legendre_x: Floats, legendre_y: Floats, legendre_z: Floats) -> None:
    """Times the bias field. Channel (nx, ny, nz), cube (i, j, k), Legendre tables (nx, i), (ny, j), (k, nz)."""
    (nx, ny, nz), (i, j, k) = channel.shape, cube.shape
    need_shapes("apply_bias", x=(legendre_x, (nx, i)), y=(legendre_y, (ny, j)), z=(legendre_z, (k, nz)))
    _apply_bias(channel, _sizes(nx, ny, nz), cube, _sizes(i, j, k), legendre_x, legendre_y, legendre_z)


def add_noise(flat: Floats, std: float, seed: int, number: int) -> None:
    """Adds `std` times the numbers of `noise.standard_normal(seed, number, flat.size)`."""
    _add_noise(flat, flat.size, PIECES, float(std), int(seed), number)


def blur_mirrored(source: Floats, target: Floats, weights: Floats, axis: int) -> None:
    """The blur of one axis, mirrored about the outermost voxels: (nx, ny, nz) to another array of that shape.

    There are an odd number of weights, at most twice the axis minus one.
    """
    nx, ny, nz = source.shape
    need_shapes("blur_mirrored", target=(target, (nx, ny, nz)))
    if axis not in (0, 1, 2) or weights.ndim != 1 or weights.size % 2 == 0 or np.shares_memory(source, target):
        raise ValueError(f"loop blur_mirrored: axis {axis}, weights {weights.shape}, or in place")
    _blur_mirrored(source, target, _sizes(nx, ny, nz), weights, weights.size, axis)


def scale_and_shift(flat: Floats, scale: float, shift: float) -> None:
    """`v * scale + shift`."""
    _scale_and_shift(flat, flat.size, float(scale), float(shift))


def spread(flat: Floats, contrast: float) -> None:
    """Contrast about the mean, clipped to the range."""
    _spread(flat, flat.size, float(contrast))


def bend(flat: Floats, gamma: float, *, is_inverted: bool, keeps_moments: bool) -> None:
    """Gamma from the lower end, or from the upper one if inverted."""
    _bend(flat, flat.size, float(gamma), is_inverted, keeps_moments)


def fill_boxes(patch: Floats, places: _Boxes, noise: npt.NDArray[np.float64], low: float, width: float) -> None:
    """Fills boxes.

    Args:
        patch: (c, x, y, z).
        places: (n, 2, 3) int64, start and stop.
        noise: float64, a number for each voxel of box after box, or empty.
        low: the fill value without noise.
        width: of the range that the noise is spread over.
    """
    need_shapes("fill_boxes", places=(places, (len(places), 2, 3)), patch=(patch, patch.shape[:4]))
    _fill_boxes(patch, _sizes(*patch.shape), places, len(places), noise, noise.size, low, width)


def change_color(
    image: Floats, density: Floats, color: Floats, gray: Floats, contrast: float, least: float, *, is_stained: bool
) -> None:
    """The loop of `color.ColorAndStain`: stain, then color, then contrast about the mean gray.

    Args:
        image: (3, n), from 0 to 1.
        density: (3, 4), as in `color.ColorChange`.
        color: (3, 3).
        gray: (3,), shares of red, green and blue in gray.
        contrast: factor of the distance to the mean gray.
        least: intensities below have the optical density of this one.
        is_stained: whether `density` changes anything; logarithms take most of the time.
    """
    num, density = image.shape[-1], np.ascontiguousarray(density)
    need_shapes(
        "change_color", image=(image, (3, num)), density=(density, (3, 4)), color=(color, (3, 3)), gray=(gray, (3,))
    )
    _change_color(image, num, density, np.ascontiguousarray(color), gray, float(contrast), float(least), is_stained)
