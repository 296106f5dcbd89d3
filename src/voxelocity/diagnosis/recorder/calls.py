"""Costly calls that belong outside steps, counted by the line that makes them while steps are counted."""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any, Callable

from .lines import OWN_CODE, module_of
from .patches import Patches
from .steps import Steps
from .writer import Writer


class Calls:
    """Counts calls of `gc.collect`, `torch.cuda.empty_cache` and `torch.save`."""

    def __init__(self, writer: Writer, steps: Steps) -> None:
        self._writer = writer
        self._steps = steps
        self._patches = Patches()
        self._sums: dict[tuple[str, str, str], list[float]] = {}
        self._written: dict[tuple[str, str, str], tuple[float, int]] = {}

    def hook(self, owner: Any, name: str, call: str) -> None:
        """Counts calls of `owner.name` under the name `call`."""
        self._patches.put(owner, name, self._counted(getattr(owner, name), call))

    def unhook(self) -> None:
        self._patches.restore()

    def add(self, call: str, seconds: float) -> None:
        """One call, made by the user's innermost line."""
        if self._steps.phase == "watched":
            sums = self._sums.setdefault((call, *OWN_CODE.place_of_caller()), [0.0, 0.0])
            sums[0] += 1
            sums[1] += seconds

    def write(self) -> None:
        """Event `call` for each place that made a call since the last time."""
        for place, (count, seconds) in list(self._sums.items()):
            state = (count, self._steps.num_counted)
            if state != self._written.get(place):
                self._written[place] = state
                call, location, line = place
                self._writer.write(
                    "call",
                    call=call,
                    where=location,
                    line=line,
                    count=int(count),
                    num_steps=self._steps.num_counted,
                    seconds=round(seconds, 6),
                )

    def _counted(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if module_of(sys._getframe(1)).partition(".")[0] == "torch":
                # Its compiler collects garbage too, and the user's line can do nothing about that.
                return original(*args, **kwargs)
            started_s = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.add(call, time.perf_counter() - started_s)

        return counted
