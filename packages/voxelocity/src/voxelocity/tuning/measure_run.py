"""The process of a trial of our own runs: trains through the real feed, validates a case, answers with figures.

`python -m voxelocity.tuning.measure_run TASK ANSWER`; TASK is a `MeasureTask`.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.planning import model_spec
from voxelocity.step import TrainingStep, build_loss, build_network, image_format, set_backend
from voxelocity.training.validation_cost import num_passes
from voxelocity.tuning.answer import limit_device_memory, run_process, write_answer
from voxelocity.tuning.costs import RATE, VALIDATION, WAIT
from voxelocity.tuning.task import MeasureTask
from voxelocity_observe.core.clock import Clock, Stopwatch, system_clock
from voxelocity_observe.core.host import peak_host_bytes

# Steps before the first window: code is compiled, buffers are filled, memory is taken.
_WARM_UP_STEPS, _WARM_UP_S = 3, 1.0
_NUM_VALIDATIONS = 3


class _CutOffError(Exception):
    """The validation took its time; raised between two batches of windows."""


def measure(task: MeasureTask, answer: Path, *, clock: Clock = system_clock) -> None:
    """Measures the task's plan on this machine and writes the answer.

    Raises:
        VoxelocityError: a case or the plan cannot be used.
    """
    plan, device = task.planned.plan, task.planned.machine.torch_device
    prepare = Stopwatch(clock)
    step, training, spec = set_up(task)
    prepare_s = prepare.elapsed_s
    cases = training.part(range(len(task.training)))
    with open_feed(task, cases, spec) as feed:
        warm_up_s = _warm_up(step, feed, plan.optimizer.learning_rate, clock)
        rates, waits = _windows(step, feed, plan.optimizer.learning_rate, task, clock)
        training_bytes = peak_host_bytes()
        # While the feed is there, as in the validations on the way.
        validation_s, share = _validation(step.averaged(), training, spec, task, device, clock)
    write_answer(
        answer,
        {RATE: rates, WAIT: waits, VALIDATION: validation_s},
        # Cases that a trial leaves out take memory in a run.
        unseen_host_bytes=task.rest_bytes if plan.data.cache.tier == "memory" else 0,
        prepare_s=prepare_s,
        warm_up_s=warm_up_s,
        training_host_bytes=training_bytes,
        validated_share=share,
    )


def set_up(task: MeasureTask) -> tuple[TrainingStep, PreparedCases, ModelSpec]:
    """The training step of the task's plan, its cases with the validated one last, and what the network expects.

    Raises:
        VoxelocityError: a case or the plan cannot be used.
    """
    planned = task.planned
    plan, device = planned.plan, planned.machine.torch_device
    limit_device_memory(device, task.device_limit_bytes)
    set_backend(plan.backend, device)
    spec = model_spec(planned)
    cases = _open_cases(task, spec)
    if plan.data.cache.holds_every_case:
        cases.fill(num_threads=planned.machine.num_cpus, on_case=lambda *_: None, should_stop=lambda: False)
    network = build_network(plan.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=plan.seed)
    step = TrainingStep(
        network,
        build_loss(plan.loss, regions=[*spec.regions.values()], ignored=spec.ignored),
        optimizer=plan.optimizer,
        precision=plan.precision,
        device=device,
        seed=plan.seed,
    )
    step.set_training_mode()
    return step, cases, spec


def open_feed(task: MeasureTask, cases: PreparedCases, spec: ModelSpec) -> Feed:
    """The feed of a training on these cases, with images in the format that its step takes."""
    plan = task.planned.plan
    return Feed(
        cases,
        plan.data,
        seed=plan.seed,
        device=task.planned.machine.torch_device,
        image_format=image_format(plan.network, plan.precision, num_channels=len(spec.channels)),
    )


def _open_cases(task: MeasureTask, spec: ModelSpec) -> PreparedCases:
    """The training cases and, last, the one that is validated."""
    data, cases = task.planned.plan.data, task.planned.cases
    return PreparedCases(
        [*task.training, task.validated],
        label_values=cases.stored_values,
        class_names=cases.class_names,
        ignored=spec.ignored,
        prepare=data.prepare,
        cache=data.cache,
        warn=print,
    )


def _warm_up(step: TrainingStep, feed: Feed, rate: float, clock: Clock) -> float:
    """Seconds of the first steps."""
    watch, number = Stopwatch(clock), 0
    while number < _WARM_UP_STEPS or watch.elapsed_s < _WARM_UP_S:
        loss = step(next(feed), rate)
        number += 1
        # Waits for the device.
        loss.item()
    return watch.elapsed_s


def _windows(
    step: TrainingStep, feed: Feed, rate: float, task: MeasureTask, clock: Clock
) -> tuple[list[float], list[float]]:
    """Images a second of each window, and the share of it spent waiting for batches."""
    rates, waits = list[float](), list[float]()
    for _ in range(task.num_windows):
        watch, waited_s, num_images, loss = Stopwatch(clock), feed.wait_s, 0, None
        while loss is None or watch.elapsed_s < task.window_s:
            batch = next(feed)
            loss = step(batch, rate)
            num_images += len(batch.image)
        # As the loop does about once a second: waits for the device.
        loss.item()
        seconds = watch.elapsed_s
        rates.append(num_images / seconds)
        waits.append((feed.wait_s - waited_s) / seconds)
    return rates, waits


def _validation(
    network: torch.nn.Module,
    prepared: PreparedCases,
    spec: ModelSpec,
    task: MeasureTask,
    device: torch.device,
    clock: Clock,
) -> tuple[list[float], float]:
    """Seconds to predict the case, for each repeat, and the share of its windows that were predicted at least.

    A validation that takes longer than `task.validation_s` is cut off and its whole time estimated.
    """
    index = len(prepared) - 1
    expected = max(1, math.ceil(num_passes([prepared.shape(index)], spec.window) / spec.window.batch_size))
    seconds, shares, total = list[float](), list[float](), Stopwatch(clock)
    while not seconds or (len(seconds) < _NUM_VALIDATIONS and total.elapsed_s + seconds[-1] < task.validation_s):
        counter = _Counter(task.validation_s, clock)
        predictor = Predictor(network, spec, spec.preparation(), device=device, on_windows=counter, warn=print)
        share = 1.0
        try:
            for _, classes in predictor.predict_prepared(iter([prepared[index].load()])):
                # Waits for the device.
                torch.as_tensor(classes).max().item()
        except _CutOffError:
            share = min(1.0, counter.num_batches / expected)
        seconds.append(counter.watch.elapsed_s / share)
        shares.append(share)
    return seconds, min(shares)


class _Counter:
    """Counts batches of windows, and cuts a validation off that takes too long; one batch is always predicted."""

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self.watch, self.num_batches, self._limit_s = Stopwatch(clock), 0, limit_s

    def __call__(self) -> None:
        if self.num_batches and self.watch.elapsed_s > self._limit_s:
            raise _CutOffError
        self.num_batches += 1


if __name__ == "__main__":
    run_process(lambda task, answer: measure(MeasureTask.read(task), answer))
