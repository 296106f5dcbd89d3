"""The bounding box of voxels above a threshold, compiled; voxels that cannot widen it are not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel


@exact_kernel
def positive_box(image_cxyz: Any, channels: Any, threshold: Any) -> Any:
    """First and last index (3,), (3,) of the voxels above `threshold` in these channels; last is -1 if none is."""
    first = np.array(image_cxyz.shape[1:], np.int64)
    last = np.full(3, -1, np.int64)
    num_x, num_y, num_z = image_cxyz.shape[1:]
    for channel in channels:
        for x in range(num_x):
            for y in range(num_y):
                row = image_cxyz[channel, x, y]
                is_inside = first[0] <= x <= last[0] and first[1] <= y <= last[1]
                # A row within the box so far can only lengthen it at its ends.
                before = min(first[2], num_z) if is_inside else num_z
                z = 0
                while z < before and not row[z] > threshold:
                    z += 1
                is_found = z < before
                if is_found:
                    first[2] = min(first[2], z)
                elif not is_inside:
                    continue
                after = max(last[2], z if is_found else -1)
                z = num_z - 1
                while z > after and not row[z] > threshold:
                    z -= 1
                last[2] = max(last[2], z)
                if not is_inside:
                    first[0], last[0] = min(first[0], x), max(last[0], x)
                    first[1], last[1] = min(first[1], y), max(last[1], y)
    return first, last
