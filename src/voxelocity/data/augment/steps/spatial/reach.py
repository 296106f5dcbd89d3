"""Which voxels of an array a warp needs: the part of a large volume to read for a small patch."""

from __future__ import annotations

import math

from voxelocity.core.region import Index3
from voxelocity.data.augment.steps.spatial.places import Places
from voxelocity.data.augment.steps.spatial.step import Beyond


def reach(places: Places, sides: Index3, beyond: Beyond) -> tuple[Index3, Index3]:
    """The box of an array of `sides`, as start and stop, that holds every voxel that is needed; never empty."""
    if places.shifts is not None or any(line.size == 0 for line in places.lines):
        return (0, 0, 0), sides
    starts, stops = [], []
    for axis, side in enumerate(sides):
        low = high = float(places.theta[axis, 3])
        for factor, line in zip(places.theta[axis, :3].tolist(), places.lines, strict=True):
            ends = (factor * float(line[0]), factor * float(line[-1]))
            low, high = low + min(ends), high + max(ends)
        factor = 1.0 if places.scale is None else float(places.scale[axis])
        span = (side - 1) / 2 if places.align_corners else side / 2
        middle = (side - 1) / 2
        # A rounded sum of float32 is off by a few millionths of its size.
        slack = 0.01 + 1e-5 * (abs(low) + abs(high)) * factor * span
        start, stop = _seen(low * factor * span + middle - slack, high * factor * span + middle + slack, side, beyond)
        starts.append(start)
        stops.append(stop)
    return (starts[0], starts[1], starts[2]), (stops[0], stops[1], stops[2])


def _seen(low: float, high: float, side: int, beyond: Beyond) -> tuple[int, int]:
    """First and last voxel for places from `low` to `high`, as start and stop."""
    if beyond == "reflection" and (low < 0.0 or high > side - 1.0):
        # About the faces or the centers of the outermost voxels, whichever reaches farther.
        low, high = min(low, 2.0 * side - 2.0 - high - 1.0), max(high, -low)
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0, side
    start = min(max(math.floor(low), 0), side - 1)
    return start, min(max(math.floor(high) + 2, start + 1), side)
