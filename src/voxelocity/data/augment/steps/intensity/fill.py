"""Fills boxes of a patch with one value, or with noise spread evenly over a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.jit import has_numba, kernel_imports
from voxelocity.data.augment.steps.engine import Engine


@dataclass(frozen=True, kw_only=True, eq=False)
class Fill:
    """Fills each box, one after the other, or with `is_outside` everything except the boxes.

    Attributes:
        boxes: (n, 2, 3) int64, start and stop of each on x, y, z, within the array.
        is_outside: keeps the boxes and fills everything outside them.
        low: the fill value; None for the smallest value of the array before this step.
        high: upper end of the noise; None for the largest value of the array before this step.
        noise: numbers from 0 to 1, float64; each filled voxel is `low + noise * (high - low)` with its own number: box
            after box, each in C order over (c, x, y, z), or with `is_outside` one for each voxel of the array, in C
            order. None fills with `low`.
    """

    boxes: npt.NDArray[np.int64]
    is_outside: bool = False
    low: float | None
    high: float | None = None
    noise: npt.NDArray[np.float64] | None = None


def fill(patch: torch.Tensor, step: Fill, engine: Engine = "auto") -> None:
    """Applies the step to `patch` (c, x, y, z) float32, in place; computed in float64, like NumPy's random numbers.

    Raises:
        OverflowError: the step needs the array's own range, which is not finite.
    """
    low, high = _range_of(patch, step)
    if engine != "torch" and has_numba() and patch.device.type == "cpu" and patch.is_contiguous():
        _fill_compiled(patch, step, low, high)
    elif step.is_outside:
        _fill_outside(patch, step, low, high)
    else:
        begin = 0
        for start, stop in step.boxes.tolist():
            box = patch[_within(start, stop)]
            box.copy_(_values(step, box, begin, low, high))
            begin += box.numel()


def _fill_outside(patch: torch.Tensor, step: Fill, low: float, high: float) -> None:
    filled = _values(step, patch, 0, low, high).clone()
    for start, stop in step.boxes.tolist():
        box = _within(start, stop)
        filled[box] = patch[box]
    patch.copy_(filled)


def _values(step: Fill, box: torch.Tensor, begin: int, low: float, high: float) -> torch.Tensor:
    """The fill values of the voxels of `box`, whose noise begins at index `begin`."""
    if step.noise is None:
        return torch.full_like(box, low)
    noise = torch.from_numpy(step.noise[begin : begin + box.numel()]).view(box.shape)
    return (low + noise * (high - low)).to(box)


def _within(start: list[int], stop: list[int]) -> tuple[slice, ...]:
    return (slice(None), *map(slice, start, stop))


def _range_of(patch: torch.Tensor, step: Fill) -> tuple[float, float]:
    if step.low is not None:
        return step.low, step.low if step.high is None else step.high
    least, most = (float(value) for value in patch.aminmax())
    if not np.isfinite(most - least):
        raise OverflowError(
            f"a box of a patch should be filled from the patch's own range, which is {least:g} to {most:g}; "
            "remove values that are not finite first, or give the range"
        )
    return least, most


def _fill_compiled(patch: torch.Tensor, step: Fill, low: float, high: float) -> None:
    with kernel_imports:
        from voxelocity.data.augment.steps.intensity import numba_fill

    noise = np.empty(0) if step.noise is None else step.noise
    (numba_fill.outside if step.is_outside else numba_fill.boxes)(patch.numpy(), step.boxes, noise, low, high - low)
