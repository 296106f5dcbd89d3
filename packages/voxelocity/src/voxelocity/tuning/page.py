"""The page of a tuning: a run before and after it, and its trials."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.report import RunFacts, factor_table, label_run
from voxelocity.tuning.costs import RATE, VALIDATION, WAIT, peak_bytes
from voxelocity.tuning.knobs import ROUNDINGS
from voxelocity.tuning.result import MeasuredTuning, changes_text, outcome_text, write_result
from voxelocity.tuning.store import TrialRecord
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import (
    bytes_text,
    count_text,
    duration_text,
    factor_text,
    joined,
    rate_text,
    share_text,
    value_text,
)
from voxelocity_observe.document import Document
from voxelocity_observe.document.blocks import (
    Block,
    Card,
    Chart,
    Code,
    LegendEntry,
    Pair,
    Section,
    Table,
    Text,
    fact_table,
)
from voxelocity_observe.document.charts import Points, Series, time_chart, xy_chart

BEFORE, AFTER = "before", "after"

_ENDED = {
    "trials": "all trials were run",
    "time": "the time was used up",
    "exhausted": "no settings were left to try",
}
_PHASES = {
    "default": "own settings",
    "size": "largest size",
    "search": "search",
    "confirm": "measured again",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredSettings:
    """What was measured of the plan's own settings, or of the tuned ones, in all their confirmations.

    Attributes:
        rates: images a second, by window. `validations_s` and `waits` likewise, by repeat and by window; no `waits` of
            trials that train without a feed.
        peak_bytes: the most memory of all.
    """

    rates: tuple[float, ...]
    validations_s: tuple[float, ...]
    waits: tuple[float, ...]
    peak_bytes: int

    @classmethod
    def of(cls, trials: Sequence[TrialRecord], *, on_device: bool) -> MeasuredSettings | None:
        """None if no trial finished."""
        finished = [trial.outcome for trial in trials if trial.outcome.is_finished]

        def values(name: str) -> tuple[float, ...]:
            return tuple(value for outcome in finished for value in outcome.measurements.get(name, ()))

        if not finished:
            return None
        return cls(
            rates=values(RATE),
            validations_s=values(VALIDATION),
            waits=values(WAIT),
            peak_bytes=max(peak_bytes(outcome, on_device=on_device) for outcome in finished),
        )


def write_tuning_page(result: MeasuredTuning, *, use: Sequence[Block] | None = None) -> Path:
    """Writes the page and, for programs, its figures into the folder; returns the page.

    Args:
        result: what is shown.
        use: how to use what was found, in place of how a plan does.

    Raises:
        OutputError: one cannot be written.
    """
    return write_result(tuning_document(result, use=use), result.folder)


def tuning_document(result: MeasuredTuning, *, use: Sequence[Block] | None = None) -> Document:
    """The page as plain data; see `write_tuning_page`."""
    study = result.study
    before, after = before_and_after(result)
    limit = f", with at most {bytes_text(result.memory_limit_bytes)}" if result.memory_limit_bytes else ""
    searched = sum(trial.phase != "confirm" for trial in study.trials)
    return Document(
        kind="tuning",
        title=f"Tuned for {result.goal}: {result.subject}",
        verdict=verdict(result, before, after),
        summary=(
            f"Settings of a run on {result.where}{limit}: {count_text(searched, 'trial')} and "
            f"{count_text(len(study.trials) - searched, 'confirmation')} in {duration_text(study.seconds)}, each in a "
            f"process of its own; {_ENDED[study.ended]}."
        ),
        cards=_cards(result, before, after),
        sections=[
            Section(title="Before and after", blocks=_table(result, before, after)),
            Section(title="Trainings", blocks=_run_blocks(result.runs)),
            Section(title="Settings", blocks=_settings(result)),
            Section(title="Trials", blocks=_trials(result)),
            Section(title="To use it", blocks=_use(result) if use is None else use),
        ],
        footer=f"Measured on this machine. `{result.folder / 'study.db'}` opens in Optuna's dashboard.",
        values=_values(result, before, after),
    )


def before_and_after(result: MeasuredTuning) -> tuple[MeasuredSettings | None, MeasuredSettings | None]:
    """The plan's own settings and the tuned ones; None where they did not fit, or nothing did."""
    study = result.study
    default = study.default_trials or [trial for trial in study.trials if trial.phase == "default"]
    return (
        MeasuredSettings.of(default, on_device=result.on_device),
        MeasuredSettings.of(study.winner_trials, on_device=result.on_device),
    )


