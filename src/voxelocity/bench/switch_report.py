"""What turning one setting off and on came to: tables, a comparison page and plain data. Measures nothing."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from voxelocity.bench.paired import Comparison, Figure
from voxelocity.bench.switched import (
    Switched,
    Trainings,
    figures_of,
    loss_edges,
    losses_by_stretch,
    warm_up_s,
)
from voxelocity.core.quantities import dice_text, rate_text, signed_text
from voxelocity.core.whole_file import write_whole
from voxelocity.report import (
    PairedRuns,
    Parity,
    RunFacts,
    bytes_text,
    comparison_document,
    duration_text,
    highest_common_target,
    label_run,
    median_run,
    paired_trainings,
    write_page,
)
from voxelocity.report.document import Block, Document, Section, Table, Text
from voxelocity.report.summary import mean_dice

_MEASURES: tuple[tuple[str, str, Callable[[RunFacts], float | None]], ...] = (
    ("More time for the first steps", "s", warm_up_s),
    ("Whole training", "s", lambda run: run.seconds),
    ("Peak main memory", "bytes", lambda run: run.finish.peak_host_bytes if run.finish else None),
    ("Peak device memory", "bytes", lambda run: run.finish.peak_device_bytes if run.finish else None),
)
_ABOUT_ROUNDS = (
    "The median of the rounds, with the least and the most. The last column is the median of the ratios within each "
    "round; above 1 the setting is better. Losses are means over the rounds."
)
_QUICK_NOTICE = "These trainings are tiny, to see that they run here; their figures mean nothing."
_TEXTS: dict[str, Callable[[float | None], str]] = {"images/s": rate_text, "s": duration_text, "bytes": bytes_text}


@dataclass(frozen=True, kw_only=True)
class SwitchReport:
    """One setting, off and on, ready to be shown.

    Attributes:
        switched: the runs.
        trainings: what was trained.
        device: where, in words.
        command: that repeats it.
        date: on which it was run, YYYY-MM-DD.
        environment: versions and machine.
        is_quick: only to see that it runs; the figures mean nothing.
    """

    switched: Switched
    trainings: Trainings
    device: str
    command: str
    date: str
    environment: Mapping[str, Any]
    is_quick: bool = False

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Speed, and what else all runs know."""
        found = [self.switched.speed, *(figures_of(self.switched, *measure) for measure in _MEASURES)]
        return tuple(comparison for comparison in found if comparison is not None)

    @cached_property
    def pair(self) -> PairedRuns:
        """Both sides, each as one run: medians over the rounds, and the curves and settings of the first round."""
        off, on = self.switched.off, self.switched.on
        target = highest_common_target([run.best_validation for run in (*off, *on)])
        switch = self.switched.switch
        runs = tuple(
            median_run([label_run(run, label, target_dice=target) for run in runs])
            for runs, label in ((off, switch.off_label), (on, switch.on_label))
        )
        return PairedRuns(
            runs=(runs[0], runs[1]),
            target_dice=target,
            target_reason="the highest that all runs reached on the way, rounded down",
            parity=self._parity(),
            notices=(_QUICK_NOTICE,) if self.is_quick else (),
        )

    @property
    def title(self) -> str:
        title = self.switched.switch.title
        return title[:1].upper() + title[1:]

    @property
    def summary(self) -> str:
        """What was trained where, in sentences."""
        cases, held_out = self.trainings.cases, self.trainings.num_held_out
        return (
            f"The same {self.trainings.steps} steps of the planned network on {cases.words}, {held_out} of them held "
            f"out, on {self.device}; {len(self.switched.on)} rounds, each with one seed for both sides and a fresh "
            "process for each. Figures are medians over the rounds, curves those of the first round."
        )

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Writes `bench_<name>.html` and `bench_<name>.json` into the folder and returns their paths.

        Raises:
            OutputError: one cannot be written.
        """
        name = self.switched.switch.name.replace("-", "_")
        page = write_page(self.document, folder / f"bench_{name}.html")
        content = json.dumps(self.to_plain(), indent=1, allow_nan=False) + "\n"
        # A record is shown to others: the plan in it names the cache folder, and that the user's home.
        home = json.dumps(str(Path.home()))[1:-1]
        return page, write_whole(folder / f"bench_{name}.json", content.replace(f'"{home}', '"~').encode())

    @cached_property
    def document(self) -> Document:
        """Both sides with all rounds, and what has been published elsewhere."""
        published = self.switched.switch.published
        rounds = list[Block]([Text(text=published)] if published else [])
        rounds += [self._figures(), self._losses(), Text(text=_ABOUT_ROUNDS, is_hint=True)]
        return comparison_document(
            self.pair.runs,
            self.title,
            target_dice=self.pair.target_dice,
            target_reason=self.pair.target_reason,
            parity=self.pair.parity,
            notices=self.pair.notices,
            sections=[Section(title="Round by round", blocks=rounds)],
            summary=self.summary,
            command=self.command,
        )

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        switch = self.switched.switch
        return {
            "benchmark": switch.name,
            "command": self.command,
            "date": self.date,
            "environment": dict(self.environment),
            "settings": asdict(self.trainings)
            | {"off": dict(switch.off), "on": dict(switch.on)}
            | {"on_environ": dict(switch.on_environ)},
            "comparisons": [comparison.to_plain() for comparison in self.comparisons],
            "losses": {"off": _losses(self.switched.off), "on": _losses(self.switched.on)},
            "final_dice": {"off": _final_dice(self.switched.off), "on": _final_dice(self.switched.on)},
            "comparison": self.document.to_plain(),
        }

    def _parity(self) -> Parity | None:
        off, on = ([run.scores for run in runs] for runs in (self.switched.off, self.switched.on))
        return paired_trainings(off, on)

    def _figures(self) -> Table:
        rows = []
        for comparison in self.comparisons:
            on, off = comparison.figures
            name = "Images per second" if comparison.unit == "images/s" else comparison.title
            text = _TEXTS[comparison.unit]
            rows.append([name, *_spread(off.values, text), *_spread(on.values, text), *_ratio(comparison, off)])
        off_dice, on_dice = _final_dice(self.switched.off), _final_dice(self.switched.on)
        changes = [on - off for off, on in zip(off_dice, on_dice, strict=True)]
        dice = (*_spread(off_dice, dice_text), *_spread(on_dice, dice_text), *_spread(changes, signed_text))
        switch = self.switched.switch
        return Table(
            caption=f"{len(changes)} rounds",
            heads=["Measure", *_with_spread(switch.off_label, switch.on_label, "Better by")],
            rows=[*rows, ["Final Dice", *dice]],
            marked_columns=frozenset({5}),
        )

    def _losses(self) -> Table:
        off, on = _losses(self.switched.off), _losses(self.switched.on)
        rows = [
            [f"{begin + 1} to {end}", f"{a:.4f}", f"{b:.4f}", signed_text(b - a, digits=4)]
            for (begin, end), a, b in zip(itertools.pairwise(loss_edges(self.trainings.steps)), off, on, strict=True)
        ]
        switch = self.switched.switch
        heads = ["Steps", switch.off_label, switch.on_label, "Difference"]
        return Table(caption="Mean loss", heads=heads, rows=rows)


def _losses(runs: Sequence[RunFacts]) -> list[float]:
    """The mean over the runs of each stretch's loss."""
    return [statistics.fmean(values) for values in zip(*(losses_by_stretch(run) for run in runs), strict=True)]


def _final_dice(runs: Sequence[RunFacts]) -> list[float]:
    return [dice for run in runs if (dice := mean_dice(run)) is not None]


def _with_spread(*heads: str) -> list[str]:
    return [text for head in heads for text in (head, "Least to most")]


def _spread(values: Sequence[float], text: Callable[[float | None], str]) -> tuple[str, str]:
    """The median, and the least and the most where there is more than one value."""
    both = f"{text(min(values))} to {text(max(values))}" if len(values) > 1 else ""
    return text(statistics.median(values)), both


def _ratio(comparison: Comparison, off: Figure) -> tuple[str, str]:
    ratios = [ratio for ratio in comparison.ratios(off) if ratio not in (0.0, float("inf"))]
    # There is no factor where one side takes no time.
    return _spread(ratios, _two_digits) if len(ratios) == len(off.values) else ("", "")


def _two_digits(ratio: float | None) -> str:
    return f"{ratio:.2f}×"
