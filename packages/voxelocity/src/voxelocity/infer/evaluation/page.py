"""An evaluation as a `Document`, and its files: the page, every figure as JSON, and a table with a row a class."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from voxelocity.core.records import CaseScore
from voxelocity.infer.evaluation.pairs import EVALUATION_FILES
from voxelocity.metrics import summarize
from voxelocity.report import score_table
from voxelocity.report.columns import (
    CLASS_COLUMNS,
    FIGURES,
    VOLUME_COLUMNS,
    classes_of,
    help_text,
    mean_hd95_mm,
    mean_over_classes,
    page_table,
    worst_first,
)
from voxelocity.report.summary import absent_text, exposed_text
from voxelocity.report.tables import case_blocks, class_table, surface_card
from voxelocity_observe.core.plain import table_cell
from voxelocity_observe.core.quantities import count_text, dice_text, joined, listed, mm_text
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import Document, document_view, write_figures, write_page
from voxelocity_observe.document.blocks import Block, Card, Folded, Lines, Section, Table, Text, fact_table

if TYPE_CHECKING:
    # An evaluation shows itself by this module.
    from voxelocity.infer.evaluation.evaluate import Evaluation

PAGE, JSON, TABLE = EVALUATION_FILES
_ABOUT_SCORES = f"Each case on its own grid. {help_text(CLASS_COLUMNS)}"
_CLASS_COLUMNS = (*CLASS_COLUMNS, *VOLUME_COLUMNS)
_LEFT_OUT = {
    "missing": "Without a prediction",
    "extra": "Predicted, without a truth",
    "others": "Not scans",
}


def write_evaluation(evaluation: Evaluation, folder: Path | str) -> Document:
    """The evaluation as a document, which the folder now holds as `evaluation.html`, `.json` and `.csv`.

    Files of these names are replaced.

    Raises:
        OutputError: a file cannot be written.
    """
    document, folder = evaluation_document(evaluation), Path(folder)
    write_figures(document, folder / JSON)
    write_whole(folder / TABLE, _csv(evaluation).encode())
    write_page(document, folder / PAGE)
    return document


def evaluation_document(evaluation: Evaluation) -> Document:
    """Scores by class, folder and case, and what could not be compared."""
    scores, tolerance_mm = evaluation.scores, evaluation.tolerance_mm
    # A network that has not learned has no headline.
    mean_dice = None if evaluation.unlearned else summarize(scores).mean_dice
    return Document(
        kind="evaluation",
        title="Predictions and truth" if evaluation.truth else "Final validations, pooled",
        verdict=_verdict(evaluation, mean_dice),
        notices=_notices(evaluation),
        cards=_cards(evaluation, mean_dice),
        sections=[
            Section(
                title="Scores by class",
                blocks=[class_table(scores).without_caption(), Text(text=_ABOUT_SCORES, is_hint=True)],
                is_detail=True,
            ),
            Section(
                title="Surfaces and volumes by class",
                blocks=[
                    page_table(
                        "Surfaces and volumes by class", VOLUME_COLUMNS, classes_of(scores), tolerance_mm=tolerance_mm
                    ).without_caption(),
                    Text(text=help_text(VOLUME_COLUMNS), is_hint=True),
                ],
            ),
            Section(title="Scores by folder", blocks=_by_folder(evaluation)),
            Section(title="Trained on, and not", blocks=_by_division(evaluation)),
            Section(
                title="Cases, worst first",
                is_detail=True,
                blocks=case_blocks(_marked(evaluation), hides_caption=True),
            ),
            Section(title="What could not be compared", blocks=_left_out(evaluation), is_detail=True),
            Section(title="What was compared", blocks=[_sources(evaluation)], is_detail=True),
        ],
        footer=f"All figures are in `{JSON}`, and with a row for each class of each case in `{TABLE}`.",
        values=_values(evaluation, mean_dice),
    )


def evaluation_view(evaluation: Evaluation) -> RenderableType:
    """The evaluation for a terminal."""
    document = document_view(evaluation_document(evaluation))
    return Group(document, "", score_table(_marked(evaluation)))


def _marked(evaluation: Evaluation) -> list[CaseScore]:
    """The scores as they are shown, with a mark after the names of cases that were trained on, or may have been."""
    marks = dict.fromkeys(evaluation.exposed, " *") | dict.fromkeys(evaluation.trained_on, " (trained on)")
    return [replace(score, case_id=score.case_id + marks.get(score.case_id, "")) for score in evaluation.scores]


def _unseen(evaluation: Evaluation) -> list[CaseScore]:
    return [score for score in evaluation.scores if score.case_id not in evaluation.trained_on]


def _unseen_dice(evaluation: Evaluation) -> float | None:
    """The mean over cases that the model has not seen; None without any, and where a training was too short."""
    unseen = _unseen(evaluation)
    return summarize(unseen).mean_dice if unseen and not evaluation.unlearned else None


def _verdict(evaluation: Evaluation, mean_dice: float | None) -> str:
    """With the mean of the cases that the model has not seen, where it has seen some."""
    num, num_cases = len(evaluation.scores), evaluation.num_cases
    if evaluation.unlearned:
        return f"No score over {count_text(num, 'case')}: a training was too short to be scored."
    part = f"{num:,} of " if num < num_cases else ""
    text = f"Mean foreground Dice {dice_text(mean_dice)} over {part}{count_text(num_cases, 'case')}"
    if evaluation.exposed:
        text = f"{text}, {len(evaluation.exposed):,} of them marked"
    seen = len(evaluation.trained_on)
    if num_others := evaluation.num_not_held_out:
        return f"{text}; these runs did not hold out the other {num_others:,} of the data set."
    if not seen:
        return f"{text}."
    if seen == num:
        return f"{text}, all of which the model was trained on."
    mean_text = dice_text(_unseen_dice(evaluation))
    return f"{text}, {seen:,} of which the model was trained on; {mean_text} over the other {num - seen:,}."


def _notices(evaluation: Evaluation) -> list[str]:
    notices = [f"{run} has no score: {why}." for run, why in evaluation.unlearned.items()]
    notices += [*evaluation.notices, *([exposed_text(evaluation.exposed)] if evaluation.exposed else [])]
    if seen := len(evaluation.trained_on):
        text = f"{seen:,} of {count_text(len(evaluation.scores), 'case')} were trained on"
        if not evaluation.unlearned:
            held_out = (
                f"held-out mean {dice_text(_unseen_dice(evaluation))}" if _unseen(evaluation) else "none was held out"
            )
            text = f"{text}, so means over all cases are too high; {held_out}"
        notices.append(f"{text}.")
    if evaluation.refused:
        reasons = "; ".join(evaluation.refused.values())
        num = count_text(len(evaluation.refused), "case")
        notices.append(f"{num} could not be compared and left out of all means: {reasons}")
    for names, noun, what in (
        (evaluation.missing, "case", "without a prediction, left out of all means"),
        (evaluation.extra, "prediction", "without a truth"),
    ):
        if names:
            notices.append(f"{count_text(len(names), noun)} {what}: {listed(names, 3)}.")
    if not evaluation.labels_from:
        notices.append("No file declares the classes, so each value or name that was found counts as a class.")
    return notices


def _cards(evaluation: Evaluation, mean_dice: float | None) -> list[Card]:
    scores = () if evaluation.unlearned else evaluation.scores
    lowest = [f"lowest case {dice_text(worst.mean_dice)}" for worst in worst_first(scores)[:1]]
    dice_notes = (*lowest, absent_text(scores)) if lowest else ("too few training steps",)
    return [
        Card(name="Mean Dice", value=dice_text(mean_dice), note=joined(dice_notes, "; ")),
        surface_card(scores),
        Card(
            name="Surface within tolerance",
            value=dice_text(mean_over_classes(scores, "nsd")),
            note=f"NSD at {evaluation.tolerance_mm:g} mm, mean over classes",
        ),
        Card(
            name="Cases", value=f"{len(evaluation.scores):,}", note=f"{len(evaluation.refused)} could not be compared"
        ),
    ]


def _by_folder(evaluation: Evaluation) -> list[Block]:
    """One row for each folder if there are several, as for the folds of a cross-validation."""
    groups: dict[str, list[CaseScore]] = {folder: [] for folder in dict.fromkeys(evaluation.folders.values())}
    if len(groups) < 2:
        return []
    for score in evaluation.scores:
        groups[evaluation.folders[score.case_id]].append(score)
    return [_means("Scores by folder", ("Folder", "Cases"), groups, without=evaluation.unlearned)]


def _by_division(evaluation: Evaluation) -> list[Block]:
    """A row for cases that were trained on, and one for the others."""
    if not evaluation.trained_on:
        return []
    seen = [score for score in evaluation.scores if score.case_id in evaluation.trained_on]
    groups = {"trained on": seen, "not trained on": _unseen(evaluation)}
    groups = {title: scores for title, scores in groups.items() if scores}
    without = groups if evaluation.unlearned else ()
    return [_means("Trained on, and not", ("Cases", "Number"), groups, without=without)]


def _means(
    caption: str, heads: tuple[str, str], groups: Mapping[str, Sequence[CaseScore]], *, without: Container[str]
) -> Table:
    """Cases, mean Dice and HD95 of each group; no means of the groups in `without`."""
    rows = []
    for title, scores in groups.items():
        judged = () if title in without else scores
        mean_dice = summarize(judged).mean_dice if judged else None
        rows.append((title, str(len(scores)), dice_text(mean_dice), mm_text(mean_hd95_mm(judged))))
    return Table(caption=caption, heads=(*heads, "Mean Dice", "Mean HD95 (mm)"), rows=rows, hides_caption=True)


def _left_out(evaluation: Evaluation) -> list[Block]:
    blocks: list[Block] = []
    if evaluation.refused:
        rows = list(evaluation.refused.items())
        blocks.append(Table(caption="Not compared", heads=("Case", "Why"), rows=rows, text_columns=frozenset({1})))
    for name, title in _LEFT_OUT.items():
        if names := getattr(evaluation, name):
            blocks.append(Folded(title=f"{title}: {len(names)}", blocks=[Lines(lines=names, are_code=True)]))
    return blocks or [Text(text="Every prediction was compared, and every case has one.", is_hint=True)]


def _sources(evaluation: Evaluation) -> Table:
    counts = Counter(evaluation.folders.values())
    rows = [(folder, count_text(count, "case")) for folder, count in counts.items()]
    if evaluation.truth:
        rows.append(("Truth", evaluation.truth))
    rows.append(("Classes from", evaluation.labels_from or "what the files hold"))
    rows.append(("Tolerance of NSD", f"{evaluation.tolerance_mm:g} mm"))
    return fact_table("What was compared", rows).without_caption()


def _values(evaluation: Evaluation, mean_dice: float | None) -> dict[str, Any]:
    scores = evaluation.scores
    return {
        "num_cases": len(scores),
        "num_unscored": evaluation.num_cases - len(scores),
        "num_not_held_out": evaluation.num_not_held_out,
        "unlearned": dict(evaluation.unlearned),
        "mean_dice": mean_dice,
        "num_trained_on": len(evaluation.trained_on),
        "mean_dice_not_trained_on": _unseen_dice(evaluation),
        "mean_hd95_mm": None if evaluation.unlearned else mean_hd95_mm(scores),
        "mean_nsd": None if evaluation.unlearned else mean_over_classes(scores, "nsd"),
        "nsd_tolerance_mm": evaluation.tolerance_mm,
        "classes": {
            of_class.name: {column.key: column.value(of_class) for column in _CLASS_COLUMNS if column.key}
            for of_class in classes_of(scores)
        },
        "cases": [
            {
                "case_id": score.case_id,
                "folder": evaluation.folders[score.case_id],
                "division": evaluation.divisions.get(score.case_id, ""),
                "start_may_have_learned_from_it": evaluation.exposed.get(score.case_id, ""),
                "mean_dice": score.mean_dice,
                "classes": {name: _figures(score, name) for name in score.dice},
            }
            for score in scores
        ],
        "missing": list(evaluation.missing),
        "extra": list(evaluation.extra),
        "refused": dict(evaluation.refused),
        "not_scans": list(evaluation.others),
        "truth": evaluation.truth,
        "labels_from": evaluation.labels_from,
    }


def _figures(score: CaseScore, name: str) -> dict[str, Any]:
    return {key: figure(score, name) for key, figure in FIGURES.items()}


def _csv(evaluation: Evaluation) -> str:
    """A row for each class of each case; an empty cell is a figure that does not exist."""
    rows: list[dict[str, Any]] = [
        {
            "case": score.case_id,
            "folder": evaluation.folders[score.case_id],
            "division": evaluation.divisions.get(score.case_id, ""),
            "class": name,
            **_figures(score, name),
        }
        for score in evaluation.scores
        for name in score.dice
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({key: table_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()
