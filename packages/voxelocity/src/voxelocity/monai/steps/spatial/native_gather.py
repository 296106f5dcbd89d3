"""Passes over patches on a CPU, by compiled loops without the GIL: the fast path of `gather`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.memory_order import planes, turn
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.data.augment.native_engine import scratch
from voxelocity.monai.steps.spatial import native_loops
from voxelocity.monai.steps.spatial.moves import (
    Gain,
    GatherTask,
    Moves,
    SpatialPass,
    passes,
    positions_in_result,
)
from voxelocity.monai.steps.spatial.step import Beyond, Floats, Resize, SamplingGrid, Warp, sampler_is_fused

_FLOAT32 = np.dtype(np.float32)
_BOX_DTYPES: dict[str, dict[np.dtype[Any], np.dtype[Any]]] = {
    "linear": {np.dtype(np.uint8): np.dtype(np.int16), np.dtype(np.int16): np.dtype(np.int16)},
    "nearest": {np.dtype(np.uint8): np.dtype(np.uint8), np.dtype(np.bool_): np.dtype(np.uint8)},
}
"""Dtypes that a box keeps; any other becomes float32, like the result."""
_RESIZED_DTYPES = frozenset(np.dtype(name) for name in ("uint8", "int16", "float32"))
_MOST_VOXELS = 2**31 - 1
_RING = 3
"""Extra voxels of a box along each axis, beyond those requested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Last:
    """The last pass of a task."""

    source: Array
    work: SpatialPass
    gain: Gain | None
    out: Array


def gather_compiled(tasks: Sequence[GatherTask]) -> None:
    """As `gather`, for tensors of a CPU and NumPy's dtypes."""
    waiting: list[tuple[_Last, Warp]] = []
    for number, task in enumerate(tasks):
        last = _all_but_last(task, number)
        warp = last.work.resampling
        if not isinstance(warp, Warp) or last.out.size == 0:
            _make(last)
            continue
        for place, (other, other_warp) in enumerate(waiting):
            if _shares(last, warp, other, other_warp):
                _warp([waiting.pop(place), (last, warp)])
                break
        else:
            waiting.append((last, warp))
    for alone in waiting:
        _warp([alone])


def _all_but_last(task: GatherTask, number: int) -> _Last:
    source: Array = task.source.detach().numpy()
    x, y, z = source.shape[1:]
    *first, final = passes((x, y, z), task.steps)
    for place, work in enumerate(first):
        dtype = source.dtype if work.resampling is None else _FLOAT32
        # Each task has its own: one that waits still reads it while the next ones are made.
        out = scratch(f"between {number} {place % 2}", (len(source), *work.after.shape), dtype)
        _make(_Last(source=source, work=work, gain=None, out=out))
        source = out
    return _Last(source=source, work=final, gain=task.gain, out=task.out.detach().numpy())


def _make(last: _Last) -> None:
    work = last.work
    if last.out.size == 0:
        return
    if isinstance(work.resampling, Warp):
        _warp([(last, work.resampling)])
    elif isinstance(work.resampling, Resize):
        _resize(last, work.resampling)
    else:
        _move(last)


def _move(last: _Last) -> None:
    moves = last.work.before
    _copy(moves.view(last.source), moves.copied_part(last.out))
    if moves.has_fill:
        moves.fill_around(last.out)
    if last.gain is not None:
        out = last.out
        out *= last.gain.scale.reshape(-1, 1, 1, 1)
        out += last.gain.shift.reshape(-1, 1, 1, 1)


