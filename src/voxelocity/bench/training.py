"""`voxelocity bench training`: what data costs a real `voxelocity train`, against its own step on a batch at hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.bench.fresh import python_says
from voxelocity.bench.paired import Comparison, Figure, Side, compare
from voxelocity.bench.phantom import PhantomSet, phantom_table
from voxelocity.bench.places import Places
from voxelocity.report import RunFacts, read_run

_TRAIN, _RESIDENT = "Voxelocity train", "the same step on one synthetic batch"


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


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One data set to train on.

    Attributes:
        words: for titles.
        train: trains once more, and returns the run's folder.
    """

    words: str
    train: Callable[[], Path]


def run(scenario: RealTrainings, places: Places) -> Iterator[Comparison]:
    """Two comparisons for each data set: milliseconds a step, and the share of them spent waiting for data."""
    with tempfile.TemporaryDirectory(prefix="training-", dir=places.work) as name:
        for job in _jobs(scenario, places, Path(name)):
            yield from _step_and_waiting(scenario, job)


def _jobs(scenario: RealTrainings, places: Places, place: Path) -> Iterator[_Job]:
    if num_cases := len(places.hippocampus()):
        assert places.data is not None, "its cases were found there"
        options = ("--fold", "0", "--time-budget", scenario.time_budget)
        train = _training(places.data / "hippocampus", place / "hippocampus", options)
        yield _Job(words=f"{num_cases} cases of MSD's hippocampus, a budget of {scenario.time_budget}", train=train)
    if scenario.cases is not None:
        table = phantom_table(scenario.cases, places.work, place / "phantoms.csv")
        train = _training(table, place / "phantoms", scenario.options)
        yield _Job(words=scenario.cases.words, train=train)


def _step_and_waiting(scenario: RealTrainings, job: _Job) -> Iterator[Comparison]:
    percent: list[float] = []
    folders: list[Path] = []

    def train() -> float:
        folders[:] = [job.train()]
        facts = read_run(folders[0])
        percent.append(waiting_percent(facts))
        return step_ms(facts)

    def resident() -> float:
        # No side begins before ours has run: the first round is begun by the first side.
        words = ["-c", "from voxelocity.bench.resident import main; main()", folders[0], scenario.resident_s]
        return float(python_says(*words).splitlines()[-1])

    yield compare(
        f"training step, {job.words}",
        "ms a step",
        "smaller",
        [Side(name=_TRAIN, once=train), Side(name=_RESIDENT, once=resident)],
        repeats=scenario.repeats,
        warmup=0,
        note="on the CPU, where the feed's threads take time from the step as well; each round two fresh processes",
    )
    ours = Figure(name=_TRAIN, note="as the run's report says, the start of the feed included", values=tuple(percent))
    yield Comparison(
        title=f"waiting for data, {job.words}",
        unit="% of a step",
        better="smaller",
        figures=(ours,),
        note="from the same runs",
    )


def step_ms(facts: RunFacts) -> float:
    """Milliseconds a step, over all but the first stretch of a run, in which the machine warms up."""
    stretches = facts.steps[1:] or facts.steps
    return 1000.0 * sum(each.seconds for each in stretches) / sum(each.num_steps for each in stretches)


def waiting_percent(facts: RunFacts) -> float:
    """Percent of a run's training time spent waiting for data."""
    return 100.0 * sum(each.wait_s for each in facts.steps) / sum(each.seconds for each in facts.steps)


def _training(dataset: Path, place: Path, options: Sequence[str]) -> Callable[[], Path]:
    """Trains on this data set from scratch each time; the cache is kept from one time to the next."""

    def train() -> Path:
        shutil.rmtree(place / "run", ignore_errors=True)
        cache = f"data.cache.folder={place / 'cache'}"
        python_says("-m", "voxelocity", "train", dataset, "-o", place / "run", "--set", cache, *options)
        return place / "run"

    return train
