"""Reversing axes by one copy, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def reverse_axes(source: Any, target: Any, is_a: bool, is_b: bool, is_c: bool, is_d: bool) -> None:
    """Fills `target` with `source`, of the same four axes and type, each axis reversed where its flag is set."""
    num_a, num_b, num_c = source.shape[:3]
    # An unsigned index skips the check for counting from the end: 33 ms instead of 110 for 34 million values.
    num_d, one = np.uint64(source.shape[3]), np.uint64(1)
    for a in range(num_a):
        for b in range(num_b):
            plane = source[num_a - 1 - a if is_a else a, num_b - 1 - b if is_b else b]
            for c in range(num_c):
                row, new_row = plane[num_c - 1 - c if is_c else c], target[a, b, c]
                if is_d:
                    for d in range(num_d):
                        new_row[d] = row[num_d - one - d]
                else:
                    for d in range(num_d):
                        new_row[d] = row[d]
