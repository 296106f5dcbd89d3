"""`voxelocity bench amp|compile|muon|...`: the same training with a setting off and on, round by round, as a record."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from voxelocity.bench.comparison import Comparison, Figure, Record, Side, compare
from voxelocity.bench.phantom import PhantomSet, phantom_table, work_folder
from voxelocity.bench.processes import run_python
from voxelocity.bench.switches import SWITCHES, Device, Switch, make_switch, this_device
from voxelocity.core.quantities import dice_text, rate_text, signed_text
from voxelocity.report import (
    RunFacts,
    bytes_text,
    comparison_document,
    duration_text,
    highest_common_target,
    label_run,
    median_run,
    paired_trainings,
    read_run,
)
from voxelocity.report.document import Block, Document, Section, Table, Text
from voxelocity.report.summary import mean_dice

TrainOnce = Callable[[Path, Path, Mapping[str, Any], Mapping[str, str]], None]
"""Trains on a data set into a folder with these keys of the plan and these variables of its process."""

_BODIES = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=36, spacing_mm=(4.0, 4.0, 5.0))
_NUM_STRETCHES = 8
_MEASURES: tuple[tuple[str, str, Callable[[RunFacts], float | None]], ...] = (
    ("More time for the first steps", "s", lambda run: warm_up_s(run)),
    ("Whole training", "s", lambda run: run.seconds),
    ("Peak main memory", "bytes", lambda run: run.finish.peak_host_bytes if run.finish else None),
    ("Peak device memory", "bytes", lambda run: run.finish.peak_device_bytes if run.finish else None),
)
_TEXTS: dict[str, Callable[[float | None], str]] = {"images/s": rate_text, "s": duration_text, "bytes": bytes_text}
_ABOUT_ROUNDS = (
    "The median of the rounds, with the least and the most. The last column is the median of the ratios within each "
    "round; above 1 the setting is better. Losses are means over the rounds."
)
_QUICK_NOTICE = "These trainings are tiny, to see that they run here; their figures mean nothing."


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
            # Each training prepares its cases itself, in a second or two; on a disk, one would do so for all.
            "data.cache.tier": "memory",
            **self.plan,
        }


_QUICK = Trainings(
    cases=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
    num_held_out=3,
    steps=6,
    rounds=2,
    plan={
        "network.name": "unet",
        "network.widths": [4, 8],
        "network.strides": [[2, 2, 2]],
        "data.patch.shape_voxel": [16, 16, 16],
        "window.shape_voxel": [16, 16, 16],
    },
)
"""In a minute: to see that it runs here."""


@dataclass(frozen=True, kw_only=True)
class Switched:
    """Both sides of all rounds.

    Attributes:
        off: runs without the setting, one a round; `on` with it. Runs of one round have one seed.
        speed: images a second once a run is under way, the side with the setting first.
    """

    switch: Switch
    off: tuple[RunFacts, ...]
    on: tuple[RunFacts, ...]
    speed: Comparison

    def comparisons(self) -> tuple[Comparison, ...]:
        """Speed, and what else all runs know."""
        found = [self.speed, *(figures_of(self, *measure) for measure in _MEASURES)]
        return tuple(comparison for comparison in found if comparison is not None)

    def losses(self) -> tuple[list[float], list[float]]:
        """Off and on, the mean over the runs of each stretch's loss."""
        off, on = (
            [statistics.fmean(values) for values in zip(*map(losses_by_stretch, runs), strict=True)]
            for runs in (self.off, self.on)
        )
        return off, on

    def final_dice(self) -> tuple[list[float], list[float]]:
        """Off and on, the mean Dice of each run."""
        off, on = ([dice for run in runs if (dice := mean_dice(run)) is not None] for runs in (self.off, self.on))
        return off, on


