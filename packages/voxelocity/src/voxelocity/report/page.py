"""The page of one run: a single file that explains itself, works offline and runs no script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from voxelocity.core.records import CaseScore
from voxelocity.report.columns import CLASS_COLUMNS, help_text, worst_first
from voxelocity.report.differences import factor_table
from voxelocity.report.labeled import LabeledRun, label_run
from voxelocity.report.pictures import dice_series, loss_series
from voxelocity.report.records import RunFacts
from voxelocity.report.slices import slices_block
from voxelocity.report.summary import (
    absent_text,
    exposed_text,
    judged_text,
    mean_dice,
    part_shares,
    rank_words,
    stage_shares,
    throughput,
    verdict,
)
from voxelocity.report.tables import (
    HOW_TO_CHANGE,
    case_blocks,
    choice_tables,
    class_table,
    dataset_table,
    rank_table,
    settings_table,
    spread_table,
    statistics_table,
    surface_card,
    validation_table,
)
from voxelocity_observe.core.quantities import (
    count_text,
    dice_text,
    duration_text,
    joined,
    rate_text,
    share_text,
)
from voxelocity_observe.document.blocks import (
    Block,
    Card,
    Chart,
    Code,
    Document,
    Folded,
    LegendEntry,
    Lines,
    Links,
    Pair,
    Section,
    Text,
    below_heading,
    time_split,
)
from voxelocity_observe.document.charts import time_chart
from voxelocity_observe.document.html import write_page
from voxelocity_observe.document.settings import machine_table

_NOT_HELD_OUT = (
    "Not held out: the network was scored on its training cases (fold = all). These scores do not show how good it "
    "is on new scans."
)
_NO_VALIDATION = (
    "There is no Dice curve, because this run was not validated during training. The first validation comes after a "
    "fifth of the training, if one case takes at most 2 % of it; later ones take a share of the time of the steps "
    "(`train.validation_share`). For a curve, train longer, raise this share, or set "
    "`train.validate_every_steps`."
)
_UNLEARNED = (
    "This training is too short for a score. The figures of single cases and classes below are those of an almost "
    "untrained network; train longer before you use, compare or report them."
)

_ABOUT_KEPT = (
    "Predictions keep only the largest component of classes whose mean Dice improves. This was chosen on the cases "
    "that are scored here, so these scores are somewhat higher than on new scans:"
)
_HOW_TO_SWITCH_OFF = "`voxelocity predict --no-postprocess` keeps all components, as in the slices above."
_ABOUT_SCORES = f"Each case on its own grid, against the unchanged label file. {help_text(CLASS_COLUMNS)}"


def render_page(run: RunFacts, path: str | Path, *, baseline: LabeledRun | None = None) -> Path:
    """The path, which now holds the report of the run as one HTML file.

    The same facts give the same bytes. An unfinished run is shown as far as it got.

    Args:
        run: what `read_run` returned.
        path: file to write; it is replaced in one move.
        baseline: another training to compare with; adds a table of factors.

    Raises:
        InputError: the baseline has the label of the run.
        OutputError: the file cannot be written.
    """
    return write_page(run_document(run, baseline=baseline), path)


def run_document(run: RunFacts, *, baseline: LabeledRun | None = None) -> Document:
    """The run as far as it got; `baseline` as in `render_page`."""
    return Document(
        kind="training report",
        title=f"Training on {run.dataset.name}",
        status=run.status,
        verdict=verdict(run),
        notices=_notices(run),
        lead=_lead(run),
        cards=_cards(run),
        sections=[
            Section(title="Compared with the baseline", blocks=[] if baseline is None else _factors(run, baseline)),
            Section(title="Learning curves", blocks=_curves(run)),
            Section(title="Slices", blocks=_slices(run)),
            Section(title="Scores", blocks=_scores(run)),
            Section(title="Where the time went", blocks=_times(run)),
            Section(title="The plan and its reasons", blocks=_plan(run)),
            Section(title="Data set", blocks=_dataset(run)),
            Section(title="Machine", blocks=below_heading(machine_table(run.environment, device=run.device))),
            Section(
                title="Warnings",
                key="warnings",
                blocks=[Lines(lines=run.warnings) if run.warnings else Text(text="None were recorded.", is_hint=True)],
            ),
            Section(title="Do it again", blocks=[Code(text=run.command)] if run.command else []),
        ],
        footer="Made from the files of the run; `voxelocity report RUN` renders it again.",
    )


def _lead(run: RunFacts) -> list[Block]:
    if not run.warnings:
        return []
    title = count_text(len(run.warnings), "warning")
    return [Links(title="Recorded during the run:", entries=[("warnings", title, "")])]


def _plan(run: RunFacts) -> list[Block]:
    """Automatic choices with their reasons, grouped by what another value would change, and all settings."""
    blocks = list[Block]()
    if run.choices:
        title = f"{len(run.choices)} automatic choices, each with its reason"
        blocks.append(Folded(title=title, blocks=[Text(text=HOW_TO_CHANGE, is_hint=True), *choice_tables(run.choices)]))
    settings = settings_table(run)
    if blocks and settings.rows:
        blocks.append(Folded(title="Every setting", blocks=below_heading(settings)))
    return blocks


def _notices(run: RunFacts) -> list[str]:
    notices = [] if run.dataset.held_out else [_NOT_HELD_OUT]
    if run.dataset.exposed:
        notices.append(exposed_text(run.dataset.exposed))
    if run.unlearned:
        notices.insert(0, _UNLEARNED)
    if run.status == "unfinished":
        notices.append("This run has not finished: it is still running, or it was killed. All figures are as of now.")
    if run.status == "interrupted" and run.step == 0:
        notices.append("This run was stopped before its first training step; the same command trains it.")
    elif run.status == "interrupted":
        notices.append("This run was stopped and has saved its state; the same command continues from there.")
    return notices


def _cards(run: RunFacts) -> list[Card]:
    speed = throughput(run)
    # A network that has not learned has no headline.
    scores = () if run.unlearned else run.scores
    budget = "no time budget" if run.budget_s is None else f"of a budget of {duration_text(run.budget_s)}"
    final, best = mean_dice(run), run.best_validation
    worst = worst_first(scores)[:1]
    if run.unlearned:
        dice = Card(name="Mean Dice", value=dice_text(None), note="too few training steps")
    elif final is None and best is not None:
        dice = Card(name="Best Dice so far", value=dice_text(best.mean_dice), note="during training, foreground mean")
    else:
        lowest = worst[0].mean_dice if worst else None
        note = "mean over the foreground" if lowest is None else f"lowest case {dice_text(lowest)}"
        part = f"{judged_text(run)} only" if 0 < len(scores) < run.dataset.num_validation else ""
        note = joined((part, note, absent_text(scores)), "; ")
        dice = Card(name="Mean Dice", value=dice_text(final), note=note)
    return [
        dice,
        surface_card(scores),
        Card(
            name="Images per second", value=rate_text(speed.images_per_s), note=f"over {count_text(run.step, 'step')}"
        ),
        Card(name="Waiting for data", value=share_text(speed.wait_share), note="of the training time"),
        Card(name="Total time", value=duration_text(run.seconds), note=budget),
    ]


def _factors(run: RunFacts, baseline: LabeledRun) -> list[Block]:
    table = factor_table([baseline, label_run(run, "This run")], target_dice=run.target_dice)
    hint = "Factors above 1 are better than the first column; Dice shows the difference."
    return [*below_heading(table), Text(text=hint, is_hint=True)]


def _curves(run: RunFacts) -> list[Block]:
    charts = list[Block]()
    if run.steps:
        charts.append(
            Chart(
                title="Training loss",
                svg=time_chart("loss", loss_series(run), y_label="loss", until_s=run.seconds),
                alt=f"Line chart: training loss over time, last value {run.steps[-1].loss:.3f}.",
            )
        )
    if run.validations:
        charts.append(_dice_chart(run))
    if not charts:
        return []
    blocks = list[Block]([Pair(blocks=charts)])
    if not run.validations and run.status == "finished":
        blocks.append(Text(text=_NO_VALIDATION, is_hint=True))
    if run.validations:
        hint = (
            "Measured on the prepared grid with the averaged weights: faster than the final validation, with "
            "slightly different scores."
        )
        table = validation_table(run).without_caption()
        blocks.append(Folded(title="All validations during training", blocks=[Text(text=hint, is_hint=True), table]))
    return blocks


def _dice_chart(run: RunFacts) -> Chart:
    series, best = dice_series(run), run.best_validation
    legend = [LegendEntry(name="mean", color="var(--ink)")]
    if len(series) > 1:
        names = enumerate(run.foreground, start=1)
        legend.extend(LegendEntry(name=name, color=f"var(--class-{index})") for index, name in names)
    if run.target_dice:
        target = LegendEntry(name=f"target {dice_text(run.target_dice)}", color="var(--chart-target)", is_dashed=True)
        legend.append(target)
    return Chart(
        title="Validation Dice during training",
        svg=time_chart(
            "dice", series, y_label="Dice", y_limits=(0.0, 1.0), target=run.target_dice, until_s=run.seconds
        ),
        alt="Line chart: validation Dice over time" + ("." if best is None else f", best mean {best.mean_dice:.3f}."),
        legend=legend,
    )


def _slices(run: RunFacts) -> list[Block]:
    return [slices_block(run.slices, dict(enumerate(run.dataset.classes)))] if run.slices else []


def _marked(run: RunFacts) -> list[CaseScore]:
    """The scores, with a mark at the cases that the model which the run started from may have seen."""
    exposed = run.dataset.exposed
    return [replace(score, case_id=f"{score.case_id} *") if score.case_id in exposed else score for score in run.scores]


def _scores(run: RunFacts) -> list[Block]:
    if not run.scores:
        return []
    kept = ", ".join(
        f"{name} ({dice_text(old)} without it, {dice_text(new)} with it)"
        for name, (old, new) in run.keep_largest.items()
    )
    about_kept = [Text(text=f"{_ABOUT_KEPT} {kept}. {_HOW_TO_SWITCH_OFF}")] if kept else []
    return [
        Text(text=_ABOUT_SCORES, is_hint=True),
        *about_kept,
        class_table(run.scores),
        *case_blocks(_marked(run)),
    ]


def _times(run: RunFacts) -> list[Block]:
    stages, parts = stage_shares(run), part_shares(run)
    if not stages:
        return []
    sessions = f"The run had {len(run.starts)} sessions; the time between them is not counted."
    splits = [time_split("Wall time by stage", stages)]
    if parts:
        splits.append(time_split("Training steps by activity", parts))
    ranks = list[Block]()
    if run.ranks:
        ranks = [rank_table(run.ranks), Text(text=rank_words(run.ranks, mode=run.parallel_mode), is_hint=True)]
    if run.parallel_reason:
        ranks.append(Text(text=f"parallel.mode = {run.parallel_reason}", is_hint=True))
    return [*([Text(text=sessions, is_hint=True)] if len(run.starts) > 1 else []), Pair(blocks=splits), *ranks]


def _dataset(run: RunFacts) -> list[Block]:
    spreads, statistics = spread_table(run.fingerprint), statistics_table(run.fingerprint)
    blocks = list[Block]([Pair(blocks=[dataset_table(run), *([spreads] if spreads.rows else [])])])
    if statistics.rows:
        blocks.append(Folded(title="All statistics", blocks=below_heading(statistics)))
    return blocks
