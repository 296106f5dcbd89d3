"""A comparison of accuracy in words and rows: whether it is the same within a margin, and on what evidence."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.quantities import NOT_AVAILABLE, count_text, dice_text, joined, mm_text, signed_text
from voxelocity.report.document import Table
from voxelocity.report.parity import Judgment, Measure, PairedDifference, Parity, Unit

_FEW = 10
_MAX_NAMED = 4
_MEASURE_NAMES: dict[Measure, str] = {"dice": "Dice", "hd95_mm": "HD95 (mm)"}

_MEANING: dict[Unit, str] = {
    "case": (
        "Each 95 % interval is of the mean difference over cases (Student's t): it says what other cases like these "
        "would give, not what another seed would, as there was one training each."
    ),
    "training": (
        "Each 95 % interval is of the mean difference over pairs of trainings (Student's t): it says what other seeds "
        "would give on these cases."
    ),
}


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
    facts = f"{signed_text(row.difference)}, 95 % interval {interval_text(row)}, {_pairs(row.n, parity)}"
    match row.judgment:
        case "same":
            return f"Accuracy: the same within {margin} mean foreground Dice ({facts}).{_small_but_there(row, second)}"
        case "different":
            than = "higher" if row.difference > 0.0 else "lower"
            return f"Accuracy: different. {second} has a {than} mean foreground Dice by more than {margin} ({facts})."
        case "undecided":
            return f"Accuracy: undecided. {_undecided(row, second, margin)} ({facts}); more {parity.unit}s would tell."


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
        f"{count_text(number, 'case')} {'was' if number == 1 else 'were'} judged only in {label}"
        for number, label in ((parity.num_only_first, first), (parity.num_only_second, second))
        if number
    )
    cases = f"{count_text(parity.num_cases, 'case')} of both are paired"
    if parity.unit == "training":
        cases = f"Each of the {_pairs(parity.overall.n, parity)} has one seed and is judged on {parity.num_cases} cases"
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
            "differences, which this few cannot show, and one more can move it."
        )
    return " ".join(texts)


def accuracy_tables(parity: Parity, first: str, second: str) -> list[Table]:
    """Dice and HD95 of each structure side by side; a measure that no case has is left out."""
    tables = []
    for measure in _MEASURE_NAMES:
        rows: Sequence[PairedDifference] = parity.of(measure)
        if measure == "dice" and len(rows) > 1:
            rows = [parity.overall, *rows]
        if any(row.n for row in rows):
            tables.append(
                Table(
                    caption=f"{_MEASURE_NAMES[measure]} by structure, paired by {parity.unit}",
                    heads=[
                        "Structure",
                        first,
                        second,
                        "Difference",
                        "95 % interval",
                        unit_head(parity),
                        judged_head(rows[0]),
                    ],
                    rows=[difference_cells(row) for row in rows],
                    text_columns=frozenset({6}),
                    marked_columns=frozenset({3}),
                )
            )
    return tables


def difference_cells(row: PairedDifference) -> list[str]:
    """One row of a table: name, both means, difference, interval, cases and judgment."""
    text = dice_text if row.measure == "dice" else mm_text
    digits = 3 if row.measure == "dice" else 2
    cases = str(row.n) if not row.num_unpaired else f"{row.n} of {row.n + row.num_unpaired}"
    judgment = judgment_text(row.judgment) if row.n else NOT_AVAILABLE
    return [row.name, text(row.first), text(row.second), signed_text(row.difference, digits=digits),
            interval_text(row), cases, judgment]  # fmt: skip


def interval_text(row: PairedDifference) -> str:
    """Both ends with their signs: "-0.001 to +0.005"."""
    if row.low is None or row.high is None:
        return NOT_AVAILABLE
    digits = 3 if row.measure == "dice" else 2
    return f"{signed_text(row.low, digits=digits)} to {signed_text(row.high, digits=digits)}"


def unit_head(parity: Parity) -> str:
    """The head of the column that counts the units."""
    return {"case": "Cases", "training": "Trainings"}[parity.unit]


def judged_head(row: PairedDifference) -> str:
    """The head of the column of judgments, with the margin."""
    return f"Within {row.margin:.3g}{'' if row.measure == 'dice' else ' mm'}"


def judgment_text(judgment: Judgment) -> str:
    """A judgment as an answer to the head of its column: "yes: same", "no: different", "undecided"."""
    return {"same": "yes: same", "different": "no: different", "undecided": "undecided"}[judgment]


def _direction(row: PairedDifference) -> str:
    """ "higher" or "lower" where the interval lies on one side of no difference; else empty."""
    if row.low is None or row.high is None or row.low <= 0.0 <= row.high:
        return ""
    return "higher" if row.low > 0.0 else "lower"


def _small_but_there(row: PairedDifference, second: str) -> str:
    direction = _direction(row)
    return f" Within it, {second} is a little {direction}." if direction else ""


def _undecided(row: PairedDifference, second: str, margin: str) -> str:
    direction = _direction(row)
    if direction:
        return f"{second} has a {direction} mean foreground Dice, but whether by more than {margin} is open"
    return f"The interval of the mean foreground Dice lies neither within {margin} nor beyond it"


def _units(count: int, parity: Parity) -> str:
    return count_text(count, "case") if parity.unit == "case" else _pairs(count, parity)


def _pairs(count: int, parity: Parity) -> str:
    if parity.unit == "case":
        return count_text(count, "paired case")
    return count_text(count, "pair of trainings", "pairs of trainings")


def _named(rows: Sequence[PairedDifference], judgment: Judgment) -> str:
    names = [row.name for row in rows if row.judgment == judgment]
    more = len(names) - _MAX_NAMED
    listed = ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{judgment}: {listed}" if names else ""
