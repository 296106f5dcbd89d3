"""What the host does in a training step and for its batch, counted on a CPU: torch's operations and microseconds.

    python benchmarks/step_host.py [--only PART ...] [--out FOLDER]

A replayed step has nothing behind it here: what is timed is the host's part alone, up to the launch. Writes
`results/step_host.json`.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu.e03_host import loop_us
from gpu.e09_gather import resident_volume
from gpu.experiment import Setting
from gpu.steps import TINY, build_batches, build_step
from harness import measure_each
from voxelocity.core.batch import Draw
from voxelocity.core.region import Region
from voxelocity.data.augment import AugmentConfig, ResidentSource, needed_boxes, sample, triton_engine
from voxelocity.step import OPTIMIZERS, TrainingStep, graph
from voxelocity.step.optimizer_table import OptimizerName

_CPU = torch.device("cpu")


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that are not views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.number += not function.is_view
        return function(*arguments, **(options or {}))


class _NothingRecorded:
    """In place of CUDA graphs: runs the work while it is recorded, and nothing when it is replayed."""

    num_bytes, share = 0, 0.0

    def aside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        return work()

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        return (lambda: None), work()

    def wait(self) -> None: ...

    def release(self) -> None: ...


def measure(optimizer: OptimizerName, *, repeats: int = 300) -> dict[str, Any]:
    """Operations of an eager and of a replayed step, and the host's microseconds of the latter."""
    batches = build_batches(TINY, _CPU)
    found: dict[str, Any] = {}
    for is_replayed in (False, True):
        of = graph.recorder_of
        graph.recorder_of = lambda device: _NothingRecorded()
        try:
            step = build_step(TINY, _CPU, optimizer=optimizer, step_graph=is_replayed)
            for number in range(graph.WARM_UP_STEPS + 2):
                _step(step, batches, number)
            with _Counted() as counted:
                _step(step, batches, 9)
            found["replayed_operations" if is_replayed else "eager_operations"] = counted.number
            if is_replayed:
                times = []
                for number in range(10, 10 + repeats):
                    begin_s = time.perf_counter()
                    _step(step, batches, number)
                    times.append((time.perf_counter() - begin_s) * 1e6)
                found |= {"replayed_us": statistics.median(times), "low_us": min(times), "n": repeats}
        finally:
            graph.recorder_of = of
    return found


def _step(step: TrainingStep, batches: Any, number: int) -> None:
    # As in a training, the learning rate is another one in each step.
    step(batches[number % len(batches)].with_(step=number), 1e-3 * (1.0 - number / 1e4))


def measure_loop() -> dict[str, Any]:
    """What the loop around a step takes: spans, the budget, reading and logging losses."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            device=_CPU, is_tiny=False, work=Path(folder), limit_s=60.0, report=lambda table, row: None, options={}
        )
        return loop_us(setting, build_batches(TINY, _CPU))


def measure_batch(*, repeats: int = 1000) -> dict[str, Any]:
    """Milliseconds of the thread that makes a batch of 8 resident patches for a GPU, whose kernels are not launched.

    nnU-Net's augmentation, drawn, located and prepared up to the launches.
    """
    patch, config = (32, 48, 32), AugmentConfig()
    volume = resident_volume(_CPU, 96)
    region = Region((2, 2, 2), (34, 50, 34))
    image, label = torch.empty((8, 1, *patch)), torch.empty((8, *patch), dtype=torch.uint8)
    times: dict[str, list[float]] = {"parameters_ms": [], "boxes_ms": [], "augment_ms": [], "all_ms": []}
    engine: Any = triton_engine
    launch = engine.launch
    engine.launch = lambda *_, **__: None
    try:
        for step in range(repeats):
            clock = [time.thread_time()]
            draws = [Draw(case_id="a", case=case, epoch=step) for case in range(8)]
            params = sample(draws, seed=0, num_channels=1, patch_shape=patch, config=config)
            clock.append(time.thread_time())
            boxes = needed_boxes(params, [region] * 8, [volume.grid.shape] * 8)
            sources = [ResidentSource(box=volume.locate(box), start=box.start, scaling=volume.scaling) for box in boxes]
            clock.append(time.thread_time())
            triton_engine.augment_batch(sources, [region] * 8, params, image, label)
            clock.append(time.thread_time())
            spent = [later - earlier for earlier, later in itertools.pairwise(clock)]
            for name, seconds in zip(times, (*spent, sum(spent)), strict=True):
                times[name].append(seconds * 1e3)
    finally:
        engine.launch = launch
    settled = {name: values[len(values) // 5 :] for name, values in times.items()}
    low_ms = statistics.quantiles(settled["all_ms"], n=10)[0]
    return {name: statistics.median(values) for name, values in settled.items()} | {"low_ms": low_ms, "n": repeats}


if __name__ == "__main__":
    parts: dict[str, Callable[[], Any]] = {name: partial(measure, name) for name in OPTIMIZERS}
    measure_each("step_host", __doc__, {**parts, "loop": measure_loop, "batch": measure_batch})
