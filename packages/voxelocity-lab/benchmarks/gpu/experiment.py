"""What an experiment is: a question, a time, and a function that returns rows. Each module `e*.py` here has one."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

Row = dict[str, Any]
_ERROR_CHARS = 400


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

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def number(self, name: str, default: float, *, tiny: float) -> float:
        """The value of an option; without one the default, or in a dry run `tiny`."""
        return float(self.options.get(name, tiny if self.is_tiny else default))

    @contextmanager
    def guard(self, table: str, **row: Any) -> Iterator[None]:
        """Within the block, an error becomes a row: what comes next still counts. Afterwards the cache is emptied."""
        try:
            yield
        except Exception as error:
            self.report(table, {**row, "error": f"{type(error).__name__}: {error}"[-_ERROR_CHARS:]})
            print(f"{table}, {row}: {error!r}", flush=True)
        finally:
            gc.collect()
            if self.is_cuda:
                torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


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


def end_tree(process: subprocess.Popen[Any]) -> None:
    """Ends a process and its descendants; where it leads a group, also what is left of that."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    for child in found:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()


def device_ms(
    work: Callable[[], object],
    setting: Setting,
    *,
    repeats: int = 20,
    warmup: int = 5,
    queue: Callable[[], object] = lambda: None,
) -> Row:
    """Milliseconds of one call by CUDA events (the clock, on a CPU): the median, the least, the most and n.

    `queue` keeps the device busy while the host prepares the work.
    """
    times = []
    repeats, warmup = (1, 0) if setting.is_tiny else (repeats, warmup)
    for repeat in range(warmup + repeats):
        if setting.is_cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            queue()
            start.record()
            work()
            stop.record()
            stop.synchronize()
            spent_ms = float(start.elapsed_time(stop))
        else:
            begin_s = time.perf_counter()
            work()
            spent_ms = (time.perf_counter() - begin_s) * 1e3
        if repeat >= warmup:
            times.append(spent_ms)
    return {"ms": statistics.median(times), "low_ms": min(times), "high_ms": max(times), "n": len(times)}


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph, after it has run twice."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph


def profile_kernels(work: Callable[[], object], setting: Setting) -> tuple[list[tuple[str, float, int]], int]:
    """Name, milliseconds and number of each kind of kernel in a call, and launches of kernels or graphs by the host.

    By torch's profiler; of a CPU, its operations.
    """
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    work()
    setting.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.is_cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        work()
        setting.synchronize()
    kind, events = DeviceType.CUDA if setting.is_cuda else DeviceType.CPU, profiler.key_averages()
    kernels = [
        (event.key, (event.self_device_time_total if setting.is_cuda else event.self_cpu_time_total) / 1e3, event.count)
        for event in events
        if event.device_type == kind
    ]
    return kernels, sum(e.count for e in events if "LaunchKernel" in e.key or "GraphLaunch" in e.key)
