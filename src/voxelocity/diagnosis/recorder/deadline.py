"""The end, by the clock, of a program that makes no steps, such as one that only predicts.

It is ended where it calls its network or asks a loader for a batch. If it no longer does either, a thread of the
recorder ends it as soon as it holds no file open for writing.
"""

from __future__ import annotations

import gc
import threading
from typing import Callable

from .ending import files_open_for_writing

_WITH_OPTIMIZER = 3.0
"""Factor on the limit for a program with an optimizer: for a long validation, or what comes before training."""

_LEAST_WITH_OPTIMIZER_S = 300.0
"""A step that compiles takes long, however short the limit is."""

_GRACE_S = 15.0
_LOOK_EVERY_S = 1.0


class Deadline:
    """Knows when a program has made no step for too long.

    Args:
        seconds: without a step, counted from the first call of a network.
        clock: returns seconds.
        has_optimizer: whether the program could train; asked once, when `seconds` are over.
    """

    def __init__(self, seconds: float, clock: Callable[[], float], has_optimizer: Callable[[], bool]) -> None:
        self.allowed_s = seconds
        self._with_optimizer_s = max(_WITH_OPTIMIZER * seconds, _LEAST_WITH_OPTIMIZER_S)
        self._clock = clock
        self._has_optimizer: Callable[[], bool] | None = has_optimizer
        self._since_s: float | None = None
        self._is_off = False

    @property
    def is_running(self) -> bool:
        return self._since_s is not None

    def begin(self) -> None:
        """A network is called; only the first call counts."""
        if self._since_s is None:
            self._since_s = self._clock()

    def step_ended(self) -> None:
        """The program trains."""
        self._since_s = self._clock()
        self.allowed_s = self._with_optimizer_s
        self._has_optimizer = None

    def turn_off(self) -> None:
        """It no longer ends the program."""
        self._is_off = True

    def is_over(self, *, grace_s: float = 0.0) -> bool:
        """Whether it has passed. Costs about 0.1 microseconds until then."""
        if self._since_s is None or self._is_off or self._clock() - self._since_s < self.allowed_s + grace_s:
            return False
        if self._has_optimizer is not None:
            has_optimizer, self._has_optimizer = self._has_optimizer, None
            if has_optimizer():
                self.allowed_s = self._with_optimizer_s
                return self.is_over(grace_s=grace_s)
        return True

    def watch(self, folder: str, end: Callable[[], None]) -> None:
        """Calls `end` in a separate thread if the program does not reach a place where it can be ended.

        Args:
            folder: of the recording, whose files may be open.
            end: called once, and not while the program holds a file open for writing.
        """
        threading.Thread(target=self._watch, args=(folder, end), name="voxelocity-deadline", daemon=True).start()

    def _watch(self, folder: str, end: Callable[[], None]) -> None:
        never = threading.Event()
        while not self._is_off:
            never.wait(_LOOK_EVERY_S)
            if self.is_over(grace_s=_GRACE_S) and not files_open_for_writing(folder):
                if not self._is_off:
                    end()
                return


def has_any(cls: type) -> bool:
    """Whether an object of the class is alive. Looks through the whole heap."""
    return any(issubclass(type(value), cls) for value in gc.get_objects())
