"""What the other parts of the recorder need from the part that counts steps."""

from __future__ import annotations

from typing import Any, Protocol


class Writer(Protocol):
    """Adds events to the file of this process."""

    def write(self, event: str, **fields: Any) -> None:
        """Adds one event. Any thread may call it; never raises."""


class Moment(Protocol):
    """Where the program is now; the module that counts steps is one."""

    def current_part(self) -> str:
        """What the training thread does.

        A part of a step ("wait", "copy", "forward", "backward", "optimizer", "other"), "validation" or "saving" between
        steps, "" where nothing is recorded; in a loader's worker process always "worker".
        """

    def counted_steps(self) -> int:
        """Steps counted so far."""

    def is_counting(self) -> bool:
        """Whether what happens now counts."""
