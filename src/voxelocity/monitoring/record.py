"""What a monitor saw, as its folder holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxelocity.observe.samples import PhaseMark, Sample


@dataclass(frozen=True, kw_only=True)
class MonitorRecord:
    """Samples of a machine while a program ran.

    Attributes:
        command: of the program; empty if the monitor was started from Python.
        status: its exit status, negative for a signal; None while it runs or if there is no command.
        seconds: time watched.
        period_s: requested seconds between samples.
        own_cpu_s: CPU seconds that the monitor itself took.
        missing: what could not be measured, and why, in words.
    """

    command: Sequence[str] = ()
    status: int | None = None
    seconds: float
    period_s: float
    own_cpu_s: float = 0.0
    samples: Sequence[Sample] = ()
    phases: Sequence[PhaseMark] = ()
    missing: Sequence[str] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
