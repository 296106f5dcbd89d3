"""Plain records of what was chosen, what happened and how well it went. Only `report` draws them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

PREDICTIONS_TABLE, PREDICTIONS_PAGE = "predictions.csv", "predictions.html"
PROBABILITIES_FOLDER, PREVIEWS_FOLDER, STATISTICS_FOLDER = "probabilities", "previews", "statistics"
SNAP_LABELS, SLICER_LABELS = "labels.label", "labels.ctbl"
WITH_PREDICTIONS = (
    *(PREDICTIONS_TABLE, PREDICTIONS_PAGE, PROBABILITIES_FOLDER, PREVIEWS_FOLDER, STATISTICS_FOLDER),
    *(SNAP_LABELS, SLICER_LABELS),
)
"""What `predict` writes next to the predictions."""


def mean_where_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are numbers; None if none is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured for a choice on this machine: the time of one way relative to another.

    Attributes:
        what: the two ways, "A against B".
        ratio: time with A over time with B, the median of all rounds; below 1 A is quicker.
        low: the smallest ratio of all rounds. `high` is the largest.
        rounds: how many there were.
        decided: whether the choice follows from it; otherwise it accompanies a choice made by rule.
    """

    what: str
    ratio: float
    low: float
    high: float
    rounds: int
    decided: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One automatic decision.

    Attributes:
        key: the configuration key it settles, dotted.
        value: what was chosen, as plain data.
        reason: why, in words, with the measurement behind it.
        changes_results: whether another choice would change the trained weights or the predictions.
        changes_roundings: whether another choice would change them only by roundings, as another machine does: the
            same sums in another order.
        measured: the measurement behind the choice or accompanying it.
    """

    key: str
    value: Any
    reason: str
    changes_results: bool = True
    changes_roundings: bool = False
    measured: Measured | None = None


@dataclass(frozen=True, kw_only=True)
class CaseScore:
    """How well one case was segmented, on its own grid.

    Attributes:
        dice: class name to Dice; None if the class is in neither truth nor prediction and so is left out of all means.
        hd95_mm: class name to the 95th percentile surface distance; None if truth or prediction is empty.
        hd95_estimated: classes whose distance used only part of a surface that is many times as large as the other.
        nsd: class name to the normalized surface distance, 0 to 1; 0 if the class is in truth or prediction alone, None
            if it is in neither. Empty, as `hd95_mm`, if surfaces were not measured.
        truth_ml: class name to its volume in the truth.
        prediction_ml: class name to its volume in the prediction.
    """

    case_id: str
    dice: Mapping[str, float | None]
    hd95_mm: Mapping[str, float | None] = field(default_factory=dict)
    hd95_estimated: tuple[str, ...] = ()
    nsd: Mapping[str, float | None] = field(default_factory=dict)
    truth_ml: Mapping[str, float] = field(default_factory=dict)
    prediction_ml: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_dice(self) -> float | None:
        """Mean over the classes that are in truth or prediction; None if there are none."""
        present = [dice for dice in self.dice.values() if dice is not None]
        return sum(present) / len(present) if present else None


MEASURES = tuple(known.name for known in fields(CaseScore) if str(known.type).startswith("Mapping"))
"""The fields of `CaseScore` with a figure for each class."""
