"""The user's own loop on batches that are already there: the ceiling of what faster data could bring."""

from __future__ import annotations

import copy
import os
import time
from typing import Any, Callable

from .fetches import size_of
from .loaders import Entry

_NUM_KEPT = 4
_IDLE_SHARE = 0.1
_MAX_IDLE_WAIT_S = 5.0


class Resident:
    """Keeps copies of the last batches of the training loaders, and returns them instead of new ones.

    Args:
        max_bytes: bytes that the copies of all loaders may take.

    Attributes:
        begins: called once, before the first batch is returned; it may raise to end the program.
    """

    def __init__(self, max_bytes: int) -> None:
        self.begins: Callable[[], None] = lambda: None
        self.is_keeping = False
        self.is_replaying = False
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: dict[int, list[Any]] = {}
        self._turn: dict[int, int] = {}
        self._has_begun = False
        self._next_step: dict[int, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch to return."""
        return any(self._kept.values())

    @property
    def num_bytes(self) -> int:
        """Bytes that the copies take."""
        return self._num_bytes

    def keep(self, entry: Entry, batch: Any) -> None:
        """Copies the batch if there is room: the program may change its own. Called for each until the replay."""
        step = _step_of(batch)
        if step is not None:
            self._next_step[entry.key] = step + 1
        kept = self._kept.setdefault(entry.key, [])
        num_bytes = size_of(batch)
        if len(kept) < _NUM_KEPT and self._num_bytes + num_bytes <= self._max_bytes:
            kept.append(copy_of(batch))
            self._num_bytes += num_bytes

    def replay(self, entry: Entry) -> tuple[Any] | None:
        """A kept batch, None if there is none. Its containers are new each time, its tensors are not.

        Batches that carry the number of their step continue to count, because a loop may rely on it.
        """
        kept = self._kept.get(entry.key)
        if not self.is_replaying or not kept:
            return None
        if not self._has_begun:
            self._has_begun = True
            self.begins()
        turn = self._turn.get(entry.key, 0)
        self._turn[entry.key] = turn + 1
        batch = copy_of(kept[turn % len(kept)], copies_tensors=False)
        if entry.key in self._next_step and _step_of(batch) is not None:
            object.__setattr__(batch, "step", self._next_step[entry.key] + turn)
        return (batch,)

    def renumber(self, entry: Entry, batch: Any) -> None:
        """Makes a new batch of the loader continue the count of those returned in its place."""
        if entry.key in self._next_step and _step_of(batch) is not None:
            turn = self._turn.get(entry.key, 0)
            self._turn[entry.key] = turn + 1
            object.__setattr__(batch, "step", self._next_step[entry.key] + turn)

    def batch_of(self, key: int) -> Any:
        """One kept batch of this loader, None if there is none."""
        kept = self._kept.get(key)
        return kept[0] if kept else None


def copy_of(batch: Any, *, copies_tensors: bool = True, depth: int = 0) -> Any:
    """The same batch in new containers; anything but a list, tuple, dictionary, dataclass or tensor is shared."""
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
    if _is_record(batch):
        copied = copy.copy(batch)
        for name in kind.__dataclass_fields__:
            if hasattr(batch, name):
                value = copy_of(getattr(batch, name), copies_tensors=copies_tensors, depth=depth + 1)
                # As a frozen dataclass sets them itself.
                object.__setattr__(copied, name, value)
        return copied
    if copies_tensors and hasattr(batch, "detach") and hasattr(batch, "clone"):
        is_pinned = getattr(batch, "is_pinned", None)
        clone = batch.clone()
        return clone.pin_memory() if is_pinned is not None and is_pinned() else clone
    return batch


def _is_record(batch: Any) -> bool:
    return hasattr(type(batch), "__dataclass_fields__")


def _step_of(batch: Any) -> int | None:
    """The number of the step that a batch is for, as our own feed writes it; None if it has none."""
    step = getattr(batch, "step", None) if _is_record(batch) else None
    return step if isinstance(step, int) else None


def wait_until_idle(pids: list[int], *, max_s: float = _MAX_IDLE_WAIT_S) -> float:
    """Seconds until this process and these others use almost no CPU, because loaders have made all they may make ahead.

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
