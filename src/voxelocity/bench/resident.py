"""The step of a finished run on a batch that never changes, in a process of its own: the step without a feed.

Run as `python -c "from voxelocity.bench.resident import main; main()" RUN SECONDS`; prints milliseconds a step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from voxelocity.infer import load_model
from voxelocity.observe import Stopwatch
from voxelocity.planning import Plan
from voxelocity.planning.step_timing import random_batch
from voxelocity.report import read_run
from voxelocity.step import TrainingStep, build_loss, build_network

_WARM_UP_STEPS = 3


def resident_step_ms(run: Path, *, seconds: float) -> float:
    """Milliseconds that a step of this run takes on a synthetic batch of its shape, on the CPU.

    Args:
        run: folder of a finished run, for its plan and its classes.
        seconds: how long to step, after a few steps that do not count; at least one step does.
    """
    plan = Plan.parse(read_run(run).plan, where=str(run / "run.yaml"))
    _, spec = load_model(run, factory=plan.network.factory)
    network = build_network(
        plan.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=plan.seed
    ).train()
    training = TrainingStep(
        network,
        build_loss(plan.loss),
        optimizer=plan.optimizer,
        precision=plan.precision,
        device=torch.device("cpu"),
    )
    batch = random_batch(
        plan.data.batch_size,
        plan.data.patch.shape_voxel,
        training.device,
        num_channels=len(spec.channels),
        num_classes=len(spec.labels),
    )
    for _ in range(_WARM_UP_STEPS):
        training(batch, plan.optimizer.learning_rate)
    watch, num_steps = Stopwatch(), 0
    while num_steps == 0 or watch.elapsed_s < seconds:
        training(batch, plan.optimizer.learning_rate)
        num_steps += 1
    return 1000.0 * watch.elapsed_s / num_steps


def main() -> None:
    """The entry point of the process; see the module."""
    print(resident_step_ms(Path(sys.argv[1]), seconds=float(sys.argv[2])))
