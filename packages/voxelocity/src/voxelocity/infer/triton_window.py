"""Kernels of the window engine on a CUDA device: a window is weighted, mirrored and added to its tile in one pass over
its logits, and a finished tile is classified in one. `arrays` has the slow reference and decides which of both is used.

A step of a tensor counts values and may be negative, so a mirrored tensor is read from its last voxel backward.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

ROWS: Final = 4
"""Lines along z of one program."""
SIDE: Final = 32
"""Voxels of a line in one program."""
MOST_CLASSES: Final = 16
"""Classes of one program at a time: 16 of bfloat16 are a sector of memory where classes lie next to each other."""
UNROLLED: Final = 4
"""Loads of `classify` and `find_not_finite` in flight."""

# Sizes, and what depends on them, differ from tile to tile, and each kind would be compiled again; the steps of the
# innermost axis are left to Triton, which reads whole lines only if it knows that they are 1.
_VARYING: Final = ("num_classes", "nx", "ny", "nz", "share")
_STEPS: Final = ("total_c", "total_x", "total_y", "first_x", "first_y", "second_start", "second_x", "second_y")


@triton.jit(
    do_not_specialize=[*_VARYING, *_STEPS, "weights_x", "weights_y"],
    do_not_specialize_on_alignment=["total", "first", "second", "weights", "swapped", "first_c", "second_c"],
)
def add_window(
    total,
    first,
    second,
    weights,
    swapped,
    total_c,
    total_x,
    total_y,
    first_c,
    first_x,
    first_y,
    first_z,
    second_start,
    second_c,
    second_x,
    second_y,
    second_z,
    weights_x,
    weights_y,
    num_classes,
    nx,
    ny,
    nz,
    share,
    HAS_SECOND: tl.constexpr,
    HAS_SWAP: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    ADDS: tl.constexpr,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Writes or adds `(first + second) * share * weights`. Programs: (blocks of lines, blocks of a line).

    `total` (k, nx, ny, nz) is float32 and written, or added to with ADDS; `first`, which may be `total`, and with
    HAS_SECOND `second` are of any float type; `weights` (nx, ny, nz), with HAS_WEIGHTS, is float32. `*_c`, `*_x`, `*_y`
    and `*_z` are their steps; along z, `total` and `weights` have a step of 1. `second_start` leads from the pointer to
    the voxel of `second` that is added to the first voxel. With HAS_SWAP, `swapped` (k,) int64 has for each class the
    one of `second` that is added to it. A program takes CLASSES at a time of ROWS lines of SIDE voxels.
    """
    i, j, k, inside = _voxels(nx, ny, nz, ROWS, SIDE)
    at_total = i * total_x + j * total_y + k
    at_first = i * first_x + j * first_y + k * first_z
    at_second = second_start + i * second_x + j * second_y + k * second_z
    weight = tl.full((ROWS * SIDE,), 1.0, tl.float32) * share
    if HAS_WEIGHTS:
        weight *= tl.load(weights + (i * weights_x + j * weights_y + k), mask=inside, other=0.0)
    for start in range(0, num_classes, CLASSES):
        c = start + tl.arange(0, CLASSES)
        is_class = c < num_classes
        is_used = is_class[:, None] & inside[None, :]
        wide = c.to(tl.int64)
        value = tl.load(first + ((wide * first_c)[:, None] + at_first[None, :]), mask=is_used, other=0.0).to(tl.float32)
        if HAS_SECOND:
            other = wide
            if HAS_SWAP:
                other = tl.load(swapped + c, mask=is_class, other=0)
            at = (other * second_c)[:, None] + at_second[None, :]
            value += tl.load(second + at, mask=is_used, other=0.0).to(tl.float32)
        value *= weight[None, :]
        target = total + ((wide * total_c)[:, None] + at_total[None, :])
        if ADDS:
            value += tl.load(target, mask=is_used, other=0.0)
        tl.store(target, value, mask=is_used)


