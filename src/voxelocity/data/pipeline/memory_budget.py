"""Divides main memory among the cases being prepared, so that many cores and large scans do not exhaust it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class MemoryBudget:
    """A budget of bytes for work in several threads. Work larger than the whole budget is done alone.

    Args:
        budget_bytes: for all work together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taking(self, num_bytes: int) -> Iterator[None]:
        """Waits until `num_bytes` more fit, and holds them for the duration of the block."""
        with self._changed:
            self._changed.wait_for(lambda: self._used_bytes == 0 or self._used_bytes + num_bytes <= self._budget_bytes)
            self._used_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()
