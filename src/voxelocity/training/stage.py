"""Stages of a run: logged with their seconds, and shown as phases on a monitor's timeline."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from voxelocity.observe import Clock, EventLog, phase

_COLORS = {
    "cache": "brown",
    "train": "lightblue",
    "network": "grey",
    "rehearse validation": "khaki",
    "validate": "gold",
    "report": "plum",
}
_PHASE_NAMES = {"validate": "final validation"}


class Stage:
    """Logs how long a stage of the run took, even if it ends in an error.

    Args:
        name: as in the event.
        log: where it is written.
        clock: returns seconds.
    """

    def __init__(self, name: str, log: EventLog, clock: Clock) -> None:
        self._name, self._log, self._clock = name, log, clock
        self._phase = phase(_PHASE_NAMES.get(name, name), color=_COLORS.get(name, ""))

    def __enter__(self) -> Self:
        self._start_s = self._clock()
        self._phase.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._phase.__exit__(kind, error, traceback)
        self._log.write("stage", name=self._name, seconds=self._clock() - self._start_s)
