"""Where the time of training steps goes, according to the spans of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voxelocity.observe import Clock, SpanRecord, ended_span, system_clock

PART_OF_SPAN: Mapping[str, str] = {
    "wait": "wait",
    "layout": "forward",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "averaging": "optimizer",
}
"""The parts match those of `voxelocity diagnose`; time outside these spans is the remainder."""

_SHORTEST_EPOCH_S = 1.0


def part_seconds(records: Sequence[SpanRecord]) -> dict[str, float]:
    """Seconds by part of the step, from the spans inside the spans "step", which must be among the records.

    With a device clock they are the times of its stream: "wait" is the time it was idle because the next batch was not
    ready, and work that overlaps with other work costs nothing.
    """
    steps = {record.number for record in records if record.name == "step"}
    seconds: dict[str, float] = {}
    for record in records:
        part = PART_OF_SPAN.get(record.name)
        if part is not None and record.parent in steps:
            spent_s = record.seconds if record.device_s is None else record.device_s
            seconds[part] = seconds.get(part, 0.0) + spent_s
    return {part: seconds[part] for part in dict.fromkeys(PART_OF_SPAN.values()) if part in seconds}


class EpochPhases:
    """Records each pass over the cases as a phase, or several together if one takes less than a second.

    Args:
        clock: seconds as `time.perf_counter` counts them.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._first = self._last = -1
        self._start_s = 0.0

    def at(self, epoch: int) -> None:
        """A step of this epoch begins."""
        if epoch == self._last:
            return
        now_s = self._clock()
        if self._last < 0:
            self._first, self._start_s = epoch, now_s
        elif now_s - self._start_s >= _SHORTEST_EPOCH_S:
            self._tell(now_s)
            self._first, self._start_s = epoch, now_s
        self._last = epoch

    def end(self) -> None:
        """The last step is done."""
        if self._last >= 0:
            self._tell(self._clock())
        self._last = -1

    def _tell(self, now_s: float) -> None:
        name = f"epoch {self._first}" if self._first == self._last else f"epochs {self._first} to {self._last}"
        ended_span(name, start_s=self._start_s, seconds=now_s - self._start_s, color="steelblue")
