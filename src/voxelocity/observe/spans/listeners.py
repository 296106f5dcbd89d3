"""Who listens to spans: recorders that were started, an attached profiler, the monitor that started us.

Listeners are looked up when the first span begins, not at import, and again in a forked child, whose parent's files and
threads are not its own.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from voxelocity.observe.spans.nvtx import open_nvtx
from voxelocity.observe.spans.phases import open_phase_file


class Listener(Protocol):
    """Called when spans begin and end, in the thread that they belong to. It must be quick, and must not raise."""

    def begin(self, name: str, color: str, is_phase: bool, /) -> Any:
        """A span of this thread begins, inside those that it has open. Returns what `end` is given."""
        ...

    def end(self, token: Any, /) -> None:
        """It ends, also where its block raised."""
        ...

    def begin_range(self, name: str, color: str, /) -> Any:
        """A range begins that may end in another thread and nests with nothing. Returns what `end_range` is given."""
        ...

    def end_range(self, token: Any, /) -> None:
        """It ends."""
        ...

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        """A phase has ended whose beginning was not reported."""
        ...


class _Listeners:
    """The current listeners; None until they were looked up. `now` is replaced and never changed."""

    def __init__(self) -> None:
        self.now: tuple[Listener, ...] | None = None
        self._changing = threading.Lock()
        self._is_told_of_forks = False

    def found(self) -> tuple[Listener, ...]:
        """The listeners, looked up if that has not happened yet."""
        with self._changing:
            return self._found()

    def add(self, listener: Listener) -> None:
        with self._changing:
            self.now = (*self._found(), listener)

    def remove(self, listener: Listener) -> None:
        with self._changing:
            self.now = tuple(each for each in self._found() if each is not listener)

    def forget(self) -> None:
        """Drops all listeners until they are looked up again."""
        self._changing = threading.Lock()
        self.now = None

    def _found(self) -> tuple[Listener, ...]:
        if self.now is None:
            if not self._is_told_of_forks:
                os.register_at_fork(after_in_child=self.forget)
                self._is_told_of_forks = True
            self.now = tuple(each for each in (open_nvtx(), open_phase_file()) if each is not None)
        return self.now


LISTENERS = _Listeners()
