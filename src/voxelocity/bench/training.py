"""`voxelocity bench training`: what data costs a real `voxelocity train`, against its own step on a batch at hand."""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.bench.comparison import Comparison, Figure, Side, compare
from voxelocity.bench.phantom import PhantomSet, Places, phantom_table
from voxelocity.bench.processes import run_python
from voxelocity.observe import Stopwatch
from voxelocity.report import RunFacts, read_run

_TRAIN, _RESIDENT = "Voxelocity train", "the same step on one synthetic batch"
_WARM_UP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class RealTrainings:
    """Whole runs, each in a fresh process as a user starts it: a small MR set, or CT phantoms."""

    # Long enough that the start of the feed counts for little; the figure in `docs/measured.md` is from 5 minutes.
    time_budget: str = "60s"
    # Phantoms to train on as well.
    cases: PhantomSet | None = None
    options: tuple[str, ...] = ()
    resident_s: float = 8.0
    repeats: int = 3


def run(scenario: RealTrainings, places: Places) -> Iterator[Comparison]:
    """Two comparisons for each data set: milliseconds a step, and the share of them spent waiting for data."""
    with tempfile.TemporaryDirectory(prefix="training-", dir=places.work) as name:
        for words, train in _jobs(scenario, places, Path(name)):
            yield from _step_and_waiting(scenario, words, train)


def _jobs(scenario: RealTrainings, places: Places, place: Path) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Each data set in words, and what trains on it once more and returns the run's folder."""
    if num_cases := len(places.hippocampus()):
        assert places.data is not None, "its cases were found there"
        options = ("--fold", "0", "--time-budget", scenario.time_budget)
        words = f"{num_cases} cases of MSD's hippocampus, a budget of {scenario.time_budget}"
        yield words, functools.partial(_train, places.data / "hippocampus", place / "hippocampus", options)
    if scenario.cases is not None:
        table = phantom_table(scenario.cases, places.work, place / "phantoms.csv")
        yield scenario.cases.words, functools.partial(_train, table, place / "phantoms", scenario.options)


def _train(dataset: Path, place: Path, options: Sequence[str]) -> Path:
    """Trains on this data set from scratch each time; the cache is kept from one time to the next."""
    shutil.rmtree(place / "run", ignore_errors=True)
    cache = f"data.cache.folder={place / 'cache'}"
    run_python("-m", "voxelocity", "train", dataset, "-o", place / "run", "--set", cache, *options)
    return place / "run"


def _step_and_waiting(scenario: RealTrainings, words: str, train: Callable[[], Path]) -> Iterator[Comparison]:
    percent: list[float] = []
    folders: list[Path] = []

    def train_once() -> float:
        folders[:] = [train()]
        facts = read_run(folders[0])
        percent.append(waiting_percent(facts))
        return step_ms(facts)

    def resident() -> float:
        # No side begins before ours has run: the first round is begun by the first side.
        code = f"from {__name__} import main; main()"
        return float(run_python("-c", code, folders[0], scenario.resident_s).splitlines()[-1])

    yield compare(
        f"training step, {words}",
        "ms a step",
        [Side(name=_TRAIN, once=train_once), Side(name=_RESIDENT, once=resident)],
        repeats=scenario.repeats,
        warmup=0,
        note="on the CPU, where the feed's threads take time from the step as well; each round two fresh processes",
    )
    ours = Figure(name=_TRAIN, note="as the run's report says, the start of the feed included", values=tuple(percent))
    title = f"waiting for data, {words}"
    yield Comparison(title=title, unit="% of a step", better="smaller", figures=(ours,), note="from the same runs")


def step_ms(facts: RunFacts) -> float:
    """Milliseconds a step, over all but the first stretch of a run, in which the machine warms up."""
    stretches = facts.steps[1:] or facts.steps
    return 1000.0 * sum(each.seconds for each in stretches) / sum(each.num_steps for each in stretches)


def waiting_percent(facts: RunFacts) -> float:
    """Percent of a run's training time spent waiting for data."""
    return 100.0 * sum(each.wait_s for each in facts.steps) / sum(each.seconds for each in facts.steps)


def resident_step_ms(run: Path, *, seconds: float) -> float:
    """Milliseconds that a step of a finished run takes on a batch of noise that never changes, on the CPU.

    It steps for `seconds` after a few steps that do not count; at least one step does.
    """
    import torch

    from voxelocity.infer import load_model
    from voxelocity.planning import Plan
    from voxelocity.planning.step_timing import random_batch
    from voxelocity.step import TrainingStep, build_loss, build_network

    plan = Plan.parse(read_run(run).plan, where=str(run / "run.yaml"))
    _, spec = load_model(run, factory=plan.network.factory)
    sizes = {"num_channels": len(spec.channels), "num_classes": len(spec.labels)}
    network = build_network(plan.network, seed=plan.seed, **sizes).train()
    step = TrainingStep(
        network,
        build_loss(plan.loss),
        optimizer=plan.optimizer,
        precision=plan.precision,
        device=torch.device("cpu"),
    )
    batch = random_batch(plan.data.batch_size, plan.data.patch.shape_voxel, step.device, **sizes)
    for _ in range(_WARM_UP_STEPS):
        step(batch, plan.optimizer.learning_rate)
    watch, num_steps = Stopwatch(), 0
    while num_steps == 0 or watch.elapsed_s < seconds:
        step(batch, plan.optimizer.learning_rate)
        num_steps += 1
    return 1000.0 * watch.elapsed_s / num_steps


def main() -> None:
    """The entry point of a process for `resident_step_ms`: RUN SECONDS; prints the milliseconds."""
    print(resident_step_ms(Path(sys.argv[1]), seconds=float(sys.argv[2])))
