"""The before-and-after page: two or more trainings, their factors, their curves and what was set differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voxelocity.report.differences import (
    FactorRow,
    compare,
    comparison_values,
    different_settings,
    factor_table,
    machine_notices,
    machines_table,
)
from voxelocity.report.labeled import LabeledRun
from voxelocity.report.parity import Parity, accuracy_sentence, accuracy_tables, structure_sentences, worth_of_interval
from voxelocity_observe.core.quantities import (
    count_text,
    dice_text,
    duration_text,
    factor_text,
    joined,
    rate_text,
)
from voxelocity_observe.document.blocks import (
    Block,
    Card,
    Chart,
    Code,
    Document,
    Folded,
    Heading,
    LegendEntry,
    Pair,
    Section,
    Table,
    Text,
    below_heading,
    side_by_side,
)
from voxelocity_observe.document.charts import Series, time_chart
from voxelocity_observe.document.settings import key_value_table, settings_section

# A factor below this reads as 1.0.
_LEAST_FASTER = 1.05
_ABOUT_FACTORS = (
    "Factors above 1 are better than the first column; Dice shows the difference. A factor with “>” is a lower "
    "bound: the first run did not reach it."
)


def comparison_document(
    runs: Sequence[LabeledRun],
    title: str,
    *,
    target_dice: float | None = None,
    target_reason: str = "",
    parity: Parity | None = None,
    notices: Sequence[str] = (),
    sections: Sequence[Section] = (),
    summary: str = "",
) -> Document:
    """Two or more trainings side by side. The first one is the one to beat.

    Args:
        runs: two or more.
        title: heading of the page.
        target_dice: the Dice whose time was taken; a line in the chart.
        target_reason: where it comes from.
        parity: accuracy of the last run and of the first, paired by case.
        notices: what makes the figures hard to compare; differing machines and versions are always listed.
        sections: further tables, behind the factors.
        summary: one or two sentences on what was compared and how.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    rows = compare(runs, target_dice=target_dice, parity=parity)
    settings, num_equal = different_settings(runs)
    charts = [*dice_chart(runs, target_dice), *_reached_chart(runs)]
    reason = _target_reason_text(target_dice, target_reason)
    return Document(
        kind="comparison",
        title=title,
        verdict=comparison_verdict(runs, target_dice=target_dice, parity=parity),
        summary=summary,
        notices=[*notices, *machine_notices(runs)],
        cards=_cards(rows, runs[0].label, runs[-1].label),
        sections=[
            Section(
                title="Factors",
                blocks=[
                    factor_table(runs, target_dice=target_dice, parity=parity).without_caption(),
                    Text(text=_ABOUT_FACTORS, is_hint=True),
                    *([Text(text=reason)] if reason else []),
                    *([Pair(blocks=charts)] if charts else []),
                ],
            ),
            Section(title="Accuracy", blocks=[] if parity is None else _accuracy(parity, runs)),
            *sections,
            Section(title="Where the time went", blocks=_times(runs), is_detail=True),
            settings_section(settings, [run.label for run in runs], num_equal),
            Section(title="Each run", blocks=[block for run in runs for block in _details(run)], is_detail=True),
            Section(title="Machine", blocks=below_heading(machines_table(runs)), is_detail=True),
        ],
        footer="Each run was timed on the machine named above; factors differ on other machines.",
        values=comparison_values(runs, target_dice=target_dice, parity=parity),
    )


def with_command(document: Document, command: str) -> Document:
    """The page with what to type to get its numbers again."""
    again = Section(title="Do it again", blocks=[Code(text=command)], is_detail=True)
    return replace(document, sections=[*document.sections, again])


