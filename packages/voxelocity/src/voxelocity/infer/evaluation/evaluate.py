"""Compares folders of predictions with the truth, or pools the final validations of runs that held out different cases.

A case that cannot be compared is listed with the reason; the others are.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from voxelocity.core.learning import UNLEARNED, read_mark
from voxelocity.core.records import CaseScore
from voxelocity.core.requests.evaluate import EvaluateOptions, EvaluateRequest
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode.notes import Note, as_one_data_set
from voxelocity.infer.evaluation.pairs import (
    Pairs,
    Truth,
    find_pairs,
    find_truth,
    merge_as_predicted,
    read_predicted,
)
from voxelocity.infer.evaluation.volumes import read_pair
from voxelocity.metrics import NSD_TOLERANCE_MM, case_score
from voxelocity.report import RunFacts, read_run
from voxelocity_observe.core.errors import InputError, ScanError
from voxelocity_observe.core.quantities import listed
from voxelocity_observe.core.request import documents
from voxelocity_observe.document import Document


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of cases, and everything that has none.

    Attributes:
        scores: one per case, sorted by case id; all name the same classes.
        folders: where each prediction is, by case id: a folder of predictions, or a run.
        truth: where the true labels are; "" for runs, which know.
        tolerance_mm: of the normalized surface distance.
        labels_from: what declares the classes; "" if they are the values that were found.
        missing: cases without a prediction.
        extra: predictions without a truth.
        refused: why a case was not compared, by case id.
        others: entries of the folders of predictions that are not scans.
        notices: what to know before believing the scores.
        num_unscored: further cases that runs held out, but did not score.
        num_not_held_out: further labeled cases, which none of the runs held out.
        unlearned: why the network of a run, or that made these predictions, has no score, by folder; then the whole has
            none.
        divisions: "trained on" or "held out", by case id, where `predictions.csv` next to the predictions says so.
        exposed: why the model that the run of a case was started from may have learned from it, by case id; only of
            such cases.
    """

    scores: tuple[CaseScore, ...]
    folders: Mapping[str, str]
    truth: str
    tolerance_mm: float
    labels_from: str
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    num_unscored: int = 0
    num_not_held_out: int = 0
    unlearned: Mapping[str, str] = field(default_factory=dict)
    divisions: Mapping[str, str] = field(default_factory=dict)
    exposed: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line with the result."""
        return f"Evaluation({self._document().verdict})"

    def _repr_html_(self) -> str:
        """How notebooks show it: the page that `voxelocity evaluate` writes."""
        return self._document()._repr_html_()

    def _document(self) -> Document:
        from voxelocity.infer.evaluation.page import evaluation_document

        return evaluation_document(self)

    @property
    def num_cases(self) -> int:
        """The cases that there are, scored or not."""
        return len(self.scores) + len(self.missing) + len(self.refused) + self.num_unscored

    @property
    def trained_on(self) -> frozenset[str]:
        """The cases that the model was trained on, as far as that is known."""
        return frozenset(score.case_id for score in self.scores if self.divisions.get(score.case_id) == "trained on")


@documents(EvaluateRequest, leave_out=("predictions", "truth"))
def evaluate(
    predictions: Path | str | Sequence[Path | str],
    truth: Path | str,
    *,
    on_start: Callable[[int], None] = lambda num_cases: None,
    on_case: Callable[[CaseScore], None] = lambda score: None,
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Scores every prediction that has a truth, each on its own grid.

    Args:
        predictions: a folder of them, or several, such as one per fold: CASE.nii.gz holds the class values of CASE,
            CASE.dcm its structures by name (DICOM SEG or RTSTRUCT).
        truth: a folder of label files of the same names, or a data set, as `voxelocity.open` takes it.
        on_start: called with the number of cases to compare.
        on_case: called with each score.
        options: the fields of `EvaluateRequest`.

    Raises:
        InputError: a folder cannot be used, a case is predicted twice, or no case can be compared.
    """
    request = EvaluateRequest.of_call(options, predictions=predictions, truth=truth)
    with request.errors_as_written():
        return score_predictions(request, on_start=on_start, on_case=on_case)


