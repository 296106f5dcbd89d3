"""Classes that a fold cannot be judged on, or cannot learn, because no case on that side has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from voxelocity.core.cases import Cases, Fold, indices_by_value
from voxelocity.core.staging import is_elsewhere
from voxelocity.data.decode import label_values_in
from voxelocity.planning.make import Planned
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import listed

# A second or so of decoding; training says the same of larger data sets, from its cache.
_MOST_VOXELS = 200_000_000
# Of a thousand classes, a fold lacks many.
_MOST_TEXTS = 16


def absent_classes(cases: Cases, fold: Fold, present: Mapping[str, Collection[int]]) -> list[str]:
    """A text for each side of the fold that lacks a class, and the folds whose held-out cases have it.

    Args:
        cases: with the classes declared.
        fold: that is held out.
        present: the class indices in each case, by case id.
    """
    split = cases.split(fold)
    if not split.held_out:
        return []
    texts = []
    sides = (
        ("held-out", split.validation, "it is left out of all means, or scores 0 if any voxel is predicted"),
        ("training", split.training, "the network cannot be trained on it"),
    )
    for index, name in enumerate(cases.class_names[1:], start=1):
        folds = {fold for ref in cases.refs if index in present.get(ref.case_id, ()) for fold in ref.folds}
        for side, refs, result in sides:
            if any(index in present.get(ref.case_id, ()) for ref in refs):
                continue
            named = [f"--fold {number}" for number in sorted(folds)]
            where = f"folds that hold out cases with it: {listed(named)}" if named else "no case has it"
            texts.append(f"no {side} case of fold {fold} contains {name}, so {result}; {where}")
    more = len(texts) - _MOST_TEXTS
    if more > 0:
        texts[_MOST_TEXTS:] = [f"{more} more classes are in no held-out or in no training case of fold {fold}"]
    return texts


def absent_from_plan(planned: Planned) -> list[str]:
    """`absent_classes` of a plan, by reading its label files; none where that would take long, or cannot be done."""
    refs = [ref for ref in planned.cases.refs if ref.label is not None]
    if planned.fingerprint.num_voxels > _MOST_VOXELS or any(is_elsewhere(ref.label) for ref in refs if ref.label):
        return []
    cases = planned.cases
    index_of = indices_by_value(cases.stored_values[: cases.num_classes])
    try:
        with ThreadPoolExecutor(planned.machine.num_cpus) as pool:
            found = list(pool.map(lambda ref: label_values_in(ref.label), refs))
    except ScanError:
        # Training names the file.
        return []
    present = {
        ref.case_id: {index_of[value] for value in values if value in index_of}
        for ref, values in zip(refs, found, strict=True)
    }
    return absent_classes(planned.cases, planned.fold, present)
