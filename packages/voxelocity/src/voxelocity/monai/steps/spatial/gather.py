"""Gathers the voxels of patches after spatial steps: by compiled loops, by kernels on a device, or in plain torch.

The torch implementation makes one step after the other: easy to read, and the reference for the compiled passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from voxelocity.core.kernels import kernel_imports
from voxelocity.monai.steps.engine import StepEngine, send, step_engine
from voxelocity.monai.steps.spatial.moves import GatherTask
from voxelocity.monai.steps.spatial.step import Crop, Flip, Resize, SpatialStep, Turn, Warp

_NATIVE_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}
_TRITON_DTYPES = {*_NATIVE_DTYPES, torch.bfloat16}
_MOST_VOXELS = 2**31 // 4


def gather(tasks: Sequence[GatherTask], engine: StepEngine = "auto") -> None:
    """Fills the tasks' `out`; on a device, on the calling thread's current stream, without waiting for it.

    Args:
        tasks: of one sample or of a batch; those whose warps have the same `SamplingGrid` object may share the work.
        engine: what computes them.
    """
    compiled, launched = list[GatherTask](), list[GatherTask]()
    for task in tasks:
        chosen = step_engine(engine, task.out.device)
        if chosen == "native" and _is_for_loops(task):
            compiled.append(task)
        elif chosen == "triton" and _is_for_triton(task):
            launched.append(task)
        else:
            _by_torch(task)
    if compiled:
        from voxelocity.monai.steps.spatial.native_gather import gather_compiled

        gather_compiled(compiled)
    if launched:  # imported here, as Triton may be missing
        with kernel_imports:
            from voxelocity.monai.steps.spatial.device_gather import gather_on_device

        gather_on_device(launched)


def _is_for_loops(task: GatherTask) -> bool:
    devices = {task.source.device.type, task.out.device.type}
    return devices == {"cpu"} and {task.source.dtype, task.out.dtype} <= _NATIVE_DTYPES


def _is_for_triton(task: GatherTask) -> bool:
    """Offsets within a patch, and three of it with shifts, are counted in 32 bits."""
    is_small = task.out[0].numel() < _MOST_VOXELS if len(task.out) else True
    is_one_device = task.source.device == task.out.device
    return is_one_device and is_small and {task.source.dtype, task.out.dtype} <= _TRITON_DTYPES


def _by_torch(task: GatherTask) -> None:
    made = task.source
    for step in task.steps:
        made = _one(made, step)
    task.out.copy_(made)
    if task.gain is not None:
        scale, shift = (send(value, task.out.device).view(-1, 1, 1, 1) for value in (task.gain.scale, task.gain.shift))
        task.out.mul_(scale).add_(shift)


def _one(source: torch.Tensor, step: SpatialStep) -> torch.Tensor:
    """The result of the step on `source` (c, x, y, z); a view of it if possible."""
    if isinstance(step, Flip):
        return source.flip([axis + 1 for axis in range(3) if step.axes[axis]])
    if isinstance(step, Turn):
        return source.rot90(step.quarter_turns, (step.axes[0] + 1, step.axes[1] + 1))
    if isinstance(step, Warp):
        return _warped(source, step)
    if isinstance(step, Resize):
        return _resized(source, step)
    return _crop(source, step)


def _crop(source: torch.Tensor, step: Crop) -> torch.Tensor:
    inside, pads = [], []
    for start, length, side in zip(step.start, step.shape, source.shape[1:], strict=True):
        first, last = min(max(start, 0), side), min(max(start + length, 0), side)
        last = max(first, last)
        inside.append(slice(first, last))
        before = min(max(-start, 0), length)
        pads.append((before, length - before - (last - first)))
    box = source[(slice(None), *inside)]
    if not any(map(any, pads)):
        return box
    return functional.pad(box, [n for pair in reversed(pads) for n in pair], value=step.fill)


def _warped(source: torch.Tensor, step: Warp) -> torch.Tensor:
    grid = step.positions.normalized(source.device)
    source = source.to(grid.dtype)
    is_plane = step.positions.num_spatial == 2
    if is_plane:
        grid, source = grid[:, :, 0, 1:], source[..., 0]
    sampled = functional.grid_sample(
        source[None],
        grid[None],
        mode="bilinear" if step.interpolation == "linear" else "nearest",
        padding_mode=step.beyond,
        align_corners=step.positions.align_corners,
    )[0].float()
    return sampled[..., None] if is_plane else sampled


def _resized(source: torch.Tensor, step: Resize) -> torch.Tensor:
    values = source.float()
    for axis, table in enumerate(step.tables, start=1):
        along = [1, 1, 1, 1]
        along[axis] = -1
        total = None
        for tap in range(table.index.shape[1]):
            index = send(table.index[:, tap].astype("int64"), values.device)
            weight = send(table.weight[:, tap].copy(), values.device).view(along)
            term = values.index_select(axis, index) * weight
            total = term if total is None else total + term
        assert total is not None, "a table has at least one tap"
        values = total
    return values
