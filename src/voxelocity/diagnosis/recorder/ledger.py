"""The training thread's ledger: in which part of a step it is, since when. Hooks write into it; nothing here judges.

Only one thread has a ledger. A hook checks `ledger.depth or get_ident() != ledger.thread` and does nothing if that is
true, so work of other threads, and work within a part, costs two comparisons.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import Any, Callable

from .device import Device
from .stretch import Stretch


class Ledger:
    """Parts and stretches of one thread.

    Attributes:
        thread: identifier of its thread; 0, which no thread has, while nothing is recorded.
        depth: above 0 within a part that owns all that happens in it.
        part: the current one.
        mode: "validation", "saving" or "epoch start" while that is what the thread does, as far as known at once.
        device: takes stamps if the network runs on one.
        open: stretches that do not belong to a step or pass yet; the last one is running.
        num_moves: changes of part, for the recorder's own cost.
        on_move: called with the part that begins, while steps are profiled.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.thread = 0
        self.depth = 0
        self.part = ""
        self.mode = ""
        self.device: Device | None = None
        self.open: list[Stretch] = []
        self.num_moves = 0
        self.on_move: Callable[[str], None] | None = None

    @property
    def running(self) -> Stretch:
        return self.open[-1]

    def start(self, *, thread: int | None = None, label: str = "start") -> None:
        """Begins, or begins again with nothing open; for the calling thread if no other is given."""
        self.depth = 0
        self.part, self.mode = "other", ""
        self.open = [Stretch(label, -1, "", self.clock(), "other", self._stamp())]
        self.thread = get_ident() if thread is None else thread

    def stop(self) -> None:
        """From now on hooks do nothing. What is open stays readable."""
        self.thread = 0
        self.depth = 0
        self.part = self.mode = ""

    def move(self, part: str) -> None:
        """The thread enters another part."""
        self.part = part
        self.num_moves += 1
        self.open[-1].add((self.clock(), part, self._stamp()), self.device)
        if self.on_move is not None:
            self.on_move(part)

    def begin(self, part: str) -> None:
        """Enters a part that owns all that happens in it."""
        self.depth = 1
        self.move(part)

    def end(self, part: str = "other") -> None:
        """Leaves it."""
        self.depth = 0
        if self.thread:
            self.move(part)

    def cut(self, label: str, *, key: int = -1, where: str = "", part: str = "other") -> Stretch:
        """Ends the running stretch and begins the next one."""
        now_s, stamp = self.clock(), self._stamp()
        self.open[-1].end = (now_s, stamp)
        self.part = part
        self.num_moves += 1
        stretch = Stretch(label, key, where, now_s, part, stamp)
        self.open.append(stretch)
        return stretch

    def _stamp(self) -> Any:
        return None if self.device is None else self.device.stamp()
