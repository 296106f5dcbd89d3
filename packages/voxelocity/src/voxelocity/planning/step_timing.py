"""Times steps of the planned network with each way it may compute: number format, memory format, CUDA's switches.

The times are kept in the user's cache folder, so that each network is measured once on each machine.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from voxelocity.core.batch import Batch, label_dtype
from voxelocity.core.region import Index3
from voxelocity.planning.machine import Machine
from voxelocity.step import (
    BackendConfig,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    backend_as_found,
    build_loss,
    build_network,
    set_backend,
)
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.device import as_current, numbered
from voxelocity_observe.core.host import cpu_name
from voxelocity_observe.core.interleaved_timing import MIN_ROUNDS, Times, time_interleaved
from voxelocity_observe.core.measured import keep_measured, read_measured

_FORMAT_VERSION = 1
_FORECAST_VOXELS = 32**3


@dataclass(frozen=True, kw_only=True)
class StepVariant:
    """How a step computes."""

    precision: PrecisionConfig
    backend: BackendConfig


@dataclass(frozen=True, kw_only=True)
class StepTask:
    """What a step computes.

    Attributes:
        patch_voxel: shape of a patch, a multiple of the network's divisor.
        batch_size: patches in a batch.
        num_classes: of the labels.
        num_regions: overlapping classes, if these are what is learned; the network then has an output for each.
    """

    network: NetworkConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    num_channels: int
    num_classes: int
    patch_voxel: Index3
    batch_size: int
    num_regions: int = 0

    @property
    def num_outputs(self) -> int:
        return self.num_regions or self.num_classes

    @property
    def regions(self) -> tuple[tuple[int, ...], ...]:
        """A class index for each region: which ones a region has changes no time."""
        return tuple((index % self.num_classes,) for index in range(1, self.num_regions + 1))


class StepTimer(Protocol):
    """Measures how long a step takes each way. Must leave threads, switches and random numbers unchanged."""

    def __call__(self, task: StepTask, ways: Mapping[str, StepVariant], *, limit_s: float) -> Times:
        """Times of a step by way; the first way is kept unless another is clearly quicker."""
        ...


def describe(task: StepTask, ways: Mapping[str, StepVariant]) -> dict[str, Any]:
    """Task and ways as plain data."""
    parts = {name: part if isinstance(part, (int, tuple)) else part.to_plain() for name, part in vars(task).items()}
    named = {
        name: {"precision": way.precision.to_plain(), "backend": way.backend.to_plain()} for name, way in ways.items()
    }
    return {**parts, "patch_voxel": list(task.patch_voxel), "ways": named}


@dataclass(frozen=True, kw_only=True)
class CachedStepTimer:
    """Times of steps, either kept from an earlier measurement on the same machine or measured now; a `StepTimer`.

    Keeps one file for each task, machine and version of torch, which describes all three next to the seconds. You may
    remove it at any time. A damaged file is measured again. A step that could not be timed is not kept.

    Attributes:
        folder: where the files are.
        machine: where the steps run.
        refresh: whether to measure again even if times are kept, and to keep the new ones.
        clock: returns seconds.
    """

    folder: Path
    machine: Machine
    refresh: bool = False
    clock: Clock = system_clock

    def __call__(self, task: StepTask, ways: Mapping[str, StepVariant], *, limit_s: float) -> Times:
        """Times of a step by way. If the folder cannot be read or written, the step is measured again."""
        about = {"format_version": _FORMAT_VERSION, "machine": machine_key(self.machine), "step": describe(task, ways)}
        kept = None if self.refresh else _read(self.folder, about)
        if kept is not None:
            return kept
        times = time_steps(task, ways, self.machine.torch_device, limit_s=limit_s, clock=self.clock)
        if times.seconds:
            keep_measured(
                self.folder, about, {"seconds": {name: list(values) for name, values in times.seconds.items()}}
            )
        return times


def machine_key(machine: Machine) -> dict[str, Any]:
    """What a measurement on this machine is valid for, as plain data."""
    on_cpu = machine.device == "cpu"
    return {
        "device": machine.device,
        "name": cpu_name() if on_cpu else machine.device_name,
        "num_cpus": machine.num_cpus,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _read(folder: Path, about: Mapping[str, Any]) -> Times | None:
    """The times kept about exactly this; None if there are none or their file is damaged."""
    record = read_measured(folder, about)
    if record is None:
        return None
    seconds = record.get("seconds")
    if not isinstance(seconds, dict) or not all(_are_seconds(values) for values in seconds.values()):
        return None
    # Some ways may be missing, left out for lack of time.
    ways = about["step"]["ways"]
    lengths = {len(values) for values in seconds.values()}
    if len(seconds) < 2 or not seconds.keys() <= ways.keys() or len(lengths) != 1 or min(lengths) < MIN_ROUNDS:
        return None
    return Times(seconds={name: tuple(values) for name, values in seconds.items()})


def _are_seconds(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, float) and value > 0.0 for value in values)


def time_steps(
    task: StepTask,
    ways: Mapping[str, StepVariant],
    device: torch.device,
    *,
    limit_s: float,
    clock: Clock = system_clock,
) -> Times:
    """Seconds of a training step on random patches by way, timed alternating. Blocks until the device has finished.

    Leaves torch's random numbers and its switches for CUDA unchanged, frees the device's memory and resets its peak.
    On a GPU one network is built, there and within the limit, and copied for each way; rounds without a difference end
    it early. On a CPU the networks are built before the limit begins to count.

    Args:
        task: the step.
        ways: by name, most important first.
        device: where it runs.
        limit_s: seconds for all steps; if three rounds take longer, nothing is timed.
        clock: returns seconds.
    """
    if limit_s <= 0.0:
        return Times(seconds={}, why_not="the plan reserves no time for it")
    on_cuda = device.type == "cuda"
    device = numbered(device)
    with torch.random.fork_rng(devices=[device.index] if on_cuda else []), backend_as_found(device):
        done: list[str] = []
        try:
            times = _time_variants(task, ways, device, limit_s, clock, done)
        except torch.OutOfMemoryError:
            # Another way may take more than the planned one, as float32 does.
            ran_out = next(iter(ways)) not in done
            which = "the planned step" if ran_out else "measuring alternatives"
            times = Times(
                seconds={}, why_not=f"the device's memory is too small for {which}", ran_out_of_memory=ran_out
            )
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return times


def _time_variants(
    task: StepTask, ways: Mapping[str, StepVariant], device: torch.device, limit_s: float, clock: Clock, done: list[str]
) -> Times:
    """Times by way; `done` names each step of the whole batch that finished."""
    on_cuda = device.type == "cuda"
    begin_s = clock() if on_cuda else 0.0
    with contextlib.ExitStack() as stack:
        steps = _steps(task, ways, device, stack)
        if not on_cuda:
            begin_s = clock()
        # On a GPU a small step is bound by launches and foretells nothing; the plan asks for no step that takes too
        # long.
        expected_s = 0.0 if on_cuda else _forecast_s(task, next(iter(steps.values())), clock)
        whole = random_batch(
            task.batch_size, task.patch_voxel, device, num_channels=task.num_channels, num_classes=task.num_classes
        )

        def call(name: str) -> None:
            steps[name](whole)
            done.append(name)

        calls: dict[str, Callable[[], object]] = {name: partial(call, name) for name in steps}
        return time_interleaved(
            calls,
            limit_s=limit_s - (clock() - begin_s),
            expected_s=expected_s,
            ends_if_equal=on_cuda,
            clock=clock,
        )


def _steps(
    task: StepTask, ways: Mapping[str, StepVariant], device: torch.device, stack: contextlib.ExitStack
) -> dict[str, _Step]:
    """A step for each way. On a GPU weights are drawn there, in a hundredth of the time, and only once.

    Args:
        task: the step.
        ways: by name.
        device: where it runs.
        stack: ends their threads.
    """
    build = partial(build_network, task.network, num_channels=task.num_channels, num_classes=task.num_outputs, seed=0)
    if not _is_kept_by_thread(device):
        return {name: _Step(task, way, device, build().train()) for name, way in ways.items()}
    with device:
        network = build().train()
    return {
        name: _Step(
            task,
            way,
            device,
            copy.deepcopy(network),
            stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="voxelocity-timing", initializer=_alone)),
        )
        for name, way in ways.items()
    }


def _is_kept_by_thread(device: torch.device) -> bool:
    """Whether a thread keeps how an operation was computed there."""
    return device.type == "cuda"


def _alone() -> None:
    """Makes backward passes of the calling thread run in it, not in the one that all share."""
    torch.autograd.set_multithreading_enabled(False)


class _Step:
    """One way to compute the step: a network with its optimizer, and its switches.

    On a GPU in a thread of its own, backward pass included: torch keeps how cuDNN computes a convolution for each
    thread, and does not tell apart whether cuDNN has tried its algorithms. In one thread, the way that runs first would
    decide for all, and for the training after them.
    """

    def __init__(
        self,
        task: StepTask,
        way: StepVariant,
        device: torch.device,
        network: torch.nn.Module,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self._thread = thread
        self.device, self._way, self._rate = device, way, task.optimizer.learning_rate
        self._step = TrainingStep(
            network,
            build_loss(task.loss, regions=task.regions),
            optimizer=task.optimizer,
            precision=way.precision,
            device=device,
        )

    def __call__(self, batch: Batch) -> None:
        if self._thread is None:
            self._run(batch)
        else:
            self._thread.submit(self._run, batch).result()

    def _run(self, batch: Batch) -> None:
        set_backend(self._way.backend, self.device)
        with as_current(self.device):
            self._step(batch, self._rate)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)


def _forecast_s(task: StepTask, step: _Step, clock: Clock) -> float:
    """Estimated seconds of a step, from a smaller one: an overestimate, because small steps are less efficient."""
    patch = _smaller(task.patch_voxel, task.network.divisor)
    batch = random_batch(1, patch, step.device, num_channels=task.num_channels, num_classes=task.num_classes)
    # The first one compiles code.
    step(batch)
    begin_s = clock()
    step(batch)
    voxels = torch.Size(patch).numel()
    return (clock() - begin_s) * task.batch_size * torch.Size(task.patch_voxel).numel() / voxels


def _smaller(patch: Index3, divisor: Index3) -> Index3:
    """The patch halved until it is small; its deepest level stays two voxels wide, which instance norms need."""
    while torch.Size(patch).numel() > _FORECAST_VOXELS:
        x, y, z = (max(min(n, 2 * d), n // 2 // d * d) for n, d in zip(patch, divisor, strict=True))
        if (x, y, z) == patch:
            break
        patch = (x, y, z)
    return patch


def random_batch(size: int, patch: Index3, device: torch.device, *, num_channels: int, num_classes: int) -> Batch:
    """A batch of noise in the shape of a training batch, always the same."""
    numbers = torch.Generator().manual_seed(0)
    image = torch.randn((size, num_channels, *patch), generator=numbers)
    label = torch.randint(num_classes, (size, *patch), generator=numbers, dtype=label_dtype(num_classes))
    return Batch(image=image.to(device), label=label.to(device), draws=(), regions=(), step=0)
