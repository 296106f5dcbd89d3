"""Where the time of a training went: its steps, and what it did between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["wait", "copy", "forward", "backward", "optimizer", "other"]
PARTS: tuple[Part, ...] = ("wait", "copy", "forward", "backward", "optimizer", "other")

Phase = Literal["warm-up", "watched", "profiled", "resident", "refilled", "unchanged"]
"""Of a step: not counted, counted, slowed down by the profiler, or one of the experiments' rounds: run on a batch that
was there already, on one that was made ahead meanwhile, or unchanged."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Event `step`: from the end of one optimizer step to the end of the next, validation and saving left out.

    Attributes:
        start_s: since the process began.
        parts: seconds by part; their sum is `seconds`. On a CUDA device they are what its stream saw: "wait" is the
            time in which it was idle because the next batch was not there, and hidden work costs nothing.
        host_parts: the same, as the host saw it; equal to `parts` without a device.
        num_images: entries of the first axis of the network's inputs, over all forward passes; None if unknown.
        phase: how the step was run.
    """

    start_s: float
    seconds: float
    parts: Mapping[str, float]
    host_parts: Mapping[str, float] = field(default_factory=dict)
    num_images: int | None = None
    phase: Phase = "watched"

    @property
    def is_experiment(self) -> bool:
        """Whether it is undone at the end: the training keeps the state of the last step before."""
        return self.phase in ("resident", "refilled", "unchanged")


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Event `pass`: a stretch between two steps without training.

    Attributes:
        kind: "validation" (the network ran without learning), "saving" (`torch.save`), "epoch start" (a loader was
            made ready: workers started, before its first batch).
        num_forwards: calls of the network.
        parts: seconds by part, as in a step; "other" covers metrics, windows and the like.
        has_gradients: whether a network in it recorded gradients.
        batch_shapes: shapes of the network's inputs, each with its count, largest count first.
        where: "file:line" of the user's code that ran it.
        overlap: share of a window's length that the next one covers again, 0 where unknown. `windows_where` and
            `windows_line` are the user's line that asked for these windows, `windows_call` is its source and
            `windows_variable` what it is assigned to; `volume` is the shape (voxels) that the windows are cut from.
    """

    kind: Literal["validation", "saving", "epoch start"]
    start_s: float
    seconds: float
    num_forwards: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    has_gradients: bool = False
    batch_shapes: Sequence[tuple[Sequence[int], int]] = ()
    where: str = ""
    overlap: float = 0.0
    windows_where: str = ""
    windows_line: str = ""
    windows_call: str = ""
    windows_variable: str = ""
    volume: Sequence[int] = ()
