"""A program as the recorder's parts see it, for tests: the test sets where it is now, and events are kept."""

from __future__ import annotations

from typing import Any


class WatchedMoment:
    """Implements the recorder's `Moment`, and what its parts call of a `Writer`.

    Attributes:
        part: what `current_part` returns.
        steps: what `counted_steps` returns.
        counting: what `is_counting` returns.
        events: what was written: (event, fields).
    """

    def __init__(self, part: str = "forward") -> None:
        self.part = part
        self.steps = 10
        self.counting = True
        self.events: list[tuple[str, dict[str, Any]]] = []

    def current_part(self) -> str:
        return self.part

    def counted_steps(self) -> int:
        return self.steps

    def is_counting(self) -> bool:
        return self.counting

    def write(self, event: str, **fields: Any) -> None:
        """Keeps the event."""
        self.events.append((event, fields))

    def written(self, event: str) -> list[dict[str, Any]]:
        """The fields of all events of this name, in order."""
        return [fields for name, fields in self.events if name == event]
