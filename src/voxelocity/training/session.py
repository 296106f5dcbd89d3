"""Ctrl-C and SIGTERM as a request to stop, which the run follows between two steps, after saving its state."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class StopAskedError(Exception):
    """Raised between two batches of windows once a stop was asked for; the code that began the work handles it."""


class StopRequest:
    """While entered, the first Ctrl-C or SIGTERM only sets `signal_number`; a second Ctrl-C stops at once.

    Signals reach only Python's main thread; entered in another thread, this does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Ends work that has no state to save.

        Raises:
            StopAskedError: a stop was asked for.
        """
        if self:
            raise StopAskedError

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
