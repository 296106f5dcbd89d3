"""Which of the cases that a run holds out the weights that it starts from may have learned from.

Weights that have certainly seen a case are refused to be judged by it. Where that is only possible, or not known, the
scores of these cases are marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.scan_formats import FILE_ENDINGS, stem_of
from voxelocity.core.volume import VolumeRef
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.kinds import nnunet_results
from voxelocity.infer.models.nnunet_plans import DATASET
from voxelocity.planning import Planned
from voxelocity.training.resume import SavedRun, other_path
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.source_model import SourceModel
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import listed

# A run that started from a run that started from ...
_MOST_SOURCES = 20
KEY = "start"
"""The key of the model among the choices of a plan."""
_SAME_NAME, _UNKNOWN = "it was trained on a case with this name", "it does not record its training cases"


def find_exposed(source: SourceModel, cases: Cases, fold: Fold) -> dict[str, str]:
    """Why `source` may have learned from a case that is held out now, by its id; only those that it may have seen.

    Cases are known by id and size wherever the data set lies. What nnU-Net held out is known by the names of its
    validation; of bundles, nothing is known.

    Raises:
        InputError: it has certainly learned from some.
    """
    split = cases.split(fold)
    refs = split.validation if split.held_out else ()
    division = source.spec.division
    if not refs:
        return {}
    if division is not None:
        _refuse(source.folder, [ref.case_id for ref in refs if division.side(ref) == "trained on"], len(refs))
        # What that run was started from is among them.
        return {ref.case_id: _SAME_NAME for ref in refs if ref.case_id in division.training}
    if source.kind == "nnU-Net":
        return _seen_by_nnunet(source.folder, refs)
    return _seen_by_runs(source.folder, cases, refs) if source.kind == "run" else _all_unknown(refs)


def exposure_text(planned: Planned) -> str:
    """What that means for the scores of a run that starts from a model; "" if it has seen none of its cases."""
    exposed = planned.exposed
    if not exposed:
        return ""
    reasons = "; ".join(dict.fromkeys(exposed.values()))
    name = next(choice.value for choice in planned.choices if choice.key == KEY)
    num_held_out = len(planned.cases.split(planned.fold).validation)
    return (
        f"train: {name} may have learned from {len(exposed)} of the {num_held_out} held-out cases "
        f"({listed(sorted(exposed), 3)}: {reasons}); if so, their scores are too high, so they are marked"
    )


def _seen_by_runs(folder: Path, cases: Cases, refs: Sequence[VolumeRef]) -> dict[str, str]:
    """By the records of a run that does not keep its cases with its model, and of those that it was started from."""
    held_out, place = {ref.case_id for ref in refs}, folder
    exposed: dict[str, str] = {}
    for _ in range(_MOST_SOURCES):
        record = RunFolder(place).record
        if not record.is_file():
            return _all_unknown(refs)
        saved = SavedRun.read(record)
        names = sorted(held_out & {*saved.case_ids.get("training", ())})
        _refuse(place, [] if other_path(saved, cases) else names, len(refs))
        exposed |= dict.fromkeys(names, _SAME_NAME)
        before = saved.source.get("folder")
        if not isinstance(before, str) or not before:
            break
        place = Path(before)
    return exposed


def _seen_by_nnunet(folder: Path, refs: Iterable[VolumeRef]) -> dict[str, str]:
    """By the predictions of its validations: each fold writes one for each case that it held out."""
    results = nnunet_results(folder)
    held_out = _predicted(folder)
    known = {name for fold in results.glob("fold_*") for name in _predicted(fold)}
    num_cases = read_json(results / DATASET).get("numTraining")
    knows_all = isinstance(num_cases, int) and 0 < num_cases <= len(known)
    return {
        ref.case_id: _SAME_NAME if ref.case_id in known else _UNKNOWN
        for ref in refs
        if ref.case_id not in held_out and (ref.case_id in known or not knows_all)
    }


def _predicted(fold: Path) -> set[str]:
    scans = (path.name for path in (fold / "validation").glob("*") if path.name.lower().endswith(FILE_ENDINGS))
    return set(map(stem_of, scans))


def _all_unknown(refs: Iterable[VolumeRef]) -> dict[str, str]:
    return {ref.case_id: _UNKNOWN for ref in refs}


def _refuse(place: Path, seen: Sequence[str], num_held_out: int) -> None:
    if not seen:
        return
    record = RunFolder(place).record
    fold = SavedRun.read(record).fold if record.is_file() else "all"
    own = "" if fold == "all" else f"--fold {fold}, which it held out too, "
    raise InputError(
        f"train: {place} was trained on {len(seen)} of the {num_held_out} cases that would be held out "
        f"({listed(seen, 3)}), so the scores would be too high; give {own}--fold all, or start from "
        "a run of this fold"
    )
