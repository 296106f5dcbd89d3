"""What the loop reads of its steps: losses, and seconds by part. The device is never left without work.

The host stays a few steps ahead of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from voxelocity_observe.core.time_parts import EXCHANGE, GRAPH
from voxelocity_observe.spans import SpanRecord, SpanRecorder

# Enough to hide the host. More would hold more batches in memory until the device is done with them.
_MOST_AHEAD = 4
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


@dataclass(kw_only=True)
class Window:
    """Steps whose losses have not been read yet.

    Attributes:
        start_s: when they began.
        stop_s: when the last of them was queued; of a CPU, when it ended.
        stop_step: steps of the run by then.
        progress: of the run by then.
        parts: seconds of steps by activity, as far as they are known.
        asked: the losses, once the window is closed; None where they are read at once.
        losses_read: the losses on the host.
    """

    start_s: float
    losses: list[torch.Tensor] = field(default_factory=list)
    case_ids: list[tuple[str, ...]] = field(default_factory=list)
    num_images: int = 0
    learning_rate: float = 0.0
    stop_s: float = 0.0
    stop_step: int = 0
    progress: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    asked: AskedLosses | None = None
    losses_read: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s


class AskedLosses:
    """The losses of some steps and whether all weights are finite, copied to the host behind the work queued so far.

    Args:
        losses: scalars on the device.
        is_finite: a scalar on the device.
    """

    def __init__(self, losses: Sequence[torch.Tensor], is_finite: torch.Tensor) -> None:
        packed = torch.cat([torch.stack([*losses]).float(), is_finite.float().reshape(1)])
        device = packed.device
        self._event: Any = None
        if packed.is_cuda:
            values = torch.empty(packed.shape, pin_memory=True)
            packed = values.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        self._values = packed

    def read(self) -> tuple[list[float], bool]:
        """The losses, and whether all weights were finite. Waits until the device has passed these steps."""
        if self._event is not None:
            self._event.synchronize()
        *losses, is_finite = self._values.tolist()
        return losses, is_finite > 0.0


class RunAhead:
    """Lets the host be at most four steps ahead of a CUDA device; does nothing for others.

    A replayed step takes the host a tenth of the device's time. Without a bound, it would queue steps, and keep their
    batches in memory, until a window of losses is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[Any] = deque()
        self._free: list[Any] = []

    def wait_for_earlier(self) -> None:
        """To be called after each step: waits, without holding Python's lock, for the step before the last four."""
        if self._device.type != "cuda":
            return
        event = self._free.pop() if self._free else torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append(event)
        if len(self._queued) > _MOST_AHEAD:
            oldest = self._queued.popleft()
            oldest.synchronize()
            self._free.append(oldest)


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