def comparison_verdict(
    runs: Sequence[LabeledRun], *, target_dice: float | None = None, parity: Parity | None = None
) -> str:
    """Plain sentences on how the last run compares with the first: time to the target, then accuracy.

    Accuracy is judged where `parity` was paired by case; without it both values are given and nothing is concluded.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    rows = {row.key: row for row in compare(runs, target_dice=target_dice)}
    base, ours = runs[0], runs[-1]
    speed = _target_text(base, ours, target_dice) or _rate_text(base, ours)
    dice = ""
    if parity is not None:
        dice = accuracy_sentence(parity, base.label, ours.label)
    elif base.last_dice is not None and ours.last_dice is not None:
        # Means over different cases have no difference.
        difference = rows["last_dice"].factors[-1]
        how = "on different cases" if difference.value is None else difference.text
        dice = f"Final Dice {dice_text(ours.last_dice)} against {dice_text(base.last_dice)} ({how})."
    return (
        joined([speed, dice], " ")
        or f"{ours.label} and {base.label} have {count_text(len(rows), 'measure')} in common."
    )


def _target_text(base: LabeledRun, ours: LabeledRun, target_dice: float | None) -> str:
    target = "the target" if target_dice is None else f"Dice {target_dice:g}"
    ours_s, base_s = ours.seconds_to_target, base.seconds_to_target
    if ours_s is None:
        missed = base_s is not None
        return f"{ours.label} did not reach {target}, {base.label} did in {duration_text(base_s)}." if missed else ""
    reached = f"{ours.label} reached {target} in {duration_text(ours_s)}"
    if base_s is not None:
        return f"{reached}, {base.label} in {duration_text(base_s)}: {_times_text(base_s / ours_s)}."
    if base.wall_s is None:
        return f"{reached}, {base.label} did not."
    more = f": more than {_times_text(base.wall_s / ours_s)}" if base.wall_s / ours_s >= _LEAST_FASTER else ""
    return f"{reached}, {base.label} did not in {duration_text(base.wall_s)}{more}."


def _rate_text(base: LabeledRun, ours: LabeledRun) -> str:
    if not ours.images_per_s or not base.images_per_s:
        return ""
    factor = ours.images_per_s / base.images_per_s
    return (
        f"{ours.label} trained on {rate_text(ours.images_per_s)} images per second, {base.label} on "
        f"{rate_text(base.images_per_s)}: {_times_text(factor)}."
    )


def _times_text(factor: float) -> str:
    if 1.0 / _LEAST_FASTER < factor < _LEAST_FASTER:
        return "about as fast"
    pace = "faster" if factor >= 1.0 else "slower"
    return f"{factor_text(max(factor, 1.0 / factor)).removesuffix('×')} times {pace}"


def _target_reason_text(target_dice: float | None, reason: str) -> str:
    if target_dice is None or not reason:
        return ""
    return f"The target of {dice_text(target_dice)} is {reason}; it is timed at the first validation that reaches it."


def _times(runs: Sequence[LabeledRun]) -> list[Block]:
    """Where the time went, side by side, as far as the runs know it."""
    stages = {run.label: run.stages for run in runs if run.stages}
    steps = {run.label: run.step_parts for run in runs if run.step_parts}
    captions = {"Wall time by stage": stages, "One training step by activity": steps}
    views = [side_by_side(caption, splits) for caption, splits in captions.items() if splits]
    # Half the width does not hold the columns of three sides.
    return [Pair(blocks=views)] if views and len(runs) < 3 else list[Block](views)


def _cards(rows: Sequence[FactorRow], base: str, ours: str) -> list[Card]:
    """One card per factor of the last run that is known."""
    cards = []
    for row in rows:
        factor = row.factors[-1] if row.factors else None
        if factor is None or factor.value is None or row.key == "best_dice":
            continue
        note = f"{base} {row.texts[0]}, {ours} {row.texts[-1]}"
        cards.append(Card(name=row.name, value=factor.text, note=note, is_worse=factor.is_worse))
    return cards


def dice_chart(runs: Sequence[LabeledRun], target_dice: float | None) -> list[Block]:
    """Dice of each run over time; nothing if no run has any."""
    if not any(run.dice_history for run in runs):
        return []
    colored = list(zip(runs, _run_colors(len(runs)), strict=True))
    series = [Series(points=run.dice_history, color=color, has_markers=True) for run, color in colored]
    legend = [LegendEntry(name=run.label, color=f"var(--{color})") for run, color in colored]
    if target_dice is not None:
        target = LegendEntry(name=f"target {dice_text(target_dice)}", color="var(--chart-target)", is_dashed=True)
        legend.append(target)
    best = joined((f"{run.label} best {dice_text(run.best_dice)}" for run in runs), "; ")
    return [
        Chart(
            title="Validation Dice over time",
            svg=time_chart("dice", series, y_label="Dice", y_limits=(0.0, 1.0), target=target_dice),
            alt=f"Line chart: validation Dice over time. {best}.",
            legend=legend,
        )
    ]


def _run_colors(num_runs: int) -> list[str]:
    """Variables of the style sheet, one for each run."""
    return ["baseline", *(f"class-{(i % 7) + 1}" for i in range(num_runs - 2)), "accent"]


def _reached_chart(runs: Sequence[LabeledRun]) -> list[Block]:
    """How many trainings of each side had reached the target at each time; nothing where each side is one training."""
    drawn = [(run, color) for run, color in zip(runs, _run_colors(len(runs)), strict=True) if run.each_to_target]
    known = [seconds for run, _ in drawn for seconds in run.each_to_target if seconds is not None]
    if not known or max(len(run.each_to_target) for run, _ in drawn) < 2:
        return []
    end_s = 1.05 * max(known)
    series = [Series(points=_stairs(run.each_to_target, end_s), color=color) for run, color in drawn]
    reached = joined(
        (
            f"{run.label} {sum(seconds is not None for seconds in run.each_to_target)} of {len(run.each_to_target)}"
            for run, _ in drawn
        ),
        "; ",
    )
    return [
        Chart(
            title="Share of trainings that had reached the target",
            svg=time_chart("reached", series, y_label="share", y_limits=(0.0, 1.0)),
            alt=f"Step chart: share of trainings that had reached the target by then. {reached}.",
            legend=[LegendEntry(name=run.label, color=f"var(--{color})") for run, color in drawn],
        )
    ]


def _stairs(times_s: Sequence[float | None], end_s: float) -> tuple[tuple[float, float], ...]:
    """(seconds, share) of a step at each time that is known."""
    points = [(0.0, 0.0)]
    for number, seconds in enumerate(sorted(s for s in times_s if s is not None), start=1):
        points += [(seconds, points[-1][1]), (seconds, number / len(times_s))]
    return (*points, (end_s, points[-1][1]))


def _accuracy(parity: Parity, runs: Sequence[LabeledRun]) -> list[Block]:
    labels = runs[0].label, runs[-1].label
    sentences = structure_sentences(parity)
    return [
        *([Text(text=sentences)] if sentences else []),
        *accuracy_tables(parity, *labels),
        Text(text=worth_of_interval(parity, *labels), is_hint=True),
    ]


def _details(run: LabeledRun) -> list[Block]:
    history = [(duration_text(seconds), dice_text(dice)) for seconds, dice in run.dice_history]
    tables = {
        "Validations": Table(caption=f"Validations of {run.label}", heads=("At", "Mean Dice"), rows=history),
        "Settings": key_value_table(f"Settings of {run.label}", run.settings),
    }
    return [
        Heading(text=run.label),
        *(Text(text=note) for note in run.notes),
        *(
            Folded(title=f"{name} of {run.label}", blocks=[table.without_caption()])
            for name, table in tables.items()
            if table.rows
        ),
    ]
