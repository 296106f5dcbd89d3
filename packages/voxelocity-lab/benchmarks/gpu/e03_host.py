"""E3: what the host costs a training step, eager and as a graph, alone and next to threads that make batches."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from gpu.experiment import Experiment, Row, Setting, profile_kernels
from gpu.steps import HIPPOCAMPUS, TINY, FeedLike, StepCase, build_batches, build_step, switch_interval
from voxelocity.core.batch import Batch, Draw
from voxelocity.parallel import ALONE
from voxelocity.step import ScheduleConfig, TrainingStep
from voxelocity.training.budget import Budget
from voxelocity.training.loop import Loop, LoopState
from voxelocity_observe.core.clock import system_clock

_THREADS = (0, 1, 2, 8)
_INTERVALS_S = (5e-3, 5e-4)


def run(setting: Setting) -> None:
    case = TINY if setting.is_tiny else HIPPOCAMPUS
    batches = build_batches(case, setting.device)
    for way in ("eager", "graph"):
        with setting.guard("the step alone", what=way):
            said: list[str] = []
            step = build_step(case, setting.device, step_graph=way == "graph", said=said)
            _make_steps(step, batches, 2 if setting.is_tiny else 8)
            setting.synchronize()
            why = step.why_no_graph if way == "graph" else ""
            facts: Row = {"what": way, "why_no_graph": why, "said": " | ".join(said)}
            row = facts | _host_us(step, batches, setting) | _kernels(step, batches, setting)
            setting.report("the step alone", row)
            _with_threads(step, batches, setting, case, way)
    with setting.guard("the loop around a step that does nothing"):
        setting.report("the loop around a step that does nothing", loop_us(setting, batches))


def _make_steps(step: TrainingStep, batches: list[Batch], num_steps: int) -> None:
    for number in range(num_steps):
        step(batches[number % len(batches)].with_(step=number), 1e-3)


def _host_us(step: TrainingStep, batches: list[Batch], setting: Setting) -> Row:
    """Until a call returns while the device is idle: launches and Python."""
    times = []
    for number in range(2 if setting.is_tiny else 20):
        setting.synchronize()
        begin_s = time.perf_counter()
        step(batches[number % len(batches)].with_(step=number), 1e-3)
        times.append((time.perf_counter() - begin_s) * 1e6)
    return {"host_us": statistics.median(times), "low_us": min(times), "high_us": max(times), "n": len(times)}


def _kernels(step: TrainingStep, batches: list[Batch], setting: Setting) -> Row:
    """Kernels of a step and the time that they take together; of a CPU, its operations."""
    num_steps = 3
    found, launches = profile_kernels(lambda: _make_steps(step, batches, num_steps), setting)
    return {
        "operations": sum(count for _, _, count in found) / num_steps,
        "launches": launches / num_steps,
        "device_busy_ms": sum(ms for _, ms, _ in found) / num_steps if setting.is_cuda else 0.0,
    }


def _with_threads(step: TrainingStep, batches: list[Batch], setting: Setting, case: StepCase, way: str) -> None:
    """Milliseconds a step in a row of steps, with threads that make batches as a feed does."""
    num_steps = 3 if setting.is_tiny else 30 if way == "eager" else 60
    for num_threads in (0, 1) if setting.is_tiny else _THREADS:
        for interval_s in _INTERVALS_S if num_threads else _INTERVALS_S[:1]:
            with switch_interval(interval_s), FeedLike(setting, case, num_threads) as feed:
                # The threads compile their kernels.
                deadline_s = time.perf_counter() + 8.0
                while num_threads and not feed.error and feed.num_batches < 3 and time.perf_counter() < deadline_s:
                    time.sleep(0.01)
                setting.synchronize()
                made, begin_s = feed.num_batches, time.perf_counter()
                _make_steps(step, batches, num_steps)
                torch.cuda.current_stream().synchronize() if setting.device.type == "cuda" else None
                spent_s = time.perf_counter() - begin_s
                num_made = feed.num_batches - made
            setting.report(
                "steps next to threads of a feed",
                {
                    "what": way,
                    "threads": num_threads,
                    "switch_interval_ms": interval_s * 1e3,
                    "step_ms": spent_s / num_steps * 1e3,
                    "batches_made_per_step": num_made / num_steps,
                    "error": feed.error,
                },
            )


class _EmptyStep:
    """In place of a `TrainingStep`: a loss that is there already."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._loss = device, torch.ones((), device=device)

    def __call__(self, batch: Batch, learning_rate: float) -> torch.Tensor:
        return self._loss

    def finite_flag(self) -> torch.Tensor:
        return self._loss

    def is_finite(self) -> bool:
        return True

    def make_room(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}


class _EmptyFeed:
    """The same batch again, with the numbers that the loop expects."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._step = batch, -1

    def __next__(self) -> Batch:
        self._step += 1
        return self._batch.with_(step=self._step)

    def epoch_of(self, step: int) -> int:
        return step // 20


def loop_us(setting: Setting, batches: list[Batch]) -> Row:
    """Microseconds that the loop itself takes of each step: spans, events, the budget, reading and logging losses."""
    draws = tuple(Draw(case_id=f"case_{n}", case=n, epoch=0) for n in range(8))
    num_steps = 50 if setting.is_tiny else 2_000
    times = []
    for _ in range(1 if setting.is_tiny else 3):
        made = _make_loop(setting.device, batches[0].with_(draws=draws), num_steps, setting.work)
        begin_s = time.perf_counter()
        made.run()
        times.append((time.perf_counter() - begin_s) / num_steps * 1e6)
    return {"what": "loop", "us_per_step": statistics.median(times), "low_us": min(times), "n": len(times)}


class _QuietLoop(Loop):
    """Without the picture, which is drawn in a thread."""

    def _drawn(self) -> Any:
        return contextlib.nullcontext()


def _make_loop(device: torch.device, batch: Batch, num_steps: int, folder: Path) -> Loop:
    train = SimpleNamespace(
        target_dice=0.0, checkpoint_every_s=1e9, validate_every_steps=0, validation_share=0.0, time_budget_s=0.0
    )
    plan = SimpleNamespace(
        train=train,
        optimizer=SimpleNamespace(learning_rate=1e-3),
        schedule=ScheduleConfig(),
        parallel=SimpleNamespace(silence_s=1e9),
        data=SimpleNamespace(batch_size=8, cache=SimpleNamespace(num_parts=1)),
    )
    session: Any = SimpleNamespace(
        plan=plan,
        clock=system_clock,
        console=Console(quiet=True),
        world=ALONE,
        log=SimpleNamespace(write=lambda *_, **__: None),
        stop=False,
        warn=print,
    )
    others: Any = SimpleNamespace(
        intermediate_s=0.0,
        is_measured=False,
        count=lambda *_: None,
        save=lambda *_: folder / "checkpoints" / "step.pt",
    )
    begin_s = system_clock()
    budget = Budget(lambda: system_clock() - begin_s, max_steps=num_steps)
    empty: Any = _EmptyStep(device)
    feed: Any = _EmptyFeed(batch)
    return _QuietLoop(session, empty, feed, others, budget, others, others, LoopState())


EXPERIMENT = Experiment(
    id="E3",
    question="What does the host cost a step, eager and as a graph, next to 0 to 8 feed threads?",
    seconds=30.0,
    run=run,
)
