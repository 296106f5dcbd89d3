"""The same training with a setting off and on, round by round: which runs, and what they came to as plain figures."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from voxelocity.bench.fresh import python_says
from voxelocity.bench.paired import Comparison, Figure, Side, compare
from voxelocity.bench.phantom import PhantomSet, phantom_table
from voxelocity.bench.switches import Switch
from voxelocity.report import RunFacts, read_run

TrainOnce = Callable[[Path, Path, Mapping[str, Any], Mapping[str, str]], None]
"""Trains on a data set into a folder with these keys of the plan and these variables of its process."""

_BODIES = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=36, spacing_mm=(4.0, 4.0, 5.0))
_NUM_STRETCHES = 8


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """Whole trainings of the planned network on CT-like volumes with six organs, a fresh process each."""

    cases: PhantomSet = _BODIES
    # The interval of the accuracy is over these.
    num_held_out: int = 12
    # At 160 the six organs are half learned, and seeds differ by 0.27 in Dice (docs/log.md).
    steps: int = 320
    # Few and on few cases: they are for the curve and for the time to a target, and cost training time.
    num_validations: int = 4
    num_cases_on_the_way: int = 4
    rounds: int = 3
    seed: int = 0
    # Further keys of the plan.
    plan: Mapping[str, Any] = field(default_factory=dict)

    def keys(self) -> dict[str, Any]:
        """Keys of the plan that hold in all trainings."""
        return {
            "train.steps": self.steps,
            # Otherwise the measurements would differ from side to side, and make the first run longer.
            "planner.measure": "never",
            "train.validate_every_steps": max(1, self.steps // self.num_validations),
            "train.validation_cases": self.num_cases_on_the_way,
            # The kidneys of these bodies are mirror images, which flipped patches could not tell apart.
            "data.augment.flip_probability": [0.0, 0.0, 0.0],
            **self.plan,
        }


@dataclass(frozen=True, kw_only=True)
class Switched:
    """Both sides of all rounds.

    Attributes:
        switch: the setting.
        off: runs without it, one a round; `on` likewise. Runs of one round have one seed.
        speed: images a second once a run is under way, the side with the setting first.
    """

    switch: Switch
    off: tuple[RunFacts, ...]
    on: tuple[RunFacts, ...]
    speed: Comparison


def train_afresh(dataset: Path, out: Path, keys: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Trains in a process of its own, as a user does.

    Raises:
        VoxelocityError: the training failed.
    """
    config = out.with_suffix(".yaml")
    # JSON is YAML.
    config.write_text(json.dumps(dict(keys)))
    python_says("-m", "voxelocity", "train", dataset, "-o", out, "--fold", 0, "--config", config, environ=environ)


def run_switched(
    switch: Switch,
    trainings: Trainings,
    work: Path,
    *,
    train: TrainOnce = train_afresh,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> Switched:
    """Trains with the setting off and on, alternating; each round has its own seed and begins with another side.

    Args:
        switch: the setting.
        trainings: what is trained.
        work: folder that keeps the phantoms; runs are made below it and removed.
        train: trains once.
        on_run: called with each run when it is done.

    Raises:
        VoxelocityError: a training failed.
    """
    runs: dict[str, list[RunFacts]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory(prefix="switched-", dir=work) as name:
        place = Path(name)
        dataset = phantom_table(trainings.cases, work, place / "phantoms.csv", num_held_out=trainings.num_held_out)
        # Each training prepares its cases itself, in a second or two: a cache on disk would be filled by one for all.
        common = {**trainings.keys(), "data.cache.tier": "memory"}

        def once(side: str, keys: Mapping[str, Any], environ: Mapping[str, str]) -> float:
            out = place / f"{side}-{len(runs[side])}"
            train(dataset, out, {**common, **keys, "seed": trainings.seed + len(runs[side])}, environ)
            run = read_run(out)
            shutil.rmtree(out)
            runs[side].append(run)
            on_run(switch.off_label if side == "off" else switch.on_label, run)
            return steady_images_per_s(run)

        speed = compare(
            f"{switch.title}: training on {trainings.cases.words}",
            "images/s",
            "larger",
            [
                Side(name=switch.on_label, once=partial(once, "on", switch.on, switch.on_environ)),
                Side(name=switch.off_label, once=partial(once, "off", switch.off, {})),
            ],
            repeats=trainings.rounds,
            warmup=0,
            note="once under way: without the first stretch of a run, in which code is compiled and chosen",
        )
    return Switched(switch=switch, off=tuple(runs["off"]), on=tuple(runs["on"]), speed=speed)


def steady_images_per_s(run: RunFacts) -> float:
    """Images a second over all but the first stretch of steps."""
    stretches = run.steps[1:] or run.steps
    return sum(stretch.num_images for stretch in stretches) / sum(stretch.seconds for stretch in stretches)


def warm_up_s(run: RunFacts) -> float:
    """Seconds that the first stretch of steps took longer than as many later ones."""
    if len(run.steps) < 2:
        return 0.0
    first = run.steps[0]
    return max(0.0, first.seconds - first.num_images / steady_images_per_s(run))


def figures_of(
    switched: Switched, name: str, unit: str, figure: Callable[[RunFacts], float | None]
) -> Comparison | None:
    """One more figure of all runs, less being better; None where the runs do not have it."""
    sides = []
    for label, runs in ((switched.switch.on_label, switched.on), (switched.switch.off_label, switched.off)):
        values = [value for run in runs if (value := figure(run)) is not None]
        if len(values) < len(runs):
            return None
        sides.append(Figure(name=label, note="", values=tuple(values)))
    return Comparison(title=name, unit=unit, better="smaller", figures=tuple(sides))


def loss_edges(num_steps: int) -> list[int]:
    """Steps at which the stretches of `losses_by_stretch` begin and end."""
    num_stretches = min(_NUM_STRETCHES, num_steps)
    return [round(num_steps * index / num_stretches) for index in range(num_stretches + 1)]


def losses_by_stretch(run: RunFacts) -> tuple[float, ...]:
    """Mean loss of each of eight equal stretches of steps; the log's own stretches are of equal time.

    A stretch of the log that reaches over an edge counts on both sides, each by its steps there.
    """
    means = []
    for begin, end in itertools.pairwise(loss_edges(run.step)):
        weights = [_overlap(record.step - record.num_steps, record.step, begin, end) for record in run.steps]
        total = sum(weights)
        weighted = (record.loss * weight for record, weight in zip(run.steps, weights, strict=True) if weight)
        means.append(sum(weighted) / total)
    return tuple(means)


def _overlap(a_begin: int, a_end: int, b_begin: int, b_end: int) -> int:
    return max(0, min(a_end, b_end) - max(a_begin, b_begin))
