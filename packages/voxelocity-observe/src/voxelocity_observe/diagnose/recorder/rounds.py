"""Rounds of experimental steps: their plan, on which the ranks of one training agree, and the batches that are returned
again in them, the ceiling of what faster data could bring.

All ranks end their recording at the same step; otherwise those that continue would wait forever. The leader writes into
a file of the recording which phase begins at which step, some steps ahead. The others look for it after each step. All
must see the same folder.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import MutableMapping
from typing import Any, Callable, NamedTuple

from .batches import Entry, size_of

_FILE = "agreed.json"
_AHEAD_S = 3.0
_MIN_AHEAD = 5
_NUM_KEPT = 4
_IDLE_SHARE = 0.1
_MAX_IDLE_WAIT_S = 5.0


class StepSchedule(NamedTuple):
    """How many steps each phase has.

    Attributes:
        watched, profiled: number of the step with which the phase ends.
        rounds: of the experiments that follow; each has the three kinds of steps below, one after the other.
        resident: steps of a round on resident batches.
        refilled: steps of a round that use up batches made ahead meanwhile, and are not counted.
        unchanged: steps of a round that run as the program makes them.
    """

    watched: int
    profiled: int
    rounds: int = 0
    resident: int = 0
    refilled: int = 0
    unchanged: int = 0

    def phase_after(self, num_steps: int) -> str:
        """Phase of the next step, this many after the profiled ones; "" where the rounds are over."""
        round_steps = self.resident + self.refilled + self.unchanged
        if num_steps >= self.rounds * round_steps:
            return ""
        within = num_steps % round_steps
        if within < self.resident:
            return "resident"
        return "refilled" if within < self.resident + self.refilled else "unchanged"


def ahead(step_s: float) -> int:
    """Steps that the others need to see a plan before it begins."""
    return max(_MIN_AHEAD, int(_AHEAD_S / max(step_s, 1e-6)))


def announce(folder: str, plan: StepSchedule) -> None:
    """Writes the plan for the other ranks, whole or not at all."""
    path = os.path.join(folder, _FILE)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(plan._asdict(), file)
    os.replace(f"{path}.part", path)


def read_announcement(folder: str) -> StepSchedule | None:
    """The leader's plan, None while there is none. Costs a few microseconds."""
    try:
        with open(os.path.join(folder, _FILE), encoding="utf-8") as file:
            return StepSchedule(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


class Resident:
    """Keeps copies of some batches of the training loaders, and returns them instead of new ones.

    Args:
        max_bytes: bytes that the copies of all loaders may take.

    Attributes:
        begins: called once, before the first batch is returned; it may raise to end the program.
        num_bytes: that the copies take.
    """

    def __init__(self, max_bytes: int) -> None:
        self.begins: Callable[[], None] = lambda: None
        self.is_keeping = False
        self.is_replaying = False
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._kept: dict[int, list[Any]] = {}
        self._turn: dict[int, int] = {}
        self._has_begun = False
        self._next_step: dict[int, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch to return."""
        return any(self._kept.values())

    def keep(self, entry: Entry, batch: Any) -> None:
        """Copies the batch if there is room: the program may change its own. Called for each until the replay."""
        step = _step_of(batch)
        if step is not None:
            self._next_step[entry.key] = step + 1
        kept = self._kept.setdefault(entry.key, [])
        num_bytes = size_of(batch)
        if len(kept) < _NUM_KEPT and self.num_bytes + num_bytes <= self._max_bytes:
            kept.append(copy_of(batch))
            self.num_bytes += num_bytes

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
        batch = copy_of(kept[self._turn.get(entry.key, 0) % len(kept)], copies_tensors=False)
        self._number(entry.key, batch)
        return (batch,)

    def renumber(self, entry: Entry, batch: Any) -> None:
        """Makes a new batch of the loader continue the count of those returned in its place."""
        if entry.key in self._next_step and _step_of(batch) is not None:
            self._number(entry.key, batch)

    def _number(self, key: int, batch: Any) -> None:
        turn = self._turn.get(key, 0)
        self._turn[key] = turn + 1
        if key in self._next_step and _step_of(batch) is not None:
            object.__setattr__(batch, "step", self._next_step[key] + turn)

    def batch_of(self, key: int) -> Any:
        """One kept batch of this loader, None if there is none."""
        kept = self._kept.get(key)
        return kept[0] if kept else None


def copy_of(batch: Any, *, copies_tensors: bool = True, depth: int = 0) -> Any:
    """The same batch in new containers; anything but a list, tuple, mapping, dataclass or tensor is shared."""
    if depth > 8:
        return batch

    def inner(value: Any) -> Any:
        return copy_of(value, copies_tensors=copies_tensors, depth=depth + 1)

    kind = type(batch)
    if kind is dict:
        return {name: inner(value) for name, value in batch.items()}
    if kind is list:
        return [inner(value) for value in batch]
    if isinstance(batch, tuple):
        values = [inner(value) for value in batch]
        return kind(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, MutableMapping):
        return _copy_of_mapping(batch, inner)
    if _is_record(batch):
        copied = copy.copy(batch)
        for name in kind.__dataclass_fields__:
            if hasattr(batch, name):
                # As a frozen dataclass sets them itself.
                object.__setattr__(copied, name, inner(getattr(batch, name)))
        return copied
    if copies_tensors and hasattr(batch, "detach") and hasattr(batch, "clone"):
        is_pinned = getattr(batch, "is_pinned", None)
        clone = batch.clone()
        return clone.pin_memory() if is_pinned is not None and is_pinned() else clone
    return batch


def _copy_of_mapping(batch: Any, inner: Callable[[Any], Any]) -> Any:
    """A mapping of another class, such as OrderedDict or a tokenizer's, whose entries a loop may remove; shared if it
    cannot be copied."""
    try:
        copied = copy.copy(batch)
        copied.update({name: inner(value) for name, value in batch.items()})
    except Exception:
        return batch
    return copied


def _is_record(batch: Any) -> bool:
    return hasattr(type(batch), "__dataclass_fields__")


def _step_of(batch: Any) -> int | None:
    """The number of the step that a batch is for, as our own feed writes it; None if it has none."""
    step = getattr(batch, "step", None) if _is_record(batch) else None
    return step if isinstance(step, int) else None


def wait_until_idle(pids: list[int]) -> None:
    """Sleeps, at most five seconds, until this process and these others use almost no CPU: their loaders have made all
    they may make ahead."""
    started_s = time.perf_counter()
    before = _cpu_s(pids)
    while time.perf_counter() - started_s < _MAX_IDLE_WAIT_S:
        time.sleep(0.1)
        now = _cpu_s(pids)
        if now - before < _IDLE_SHARE * 0.1:
            return
        before = now


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