def score_predictions(
    request: EvaluateRequest,
    *,
    on_start: Callable[[int], None] = lambda num_cases: None,
    on_case: Callable[[CaseScore], None] = lambda score: None,
) -> Evaluation:
    """What `evaluate` does, for a request."""
    truth, labels = request.truth, request.labels
    tolerance_mm = NSD_TOLERANCE_MM if request.tolerance_mm == "auto" else request.tolerance_mm
    found, pairs, predicted, merging = _find(request)
    on_start(len(pairs.refs))
    scores: list[CaseScore] = []
    refused: dict[str, str] = {}
    noted: dict[str, dict[str, str]] = {}
    for ref in pairs.refs:
        try:
            scores.append(_score(ref, found, tolerance_mm, _notes_in(noted, ref.case_id)))
        except ScanError as error:
            refused[ref.case_id] = str(error)
        else:
            on_case(scores[-1])
    if not scores:
        raise InputError(f"evaluate: no case can be compared: {next(iter(refused.values()))}")
    if not any(score.dice for score in scores):
        raise InputError(
            "evaluate: no class can be scored: nothing declares one, and predictions and truth hold only the "
            "background; name the classes with --labels"
        )
    kept = [ref for ref in pairs.refs if ref.case_id not in refused]
    unlearned = {str(labels): mark} if labels and (mark := read_mark(Path(labels) / "scores.json")) else {}
    unlearned |= {
        str(ref.images[0].parent): mark for ref in kept if (mark := predicted[ref.case_id].get(UNLEARNED, ""))
    }
    return Evaluation(
        scores=_with_all_classes(scores),
        folders={ref.case_id: str(ref.images[0].parent) for ref in kept},
        truth=str(truth),
        tolerance_mm=tolerance_mm,
        labels_from=found.declared.where,
        missing=pairs.missing,
        extra=tuple(map(str, pairs.extra)),
        refused=refused,
        others=tuple(map(str, pairs.others)),
        unlearned=unlearned,
        notices=(
            *filter(None, [merging]),
            *(
                f"{len(cases)} of {len(pairs.refs)} cases, such as '{case_id}': {text.removeprefix('evaluate: ')}."
                for cases in noted.values()
                for case_id, text in [next(iter(cases.items()))]
            ),
        ),
        divisions={ref.case_id: side for ref in kept if (side := predicted[ref.case_id].get("division"))},
    )


def _find(request: EvaluateRequest) -> tuple[Truth, Pairs, dict[str, Mapping[str, str]], str]:
    """The truth, what there is to compare, the rows of the tables of predictions, and what was merged, as a notice."""
    truth = find_truth(request.truth, labels=request.labels)
    pairs = find_pairs(request.predictions, truth)
    if not pairs.refs:
        raise InputError(
            f"evaluate: no prediction has a truth of the same name: the predictions are "
            f"{listed([path.name for path in pairs.extra])}; {request.truth} has {listed(pairs.missing)}"
        )
    as_one_data_set(file for ref in pairs.refs for file in ref.images)
    as_one_data_set(ref.label for ref in pairs.refs if ref.label is not None)
    predicted = _rows_of(pairs.refs)
    declared, merging = merge_as_predicted(truth.declared, predicted.values())
    return replace(truth, declared=declared), pairs, predicted, merging


def pool_runs(runs: Sequence[Path | str], *, is_repeated: bool = False) -> Evaluation:
    """The final validations of finished runs as one, as the folds of a cross-validation are pooled.

    Args:
        runs: their folders.
        is_repeated: whether splits are repeated, so that several runs validated a case; it counts once for each of
            them, under names that say which.

    Raises:
        InputError: a run is not finished, has no scores or other classes, or two runs have validated the same case.
    """
    found = {str(run): read_run(run) for run in runs}
    _check_alike(found)
    scores: dict[str, CaseScore] = {}
    folders: dict[str, str] = {}
    exposed: dict[str, str] = {}
    twice: list[str] = []
    for run, facts in found.items():
        for score in facts.scores:
            case_id = f"{score.case_id} ({Path(run).name})" if is_repeated else score.case_id
            if case_id in scores:
                twice.append(f"'{case_id}' ({folders[case_id]} and {run})")
            scores[case_id], folders[case_id] = replace(score, case_id=case_id), run
            if why := facts.dataset.exposed.get(score.case_id):
                exposed[case_id] = why
    if twice:
        raise InputError(
            f"evaluate: cases that were validated by two runs would count twice: {listed(twice)}; pool runs that held "
            "out different folds"
        )
    sets = [facts.dataset for facts in found.values()]
    num_held_out = sum(dataset.num_validation for dataset in sets)
    is_one_set = len({dataset.path for dataset in sets}) == 1
    num_labeled = max(dataset.num_training + dataset.num_validation for dataset in sets) if is_one_set else 0
    return Evaluation(
        scores=_with_all_classes(scores[case_id] for case_id in sorted(scores)),
        folders=folders,
        truth="",
        tolerance_mm=NSD_TOLERANCE_MM,
        labels_from=listed(list(found)),
        notices=tuple(_notices_of(found)),
        num_unscored=sum(max(0, facts.dataset.num_validation - len(facts.scores)) for facts in found.values()),
        num_not_held_out=max(0, num_labeled - num_held_out) if all(dataset.held_out for dataset in sets) else 0,
        unlearned={run: facts.unlearned for run, facts in found.items() if facts.unlearned},
        exposed=exposed,
    )