def verdict(result: MeasuredTuning, before: MeasuredSettings | None, after: MeasuredSettings | None) -> str:
    """What was gained and what it costs, in two sentences."""
    study, owner = result.study, result.owner
    if study.winner is None or after is None:
        outcomes = [trial.outcome for trial in study.trials]
        is_any_finished = any(outcome.is_finished for outcome in outcomes)
        broken = [
            trial.outcome
            for trial in study.trials
            if trial.outcome.kind in ("crashed", "hung") and (trial.phase == "confirm" or not is_any_finished)
        ]
        if broken:
            kind, reason = broken[0].kind, broken[0].reason
            return f"No settings finished each time they were tried. The first failure: {kind}, {reason}"
        peaks = [peak for outcome in outcomes if (peak := peak_bytes(outcome, on_device=result.on_device))]
        least = f"; the smallest try took {bytes_text(min(peaks))}" if peaks else ""
        return f"No settings fit into the memory with a margin{least}. Raise --memory-limit, or {result.smaller}."
    if before is None:
        return (
            f"{owner.capitalize()}'s own settings did not fit; with the tuned ones a run trains on "
            f"{_middle(after.rates)} images a second and takes {bytes_text(after.peak_bytes)}."
        )
    if not result.values:
        return f"No settings were clearly better than {owner}'s own settings, so they stay."
    if after == before:
        # The own settings are outside of a range.
        return (
            f"Nothing in the ranges was clearly better than what is nearest to {owner}'s own settings there, which was "
            "written."
        )
    ratio = statistics.median(result.time_ratios)
    gained = (
        f"A run takes {ratio:.2f} times as long as before: {_middle(after.rates)} images a second instead of "
        f"{_middle(before.rates)}, and {duration_text(statistics.median(after.validations_s))} instead of "
        f"{duration_text(statistics.median(before.validations_s))} to validate the largest case."
    )
    return f"{gained} {_costs(result, before, after)}"


def _costs(result: MeasuredTuning, before: MeasuredSettings, after: MeasuredSettings) -> str:
    changes = after.peak_bytes - before.peak_bytes
    more = "more" if changes >= 0 else "less"
    costs = [f"it takes {bytes_text(abs(changes))} {more} memory ({bytes_text(after.peak_bytes)})"]
    if rounded := [key for key in result.values if key in ROUNDINGS]:
        costs.append(f"{' and '.join(rounded)} change results by roundings")
    costs.append(f"the search took {duration_text(result.study.seconds)}, once")
    text = joined(costs, "; ")
    return f"{text[0].upper()}{text[1:]}."


def _middle(values: Sequence[float]) -> str:
    return rate_text(statistics.median(values))


def _cards(result: MeasuredTuning, before: MeasuredSettings | None, after: MeasuredSettings | None) -> list[Card]:
    failed = sum(not trial.outcome.is_finished for trial in result.study.trials)
    note = f"{failed} of them failed, which also counts as a result" if failed else "none of them failed"
    trials = Card(name="Trials", value=str(len(result.study.trials)), note=note)
    if before is None or after is None:
        return [trials]
    rate = statistics.median(after.rates) / statistics.median(before.rates)
    validation = statistics.median(before.validations_s) / statistics.median(after.validations_s)
    return [
        Card(
            name="Images a second",
            value=factor_text(rate),
            note=f"{_middle(before.rates)} before, {_middle(after.rates)} after",
            is_worse=rate < 1.0,
        ),
        Card(
            name="Validation of the largest case",
            value=factor_text(validation),
            note=f"{duration_text(statistics.median(before.validations_s))} before, "
            f"{duration_text(statistics.median(after.validations_s))} after",
            is_worse=validation < 1.0,
        ),
        Card(name="Peak memory", value=bytes_text(after.peak_bytes), note=f"{bytes_text(before.peak_bytes)} before"),
        trials,
    ]


def _table(result: MeasuredTuning, before: MeasuredSettings | None, after: MeasuredSettings | None) -> list[Block]:
    known = [side for side in (before, after) if side is not None]
    if not known:
        return []
    heads = [name for name, side in ((BEFORE, before), (AFTER, after)) if side is not None]
    where = "device" if result.on_device else "host"
    share = "share of the training in which the network computes"
    rows = [
        ["images a second", *(_spread(side.rates) for side in known)],
        ["seconds to validate the largest case", *(_spread(side.validations_s) for side in known)],
        *([[share, *(_busy(side.waits) for side in known)]] if all(side.waits for side in known) else []),
        [f"peak memory of the {where}", *(bytes_text(side.peak_bytes) for side in known)],
    ]
    table = Table(
        caption="Median (least to most) of all windows and repeats, in fresh processes that alternated",
        heads=["", *heads],
        rows=rows,
    )
    return [table]


def _spread(values: Sequence[float]) -> str:
    return f"{_middle(values)} ({rate_text(min(values))} to {rate_text(max(values))}, n = {len(values)})"


def _busy(waits: Sequence[float]) -> str:
    return share_text(1.0 - statistics.median(waits))