def _resize(last: _Last, step: Resize) -> None:
    before = last.work.before
    source = before.view(last.source)
    if before.has_fill or source.dtype not in _RESIZED_DTYPES:
        dtype = source.dtype if source.dtype in _RESIZED_DTYPES else _FLOAT32
        padded = scratch("padded", (len(source), *before.shape), dtype)
        _copy(source, before.copied_part(padded))
        before.fill_around(padded)
        source = padded
    target = _flat_target(last, "target")
    shown = last.work.after.copied_part(target)
    order = _order(shown)
    along = [last.work.after.along[axis] for axis in order]
    native_loops.resize(
        source.transpose(0, *(axis_map.axis + 1 for axis_map in along)),
        [
            step.tables[axis_map.axis].rows(np.arange(len(step.tables[axis_map.axis].index))[axis_map.source_slice])
            for axis_map in along
        ],
        _part(last, target, order),
    )
    _finish(last, target)


def _shares(one: _Last, warp: Warp, other: _Last, other_warp: Warp) -> bool:
    """Whether the voxels of two tasks, one interpolated and one taken from the nearest, lie at the same positions."""
    return (
        warp.positions is other_warp.positions
        and warp.beyond == other_warp.beyond
        and {warp.interpolation, other_warp.interpolation} == {"linear", "nearest"}
        and one.work.before.shape == other.work.before.shape
        and one.work.after.along == other.work.after.along
        and one.out.strides[1:] == other.out.strides[1:]
    )


def _warp(pairs: Sequence[tuple[_Last, Warp]]) -> None:
    lasts, warps = zip(*pairs, strict=True)
    work, positions, beyond = lasts[0].work, warps[0].positions, warps[0].beyond
    sides = work.before.shape
    low, high = reach(positions, sides, beyond)
    _check_size(low, high)
    targets = [_flat_target(last, f"target {number}") for number, last in enumerate(lasts)]
    order = _order(work.after.copied_part(targets[0]))
    parts: dict[str, tuple[Array, native_loops.Target]] = {}
    for (last, warp), target in zip(pairs, targets, strict=True):
        name = warp.interpolation
        dtype = _BOX_DTYPES[name].get(last.source.dtype, _FLOAT32)
        box = _boxed(name, last.source, last.work.before, low, high, beyond, dtype)
        parts[name] = (box, _part(last, target, order))
    *lines, theta, summed, is_fused, scale, shifts = positions_in_result(positions, work.after, order)
    rules = (is_fused, positions.align_corners, sampler_is_fused(positions.num_spatial), beyond)
    boxed = [parts.get("linear"), parts.get("nearest")]
    native_loops.sample(lines, theta, summed, scale, shifts, rules, (sides, low), boxed)
    for last, target in zip(lasts, targets, strict=True):
        _finish(last, target)


def _check_size(low: Index3, high: Index3) -> None:
    num = math.prod(stop - start + _RING for start, stop in zip(low, high, strict=True))
    if num > _MOST_VOXELS:
        raise ValueError(
            f"augment.steps: a warp needs a box of {num} voxels, and its compiled loops allow at most {_MOST_VOXELS}; "
            f'crop before it is warped, or run with engine="torch"'
        )


def _order(part: Array) -> list[int]:
    """The spatial axes in memory order; those of one voxel first, as the loops are fastest along the last."""
    return sorted(range(3), key=lambda axis: (part.shape[axis + 1] > 1, -abs(part.strides[axis + 1])))


def _part(last: _Last, target: Array, order: Sequence[int]) -> native_loops.Target:
    """What the step fills of `target`, its axes in this order."""
    part = last.work.after.copied_part(target).transpose(0, *(axis + 1 for axis in order))
    return native_loops.Target(whole=target, part=part, scale=_scale(last))


def _scale(last: _Last) -> Floats:
    """(c, 2) float32 of the linear step, or of none."""
    if last.gain is None:
        return np.tile(np.array([1.0, 0.0], np.float32), (len(last.source), 1))
    return np.stack([last.gain.scale, last.gain.shift], axis=1).astype(np.float32)


def _flat_target(last: _Last, name: str) -> Array:
    """`out` itself if the loops can write to it, else scratch of its shape; writes the fill around what they fill."""
    out = last.out
    if out.dtype != _FLOAT32 or not out.flags.c_contiguous:
        out = scratch(name, out.shape, _FLOAT32)
    if last.work.after.has_fill:
        for channel, (scale, shift) in zip(out, _scale(last), strict=True):
            value = np.float32(last.work.after.fill) * scale + shift
            Moves(last.work.after.along, float(value)).fill_around(channel[None])
    return out


