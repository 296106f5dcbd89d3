"""The intensity steps of a patch on a CPU by compiled loops without the GIL: the fast path of `change_torch`.

Pointwise steps become a program for a compiled loop: the code of each step, and its parameters for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.data.augment.native_loops import add_noise, apply_bias, fill_boxes
from voxelocity.monai.steps.intensity import change_torch, native_loops
from voxelocity.monai.steps.intensity.field import Bias, Blur, Field, Fill, Noise, Rician, legendre_table
from voxelocity.monai.steps.intensity.pointwise import Clip, Floats, Linear, Pointwise, Power, Threshold
from voxelocity.monai.steps.intensity.statistic import Facts, Statistics

_NO_FACTS, _ALL, _NONZERO = 0, 1, 2


def make_pointwise(patch: torch.Tensor, steps: Sequence[Pointwise]) -> None:
    """As `change.Backend`."""
    if steps:
        _run(patch, steps, _NO_FACTS)


def make_and_measure(patch: torch.Tensor, steps: Sequence[Pointwise], *, nonzero: bool) -> Statistics:
    """As `change.Backend`."""
    num_voxels, low, high, mean, variance = _run(patch, steps, _NONZERO if nonzero else _ALL).T
    return Statistics(num_voxels=num_voxels, low=low, high=high, mean=mean, variance=variance)


def make_field(patch: torch.Tensor, step: Field) -> None:
    """As `change.Backend`."""
    # Filters of the spectrum and fields given as numbers use torch's own loops.
    if isinstance(step, Noise) and isinstance(step.field, int):
        for number, flat in enumerate(_rows(patch)):
            add_noise(flat, float(step.std), step.field, 0 if step.is_shared else number)
    elif isinstance(step, Rician) and isinstance(step.fields[0], int):
        for number, (flat, mean, std) in enumerate(zip(_rows(patch), step.mean, step.std, strict=True)):
            native_loops.add_rician(flat, mean, std, step.fields[0], (number, number + len(patch)))
    elif isinstance(step, Bias):
        _apply_bias(patch, step)
    elif isinstance(step, Blur):
        for channel in patch.numpy():
            native_loops.blur_in_zeros(channel, step.weights, step.alpha)
    elif isinstance(step, Fill):
        _fill(patch, step)
    else:
        change_torch.make_field(patch, step)


def _run(patch: torch.Tensor, steps: Sequence[Pointwise], takes: int) -> Facts:
    """Applies the steps to each channel; returns the facts of `run_program` for each, (c, 5)."""
    codes: list[int] = []
    starts: list[int] = []
    columns: list[float | Floats] = []
    for step in steps:
        code, parameters = _coded(step)
        codes.append(code)
        starts.append(len(columns))
        columns += parameters
    table = np.empty((len(patch), len(columns)), dtype=np.float32)
    for place, column in enumerate(columns):
        table[:, place] = column
    program = np.array(codes, np.int64), np.array(starts, np.int64)
    facts = np.empty((len(patch), 5), np.float64)
    for flat, numbers, found in zip(_rows(patch), table, facts, strict=True):
        native_loops.run_program(flat, *program, numbers, found, takes)
    return facts


def _coded(step: Pointwise) -> tuple[int, list[float | Floats]]:
    """The step's code and its numbers, each a single one or one for each channel."""
    if isinstance(step, Linear):
        code = native_loops.LINEAR_BUT_ZERO if step.keeps_zero else native_loops.LINEAR
        return code, [0.0 if step.center is None else step.center, step.scale, step.shift]
    if isinstance(step, Clip):
        return native_loops.CLIP, [step.low, step.high]
    if isinstance(step, Threshold):
        return native_loops.KEEP_ABOVE if step.keeps_above else native_loops.KEEP_BELOW, [step.bound, step.fill]
    if isinstance(step, Power):
        at_zero = np.inf if step.gamma < 0 else float(step.gamma == 0)
        return native_loops.POWER, [step.low, 1.0 / step.divisor, step.gamma, step.span, at_zero]
    last = len(step.values) - 1
    return native_loops.CURVE, [step.low, last / (step.high - step.low), float(last), *step.values.tolist()]


def _apply_bias(patch: torch.Tensor, step: Bias) -> None:
    along_x, along_y, along_z = (
        legendre_table(side, degrees) for side, degrees in zip(patch.shape[1:], step.coefficients.shape, strict=True)
    )
    across_z = np.ascontiguousarray(along_z.T)
    for channel in patch.numpy():
        apply_bias(channel, step.coefficients, along_x, along_y, across_z)


def _fill(patch: torch.Tensor, step: Fill) -> None:
    low, high = change_torch.fill_range(patch, step)
    noise = np.empty(0) if step.noise is None else step.noise
    loop = native_loops.fill_outside if step.is_outside else fill_boxes
    loop(patch.numpy(), step.boxes, noise, low, high - low)


def _rows(patch: torch.Tensor) -> Floats:
    """(c, voxels), the patch's own memory."""
    rows: Floats = patch.numpy().reshape(len(patch), -1)
    return rows
