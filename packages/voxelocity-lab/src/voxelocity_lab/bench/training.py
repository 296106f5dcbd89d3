"""`voxelocity bench training`: what data costs a real `voxelocity train`, against its own step on a batch at hand."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from voxelocity.report import RunFacts, read_run
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Figure, compare
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet, phantom_table
from voxelocity_lab.bench.processes import run_python
from voxelocity_observe.core.clock import Stopwatch

_TRAIN, _RESIDENT = "Voxelocity train", "the same step on one synthetic batch"
_PLAIN = "that with torch's norm and loss, and freed memory returned"
_OWN = ("fused_norm", "fused_loss", "keep_freed_memory")
_WARM_UP_STEPS = 3
# About the size of MSD's hippocampus cases.
_SMALL_CASES = PhantomSet(kind="ct", shape=(36, 50, 36), num_cases=64)


@dataclass(frozen=True, kw_only=True)
class TrainingScenario:
    """Whole runs, each in a fresh process as a user starts it: MSD's hippocampus, or phantoms where it is not there."""

    cases: PhantomSet = _SMALL_CASES
    # Long enough that the start of the feed counts for little; the figure in `docs/measured.md` is from 5 minutes.
    budget: tuple[str, ...] = ("--time-budget", "60s")
    resident_s: float = 8.0
    repeats: int = 3


def run(scenario: TrainingScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Two comparisons: milliseconds a step, and the share of them spent waiting for data."""
    with tempfile.TemporaryDirectory(prefix="training-", dir=folders.work) as name:
        place = Path(name)
        if num_cases := len(folders.hippocampus()):
            assert folders.data is not None, "its cases were found there"
            words, dataset = f"{num_cases} cases of MSD's hippocampus", folders.data / "hippocampus"
        else:
            words, dataset = scenario.cases.words, phantom_table(scenario.cases, folders.work, place / "phantoms.csv")
        yield from _step_and_waiting(scenario, words, dataset, place)


def _step_and_waiting(scenario: TrainingScenario, words: str, dataset: Path, place: Path) -> Iterator[Comparison]:
    out, percent = place / "run", list[float]()
    options = ("--fold", "0", *scenario.budget)

    def train() -> float:
        # From scratch each time; the cache is kept from one time to the next.
        shutil.rmtree(out, ignore_errors=True)
        cache = f"data.cache.folder={place / 'cache'}"
        run_python("-m", "voxelocity", "train", dataset, "-o", out, "--set", cache, *options)
        facts = read_run(out)
        percent.append(waiting_percent(facts))
        return step_ms(facts)

    def resident(*switches: str) -> float:
        # No side begins before ours has run: the first round is begun by the first side.
        code = f"from {__name__} import main; main()"
        return float(run_python("-c", code, out, scenario.resident_s, *switches).splitlines()[-1])

    yield compare(
        f"training step, {words}",
        "ms a step",
        [
            BenchSide(name=_TRAIN, once=train),
            BenchSide(name=_RESIDENT, once=resident),
            BenchSide(name=_PLAIN, once=partial(resident, *_OWN)),
        ],
        repeats=scenario.repeats,
        warmup=0,
        note=(
            f"`voxelocity train {' '.join(options)}`, on the CPU, where the feed's threads take time from the step as "
            "well; each round three fresh processes"
        ),
    )
    ours = Figure(name=_TRAIN, note="as the run's report says, the start of the feed included", values=tuple(percent))
    title = f"waiting for data, {words}"
    yield Comparison(title=title, unit="% of a step", better="smaller", figures=(ours,), note="from the same runs")


def step_ms(facts: RunFacts) -> float:
    """Milliseconds a step, over all but the first stretch of a run, in which the machine warms up."""
    stretches = facts.steps[1:] or facts.steps
    return 1000.0 * sum(stretch.seconds for stretch in stretches) / sum(stretch.num_steps for stretch in stretches)


def waiting_percent(facts: RunFacts) -> float:
    """Percent of a run's training time spent waiting for data."""
    return 100.0 * sum(record.wait_s for record in facts.steps) / sum(record.seconds for record in facts.steps)


def resident_step_ms(run: Path, *, seconds: float, off: Sequence[str] = ()) -> float:
    """Milliseconds that a step of a finished run takes on a batch of noise that never changes, on the CPU.

    It steps for `seconds` after a few steps that do not count; at least one step does. `off` are keys of `backend`.
    """
    import torch

    from voxelocity.infer import load_model
    from voxelocity.planning import Plan
    from voxelocity.planning.step_timing import random_batch
    from voxelocity.step import TrainingStep, build_loss, build_network, set_backend

    plan = Plan.parse(read_run(run).plan, where=str(run / "run.yaml"))
    set_backend(plan.backend.model_copy(update=dict.fromkeys(off, False)), torch.device("cpu"))
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
    """The entry point of a process for `resident_step_ms`: RUN SECONDS [OFF ...]; prints the milliseconds."""
    print(resident_step_ms(Path(sys.argv[1]), seconds=float(sys.argv[2]), off=sys.argv[3:]))