def run_curves(runs: Sequence[RunFacts]) -> list[Block]:
    """Loss and validation Dice of a run before and, if there is one, of a run after; nothing if there are none."""
    sides = list(zip((BEFORE, AFTER), ("baseline", "accent"), runs, strict=False))
    legend = [LegendEntry(name=name, color=f"var(--{color})") for name, color, _ in sides]
    curves: dict[str, list[Points]] = {
        "Training loss": [[(stretch.time_s, stretch.loss) for stretch in run.steps] for run in runs],
        "Validation Dice": [[(score.time_s, score.mean_dice) for score in run.validations] for run in runs],
    }
    charts: list[Block] = []
    for title, lines in curves.items():
        if not any(lines):
            continue
        word = title.split()[-1].lower()
        series = [
            Series(points=points, color=color, has_markers=word == "dice")
            for points, (_, color, _) in zip(lines, sides, strict=True)
        ]
        last = joined(f"{side[0]} {points[-1][1]:.3f}" for side, points in zip(sides, lines, strict=True) if points)
        charts.append(
            Chart(
                title=title,
                svg=time_chart(f"run-{word}", series, y_label=word),
                alt=f"Line chart: {title.lower()} over time, last value {last}.",
                legend=legend,
            )
        )
    return [Pair(blocks=charts)] if charts else []


def _run_blocks(runs: Sequence[RunFacts]) -> list[Block]:
    labeled = [label_run(run, name) for name, run in zip((BEFORE, AFTER), runs, strict=False)]
    factors = [factor_table(labeled).without_caption()] if len(labeled) > 1 else []
    return [*factors, *run_curves(runs)]


def _settings(result: MeasuredTuning) -> list[Block]:
    winner = result.study.winner or {}
    rows = [
        [
            knob.name,
            value_text(knob.default, knob.name),
            value_text(winner.get(knob.name, knob.default), knob.name),
            ", ".join(value_text(choice, knob.name) for choice in knob.choices),
        ]
        for knob in result.knobs
    ]
    table = Table(
        caption="Searched settings", heads=["Key", BEFORE, AFTER, "Tried from"], rows=rows,
        text_columns=frozenset({1, 2, 3}), marked_columns=frozenset({2}),
    )  # fmt: skip
    return [
        table,
        Text(text=result.note, is_hint=True),
    ]


def _trials(result: MeasuredTuning) -> list[Block]:
    study = result.study
    kinds = {"search": ("accent", "tried"), "confirm": ("class-1", "measured again")}

    def points(phase: str) -> list[tuple[float, float]]:
        return [
            (float(trial.number), statistics.median(trial.outcome.measurements[RATE]))
            for trial in study.trials
            if trial.outcome.is_finished and (trial.phase == "confirm") == (phase == "confirm")
        ]

    failed = [float(trial.number) for trial in study.trials if not trial.outcome.is_finished]
    series = [Series(points=points(phase), color=color) for phase, (color, _) in kinds.items()]
    legend = [LegendEntry(name=name, color=f"var(--{color})") for color, name in kinds.values()]
    if failed:
        legend.append(LegendEntry(name="failed", color="var(--chart-target)", is_dotted=True))
    quickest = max((value for line in series for _, value in line.points), default=0.0)
    chart = Chart(
        title="Images a second of each trial",
        svg=xy_chart("trials", series, x_label="trial", y_label="images a second", crosses=failed),
        alt=f"Scatter chart: images a second by trial, at most {rate_text(quickest)}; {len(failed)} trials failed.",
        legend=legend,
    )
    rows = [
        [
            str(trial.number),
            _PHASES[trial.phase],
            _outcome(trial.outcome, result),
            changes_text(trial.settings, result.knobs) or "nothing",
        ]
        for trial in study.trials
    ]
    table = Table(
        caption="Trials", heads=["Trial", "For", "Outcome", "Changed"], rows=rows, text_columns=frozenset({1, 2, 3}),
        hides_caption=True,
    )  # fmt: skip
    return [chart, table]


def _outcome(outcome: TrialOutcome, result: MeasuredTuning) -> str:
    text = outcome_text(outcome, on_device=result.on_device)
    return text if outcome.is_finished else f"{text}: {outcome.reason.splitlines()[0] if outcome.reason else ''}"


def _use(result: MeasuredTuning) -> list[Block]:
    if not result.values:
        return []
    sets = " ".join(f"--set {key}={json.dumps(value)}" for key, value in result.values.items())
    if result.kept is None:
        return [Text(text="The result was not stored. To use the settings in a single run:"), Code(text=sets)]
    return [
        fact_table(
            "Kept",
            [
                ("what takes them", "every plan on this machine for this network, data shape and version of torch"),
                ("where they are", str(result.kept)),
                ("for one run without them", "--no-tuned"),
                ("to forget them", "remove the file"),
            ],
        ),
        Text(text="On another machine, or without the file:"),
        Code(text=sets),
    ]


def _values(
    result: MeasuredTuning, before: MeasuredSettings | None, after: MeasuredSettings | None
) -> dict[str, object]:
    values: dict[str, object] = plain_data(
        {
            "goal": result.goal,
            "memory_limit_bytes": result.memory_limit_bytes,
            "before": before,
            "after": after,
            "time_ratios": result.time_ratios,
            "values": result.values,
            "winner": result.study.winner,
            "refused": result.study.refused,
            "ended": result.study.ended,
            "seconds": result.study.seconds,
            "trials": result.study.trials,
        },
        where="tune",
    )
    return values
