"""The intensity steps of a patch, in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch

from voxelocity.core.kernels import kernel_imports
from voxelocity.monai.steps.engine import StepEngine, step_engine
from voxelocity.monai.steps.intensity.field import Field
from voxelocity.monai.steps.intensity.pointwise import Pointwise
from voxelocity.monai.steps.intensity.statistic import (
    IntensityStep,
    PercentileRange,
    Statistic,
    Statistics,
    percentiles,
)


class Backend(Protocol):
    """One implementation of the steps."""

    def make_pointwise(self, patch: torch.Tensor, steps: Sequence[Pointwise]) -> None:
        """Applies them to `patch` (c, x, y, z) float32 in place, one after the other."""

    def make_and_measure(self, patch: torch.Tensor, steps: Sequence[Pointwise], *, nonzero: bool) -> Statistics:
        """The same, and returns the statistics of the result, optionally only of voxels that are not 0."""

    def make_field(self, patch: torch.Tensor, step: Field) -> None:
        """Applies this step in place."""


def change(patch: torch.Tensor, steps: Sequence[IntensityStep], *, engine: StepEngine = "auto") -> None:
    """Applies the steps to `patch` (c, x, y, z) float32, in place, one after the other.

    On a CPU, consecutive pointwise steps, and the statistics that follow them, are computed in one pass. On a device,
    nothing waits for it, except by the reference, engine "torch".

    Args:
        patch: any device; in C order it is changed without a copy.
        steps: as drawn.
        engine: what computes them.

    Raises:
        OverflowError: boxes are to be filled from the patch's own range, which is not finite; not on a device.
    """
    if not steps or patch.numel() == 0:
        return
    if not patch.is_contiguous():
        dense = patch.contiguous()
        change(dense, steps, engine=engine)
        patch.copy_(dense)
        return
    is_on_device = patch.device.type != "cpu" and engine != "torch"
    if is_on_device or step_engine(engine, patch.device) == "triton":
        with kernel_imports:
            from voxelocity.monai.steps.intensity.change_device import change_on_device

        change_on_device(patch, steps, uses_kernels=step_engine(engine, patch.device) == "triton")
        return
    backend = _backend(patch, engine)
    left, waiting = deque(steps), list[Pointwise]()
    while left:
        step = left.popleft()
        if isinstance(step, Pointwise):
            waiting.append(step)
            continue
        if isinstance(step, Statistic):
            settled = step.settle(backend.make_and_measure(patch, waiting, nonzero=step.nonzero))
            left.extendleft(reversed(settled))
        else:
            backend.make_pointwise(patch, waiting)
            if isinstance(step, PercentileRange):
                settled = step.settle(percentiles(patch, (step.lower, step.upper), per_channel=step.per_channel))
                left.extendleft(reversed(settled))
            else:
                backend.make_field(patch, step)
        waiting = []
    backend.make_pointwise(patch, waiting)


def _backend(patch: torch.Tensor, engine: StepEngine) -> Backend:
    from voxelocity.monai.steps.intensity import change_native, change_torch

    return change_native if step_engine(engine, patch.device) == "native" else change_torch
