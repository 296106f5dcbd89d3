"""Whether two trainings segment alike: scores of the same cases, paired. Counts and intervals only; words elsewhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from voxelocity.core.records import CaseScore

Judgment = Literal["same", "different", "undecided"]
Measure = Literal["dice", "hd95_mm"]
Unit = Literal["case", "training"]

FOREGROUND = "all structures"
"""The name of the mean over all structures of a case."""
MARGIN_DICE = 0.01
MARGIN_MM = 1.0
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """One structure in one measure, over the units (cases, or trainings) in which both sides have it.

    Attributes:
        name: of the structure, or `FOREGROUND`.
        measure: "dice" (larger is better) or "hd95_mm" (smaller is better).
        n: units that make a pair.
        num_unpaired: common units in which one side or both have no such figure, as HD95 of a structure that was not
            found.
        first: mean of the first training over the pairs; None where n is 0. `second` likewise.
        difference: mean of second less first.
        low: lower end of the 95 % interval of the mean difference, by Student's t; None where n is below 2.
        high: its upper end.
        margin: the largest difference that counts as none.
    """

    name: str
    measure: Measure
    n: int
    num_unpaired: int
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    margin: float

    @property
    def judgment(self) -> Judgment:
        """ "same": the interval lies within the margin; "different": beyond it; "undecided": neither, or none."""
        if self.low is None or self.high is None:
            return "undecided"
        if -self.margin <= self.low and self.high <= self.margin:
            return "same"
        return "different" if self.low > self.margin or self.high < -self.margin else "undecided"


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How two trainings, or two ways to train, compare on the cases that both were judged on.

    Attributes:
        num_cases: of both.
        num_only_first: judged in the first training alone. `num_only_second` likewise.
        overall: Dice, mean over the structures of each case.
        structures: Dice of each structure, then HD95 of each.
        num_better: units in which the second has the higher mean Dice.
        num_worse: units in which it has the lower one.
        extreme: the case whose mean Dice differs most, and by how much; None where there is none.
        unit: what makes a pair: a case of two trainings, or two trainings of one seed.
    """

    num_cases: int
    num_only_first: int
    num_only_second: int
    overall: PairedDifference
    structures: tuple[PairedDifference, ...]
    num_better: int
    num_worse: int
    extreme: tuple[str, float] | None
    unit: Unit = "case"

    def of(self, measure: Measure) -> tuple[PairedDifference, ...]:
        """The structures in one measure."""
        return tuple(row for row in self.structures if row.measure == measure)


def paired_parity(
    first: Sequence[CaseScore],
    second: Sequence[CaseScore],
    *,
    margin_dice: float = MARGIN_DICE,
    margin_mm: float = MARGIN_MM,
) -> Parity | None:
    """The comparison over the cases that both have; None where they have none in common.

    Case ids name the same scans on both sides. Differences up to the margins, of Dice and of HD95, count as none.
    """
    firsts, seconds = ({score.case_id: score for score in scores} for scores in (first, second))
    common = [case_id for case_id in firsts if case_id in seconds]
    if not common:
        return None
    pairs = [(firsts[case_id], seconds[case_id]) for case_id in common]
    names = list(dict.fromkeys(name for pair in pairs for score in pair for name in score.dice))
    whole = {case_id: _both(a.mean_dice, b.mean_dice) for case_id, (a, b) in zip(common, pairs, strict=True)}
    changes = {case_id: pair[1] - pair[0] for case_id, pair in whole.items() if pair is not None}
    return Parity(
        num_cases=len(common),
        num_only_first=len(firsts) - len(common),
        num_only_second=len(seconds) - len(common),
        overall=_difference(FOREGROUND, "dice", whole.values(), margin_dice),
        structures=(
            *(
                _difference(n, "dice", (_both(a.dice.get(n), b.dice.get(n)) for a, b in pairs), margin_dice)
                for n in names
            ),
            *(
                _difference(n, "hd95_mm", (_both(a.hd95_mm.get(n), b.hd95_mm.get(n)) for a, b in pairs), margin_mm)
                for n in names
            ),
        ),
        num_better=sum(change > 0.0 for change in changes.values()),
        num_worse=sum(change < 0.0 for change in changes.values()),
        extreme=max(changes.items(), key=lambda change: abs(change[1]), default=None),
    )


def paired_trainings(
    first: Sequence[Sequence[CaseScore]],
    second: Sequence[Sequence[CaseScore]],
    *,
    margin_dice: float = MARGIN_DICE,
    margin_mm: float = MARGIN_MM,
) -> Parity | None:
    """The comparison of two ways to train over several pairs of trainings, each pair of one seed; None without a case.

    With two pairs or more the unit is the pair, and its figure the mean over its cases: seeds may differ more than
    cases do, and an interval over cases would not show it. A single pair is compared over its cases.
    """
    found = [
        paired_parity(a, b, margin_dice=margin_dice, margin_mm=margin_mm) for a, b in zip(first, second, strict=True)
    ]
    pairs = [parity for parity in found if parity is not None]
    if not pairs or len(pairs) < len(found):
        return None
    if len(pairs) == 1:
        return pairs[0]
    keys = dict.fromkeys((row.name, row.measure) for parity in pairs for row in parity.structures)
    rows = [{(row.name, row.measure): row for row in parity.structures} for parity in pairs]
    margins: dict[Measure, float] = {"dice": margin_dice, "hd95_mm": margin_mm}
    changes = [parity.overall.difference for parity in pairs if parity.overall.difference is not None]
    return Parity(
        num_cases=pairs[0].num_cases,
        num_only_first=pairs[0].num_only_first,
        num_only_second=pairs[0].num_only_second,
        overall=_difference(FOREGROUND, "dice", [_means(parity.overall) for parity in pairs], margin_dice),
        structures=tuple(
            _difference(name, measure, [_means(row.get((name, measure))) for row in rows], margins[measure])
            for name, measure in keys
        ),
        num_better=sum(change > 0.0 for change in changes),
        num_worse=sum(change < 0.0 for change in changes),
        extreme=None,
        unit="training",
    )


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of the population, by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    # Imported here: pages of one run do without it.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.5 + _CONFIDENCE / 2.0))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def _difference(
    name: str, measure: Measure, pairs: Iterable[tuple[float, float] | None], margin: float
) -> PairedDifference:
    found = list(pairs)
    both = [pair for pair in found if pair is not None]
    changes = [second - first for first, second in both]
    interval = interval_of_mean(changes) or (None, None)
    return PairedDifference(
        name=name,
        measure=measure,
        n=len(both),
        num_unpaired=len(found) - len(both),
        first=statistics.fmean(first for first, _ in both) if both else None,
        second=statistics.fmean(second for _, second in both) if both else None,
        difference=statistics.fmean(changes) if both else None,
        low=interval[0],
        high=interval[1],
        margin=margin,
    )


def _both(first: float | None, second: float | None) -> tuple[float, float] | None:
    if first is None or second is None or not math.isfinite(first) or not math.isfinite(second):
        return None
    return first, second


def _means(row: PairedDifference | None) -> tuple[float, float] | None:
    return None if row is None else _both(row.first, row.second)
