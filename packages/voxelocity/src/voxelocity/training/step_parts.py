"""Where the time of steps goes: spans to seconds by part of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voxelocity_observe.core.time_parts import EXCHANGE, GRAPH
from voxelocity_observe.spans import SpanRecord, SpanRecorder

PART_OF_SPAN: Mapping[str, str] = {
    "wait": "wait",
    "layout": "forward",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "averaging": "optimizer",
    EXCHANGE: EXCHANGE,
    GRAPH: GRAPH,
}
"""The parts match those of `voxelocity diagnose`; time outside these spans is the remainder."""


class StepParts:
    """The seconds of steps by part, from their spans, as soon as the device has passed them.

    Args:
        recorder: of the thread that makes the steps.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._spans: list[SpanRecord] = []

    def take(self) -> dict[str, float]:
        """Those of steps that ended since the last call. A step that a device has not ended comes later."""
        self._spans += [record for record in self._recorder.take() if record.name in PART_OF_SPAN or _is_step(record)]
        # Those inside a step end before it.
        num_ended = next((n for n in range(len(self._spans), 0, -1) if _is_step(self._spans[n - 1])), 0)
        ended, self._spans = self._spans[:num_ended], self._spans[num_ended:]
        return part_seconds(ended)


def _is_step(record: SpanRecord) -> bool:
    return record.name == "step"


def part_seconds(records: Sequence[SpanRecord]) -> dict[str, float]:
    """Seconds by part of the step, from the spans inside the spans "step", which must be among the records.

    A part inside another counts for itself: waiting for other ranks inside the loss, or what a stage of a pipeline does
    inside its waiting. With a device clock they are the times of its stream: "wait" is the time it was idle because the
    next batch was not ready, and work that overlaps with other work costs nothing.
    """
    steps = {record.number for record in records if record.name == "step"}
    outer = {record.number: record for record in records if record.parent in steps}
    seconds: dict[str, float] = {}
    for record in records:
        if record.name not in PART_OF_SPAN:
            continue
        around = outer.get(-1 if record.parent is None else record.parent)
        part, spent_s = PART_OF_SPAN[record.name], record.seconds if record.device_s is None else record.device_s
        if record.parent in steps or (around is not None and around.name in PART_OF_SPAN):
            seconds[part] = seconds.get(part, 0.0) + spent_s
        if around is not None and around.name in PART_OF_SPAN:
            # Which ends after the spans in it.
            seconds[PART_OF_SPAN[around.name]] = seconds.get(PART_OF_SPAN[around.name], 0.0) - spent_s
    return {part: seconds[part] for part in dict.fromkeys(PART_OF_SPAN.values()) if part in seconds}