def _finish(last: _Last, target: Array) -> None:
    if target is not last.out:
        np.copyto(last.out, target, casting="unsafe")


def _boxed(
    name: str, array: Array, moves: Moves, start: Index3, stop: Index3, beyond: Beyond, dtype: np.dtype[Any]
) -> Array:
    """Voxels `start` to `stop` of the moved array, plus one before and two after them, (c, ...) in C order, scratch.

    Beyond the end of the array, voxels are 0 if `beyond` is "zeros", else copies of the outermost voxel.
    """
    target = scratch(name, (len(array), *(b - a + _RING for a, b in zip(start, stop, strict=True))), dtype)
    inner, window = [], []
    for axis_map, side, first, last in zip(moves.along, moves.shape, start, stop, strict=True):
        low, high = max(first - 1, 0), min(last + 2, side)
        inner.append(slice(low - first + 1, high - first + 1))
        window.append(axis_map.cropped(low, high - low))
    part = target[(slice(None), *inner)]
    shown = Moves((window[0], window[1], window[2]), moves.fill)
    _copy(shown.view(array), shown.copied_part(part))
    if shown.has_fill:
        shown.fill_around(part)
    for axis, within in enumerate(inner, start=1):
        lines = np.moveaxis(target, axis, 0)
        for edge in (*range(within.start), *range(within.stop, target.shape[axis])):
            inward = within.start if edge < within.start else within.stop - 1
            lines[edge] = 0 if beyond == "zeros" else lines[inward]
    return target


def _copy(source: Array, target: Array) -> None:
    """Copies between arrays (c, x, y, z) of any memory order."""
    if source.size == 0:
        return
    steps = [abs(step) if side > 1 else 2**62 for step, side in zip(source.strides, source.shape, strict=True)]
    if np.argmin(steps[1:]) == 2:
        np.copyto(target, source, casting="unsafe")
        return
    for plane, out in planes(source, target):
        turn(plane, out)


def reach(positions: SamplingGrid, sides: Index3, beyond: Beyond) -> tuple[Index3, Index3]:
    """The box of an array of `sides`, as start and stop, that holds every voxel that is needed; never empty."""
    if positions.shifts is not None or any(line.size == 0 for line in positions.lines):
        return (0, 0, 0), sides
    starts, stops = [], []
    for axis, side in enumerate(sides):
        low = high = float(positions.theta[axis, 3])
        for factor, line in zip(positions.theta[axis, :3].tolist(), positions.lines, strict=True):
            ends = (factor * float(line[0]), factor * float(line[-1]))
            low, high = low + min(ends), high + max(ends)
        factor = 1.0 if positions.scale is None else float(positions.scale[axis])
        span = (side - 1) / 2 if positions.align_corners else side / 2
        middle = (side - 1) / 2
        # A rounded sum of float32 is off by a few millionths of its size.
        slack = 0.01 + 1e-5 * (abs(low) + abs(high)) * factor * span
        start, stop = _seen(low * factor * span + middle - slack, high * factor * span + middle + slack, side, beyond)
        starts.append(start)
        stops.append(stop)
    return (starts[0], starts[1], starts[2]), (stops[0], stops[1], stops[2])


def _seen(low: float, high: float, side: int, beyond: Beyond) -> tuple[int, int]:
    """First and last voxel for positions from `low` to `high`, as start and stop."""
    if beyond == "reflection" and (low < 0.0 or high > side - 1.0):
        # About the faces or the centers of the outermost voxels, whichever reaches farther.
        low, high = min(low, 2.0 * side - 2.0 - high - 1.0), max(high, -low)
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0, side
    start = min(max(math.floor(low), 0), side - 1)
    return start, min(max(math.floor(high) + 2, start + 1), side)
