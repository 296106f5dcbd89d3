"""Pointwise steps as numbers for a compiled loop: the code of each, and its parameters for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.data.augment.steps.intensity.pointwise import Clip, Floats, Linear, Pointwise, Power, Threshold

LINEAR, LINEAR_BUT_ZERO, CLIP, KEEP_ABOVE, KEEP_BELOW, POWER, CURVE = range(7)


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Steps, one after the other.

    Attributes:
        codes: (n,) of the operations.
        starts: (n,) where the numbers of each begin.
        numbers: (c, numbers of all steps) float32.
    """

    codes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    numbers: Floats


def program_of(steps: Sequence[Pointwise], num_channels: int) -> Program:
    """The program of these steps on a patch with this many channels."""
    codes: list[int] = []
    starts: list[int] = []
    columns: list[float | Floats] = []
    for step in steps:
        code, numbers = _coded(step)
        codes.append(code)
        starts.append(len(columns))
        columns += numbers
    table = np.empty((num_channels, len(columns)), dtype=np.float32)
    for place, column in enumerate(columns):
        table[:, place] = column
    return Program(codes=np.array(codes, np.int64), starts=np.array(starts, np.int64), numbers=table)


def _coded(step: Pointwise) -> tuple[int, list[float | Floats]]:
    """The step's code and its numbers, each a single one or one for each channel."""
    if isinstance(step, Linear):
        code = LINEAR_BUT_ZERO if step.keeps_zero else LINEAR
        return code, [0.0 if step.center is None else step.center, step.scale, step.shift]
    if isinstance(step, Clip):
        return CLIP, [step.low, step.high]
    if isinstance(step, Threshold):
        return KEEP_ABOVE if step.keeps_above else KEEP_BELOW, [step.bound, step.fill]
    if isinstance(step, Power):
        at_zero = np.inf if step.gamma < 0 else float(step.gamma == 0)
        return POWER, [step.low, 1.0 / step.divisor, step.gamma, step.span, at_zero]
    last = len(step.values) - 1
    return CURVE, [step.low, last / (step.high - step.low), float(last), *step.values.tolist()]
