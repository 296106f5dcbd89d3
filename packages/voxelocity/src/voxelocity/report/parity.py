"""Whether two trainings segment alike: scores of the same cases, paired, with intervals; and that in words and rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from voxelocity.core.records import CaseScore
from voxelocity.report.columns import Column, page_table
from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    count_text,
    dice_text,
    joined,
    listed,
    mm_text,
    signed_text,
)
from voxelocity_observe.document.blocks import Table

Judgment = Literal["same", "different", "undecided"]
Measure = Literal["dice", "hd95_mm"]
Unit = Literal["case", "training"]

FOREGROUND = "all structures"
"""The name of the mean over all structures of a case."""
MARGIN_DICE = 0.01
MARGIN_MM = 1.0
_CONFIDENCE = 0.95

_FEW = 10
_MAX_NAMED = 4
_MEASURE_NAMES: dict[Measure, str] = {"dice": "Dice", "hd95_mm": "HD95 (mm)"}
_ANSWERS: dict[Judgment, str] = {"same": "yes: same", "different": "no: different", "undecided": "undecided"}
_MEANING: dict[Unit, str] = {
    "case": (
        "Each 95 % interval is of the mean difference over cases (Student's t): it shows the variation between "
        "cases, not between seeds, because there was one training each."
    ),
    "training": (
        "Each 95 % interval is of the mean difference over pairs of trainings (Student's t): it shows the variation "
        "between seeds on these cases."
    ),
}


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
    margins: dict[Measure, float] = {"dice": margin_dice, "hd95_mm": margin_mm}
    names = list(dict.fromkeys(name for pair in pairs for score in pair for name in score.dice))
    whole = {case_id: _both(a.mean_dice, b.mean_dice) for case_id, (a, b) in zip(common, pairs, strict=True)}
    changes = {case_id: pair[1] - pair[0] for case_id, pair in whole.items() if pair is not None}
    return Parity(
        num_cases=len(common),
        num_only_first=len(firsts) - len(common),
        num_only_second=len(seconds) - len(common),
        overall=_difference(FOREGROUND, "dice", whole.values(), margin_dice),
        structures=tuple(
            _difference(
                name,
                measure,
                (_both(getattr(a, measure).get(name), getattr(b, measure).get(name)) for a, b in pairs),
                margin,
            )
            for measure, margin in margins.items()
            for name in names
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


def accuracy_sentence(parity: Parity, first: str, second: str) -> str:
    """Whether the mean foreground Dice of both is the same within the margin, and how sure that is.

    It says "the same" if the whole interval lies within the margin, "different" if it lies beyond, and "undecided"
    otherwise: a difference that does not show is not taken for equality.
    """
    row = parity.overall
    if row.difference is None:
        return f"Accuracy: undecided, as no case that {first} and {second} have in common was scored."
    margin = f"{row.margin:.3g}"
    if row.low is None:
        return (
            f"Accuracy: undecided. Mean foreground Dice differs by {signed_text(row.difference)}, but on "
            f"{_units(row.n, parity)} alone, which gives no interval."
        )
    facts = f"{signed_text(row.difference)}, 95 % interval {_interval_text(row)}, {_pairs(row.n, parity)}"
    match row.judgment:
        case "same":
            small = f" Within it, {second} is a little {_direction(row)}." if _direction(row) else ""
            return f"Accuracy: the same within {margin} mean foreground Dice ({facts}).{small}"
        case "different":
            than = "higher" if row.difference > 0.0 else "lower"
            return f"Accuracy: different. {second} has a {than} mean foreground Dice by more than {margin} ({facts})."
        case "undecided":
            what = f"The interval of the mean foreground Dice lies neither within {margin} nor beyond it"
            if direction := _direction(row):
                what = f"{second} has a {direction} mean foreground Dice, but whether by more than {margin} is open"
            return f"Accuracy: undecided. {what} ({facts}); more {parity.unit}s would decide."


def structure_sentences(parity: Parity) -> str:
    """Which structures are not the same, by Dice and by HD95; empty where there is one structure and no distance."""
    dice, hd95 = ([row for row in parity.of(measure) if row.n] for measure in _MEASURE_NAMES)
    # The sentence on the mean already gives the Dice of a single structure.
    texts = [_structures("Dice", dice, "") if len(dice) > 1 else "", _structures("HD95", hd95, " mm") if hd95 else ""]
    return joined(texts, " ")


def _structures(measure: str, rows: Sequence[PairedDifference], unit: str) -> str:
    margin = f"{rows[0].margin:.3g}{unit}"
    num_same = sum(row.judgment == "same" for row in rows)
    if num_same == len(rows):
        what = "it is" if len(rows) == 1 else f"all {len(rows)} structures are"
        return f"By {measure} {what} the same within {margin}."
    judgments: tuple[Judgment, ...] = ("different", "undecided")
    others = joined((_named(rows, judgment) for judgment in judgments), "; ")
    count = f"{num_same} of {count_text(len(rows), 'structure')} {'is' if num_same == 1 else 'are'}"
    return f"By {measure} {count} the same within {margin}; {others}."


def worth_of_interval(parity: Parity, first: str, second: str) -> str:
    """What the intervals rest on: which cases or trainings, how many, and what they do not show."""
    left_out = joined(
        f"{count_text(number, 'case')} {'was' if number == 1 else 'were'} scored only in {label}"
        for number, label in ((parity.num_only_first, first), (parity.num_only_second, second))
        if number
    )
    cases = f"{count_text(parity.num_cases, 'case')} of both are paired"
    if parity.unit == "training":
        cases = f"Each of the {_pairs(parity.overall.n, parity)} has one seed and is scored on {parity.num_cases} cases"
    texts = [
        f"{cases}; {left_out} and left out." if left_out else f"{cases}.",
        f"{second} is better in {parity.num_better} of them and worse in {parity.num_worse}.",
    ]
    if parity.extreme is not None and parity.extreme[1] != 0.0:
        texts.append(f"The largest difference is {signed_text(parity.extreme[1])}, in {parity.extreme[0]}.")
    texts.append(_MEANING[parity.unit])
    if 1 < parity.overall.n < _FEW:
        texts.append(
            f"An interval of {_units(parity.overall.n, parity)} is rough: it assumes normally distributed "
            "differences, which so few values cannot confirm, and one more can shift it."
        )
    return " ".join(texts)


def accuracy_tables(parity: Parity, first: str, second: str) -> list[Table]:
    """Dice and HD95 of each structure side by side; a measure that no case has is left out."""
    tables = []
    for measure, name in _MEASURE_NAMES.items():
        rows: Sequence[PairedDifference] = parity.of(measure)
        if measure == "dice" and len(rows) > 1:
            rows = [parity.overall, *rows]
        if any(row.n for row in rows):
            caption = f"{name} by structure, paired by {parity.unit}"
            columns = _columns(measure, rows[0].margin, parity.unit, first, second)
            gains = [_gain(row) for row in rows]
            table = replace(
                page_table(caption, columns, rows),
                marked_columns=frozenset({_CHANGE}),
                worse_cells=frozenset((number, _CHANGE) for number, gain in enumerate(gains) if gain < 0.0),
                even_cells=frozenset((number, _CHANGE) for number, gain in enumerate(gains) if gain == 0.0),
            )
            tables.append(table)
    return tables


# The column of the difference in `_columns`.
_CHANGE = 3


def _gain(row: PairedDifference) -> float:
    """By how much the second is better; 0 where that is within the rounding of what is shown, or not known."""
    change = row.difference or 0.0
    gain, rounding = (change, 5e-4) if row.measure == "dice" else (-change, 5e-3)
    return gain if abs(gain) >= rounding else 0.0


def _columns(measure: Measure, margin: float, unit: Unit, first: str, second: str) -> list[Column[PairedDifference]]:
    text, ending = (dice_text, "") if measure == "dice" else (mm_text, " mm")
    return [
        Column(head="Structure", value=lambda row: row.name),
        Column(head=first, value=lambda row: row.first, text=text),
        Column(head=second, value=lambda row: row.second, text=text),
        Column(head="Difference", value=lambda row: _signed(row, row.difference)),
        Column(head="95 % interval", value=_interval_text),
        Column(
            head=f"{unit.title()}s",
            value=lambda row: f"{row.n} of {row.n + row.num_unpaired}" if row.num_unpaired else row.n,
        ),
        Column(
            head=f"Within {margin:.3g}{ending}",
            value=lambda row: _ANSWERS[row.judgment] if row.n else NOT_AVAILABLE,
            is_words=True,
        ),
    ]


def _interval_text(row: PairedDifference) -> str:
    """Both ends with their signs: "-0.001 to +0.005"."""
    return NOT_AVAILABLE if row.low is None else f"{_signed(row, row.low)} to {_signed(row, row.high)}"


def _signed(row: PairedDifference, value: float | None) -> str:
    return signed_text(value, digits=3 if row.measure == "dice" else 2)


def _direction(row: PairedDifference) -> str:
    """ "higher" or "lower" where the interval lies on one side of no difference; else empty."""
    if row.low is None or row.high is None or row.low <= 0.0 <= row.high:
        return ""
    return "higher" if row.low > 0.0 else "lower"


def _units(count: int, parity: Parity) -> str:
    return count_text(count, "case") if parity.unit == "case" else _pairs(count, parity)


def _pairs(count: int, parity: Parity) -> str:
    if parity.unit == "case":
        return count_text(count, "paired case")
    return count_text(count, "pair of trainings", "pairs of trainings")


def _named(rows: Sequence[PairedDifference], judgment: Judgment) -> str:
    names = [row.name for row in rows if row.judgment == judgment]
    return f"{judgment}: {listed(names, _MAX_NAMED)}" if names else ""
