"""Decides by the final validation of which classes predictions keep only the largest component (as nnU-Net does)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxelocity.core.cases import index_dtype
from voxelocity.core.records import MEASURES, CaseScore
from voxelocity.core.volume import ClassIndices, Volume
from voxelocity.infer import PredictionSpec, keep_largest
from voxelocity.metrics import NSD_TOLERANCE_MM, case_score, summarize

# A smaller gain would not show in the three decimals of a Dice, and new scans may need what is removed.
_LEAST_GAIN = 5e-4


@dataclass(frozen=True, kw_only=True)
class FinalScores:
    """The scores of the final validation, of predictions as `voxelocity predict` writes them.

    Attributes:
        scores: one per case.
        keep_largest: mean Dice without and with this step, by the name of each class that keeps only its largest
            component.
    """

    scores: list[CaseScore]
    keep_largest: Mapping[str, tuple[float, float]]


ScorePair = tuple[CaseScore, CaseScore]
"""A case's score, and its score with only the largest component of every class."""


def largest_alone(score: CaseScore, scan: Volume, prediction: ClassIndices, spec: PredictionSpec) -> CaseScore:
    """The score that a case would have with only the largest component of every class.

    Scores only the classes in which something was removed. Classes do not affect each other: what is removed becomes
    background, which is not scored.
    """
    kept = keep_largest(prediction, range(1, len(spec.labels)))
    if kept is prediction:
        return score
    assert scan.label is not None, "validation cases have labels"
    changed = np.unique(prediction[kept != prediction])
    num_indices, names = len(spec.stored_values), spec.class_names
    only = np.zeros(num_indices, index_dtype(num_indices))
    only[changed] = changed
    only[len(spec.labels) :] = range(len(spec.labels), len(only))
    again = case_score(
        scan.case_id,
        only[kept],
        only[scan.label],
        names,
        scan.grid.steps_mm,
        ignored=spec.ignored,
        tolerance_mm=NSD_TOLERANCE_MM if score.hd95_mm else None,
    )
    return _merged(score, again, [names[index] for index in changed])


def settle(pairs: Sequence[ScorePair]) -> FinalScores:
    """The scores, with the step for the classes whose mean Dice it raises."""
    before, after = (summarize(scores).dice for scores in zip(*pairs, strict=True))
    gains = {
        name: (old, new)
        for name, old in before.items()
        if old is not None and (new := after[name]) is not None and new - old >= _LEAST_GAIN
    }
    return FinalScores(scores=[_merged(old, new, list(gains)) for old, new in pairs], keep_largest=gains)


def _merged(score: CaseScore, other: CaseScore, names: Sequence[str]) -> CaseScore:
    """The score with the figures of the other for these classes."""

    def merged(figures: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
        return {name: others[name] if name in names else value for name, value in figures.items()}

    figures: dict[str, Any] = {key: merged(getattr(score, key), getattr(other, key)) for key in MEASURES}
    estimated = {*score.hd95_estimated} - {*names} | {*other.hd95_estimated} & {*names}
    return replace(score, **figures, hd95_estimated=tuple(name for name in score.dice if name in estimated))
