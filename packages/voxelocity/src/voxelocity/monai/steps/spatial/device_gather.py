"""Passes over patches on a CUDA device, by the kernels of `triton_gather`: the fast path of `gather` there.

All tables of a call go to the device in one copy of page-locked memory, and nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from voxelocity.core.kernels import launch
from voxelocity.core.region import Index3
from voxelocity.data.augment.memory import ArrayLayout, Staged, Staging
from voxelocity.monai.steps.spatial import triton_gather
from voxelocity.monai.steps.spatial.moves import (
    Gain,
    GatherTask,
    Moves,
    SpatialPass,
    passes,
    positions_in_result,
)
from voxelocity.monai.steps.spatial.step import AxisWeights, Resize, Warp, sampler_is_fused
from voxelocity_observe.core.device import as_current

_BEYOND = {"zeros": 0, "border": 1, "reflection": 2}
_Launch = Callable[[Staged], None]
"""Given the tables on the device."""


def gather_on_device(tasks: Sequence[GatherTask]) -> None:
    """As `gather`, for tensors of CUDA devices, on the current stream of each."""
    for device in {task.out.device for task in tasks}:
        staging = Staging()
        launches: list[_Launch] = []
        for task in tasks:
            if task.out.device == device:
                launches += _launches_of(task, staging)
        if launches:
            with as_current(device):
                memory = staging.to(device)
                for fill in launches:
                    fill(memory)


def _launches_of(task: GatherTask, staging: Staging) -> list[_Launch]:
    """One for each pass, in their order."""
    source = task.source.detach()
    x, y, z = source.shape[1:]
    works = passes((int(x), int(y), int(z)), task.steps)
    launches = []
    for number, work in enumerate(works):
        is_last = number == len(works) - 1
        dtype = source.dtype if work.resampling is None else torch.float32
        out = task.out if is_last else source.new_empty((len(source), *work.after.shape), dtype=dtype)
        if out.numel() > 0:
            launches.append(_pass(source, work, task.gain if is_last else None, out, staging))
        source = out
    return launches


def _pass(source: torch.Tensor, work: SpatialPass, gain: Gain | None, out: torch.Tensor, staging: Staging) -> _Launch:
    dense = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    if isinstance(work.resampling, Warp):
        fill = _warp(source, work, work.resampling, gain, dense, staging)
    elif isinstance(work.resampling, Resize):
        fill = _resize(source, work, work.resampling, gain, dense, staging)
    else:
        fill = _move(source, work.before, gain, dense, staging)
    if dense is out:
        return fill

    def fill_and_copy(memory: Staged) -> None:
        fill(memory)
        out.copy_(dense)

    return fill_and_copy


def _move(source: torch.Tensor, moves: Moves, gain: Gain | None, out: torch.Tensor, staging: Staging) -> _Launch:
    tables = [
        staging.add(_ints(source, moves, None)),
        staging.add(np.array([moves.fill], np.float64)),
        _gains(gain, len(out), staging),
    ]
    constants = {"HAS_GAIN": gain is not None, "BLOCK": triton_gather.MOVE_BLOCK}
    return _launch(
        triton_gather.move, (_blocks(out, triton_gather.MOVE_BLOCK), len(out)), source, out, tables, constants
    )


def _warp(
    source: torch.Tensor, work: SpatialPass, step: Warp, gain: Gain | None, out: torch.Tensor, staging: Staging
) -> _Launch:
    positions = step.positions
    *lines, theta, order, is_fused, _, shifts = positions_in_result(positions, work.after, (0, 1, 2))
    # The sum takes the columns in its order; the last one is the constant.
    terms = [int(number) for number in order[:3]]
    ints = staging.add(_ints(source, work.before, work.after, terms))
    scales = np.ones(3) if positions.scale is None else positions.scale
    reals = staging.add(np.array([work.before.fill, work.after.fill, *scales], np.float64))
    tables = [
        ints,
        reals,
        _gains(gain, len(out), staging),
        staging.add(np.ascontiguousarray(theta[:, [*terms, 3]])),
        staging.add(np.concatenate(lines)),
        staging.add(shifts if shifts.size else np.zeros(1, np.float32)),
    ]
    constants: dict[str, Any] = {
        "NEAREST": step.interpolation == "nearest",
        "BEYOND": _BEYOND[step.beyond],
        "FUSED": bool(is_fused),
        "WIDE": positions.is_wide,
        "ALIGN_CORNERS": positions.align_corners,
        "ONCE": sampler_is_fused(positions.num_spatial, out.device),
        "SHIFTED": positions.shifts is not None,
        "BLOCK": triton_gather.BLOCK,
        "enable_fp_fusion": False,
    }
    return _launch(triton_gather.warp, (_blocks(out, triton_gather.BLOCK),), source, out, tables, constants)


def _resize(
    source: torch.Tensor, work: SpatialPass, step: Resize, gain: Gain | None, out: torch.Tensor, staging: Staging
) -> _Launch:
    along = work.after.along
    before = Moves(tuple(work.before.along[move.axis] for move in along), work.before.fill)  # type: ignore[arg-type]
    rows: list[AxisWeights] = []
    for move in along:
        table = step.tables[move.axis]
        rows.append(table.rows(np.arange(len(table.index))[move.source_slice]))
    index, weight = (np.concatenate([getattr(row, name).T.reshape(-1) for row in rows]) for name in ("index", "weight"))
    sizes = [row.index.size for row in rows]
    starts = [[row.index.shape[1], sum(sizes[:number])] for number, row in enumerate(rows)]
    tables = [
        staging.add(_ints(source, before, work.after)),
        staging.add(np.array([work.before.fill, work.after.fill], np.float64)),
        _gains(gain, len(out), staging),
        staging.add(np.array(starts, np.int64)),
        staging.add(index.astype(np.int32)),
        staging.add(weight.astype(np.float32)),
    ]
    constants = {
        "BLOCK": triton_gather.BLOCK,
        "enable_fp_fusion": False,
        "maxnreg": triton_gather.RESIZE_REGISTERS,
    }
    grid = (_blocks(out, triton_gather.BLOCK), len(out))
    return _launch(triton_gather.resize, grid, source, out, tables, constants)


def _launch(
    kernel: Any,
    grid: tuple[int, ...],
    source: torch.Tensor,
    out: torch.Tensor,
    tables: Sequence[ArrayLayout],
    constants: dict[str, Any],
) -> _Launch:
    source, out = _numbers(source), _numbers(out)

    def fill(memory: Staged) -> None:
        launch(kernel, grid, source, out, *(memory.of(table) for table in tables), **constants)

    return fill


def _ints(source: torch.Tensor, before: Moves, after: Moves | None, terms: Sequence[int] = (0, 1, 2)) -> Any:
    """`triton_gather.INT_NAMES`; without `after` nothing is resampled."""
    first, steps = 0, []
    for move in before.along:
        stride = source.stride(move.axis + 1)
        steps.append(move.sign * stride)
        first += (move.start - move.sign * move.before) * stride
    starts = [move.before for move in before.along]
    stops = [move.before + move.length for move in before.along]
    shape: Index3 = before.shape if after is None else after.shape
    filled = before.along if after is None else after.along
    numbers = [first, source.stride(0), *steps, *starts, *stops, *before.shape, *shape]
    numbers += [*(move.before for move in filled), *(move.length for move in filled), len(source), *terms]
    return np.array(numbers, np.int64)


def _gains(gain: Gain | None, num_channels: int, staging: Staging) -> ArrayLayout:
    if gain is None:
        return staging.add(np.tile(np.array([1.0, 0.0], np.float32), (num_channels, 1)))
    return staging.add(np.ascontiguousarray(np.stack([gain.scale, gain.shift], axis=1).astype(np.float32)))


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor for a kernel: those of bool hold 0 and 1 in a byte each."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _blocks(out: torch.Tensor, size: int) -> int:
    return math.ceil(out[0].numel() / size)
