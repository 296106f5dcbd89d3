"""`voxelocity bench amp|compile|muon|...`: pairs of trainings that differ in one setting, compared as two runs are."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from voxelocity.planning import Machine, survey
from voxelocity.report import (
    RunFacts,
    comparison_document,
    highest_common_target,
    label_run,
    median_run,
    paired_trainings,
    read_run,
    scores_to_compare,
    seconds_to_reach,
    unlearned_notices,
    with_command,
)
from voxelocity.report.summary import mean_dice, throughput
from voxelocity_lab.bench.comparison import BenchSide, Better, Comparison, Figure, Record, compare, comparison_section
from voxelocity_lab.bench.phantom import SIX_ORGANS, TINY_KEYS, PhantomSet, phantom_table, work_folder
from voxelocity_lab.bench.processes import run_python
from voxelocity_lab.bench.switches import SWITCHES, Switch, make_switch
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.quantities import dotted, signed_text
from voxelocity_observe.document.blocks import Section, Table, Text

TrainOnce = Callable[[Path, Path, Mapping[str, Any], Mapping[str, str]], float]
"""Trains on a data set into a folder, with keys of the plan and variables of its process; returns CPU seconds."""

_NUM_STRETCHES = 8
_QUICK_NOTICE = "These trainings are tiny, to test that they run here; ignore their figures."


@dataclass(frozen=True, kw_only=True)
class SwitchSettings:
    """Whole trainings of the planned network on CT-like volumes with six organs, a fresh process each."""

    cases: PhantomSet = SIX_ORGANS
    # The interval of the accuracy is over these.
    num_held_out: int = 12
    # At 160 the six organs are half learned, and seeds differ by 0.27 in Dice (docs/log).
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
            "planner.use_tuned": False,
            "train.validate_every_steps": max(1, self.steps // self.num_validations),
            "train.validation_cases": self.num_cases_on_the_way,
            # The kidneys of these bodies are mirror images, which flipped patches could not tell apart.
            "data.augment.flip_probability": [0.0, 0.0, 0.0],
            # Each training prepares its cases itself, in a second or two; on a disk, one would do so for all.
            "data.cache.tier": "memory",
            **self.plan,
        }


_QUICK = SwitchSettings(
    cases=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
    num_held_out=3,
    # With fewer, the trainings would have no scores to compare.
    steps=12,
    rounds=2,
    plan=TINY_KEYS,
)
"""In a minute: to see that it runs here."""


def run_switch(
    name: str,
    *,
    quick: bool,
    work: Path | None = None,
    machine: Machine | None = None,
    train: TrainOnce | None = None,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> Record:
    """Trains with the setting `name` off and on, alternating; `work` and `quick` are as in `run_scenario`.

    `machine` is the one that a plan would see and `train` a fresh process, if not given. `on_run` is called with the
    label of the side and each run when it is done.

    Raises:
        InputError: the setting means nothing on this machine.
        OutputError: the work folder cannot be written.
        VoxelocityError: a training failed.
    """
    assert name in SWITCHES, name
    machine = machine or survey("auto", cache_folder=default_cache_folder())
    switch = make_switch(name, machine)
    settings = _QUICK if quick else SwitchSettings(**switch.scenario)
    speeds, off, on = train_both(switch, settings, work_folder(work), train=train or train_afresh, on_run=on_run)
    target = highest_common_target([run.best_validation for run in (*off, *on)])
    comparisons = (*speeds, *_measured(switch, off, on, target))
    losses = [_mean_losses(runs) for runs in (off, on)]
    command = f"voxelocity bench {name}" + (" --quick" if quick else "")
    # Medians over the rounds, curves and settings of the first round.
    labeled = [
        median_run([label_run(run, label, target_dice=target) for run in runs])
        for runs, label in zip((off, on), switch.labels, strict=True)
    ]
    page = comparison_document(
        labeled,
        switch.title[:1].upper() + switch.title[1:],
        target_dice=target,
        target_reason="the highest that all runs reached during training, rounded down",
        parity=paired_trainings(*([scores_to_compare(run) for run in runs] for runs in (off, on))),
        notices=(*unlearned_notices(labeled), *((_QUICK_NOTICE,) if quick else ())),
        sections=[
            Section(title="Published", blocks=[Text(text=switch.published)] if switch.published else []),
            *(comparison_section(comparison, ratio=f"{switch.labels[1]} better by") for comparison in comparisons),
            Section(title="Mean loss", blocks=[_loss_table(switch, settings.steps, *losses)]),
        ],
        summary=_summary(switch, settings, machine),
    )
    page = with_command(page, command)
    return Record(
        name=name,
        command=command,
        settings=asdict(settings) | {"off": switch.off, "on": switch.on, "on_environ": dict(switch.on_environ)},
        comparisons=comparisons,
        details={"losses": dict(zip(("off", "on"), losses, strict=True)), "comparison": page.to_plain()},
        page=page,
    )


def _summary(switch: Switch, settings: SwitchSettings, machine: Machine) -> str:
    network = "a small" if "network.widths" in settings.plan else "the planned"
    where = machine.device_name if machine.device == "cuda" else str(environment()["cpu"])
    return (
        f"The same {settings.steps} steps of {network} network on {settings.cases.words}, {settings.num_held_out} of "
        f"them held out, on {where}; {settings.rounds} rounds, each with one seed for both sides and a fresh process "
        f"for each. Figures are medians over the rounds, curves those of the first round. {switch.about}"
    ).rstrip()


def train_both(
    switch: Switch,
    settings: SwitchSettings,
    work: Path,
    *,
    train: TrainOnce,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> tuple[tuple[Comparison, Comparison], tuple[RunFacts, ...], tuple[RunFacts, ...]]:
    """Speed and CPU time, the setting first, and the runs without and with it, alternating; a round has one seed.

    `work` keeps the phantoms; runs are made below it and removed.

    Raises:
        VoxelocityError: a training failed.
    """
    off_label, on_label = switch.labels
    runs: dict[str, list[RunFacts]] = {off_label: [], on_label: []}
    cpu_s: dict[str, list[float]] = {off_label: [], on_label: []}
    with tempfile.TemporaryDirectory(prefix="switched-", dir=work) as name:
        place = Path(name)
        dataset = phantom_table(settings.cases, work, place / "phantoms.csv", num_held_out=settings.num_held_out)

        def once(label: str, keys: Mapping[str, Any], environ: Mapping[str, str]) -> float:
            number = len(runs[label])
            out = place / f"{'off' if label == off_label else 'on'}-{number}"
            spent_s = train(dataset, out, {**settings.keys(), **keys, "seed": settings.seed + number}, environ)
            run = read_run(out)
            shutil.rmtree(out)
            runs[label].append(run)
            cpu_s[label].append(spent_s)
            on_run(label, run)
            return steady_images_per_s(run)

        speed = compare(
            f"{switch.title}: training on {settings.cases.words}",
            "images/s",
            [
                BenchSide(name=on_label, once=partial(once, on_label, switch.on, switch.on_environ)),
                BenchSide(name=off_label, once=partial(once, off_label, switch.off, {})),
            ],
            repeats=settings.rounds,
            warmup=0,
            note="steady state: without the first steps of a run, in which code is compiled and chosen",
        )
    cpu = Comparison(
        title="CPU time of the whole training",
        unit="CPU-s",
        better="smaller",
        figures=tuple(Figure(name=label, note="", values=tuple(cpu_s[label])) for label in (on_label, off_label)),
        note="of all its processes; other programs affect it less than wall time",
    )
    return (speed, cpu), tuple(runs[off_label]), tuple(runs[on_label])


def train_afresh(dataset: Path, out: Path, keys: Mapping[str, Any], environ: Mapping[str, str]) -> float:
    """Trains in a process of its own, as a user does; returns the CPU seconds of it and what it started.

    Raises:
        VoxelocityError: the training failed.
    """
    config = out.with_suffix(".yaml")
    # JSON is YAML.
    config.write_text(json.dumps(dict(keys)))
    before = os.times()
    run_python("-m", "voxelocity", "train", dataset, "-o", out, "--fold", 0, "--config", config, environ=environ)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


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


def _peak_mib(run: RunFacts, name: str) -> float | None:
    num_bytes = getattr(run.finish, name, None)
    return None if num_bytes is None else num_bytes / 2**20


Measure = tuple[str, str, Better, Callable[[RunFacts], float | None]]
"""What is measured, its unit, which is better, and its value of a run; None where the run does not know it."""
_MEASURES: tuple[Measure, ...] = (
    ("More time for the first steps", "s", "smaller", warm_up_s),
    ("An epoch", "s", "smaller", lambda run: throughput(run).seconds_per_epoch),
    ("Whole training", "s", "smaller", lambda run: run.seconds),
    ("Peak main memory", "MiB", "smaller", lambda run: _peak_mib(run, "peak_host_bytes")),
    ("Peak device memory", "MiB", "smaller", lambda run: _peak_mib(run, "peak_device_bytes")),
    ("Final Dice", "mean Dice", "larger", mean_dice),
)


def _to_target(target_dice: float) -> tuple[Measure, ...]:
    """Epochs, steps and seconds until a validation reached the target, to the nearest validation."""

    def first(run: RunFacts, name: str) -> float | None:
        return seconds_to_reach([(getattr(record, name), record.mean_dice) for record in run.validations], target_dice)

    return (
        (f"Epochs to Dice {target_dice:g}", "epochs", "smaller", lambda run: _epochs_of(run, first(run, "step"))),
        (f"Steps to Dice {target_dice:g}", "steps", "smaller", lambda run: first(run, "step")),
        (f"Time to Dice {target_dice:g}", "s", "smaller", lambda run: first(run, "time_s")),
    )


def _epochs_of(run: RunFacts, step: float | None) -> float | None:
    """Passes over the training cases in this many steps."""
    if step is None:
        return None
    images_per_step = sum(record.num_images for record in run.steps) / sum(record.num_steps for record in run.steps)
    draws_per_case: int = dotted(run.plan).get("data.patch.draws_per_case", 1)
    return step * images_per_step / (run.dataset.num_training * draws_per_case)


def _measured(
    switch: Switch, off: Sequence[RunFacts], on: Sequence[RunFacts], target_dice: float | None
) -> list[Comparison]:
    """What else all runs know, the setting first."""
    found = []
    for title, unit, better, measure in (*_MEASURES, *(_to_target(target_dice) if target_dice else ())):
        figures = [
            Figure(name=label, note="", values=tuple(value for run in runs if (value := measure(run)) is not None))
            for label, runs in zip(switch.labels[::-1], (on, off), strict=True)
        ]
        if all(len(figure.values) == len(off) for figure in figures):
            found.append(Comparison(title=title, unit=unit, better=better, figures=tuple(figures)))
    return found


def _loss_edges(num_steps: int) -> list[int]:
    """Steps at which the stretches of `losses_by_stretch` begin and end."""
    num_stretches = min(_NUM_STRETCHES, num_steps)
    return [round(num_steps * index / num_stretches) for index in range(num_stretches + 1)]


def losses_by_stretch(run: RunFacts) -> tuple[float, ...]:
    """Mean loss of each of eight equal stretches of steps; the log's own stretches are of equal time.

    A stretch of the log that reaches over an edge counts on both sides, each by its steps there.
    """
    means = []
    for begin, end in itertools.pairwise(_loss_edges(run.step)):
        weights = [max(0, min(record.step, end) - max(record.step - record.num_steps, begin)) for record in run.steps]
        weighted = (record.loss * weight for record, weight in zip(run.steps, weights, strict=True) if weight)
        means.append(sum(weighted) / sum(weights))
    return tuple(means)


def _mean_losses(runs: Sequence[RunFacts]) -> list[float]:
    """Of each stretch, the mean over the runs."""
    return [statistics.fmean(values) for values in zip(*map(losses_by_stretch, runs), strict=True)]


def _loss_table(switch: Switch, num_steps: int, off: list[float], on: list[float]) -> Table:
    rows = [
        [f"{begin + 1} to {end}", f"{a:.4f}", f"{b:.4f}", signed_text(b - a, digits=4)]
        for (begin, end), a, b in zip(itertools.pairwise(_loss_edges(num_steps)), off, on, strict=True)
    ]
    heads = ["Steps", *switch.labels, "Difference"]
    return Table(caption="Mean loss", heads=heads, rows=rows, hides_caption=True)
