"""The process of a trial: an algorithm's own training and validation step, on voxels made up in its own shapes.

`python -m voxelocity.tuning.auto3dseg.measure TASK ANSWER`; TASK is JSON (`AlgorithmTask`). Without settings, it says
what the algorithm would run with by itself. Nothing is written into the algorithm's folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from voxelocity.tuning.answer import limit_device_memory, run_process, write_answer
from voxelocity.tuning.auto3dseg.steps import Algorithm, AlgorithmTask, open_algorithm
from voxelocity.tuning.auto3dseg.templates import PATCHES
from voxelocity.tuning.costs import RATE, VALIDATION
from voxelocity_observe.core.clock import Clock, Stopwatch, system_clock
from voxelocity_observe.core.host import anonymous_bytes

# The first step compiles, and the optimizer takes its memory after it.
_WARM_UP_STEPS = 2
_NUM_VALIDATIONS = 3


class _Quickened(torch.nn.Module):
    """A network that computes until its time is up, and then repeats its last answer.

    So a long validation ends early and still takes all its memory; its time follows from the share computed.
    """

    def __init__(self, network: torch.nn.Module, limit_s: float, sync: Callable[[], None], clock: Clock) -> None:
        super().__init__()
        self._network, self._limit_s, self._sync, self._clock = network, limit_s, sync, clock
        self._seconds, self._num_computed, self._num_all = 0.0, 0, 0
        self._last: Any = None

    def forward(self, windows: torch.Tensor) -> Any:
        self._num_all += len(windows)
        if self._last is not None and self._seconds > self._limit_s and len(windows) <= len(_first(self._last)):
            return _cut(self._last, len(windows))
        self._sync()
        watch = Stopwatch(self._clock)
        self._last = self._network(windows)
        self._sync()
        self._seconds += watch.elapsed_s
        self._num_computed += len(windows)
        return self._last

    def full_seconds(self, elapsed_s: float) -> float:
        """Of the whole validation, which took this long."""
        return elapsed_s + self._seconds * (self._num_all / self._num_computed - 1.0)


def _first(answer: Any) -> torch.Tensor:
    found: torch.Tensor = answer[0] if isinstance(answer, (list, tuple)) else answer
    return found


def _cut(answer: Any, count: int) -> Any:
    return [output[:count] for output in answer] if isinstance(answer, (list, tuple)) else answer[:count]


def measure(task: AlgorithmTask, answer: Path, *, clock: Clock = system_clock) -> None:
    """Measures the task's settings, or finds the algorithm's own, and writes the answer."""
    device = torch.device(task.device)
    limit_device_memory(device, task.device_limit_bytes)
    sys.path.insert(0, str(Path(task.folder, "scripts")))
    with tempfile.TemporaryDirectory(prefix="voxelocity-auto3dseg-") as scratch:
        algorithm = open_algorithm(task, Path(scratch))
        if task.settings is None:
            write_answer(answer, {"found": [1.0]}, own=asdict(algorithm.own_settings()))
            return
        algorithm.prepare(task.settings)

        def sync() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        rates = _rates(algorithm, task, task.settings[PATCHES], sync, clock)
        # Without a GPU, activations stay in the allocator. The process that a validation forks to read scans has a copy
        # of them once this one writes over them.
        copied_bytes = anonymous_bytes() if device.type == "cpu" and algorithm.keeps_loaders else 0
        validations_s = _validations(algorithm, task, sync, clock)
    write_answer(answer, {RATE: rates, VALIDATION: validations_s}, unseen_host_bytes=copied_bytes)


def _rates(
    algorithm: Algorithm,
    task: AlgorithmTask,
    num_patches: int,
    sync: Callable[[], None],
    clock: Clock,
) -> list[float]:
    """Patches a second of each window."""
    for _ in range(_WARM_UP_STEPS):
        algorithm.train()
    rates = []
    for _ in range(task.num_windows):
        sync()
        watch, done = Stopwatch(clock), 0
        while not done or watch.elapsed_s < task.window_s:
            algorithm.train()
            sync()
            done += num_patches
        rates.append(done / watch.elapsed_s)
    return rates


def _validations(algorithm: Algorithm, task: AlgorithmTask, sync: Callable[[], None], clock: Clock) -> list[float]:
    """Seconds of each repeat; one at the least."""
    seconds, total = list[float](), Stopwatch(clock)
    while not seconds or (len(seconds) < _NUM_VALIDATIONS and total.elapsed_s + seconds[-1] < task.validation_s):
        network = _Quickened(algorithm.network, task.validation_s, sync, clock)
        watch = Stopwatch(clock)
        algorithm.validate(network)
        sync()
        seconds.append(network.full_seconds(watch.elapsed_s))
    return seconds


if __name__ == "__main__":
    run_process(lambda task, answer: measure(AlgorithmTask.from_json(task.read_text(encoding="utf-8")), answer))
