"""The person's own loop on batches that are there already: the ceiling of what faster data could bring."""

from __future__ import annotations

import os
import time
from typing import Any

from .fetches import size_of
from .loaders import Entry

_NUM_KEPT = 4
_IDLE_SHARE = 0.1
_MAX_IDLE_WAIT_S = 5.0


class Resident:
    """Keeps copies of the last batches of the training loaders, and gives them out again in place of new ones.

    Args:
        max_bytes: that the copies of all loaders may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self.is_keeping = False
        self.is_replaying = False
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: dict[int, list[Any]] = {}
        self._turn: dict[int, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch to give out."""
        return any(self._kept.values())

    @property
    def num_bytes(self) -> int:
        """That the copies take."""
        return self._num_bytes

    def keep(self, entry: Entry, batch: Any) -> None:
        """Copies the batch, as the program may change its own, if there is room."""
        kept = self._kept.setdefault(entry.key, [])
        num_bytes = size_of(batch)
        if len(kept) < _NUM_KEPT and self._num_bytes + num_bytes <= self._max_bytes:
            kept.append(copy_of(batch))
            self._num_bytes += num_bytes

    def replay(self, entry: Entry) -> tuple[Any] | None:
        """A batch that was kept, None where none was. Its containers are new ones each time, its tensors are not."""
        kept = self._kept.get(entry.key)
        if not self.is_replaying or not kept:
            return None
        turn = self._turn.get(entry.key, 0)
        self._turn[entry.key] = turn + 1
        return (copy_of(kept[turn % len(kept)], copies_tensors=False),)

    def batch_of(self, key: int) -> Any:
        """One batch that was kept of this loader, None where none was."""
        kept = self._kept.get(key)
        return kept[0] if kept else None


def copy_of(batch: Any, *, copies_tensors: bool = True, depth: int = 0) -> Any:
    """The same batch in containers of its own; what is neither list, tuple, dictionary nor tensor is shared."""
    if depth > 8:
        return batch
    kind = type(batch)
    if kind is dict:
        return {name: copy_of(v, copies_tensors=copies_tensors, depth=depth + 1) for name, v in batch.items()}
    if kind is list:
        return [copy_of(value, copies_tensors=copies_tensors, depth=depth + 1) for value in batch]
    if isinstance(batch, tuple):
        values = [copy_of(value, copies_tensors=copies_tensors, depth=depth + 1) for value in batch]
        return kind(*values) if hasattr(batch, "_fields") else tuple(values)
    if copies_tensors and hasattr(batch, "detach") and hasattr(batch, "clone"):
        is_pinned = getattr(batch, "is_pinned", None)
        copy = batch.clone()
        return copy.pin_memory() if is_pinned is not None and is_pinned() else copy
    return batch


def wait_until_idle(pids: list[int], *, max_s: float = _MAX_IDLE_WAIT_S) -> float:
    """Seconds until this process and these others used next to no CPU: until loaders have made all they may ahead.

    The calling thread sleeps meanwhile.
    """
    started_s = time.perf_counter()
    before = _cpu_s(pids)
    while time.perf_counter() - started_s < max_s:
        time.sleep(0.1)
        now = _cpu_s(pids)
        if now - before < _IDLE_SHARE * 0.1:
            break
        before = now
    return time.perf_counter() - started_s


def _cpu_s(pids: list[int]) -> float:
    total = time.process_time()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                ticks = file.read().rpartition(")")[2].split()[11:13]
            total += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            continue
    return total
