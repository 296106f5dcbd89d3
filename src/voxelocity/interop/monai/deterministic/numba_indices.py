"""Marking and listing voxels, compiled. Each voxel has a kind: one byte."""

from __future__ import annotations

from typing import Any

from voxelocity.core.jit import exact_kernel


@exact_kernel
def mark_nonzero(values: Any, kinds: Any, kind: Any) -> None:
    """Sets `kinds` to `kind` where `values`, of the same length, are not zero."""
    for i in range(values.size):
        if values[i] != 0:
            kinds[i] = kind


@exact_kernel
def mark_above(values: Any, threshold: Any, kinds: Any, kind: Any) -> None:
    """Sets `kinds` to `kind` where it is 0 and `values` are above the threshold."""
    for i in range(values.size):
        if kinds[i] == 0 and values[i] > threshold:
            kinds[i] = kind


@exact_kernel
def fill_places(kinds: Any, kind: Any, places: Any) -> None:
    """Fills `places` with the indices of `kind`; there must be exactly as many of them."""
    num_found = 0
    for i in range(kinds.size):
        if kinds[i] == kind:
            places[num_found] = i
            num_found += 1
