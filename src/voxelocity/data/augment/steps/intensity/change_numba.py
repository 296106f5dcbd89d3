"""The intensity steps of a patch on a CPU by compiled loops without the GIL: the fast path of `change_torch`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.data.augment import numba_intensity as intensity
from voxelocity.data.augment import numba_noise
from voxelocity.data.augment.steps.intensity import change_torch
from voxelocity.data.augment.steps.intensity.field import Bias, Blur, Field, Noise, Rician
from voxelocity.data.augment.steps.intensity.legendre import legendre_table
from voxelocity.data.augment.steps.intensity.numba_blur import blur
from voxelocity.data.augment.steps.intensity.pointwise import Floats, Pointwise
from voxelocity.data.augment.steps.intensity.program import program_of
from voxelocity.data.augment.steps.intensity.statistic import Statistics

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
    """As `change.Backend`. Filters of the spectrum and fields given as numbers use torch's own loops."""
    if isinstance(step, Noise) and isinstance(step.field, int):
        for number, flat in enumerate(_rows(patch)):
            numba_noise.add_noise(flat, np.float32(step.std), step.field, 0 if step.is_shared else number)
    elif isinstance(step, Rician) and isinstance(step.fields[0], int):
        for number, (flat, mean, std) in enumerate(zip(_rows(patch), step.mean, step.std, strict=True)):
            numba_noise.add_rician(flat, mean, std, step.fields[0], number, number + len(patch))
    elif isinstance(step, Bias):
        _apply_bias(patch, step)
    elif isinstance(step, Blur):
        alpha = np.float32(0.0 if step.alpha is None else step.alpha)
        for channel in patch.numpy():
            blur(channel, *step.weights, alpha, step.alpha is not None)
    else:
        change_torch.make_field(patch, step)


def _run(
    patch: torch.Tensor, steps: Sequence[Pointwise], takes: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Applies the steps to each channel; returns the facts of `run_program` for each, (c, 5)."""
    program = program_of(steps, len(patch))
    facts = np.empty((len(patch), 5), np.float64)
    for flat, numbers, found in zip(_rows(patch), program.numbers, facts, strict=True):
        intensity.run_program(flat, program.codes, program.starts, numbers, found, takes)
    return facts


def _apply_bias(patch: torch.Tensor, step: Bias) -> None:
    along_x, along_y, along_z = (
        legendre_table(side, degrees) for side, degrees in zip(patch.shape[1:], step.coefficients.shape, strict=True)
    )
    across_z = np.ascontiguousarray(along_z.T)
    for channel in patch.numpy():
        intensity.apply_bias(channel, step.coefficients, along_x, along_y, across_z)


def _rows(patch: torch.Tensor) -> Floats:
    """(c, voxels), the patch's own memory."""
    rows: Floats = patch.numpy().reshape(len(patch), -1)
    return rows