@triton.jit(
    do_not_specialize=[
        *("sums_c", "sums_x", "sums_y", "weights_x", "weights_y", "classes_x", "classes_y"),
        *("num_classes", "nx", "ny", "nz"),
    ],
    do_not_specialize_on_alignment=["sums", "weights", "order", "classes", "logs"],
)
def classify(
    sums,
    weights,
    order,
    classes,
    logs,
    sums_c,
    sums_x,
    sums_y,
    weights_x,
    weights_y,
    classes_x,
    classes_y,
    num_classes,
    nx,
    ny,
    nz,
    HAS_WEIGHTS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    UNROLLED: tl.constexpr,
    ROWS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """The index of each voxel's largest value, the first of equals; with HAS_ORDER, the class of the last above 0.

    Programs: (blocks of lines, blocks of a line). `sums` (k, nx, ny, nz) and, with HAS_WEIGHTS, the positive `weights`
    (nx, ny, nz) that they are divided by are float32; `classes` (nx, ny, nz) uint8 is written, and so is, with
    IS_SOFTMAX, the logarithm of the sum of exponentials into `logs`, float32 in the places of `classes`. `*_c`, `*_x`
    and `*_y` are their steps; that along z is 1. `order` (k,) uint8 has the class of each value. UNROLLED values of a
    voxel are loaded at a time.
    """
    i, j, k, inside = _voxels(nx, ny, nz, ROWS, SIDE)
    at = i * sums_x + j * sums_y + k
    step = tl.full((), 1, tl.int64) * sums_c
    factor = _one_over(weights, i * weights_x + j * weights_y + k, inside, HAS_WEIGHTS)
    largest = tl.full((ROWS * SIDE,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS * SIDE,), tl.float32)
    found = tl.zeros((ROWS * SIDE,), tl.int32)
    for start in range(0, num_classes, UNROLLED):
        for ahead in tl.static_range(UNROLLED):
            c = start + ahead
            value = tl.load(sums + c * step + at, mask=inside & (c < num_classes), other=0.0) * factor
            # Only beyond the last class, so that a voxel beyond the tile has no difference of two infinities.
            value = tl.where(c < num_classes, value, float("-inf"))
            if HAS_ORDER:
                name = tl.load(order + c, mask=c < num_classes, other=0).to(tl.int32)
                found = tl.where(value > 0.0, name, found)
            else:
                wins = value > largest
                found = tl.where(wins, c, found)
                if IS_SOFTMAX:
                    # One exponential: the other one is that of 0.
                    decay = tl.exp(-tl.abs(value - largest))
                    total = tl.where(wins, total * decay + 1.0, total + decay)
                largest = tl.where(wins, value, largest)
    target = i * classes_x + j * classes_y + k
    tl.store(classes + target, found.to(tl.uint8), mask=inside)
    if IS_SOFTMAX:
        tl.store(logs + target, largest + tl.log(total), mask=inside)


@triton.jit(
    do_not_specialize=["values_c", "values_x", "values_y", "num_classes", "nx", "ny", "nz"],
    do_not_specialize_on_alignment=["values", "is_finite"],
)
def find_not_finite(
    values,
    is_finite,
    values_c,
    values_x,
    values_y,
    num_classes,
    nx,
    ny,
    nz,
    UNROLLED: tl.constexpr,
    ROWS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Writes 0 to `is_finite`, one uint8, if a value is NaN or infinite. Programs: (blocks of lines, blocks of a line).

    `values` (k, nx, ny, nz) is float32, with the steps `values_c`, `values_x`, `values_y` and 1.
    """
    i, j, k, inside = _voxels(nx, ny, nz, ROWS, SIDE)
    at = i * values_x + j * values_y + k
    step = tl.full((), 1, tl.int64) * values_c
    is_bad = tl.zeros((ROWS * SIDE,), tl.int32)
    for start in range(0, num_classes, UNROLLED):
        for ahead in tl.static_range(UNROLLED):
            c = start + ahead
            value = tl.load(values + c * step + at, mask=inside & (c < num_classes), other=0.0)
            # False for a NaN too.
            is_bad = tl.where(tl.abs(value) < float("inf"), is_bad, 1)
    if tl.max(is_bad, axis=0) > 0:
        tl.store(is_finite, 0)


@triton.jit
def _voxels(nx, ny, nz, ROWS: tl.constexpr, SIDE: tl.constexpr):
    """Where the voxels of a program are along each axis, int64, and whether they exist."""
    offset = tl.arange(0, ROWS * SIDE)
    row = tl.program_id(0) * ROWS + offset // SIDE
    k = tl.program_id(1) * SIDE + offset % SIDE
    inside = (row < nx * ny) & (k < nz)
    return (row // ny).to(tl.int64), (row % ny).to(tl.int64), k.to(tl.int64), inside


@triton.jit
def _one_over(weights, at, is_used, HAS_WEIGHTS: tl.constexpr):
    """What the sums of voxels are multiplied by: 1 over their weights, or 1."""
    if HAS_WEIGHTS:
        return 1.0 / tl.load(weights + at, mask=is_used, other=1.0)
    else:  # noqa: RET505
        return 1.0
