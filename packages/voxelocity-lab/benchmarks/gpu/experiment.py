"""What an experiment is: a question, a time, and a function that returns rows. Each module `e*.py` here has one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how large an experiment runs.

    Attributes:
        device: cuda; cpu in a dry run.
        is_tiny: a dry run, which only shows that the script works: smallest sizes, one repeat.
        work: an empty folder of its own.
        limit_s: seconds after which the experiment is ended; rows reported before that are kept.
        report: stores a row of a table at once, so that it survives what comes after it.
        options: of this experiment, by name, as `run.py --set E11.folds=1` gives them.
    """

    device: torch.device
    is_tiny: bool
    work: Path
    limit_s: float
    report: Callable[[str, Row], None]
    options: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str, default: float, *, tiny: float) -> float:
        """The value of an option; without one the default, or in a dry run `tiny`."""
        return float(self.options.get(name, tiny if self.is_tiny else default))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment.

    Attributes:
        id: as in `run.py --only`.
        question: it settles.
        seconds: expected on an H100.
        run: does it, and reports its rows through the setting.
    """

    id: str
    question: str
    seconds: float
    run: Callable[[Setting], None]


def device_ms(work: Callable[[], object], setting: Setting, *, repeats: int = 20, warmup: int = 5) -> Row:
    """Milliseconds of one call by CUDA events (the clock, on a CPU): the median, the least, the most and n."""
    import time

    times = []
    for repeat in range((1 if setting.is_tiny else repeats) + (0 if setting.is_tiny else warmup)):
        if setting.device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            work()
            stop.record()
            stop.synchronize()
            spent_ms = float(start.elapsed_time(stop))
        else:
            begin_s = time.perf_counter()
            work()
            spent_ms = (time.perf_counter() - begin_s) * 1e3
        if setting.is_tiny or repeat >= warmup:
            times.append(spent_ms)
    return {"ms": statistics.median(times), "low_ms": min(times), "high_ms": max(times), "n": len(times)}