def _check_alike(found: Mapping[str, RunFacts]) -> None:
    """Refuses runs, by folder, whose validations are not there or cannot be pooled."""
    first, classes = next((run, facts.foreground) for run, facts in found.items())
    for run, facts in found.items():
        if facts.status != "finished" or not facts.scores:
            again = f"voxelocity train --resume {shlex.quote(run)}"
            raise InputError(
                f"evaluate: the run in {run} is {facts.status} and has no final scores yet; finish it: "
                f"{again}{' --full-validation' if facts.status == 'finished' else ''}"
            )
        if facts.foreground != classes:
            raise InputError(
                f"evaluate: {run} has the classes {', '.join(facts.foreground)}, {first} has {', '.join(classes)}; "
                "pool runs of one data set"
            )


def _notices_of(found: Mapping[str, RunFacts]) -> Iterator[str]:
    """What to know before believing the pooled scores of these runs, by folder."""
    if len(paths := {facts.dataset.path for facts in found.values()}) > 1:
        yield f"The runs were trained and validated on {len(paths)} data sets: {listed(sorted(paths))}."
    for run, facts in found.items():
        if not facts.dataset.held_out:
            yield f"{run} was validated on the cases it was trained on, so its scores are too high."
        if (num := facts.dataset.num_validation) > len(facts.scores):
            yield f"{run} validated {len(facts.scores)} of {num} cases; the warnings in its report say why."
    kept = [set(facts.keep_largest) for facts in found.values()]
    if chosen := set().union(*kept):
        by_all = listed(sorted(set.intersection(*kept))) or "no class"
        yield (
            f"Scores include that runs keep only the largest component of {listed(sorted(chosen))}. Each run chose "
            "that on the cases that it is scored on, so scores are somewhat too high, and an ensemble of the runs "
            f"does it for {by_all} only."
        )


def _rows_of(refs: Sequence[VolumeRef]) -> dict[str, Mapping[str, str]]:
    """What the table next to each prediction says of it, by case id."""
    tables = {folder: read_predicted(folder) for folder in {ref.images[0].parent for ref in refs}}
    return {ref.case_id: tables[ref.images[0].parent].get(ref.images[0].name, {}) for ref in refs}


def _notes_in(noted: dict[str, dict[str, str]], case_id: str) -> Note:
    """Keeps the first text of each kind and case."""

    def note(kind: str, text: str) -> None:
        noted.setdefault(kind, {}).setdefault(case_id, text)

    return note


def _score(ref: VolumeRef, truth: Truth, tolerance_mm: float, note: Note) -> CaseScore:
    assert ref.label is not None, "pairs have both"
    pair = read_pair(ref.images[0], ref.label, truth.declared, scan=truth.scans.get(ref.case_id), note=note)
    return case_score(
        ref.case_id,
        pair.prediction,
        pair.truth,
        pair.class_names,
        pair.grid.steps_mm,
        regions=pair.regions,
        ignored=None if truth.declared.ignore_value is None else len(pair.class_names),
        tolerance_mm=tolerance_mm,
    )


def _with_all_classes(scores: Iterable[CaseScore]) -> tuple[CaseScore, ...]:
    """The scores with the same classes in all: one that a case does not have is in neither truth nor prediction."""
    scores = tuple(scores)
    counts = Counter(name for score in scores for name in score.dice)
    if set(counts.values()) == {len(scores)}:
        return scores
    # "class 10" after "class 9".
    names = sorted(counts, key=lambda name: (len(name), name) if name.startswith("class ") else (0, name))
    return tuple(
        replace(
            score,
            dice={name: score.dice.get(name) for name in names},
            hd95_mm={name: score.hd95_mm.get(name) for name in names},
            nsd={name: score.nsd.get(name) for name in names},
            truth_ml={name: score.truth_ml.get(name, 0.0) for name in names},
            prediction_ml={name: score.prediction_ml.get(name, 0.0) for name in names},
        )
        for score in scores
    )
