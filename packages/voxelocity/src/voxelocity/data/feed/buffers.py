"""Reuses batch memory: a fresh array of a batch's size costs more in page faults than filling it."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict

import numpy as np
import torch

from voxelocity.core.volume import Array

_Kind = tuple[tuple[int, ...], torch.dtype]


class BufferRing:
    """Tensors whose memory returns here automatically when nothing holds them or a view of them any more.

    Safe to use from several threads.

    Args:
        max_free: free buffers of each shape and dtype to keep; more are released to the system.
        pinned: page-locked, for copies to a CUDA device.
    """

    def __init__(self, *, max_free: int, pinned: bool = False) -> None:
        self._max_free = max_free
        self._pinned = pinned
        self._free: dict[_Kind, list[Array]] = defaultdict(list)
        # Reentrant: garbage collection may return a buffer while this thread holds the lock.
        self._lock = threading.RLock()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any content, in C order, on the CPU."""
        kind = (shape, dtype)
        with self._lock:
            free = self._free[kind]
            memory = free.pop() if free else None
        if memory is None:
            memory = torch.empty(shape, dtype=dtype, pin_memory=self._pinned).numpy()
        # The tensor's storage holds this view until its last user releases it; only then is the memory free.
        lease = memory.view(np.ndarray)
        weakref.finalize(lease, self._give_back, kind, memory).atexit = False
        return torch.from_numpy(lease)

    def _give_back(self, kind: _Kind, memory: Array) -> None:
        with self._lock:
            if len(self._free[kind]) < self._max_free:
                self._free[kind].append(memory)
