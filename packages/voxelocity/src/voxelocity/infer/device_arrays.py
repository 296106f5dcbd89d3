"""Launches the kernels of the window engine: what `arrays` does on a CUDA device if they are switched on.

On the current stream; the host never waits. Imported only where there is Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from voxelocity.core.kernels import launch
from voxelocity.infer import triton_window as kernels
from voxelocity_observe.core.device import as_current

_LEAST_CLASSES = 2
_VALUES_PER_PROGRAM = 2048


def add(
    total_kxyz: torch.Tensor,
    first_kxyz: torch.Tensor,
    last_kxyz: torch.Tensor | None = None,
    *,
    flipped: Sequence[int] = (),
    swapped: torch.Tensor | None = None,
    share: float = 1.0,
    weights_xyz: torch.Tensor | None = None,
    overwrites: bool = False,
) -> None:
    """Adds `(first + mirror image of last) * share * weights` to a total, or overwrites it, in one pass.

    Args:
        total_kxyz: float32, any steps but 1 along z.
        first_kxyz: of any float type, in any order in memory; may be the total itself.
        last_kxyz: likewise, as the network returned it.
        flipped: spatial axes along which `last_kxyz` is mirrored.
        swapped: (k,) int64, for each class the one of `last_kxyz` that is added to it.
        share: a factor.
        weights_xyz: float32, any steps but 1 along z; None for 1.
        overwrites: whether the total is overwritten.
    """
    if total_kxyz.numel() == 0:
        return
    num_classes, nx, ny, nz = total_kxyz.shape
    second, (start, *steps) = first_kxyz, (0, 0, 0, 0, 0)
    if last_kxyz is not None:
        second, (start, *steps) = last_kxyz, _mirrored_steps(last_kxyz, flipped)
    assert total_kxyz.dtype == torch.float32, total_kxyz.dtype
    assert nz == 1 or total_kxyz.stride(3) == 1, f"a total with strides {total_kxyz.stride()}"
    for values in (first_kxyz, second):
        assert values.shape == total_kxyz.shape, f"{tuple(values.shape)} added to {tuple(total_kxyz.shape)}"
    weights = total_kxyz if weights_xyz is None else weights_xyz
    assert weights_xyz is None or nz == 1 or weights_xyz.stride(2) == 1, f"weights with strides {weights.stride()}"
    classes, rows = program_shape(num_classes)
    with as_current(total_kxyz.device):
        launch(
            kernels.add_window, (triton.cdiv(nx * ny, rows), triton.cdiv(nz, kernels.SIDE)),
            total_kxyz, first_kxyz, second, weights, total_kxyz if swapped is None else swapped,
            *total_kxyz.stride()[:3], *first_kxyz.stride(), start, *steps, *weights.stride()[-3:-1],
            num_classes, nx, ny, nz, share,
            HAS_SECOND=last_kxyz is not None, HAS_SWAP=swapped is not None, HAS_WEIGHTS=weights_xyz is not None,
            ADDS=not overwrites, CLASSES=classes, ROWS=rows, SIDE=kernels.SIDE,
        )  # fmt: skip


def program_shape(num_classes: int) -> tuple[int, int]:
    """Classes at a time and lines of a program that adds windows of this many classes."""
    classes = min(kernels.MOST_CLASSES, max(_LEAST_CLASSES, triton.next_power_of_2(num_classes)))
    return classes, _VALUES_PER_PROGRAM // (classes * kernels.SIDE)


def classify(
    classes_xyz: torch.Tensor,
    sums_kxyz: torch.Tensor,
    *,
    order: torch.Tensor | None = None,
    weights_xyz: torch.Tensor | None = None,
    logs_xyz: torch.Tensor | None = None,
) -> None:
    """Writes the index of each voxel's largest value, the first of equal ones.

    Args:
        classes_xyz: uint8, any steps but 1 along z.
        sums_kxyz: float32, likewise, on the same device.
        order: (k,) uint8 for overlapping classes: a voxel takes the class of the last value above 0, or 0.
        weights_xyz: float32, positive, likewise: what values are divided by; None for 1.
        logs_xyz: float32 with the steps of the classes; the logarithm of the sum of exponentials is written to it.
    """
    if classes_xyz.numel() == 0:
        return
    num_classes, nx, ny, nz = sums_kxyz.shape
    lines = [values for values in (classes_xyz, sums_kxyz, weights_xyz) if values is not None]
    assert nz == 1 or all(values.stride(-1) == 1 for values in lines), "values of a line must be neighbors"
    assert logs_xyz is None or logs_xyz.stride() == classes_xyz.stride(), f"logs with strides {logs_xyz.stride()}"
    weights = classes_xyz if weights_xyz is None else weights_xyz
    with as_current(sums_kxyz.device):
        launch(
            kernels.classify, _programs(nx, ny, nz),
            sums_kxyz, weights, classes_xyz if order is None else order,
            classes_xyz, classes_xyz if logs_xyz is None else logs_xyz,
            *sums_kxyz.stride()[:3], *weights.stride()[:2], *classes_xyz.stride()[:2], num_classes, nx, ny, nz,
            HAS_WEIGHTS=weights_xyz is not None, HAS_ORDER=order is not None, IS_SOFTMAX=logs_xyz is not None,
            UNROLLED=kernels.UNROLLED, ROWS=kernels.ROWS, SIDE=kernels.SIDE,
        )  # fmt: skip


def is_finite(values_kxyz: torch.Tensor) -> torch.Tensor:
    """Whether all float32 values are finite, a scalar on their device."""
    num_classes, nx, ny, nz = values_kxyz.shape
    found = torch.ones((), dtype=torch.uint8, device=values_kxyz.device)
    if values_kxyz.numel() == 0:
        return found.bool()
    assert nz == 1 or values_kxyz.stride(3) == 1, f"values with strides {values_kxyz.stride()}"
    with as_current(values_kxyz.device):
        launch(
            kernels.find_not_finite, _programs(nx, ny, nz),
            values_kxyz, found, *values_kxyz.stride()[:3], num_classes, nx, ny, nz,
            UNROLLED=kernels.UNROLLED, ROWS=kernels.ROWS, SIDE=kernels.SIDE,
        )  # fmt: skip
    return found.bool()


def _programs(nx: int, ny: int, nz: int) -> tuple[int, int]:
    return (triton.cdiv(nx * ny, kernels.ROWS), triton.cdiv(nz, kernels.SIDE))


def _mirrored_steps(values_kxyz: torch.Tensor, flipped: Sequence[int]) -> tuple[int, ...]:
    """The place of the first voxel of the mirror image, and the steps from there: of classes and of each axis."""
    steps = list(values_kxyz.stride())
    start = 0
    for axis in flipped:
        start += (values_kxyz.shape[1 + axis] - 1) * steps[1 + axis]
        steps[1 + axis] *= -1
    return (start, *steps)
