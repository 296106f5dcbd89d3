"""Named ranges in NVIDIA's profilers; nothing is spent where torch has no NVTX, as in every build for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def nvtx() -> Any:
    """NVTX of torch, with `rangePushA` and `rangePop`, or None where it was built without."""
    import torch

    return getattr(torch._C, "_nvtx", None)


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A range of this name around the block; it ends although the block raised."""
    found = nvtx()
    if found is None:
        yield
        return
    found.rangePushA(name)
    try:
        yield
    finally:
        found.rangePop()