def run_switch(
    name: str,
    *,
    quick: bool,
    work: Path | None = None,
    device: Device | None = None,
    train: TrainOnce | None = None,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> Record:
    """Trains with the setting `name` off and on, alternating; `work` and `quick` are as in `run_scenario`.

    `device` is what `this_device` says and `train` a fresh process, if not given. `on_run` is called with the label of
    the side and each run when it is done.

    Raises:
        InputError: the setting means nothing on this device.
        OutputError: the work folder cannot be written.
        VoxelocityError: a training failed.
    """
    assert name in SWITCHES, name
    device = device or this_device()
    trainings = _QUICK if quick else Trainings()
    switched = run_switched(
        make_switch(name, device), trainings, work_folder(work), train=train or train_afresh, on_run=on_run
    )
    command = f"voxelocity bench {name}" + (" --quick" if quick else "")
    return record_of(switched, trainings, device.words, command, is_quick=quick)


def run_switched(
    switch: Switch,
    trainings: Trainings,
    work: Path,
    *,
    train: TrainOnce,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> Switched:
    """Trains with the setting off and on, alternating; each round has its own seed and begins with another side.

    `work` keeps the phantoms; runs are made below it and removed.

    Raises:
        VoxelocityError: a training failed.
    """
    off_label, on_label = switch.labels
    runs: dict[str, list[RunFacts]] = {off_label: [], on_label: []}
    with tempfile.TemporaryDirectory(prefix="switched-", dir=work) as name:
        place = Path(name)
        dataset = phantom_table(trainings.cases, work, place / "phantoms.csv", num_held_out=trainings.num_held_out)

        def once(label: str, keys: Mapping[str, Any], environ: Mapping[str, str]) -> float:
            number = len(runs[label])
            out = place / f"{'off' if label == off_label else 'on'}-{number}"
            train(dataset, out, {**trainings.keys(), **keys, "seed": trainings.seed + number}, environ)
            run = read_run(out)
            shutil.rmtree(out)
            runs[label].append(run)
            on_run(label, run)
            return steady_images_per_s(run)

        speed = compare(
            f"{switch.title}: training on {trainings.cases.words}",
            "images/s",
            [
                Side(name=on_label, once=partial(once, on_label, switch.on, switch.on_environ)),
                Side(name=off_label, once=partial(once, off_label, switch.off, {})),
            ],
            repeats=trainings.rounds,
            warmup=0,
            note="once under way: without the first stretch of a run, in which code is compiled and chosen",
        )
    return Switched(switch=switch, off=tuple(runs[off_label]), on=tuple(runs[on_label]), speed=speed)


def train_afresh(dataset: Path, out: Path, keys: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Trains in a process of its own, as a user does.

    Raises:
        VoxelocityError: the training failed.
    """
    config = out.with_suffix(".yaml")
    # JSON is YAML.
    config.write_text(json.dumps(dict(keys)))
    run_python("-m", "voxelocity", "train", dataset, "-o", out, "--fold", 0, "--config", config, environ=environ)


def record_of(switched: Switched, trainings: Trainings, device: str, command: str, *, is_quick: bool = False) -> Record:
    """One setting, off and on, ready to be shown: a page that compares both sides, each as one run."""
    switch = switched.switch
    page = _page(switched, trainings, device, command, is_quick=is_quick)
    return Record(
        name=switch.name,
        command=command,
        settings=asdict(trainings) | {"off": switch.off, "on": switch.on, "on_environ": dict(switch.on_environ)},
        comparisons=switched.comparisons(),
        details={
            "losses": dict(zip(("off", "on"), switched.losses(), strict=True)),
            "final_dice": dict(zip(("off", "on"), switched.final_dice(), strict=True)),
            "comparison": page.to_plain(),
        },
        page=page,
    )


def _page(switched: Switched, trainings: Trainings, device: str, command: str, *, is_quick: bool) -> Document:
    """Both sides with all rounds, and what has been published elsewhere."""
    switch, both = switched.switch, (switched.off, switched.on)
    target = highest_common_target([run.best_validation for runs in both for run in runs])
    rounds = list[Block]([Text(text=switch.published)] if switch.published else [])
    rounds += [_figures(switched), _losses(switched, trainings.steps), Text(text=_ABOUT_ROUNDS, is_hint=True)]
    return comparison_document(
        # Medians over the rounds, and the curves and settings of the first round.
        [
            median_run([label_run(run, label, target_dice=target) for run in runs])
            for runs, label in zip(both, switch.labels, strict=True)
        ],
        switch.title[:1].upper() + switch.title[1:],
        target_dice=target,
        target_reason="the highest that all runs reached on the way, rounded down",
        parity=paired_trainings(*([run.scores for run in runs] for runs in both)),
        notices=(_QUICK_NOTICE,) if is_quick else (),
        sections=[Section(title="Round by round", blocks=rounds)],
        summary=(
            f"The same {trainings.steps} steps of the planned network on {trainings.cases.words}, "
            f"{trainings.num_held_out} of them held out, on {device}; {len(switched.on)} rounds, each with one seed "
            "for both sides and a fresh process for each. Figures are medians over the rounds, curves those of the "
            "first round."
        ),
        command=command,
    )


def _figures(switched: Switched) -> Table:
    rows = []
    for comparison in switched.comparisons():
        on, off = comparison.figures
        name, text = comparison.title, _TEXTS[comparison.unit]
        ratios = [ratio for ratio in comparison.ratios(off) if ratio not in (0.0, float("inf"))]
        # There is no factor where one side takes no time.
        factor = _spread(ratios, lambda ratio: f"{ratio:.2f}×") if len(ratios) == len(off.values) else ("", "")
        name = "Images per second" if comparison.unit == "images/s" else name
        rows.append([name, *_spread(off.values, text), *_spread(on.values, text), *factor])
    off_dice, on_dice = switched.final_dice()
    changes = [on - off for off, on in zip(off_dice, on_dice, strict=True)]
    dice = (*_spread(off_dice, dice_text), *_spread(on_dice, dice_text), *_spread(changes, signed_text))
    return Table(
        caption=f"{len(changes)} rounds",
        heads=[
            "Measure",
            *(text for head in (*switched.switch.labels, "Better by") for text in (head, "Least to most")),
        ],
        rows=[*rows, ["Final Dice", *dice]],
        marked_columns=frozenset({5}),
    )


def _losses(switched: Switched, num_steps: int) -> Table:
    off, on = switched.losses()
    rows = [
        [f"{begin + 1} to {end}", f"{a:.4f}", f"{b:.4f}", signed_text(b - a, digits=4)]
        for (begin, end), a, b in zip(itertools.pairwise(_loss_edges(num_steps)), off, on, strict=True)
    ]
    return Table(caption="Mean loss", heads=["Steps", *switched.switch.labels, "Difference"], rows=rows)


def _spread(values: Sequence[float], text: Callable[[float], str]) -> tuple[str, str]:
    """The median, and the least and the most where there is more than one value."""
    both = f"{text(min(values))} to {text(max(values))}" if len(values) > 1 else ""
    return text(statistics.median(values)), both


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
    for label, runs in zip(switched.switch.labels[::-1], (switched.on, switched.off), strict=True):
        values = [value for run in runs if (value := figure(run)) is not None]
        if len(values) < len(runs):
            return None
        sides.append(Figure(name=label, note="", values=tuple(values)))
    return Comparison(title=name, unit=unit, better="smaller", figures=tuple(sides))


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
        weights = [max(0, min(each.step, end) - max(each.step - each.num_steps, begin)) for each in run.steps]
        weighted = (each.loss * weight for each, weight in zip(run.steps, weights, strict=True) if weight)
        means.append(sum(weighted) / sum(weights))
    return tuple(means)
