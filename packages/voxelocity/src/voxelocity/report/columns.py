"""The columns of the tables about scores. An entry here is on pages, in the terminal and in files that have its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar

from voxelocity.core.records import CaseScore, mean_where_known
from voxelocity_observe.core.quantities import NOT_AVAILABLE, dice_text, mm_text, signed_text
from voxelocity_observe.document.blocks import Table

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[T]):
    """A column of a table with a row for each record.

    Attributes:
        head: on pages; may name what `page_table` is given, as in "Mean NSD ({tolerance_mm:g} mm)".
        value: of a record.
        text: a value as it is shown.
        key: of the value in JSON; "" leaves it out there.
        short: the head in a terminal; "" leaves the column out there.
        help: sentences for the text next to the table.
        is_words: whether it holds words, not numbers.
    """

    head: str
    value: Callable[[T], Any]
    text: Callable[[Any], str] = str
    key: str = ""
    short: str = ""
    help: str = ""
    is_words: bool = False


def page_table(caption: str, columns: Sequence[Column[T]], records: Iterable[T], **named: float) -> Table:
    """The columns as a table of a page; `named` is what their heads name."""
    return Table(
        caption=caption,
        heads=[column.head.format(**named) if named else column.head for column in columns],
        rows=[[column.text(column.value(record)) for column in columns] for record in records],
        text_columns=frozenset(place for place, column in enumerate(columns) if column.is_words),
    )


def help_text(columns: Iterable[Column[Any]]) -> str:
    """What the columns mean, as far as their heads do not say it."""
    return " ".join(column.help for column in columns if column.help)


def _figure(key: str) -> Callable[[CaseScore, str], Any]:
    def find(score: CaseScore, name: str) -> Any:
        found = getattr(score, key)
        return found.get(name) if isinstance(found, Mapping) else name in found

    return find


def _difference_ml(score: CaseScore, name: str) -> float | None:
    if name not in score.truth_ml or name not in score.prediction_ml:
        return None
    return score.prediction_ml[name] - score.truth_ml[name]


def _difference_share(score: CaseScore, name: str) -> float | None:
    difference_ml = _difference_ml(score, name)
    return None if difference_ml is None or not score.truth_ml[name] else difference_ml / score.truth_ml[name]


FIGURES: Mapping[str, Callable[[CaseScore, str], Any]] = {
    **{field.name: _figure(field.name) for field in fields(CaseScore) if field.name != "case_id"},
    "difference_ml": _difference_ml,
    "difference_share": _difference_share,
}
"""What is known of a class in a case, by its key in JSON and its column in CSV: measured, or computed from that."""


class ClassScores:
    """One class in the cases of an evaluation.

    Attributes:
        name: of the class.
        present: the scores of the cases where it is in truth or prediction; all means are over these.
        num_absent: cases where it is in neither.
        worst: the one of `present` with the lowest Dice; None without any.
    """

    def __init__(self, name: str, scores: Iterable[CaseScore]) -> None:
        named = [score for score in scores if name in score.dice]
        self.name, self.present = name, [score for score in named if score.dice[name] is not None]
        self.num_absent = len(named) - len(self.present)
        self.worst = min(self.present, key=lambda score: score.dice[name] or 0.0, default=None)

    def figures(self, key: str) -> list[Any]:
        """The figure of each case that is present; None where a case has none."""
        return [FIGURES[key](score, self.name) for score in self.present]

    def mean(self, key: str) -> float | None:
        """Over the cases that have the figure; None where none has."""
        return mean_where_known(self.figures(key))

    @property
    def num_without_surface(self) -> int:
        """Cases without a distance although the class is in truth or prediction: missed, or found where it is not."""
        return sum(self.name in score.hd95_mm and score.hd95_mm[self.name] is None for score in self.present)


def classes_of(scores: Sequence[CaseScore]) -> list[ClassScores]:
    """Each class, in the order in which the scores name them."""
    return [ClassScores(name, scores) for name in dict.fromkeys(name for score in scores for name in score.dice)]


def mean_over_classes(scores: Sequence[CaseScore], key: str) -> float | None:
    """Over cases first and then over classes, as nnU-Net; with absent classes the other order is another number."""
    return mean_where_known(of_class.mean(key) for of_class in classes_of(scores))


def mean_hd95_mm(scores: Sequence[CaseScore]) -> float | None:
    """Mean 95th percentile surface distance over all cases and classes that have one."""
    return mean_where_known(value for score in scores for value in score.hd95_mm.values())


def worst_first(scores: Sequence[CaseScore]) -> list[CaseScore]:
    """The scores by mean Dice, lowest first; equal ones by case id; last those of cases without any class."""
    return sorted(scores, key=lambda score: (math.inf if score.mean_dice is None else score.mean_dice, score.case_id))


_CLASS: Column[ClassScores] = Column(head="Class", short="class", value=lambda found: found.name)
CLASS_COLUMNS: tuple[Column[ClassScores], ...] = (
    _CLASS,
    Column(
        key="mean_dice", head="Mean Dice", short="mean Dice", value=lambda found: found.mean("dice"), text=dice_text
    ),
    Column(
        key="median_dice",
        head="Median",
        short="median",
        value=lambda found: median(found.figures("dice")) if found.present else None,
        text=dice_text,
    ),
    Column(head="Worst", short="worst", value=lambda found: min(found.figures("dice"), default=None), text=dice_text),
    Column(head="Worst case", value=lambda found: found.worst.case_id if found.worst else "", is_words=True),
    Column(
        key="mean_hd95_mm",
        head="Mean HD95 (mm)",
        short="HD95 mm",
        value=lambda found: found.mean("hd95_mm"),
        text=mm_text,
        help="HD95 is the 95th percentile of the distance between the surfaces; it is undefined if a class is "
        "missing from truth or prediction; the column Without HD95 counts these cases.",
    ),
    Column(key="num_without_hd95", head="Without HD95", value=lambda found: found.num_without_surface),
    Column(
        key="num_absent",
        head="Absent",
        value=lambda found: found.num_absent,
        help="A class in neither has no score and is left out of all means, as in nnU-Net; the column Absent counts "
        "these cases.",
    ),
)
"""Of the table of scores by class, on the page of a run, in an evaluation and in a terminal."""

VOLUME_COLUMNS: tuple[Column[ClassScores], ...] = (
    _CLASS,
    Column(
        key="mean_nsd",
        head="Mean NSD ({tolerance_mm:g} mm)",
        value=lambda found: found.mean("nsd"),
        text=dice_text,
        help="NSD is the share of both surfaces that lies within the tolerance of the other; it is 0 if a class is "
        "in only one of the two.",
    ),
    Column(
        key="mean_difference_ml",
        head="Volume difference (ml)",
        value=lambda found: found.mean("difference_ml"),
        text=partial(signed_text, digits=2),
        help="The volume difference is predicted minus true.",
    ),
    Column(
        key="mean_difference_share",
        head="Relative",
        value=lambda found: found.mean("difference_share"),
        text=lambda share: NOT_AVAILABLE if share is None else f"{signed_text(100.0 * share, digits=1)} %",
    ),
)
"""Of the table of surfaces and volumes by class in an evaluation."""


def case_columns(scores: Sequence[CaseScore], *, most_classes: int) -> list[Column[CaseScore]]:
    """Of a table with a row for each case: the classes have their own columns where there are 2 to `most_classes`."""
    names = list(dict.fromkeys(name for score in scores for name in score.dice))
    mean = "Mean " if len(names) > 1 else ""
    if len(names) > most_classes:
        inner = [
            Column[CaseScore](head="Worst class", value=lambda score: _worst_class(score)[0], is_words=True),
            Column(head="Its Dice", value=lambda score: _worst_class(score)[1], text=dice_text),
        ]
    else:
        inner = [
            Column(head=name, value=partial(_dice_of, name=name), text=dice_text) for name in (names if mean else ())
        ]
    return [
        Column(head="Case", short="cases", value=lambda score: score.case_id),
        Column(head=f"{mean}Dice", short="Dice", value=lambda score: score.mean_dice, text=dice_text),
        *inner,
        Column(head=f"{mean}HD95 (mm)", short="HD95 mm", value=lambda score: mean_hd95_mm([score]), text=mm_text),
    ]


def _dice_of(score: CaseScore, *, name: str) -> float | None:
    return score.dice.get(name)


def _worst_class(score: CaseScore) -> tuple[str, float | None]:
    """The class with the lowest Dice, and that; the first of equal ones."""
    present = [(name, dice) for name, dice in score.dice.items() if dice is not None]
    return min(present, key=lambda pair: pair[1], default=("", None))
