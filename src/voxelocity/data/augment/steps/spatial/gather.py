"""Gathers the voxels of patches after spatial steps, in as few passes as possible.

A pass is exact moves, at most one resampling, and exact moves again. Two resamplings are two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.jit import has_numba, kernel_imports
from voxelocity.core.region import Index3
from voxelocity.data.augment.steps.engine import Engine
from voxelocity.data.augment.steps.spatial.moves import Moves, composed
from voxelocity.data.augment.steps.spatial.resize import Resize
from voxelocity.data.augment.steps.spatial.step import ExactStep, SpatialStep, Warp
from voxelocity.data.augment.steps.spatial.torch_gather import taken

_NUMBA_DTYPES = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32)
) | {torch.float64}


@dataclass(frozen=True, kw_only=True, eq=False)
class Gain:
    """`v * scale + shift`, each (c,) float32, applied to voxels as they are written to the result."""

    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A result and what it is made of.

    Attributes:
        source: (c, x, y, z), only read.
        steps: applied to it in this order.
        gain: applied to each value after them, or None; with a gain `out` is float32.
        out: (c, *shape after the steps), filled; another dtype than the source's converts.
    """

    source: torch.Tensor
    steps: Sequence[SpatialStep]
    gain: Gain | None
    out: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Exact moves of an array, at most one resampling of the result, then exact moves again."""

    before: Moves
    resampling: Warp | Resize | None
    after: Moves


def gather(tasks: Sequence[Task], engine: Engine = "auto") -> None:
    """Fills the tasks' `out`.

    Args:
        tasks: of one sample; those whose warps have the same `Places` object may share the work.
        engine: "numba" for CPU tensors if Numba is installed, "torch" for plain torch on any device; "auto" is the
            former if available.
    """
    compiled = []
    for task in tasks:
        if engine != "torch" and _is_for_numba(task):
            compiled.append(task)
        else:
            _by_torch(task)
    if compiled:
        # Imported here, as Numba may be missing.
        with kernel_imports:
            from voxelocity.data.augment.steps.spatial.numba_gather import gather_compiled

        gather_compiled(compiled)


def passes(shape: Index3, steps: Sequence[SpatialStep]) -> list[Pass]:
    """The passes over an array of `shape`; at least one."""
    made: list[Pass] = []
    rest = list(steps)
    while rest or not made:
        before, num = composed(shape, _leading(rest))
        rest = rest[num:]
        resampling, shape = None, before.shape
        if rest and isinstance(rest[0], Warp | Resize):
            resampling, rest = rest[0], rest[1:]
            shape = resampling.shape_after(shape)
        after, num = composed(shape, _leading(rest)) if resampling is not None else (Moves.none(shape), 0)
        rest, shape = rest[num:], after.shape
        made.append(Pass(before=before, resampling=resampling, after=after))
    return made


def _leading(steps: Sequence[SpatialStep]) -> list[ExactStep]:
    exact: list[ExactStep] = []
    for step in steps:
        if isinstance(step, Warp | Resize):
            break
        exact.append(step)
    return exact


def _is_for_numba(task: Task) -> bool:
    devices = {task.source.device.type, task.out.device.type}
    return devices == {"cpu"} and {task.source.dtype, task.out.dtype} <= _NUMBA_DTYPES and has_numba()


def _by_torch(task: Task) -> None:
    task.out.copy_(taken(task.source, task.steps))
    if task.gain is not None:
        scale, shift = (
            torch.from_numpy(value).view(-1, 1, 1, 1).to(task.out.device)
            for value in (task.gain.scale, task.gain.shift)
        )
        task.out.mul_(scale).add_(shift)
