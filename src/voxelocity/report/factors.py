"""By which factor each training differs from the first, as rows, plain data, Markdown and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voxelocity.core.errors import InputError
from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    dice_text,
    duration_text,
    factor_text,
    rate_text,
    share_text,
    signed_text,
)
from voxelocity.report.document import Table
from voxelocity.report.labeled import LabeledRun
from voxelocity.report.parity import Parity


@dataclass(frozen=True, kw_only=True)
class Factor:
    """How one run compares with the first in one respect.

    Attributes:
        value: times better than the first run, or the difference from it, by `kind`; None where unknown.
        is_at_least: the first run never got there, so the truth is larger than `value`.
    """

    value: float | None
    kind: Literal["times", "difference"]
    is_at_least: bool = False

    @property
    def is_worse(self) -> bool:
        """Whether the run falls behind the first, by more than the rounding of what is shown."""
        if self.value is None:
            return False
        return self.value < (-5e-4 if self.kind == "difference" else 0.95)

    @property
    def text(self) -> str:
        """As it is shown: "3.2×", "> 3.2×", "+0.004"."""
        if self.kind == "difference":
            return signed_text(self.value)
        return ("> " if self.is_at_least and self.value is not None else "") + factor_text(self.value)


@dataclass(frozen=True, kw_only=True)
class FactorRow:
    """One line of the comparison: a value per run, and a factor per run after the first."""

    key: str
    name: str
    values: tuple[float | None, ...]
    texts: tuple[str, ...]
    factors: tuple[Factor, ...]


def compare(runs: Sequence[LabeledRun], *, target_dice: float | None = None) -> tuple[FactorRow, ...]:
    """One row per measure that at least one run knows. Factors above 1 are better than the first run.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    labels = [run.label for run in runs]
    if len(runs) < 2:
        raise InputError(f"report: comparing takes two runs or more, got {len(runs)} ({', '.join(labels) or 'none'})")
    if len(set(labels)) < len(labels):
        raise InputError(f"report: two runs have the same label in {labels}; give each its own")
    target = "target" if target_dice is None else f"Dice {target_dice:g}"
    rows = (
        _to_target_row(runs, f"Time to {target}"),
        _times_row(runs, "seconds_per_epoch", "Time per epoch", duration_text, is_less_better=True),
        _times_row(runs, "images_per_s", "Images per second", rate_text, is_less_better=False),
        _times_row(runs, "wall_s", "Whole training", duration_text, is_less_better=True),
        _plain_row(runs, "wait_share", "Waiting for data", share_text),
        _times_row(runs, "peak_host_bytes", "Peak main memory", bytes_text, is_less_better=True),
        _times_row(runs, "peak_device_bytes", "Peak device memory", bytes_text, is_less_better=True),
        _difference_row(runs, "best_dice", "Best Dice"),
        _difference_row(runs, "last_dice", "Final Dice"),
    )
    return tuple(row for row in rows if any(value is not None for value in row.values))


def comparison_values(
    runs: Sequence[LabeledRun], *, target_dice: float | None = None, parity: Parity | None = None
) -> dict[str, Any]:
    """Plain data: every run and every factor, and the accuracy where it was paired.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    rows = compare(runs, target_dice=target_dice)
    return {
        "target_dice": target_dice,
        "runs": [plain_data(run, where="comparison") for run in runs],
        "factors": [
            {
                "key": row.key,
                "name": row.name,
                "values": dict(zip((run.label for run in runs), row.values, strict=True)),
                "factors": {
                    run.label: {"value": factor.value, "kind": factor.kind, "is_at_least": factor.is_at_least}
                    for run, factor in zip(runs[1:], row.factors, strict=False)
                },
            }
            for row in rows
        ],
        "accuracy": None if parity is None else _accuracy(parity),
    }


def _accuracy(parity: Parity) -> dict[str, Any]:
    plain: dict[str, Any] = plain_data(parity, where="comparison")
    for row, difference in zip(
        [plain["overall"], *plain["structures"]], [parity.overall, *parity.structures], strict=True
    ):
        row["judgment"] = difference.judgment
    return plain


def render_markdown_table(runs: Sequence[LabeledRun], *, target_dice: float | None = None) -> str:
    """The factor table in Markdown, ending with a line break.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    lines = [_heads(runs), *_cells(runs, target_dice=target_dice)]
    escaped = [[cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    rule = ["---", *["---:"] * (len(escaped[0]) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [escaped[0], rule, *escaped[1:]])


def _heads(runs: Sequence[LabeledRun]) -> list[str]:
    """Column heads of the factor table: a column per run, and a factor after each but the first."""
    return ["", runs[0].label, *(head for run in runs[1:] for head in (run.label, "Factor"))]


def _cells(runs: Sequence[LabeledRun], *, target_dice: float | None = None) -> list[list[str]]:
    """The rows of the factor table as text, in the columns of `_heads`."""
    cells = []
    for row in compare(runs, target_dice=target_dice):
        factors = [factor.text for factor in row.factors] or [""] * (len(runs) - 1)
        rest = (cell for pair in zip(row.texts[1:], factors, strict=True) for cell in pair)
        cells.append([row.name, row.texts[0], *rest])
    return cells


def factor_table(runs: Sequence[LabeledRun], *, target_dice: float | None = None) -> Table:
    """The factor table of a document."""
    heads = _heads(runs)
    rows = compare(runs, target_dice=target_dice)
    return Table(
        caption="Factors",
        heads=["Measure", *heads[1:]],
        rows=_cells(runs, target_dice=target_dice),
        worse_cells=frozenset(
            (number, 3 + 2 * place)
            for number, row in enumerate(rows)
            for place, factor in enumerate(row.factors)
            if factor.is_worse
        ),
        marked_columns=frozenset(range(3, len(heads), 2)),
    )


def _to_target_row(runs: Sequence[LabeledRun], name: str) -> FactorRow:
    values = tuple(run.seconds_to_target for run in runs)
    texts = tuple(_reached_text(run) for run in runs)
    base_s = values[0]
    if base_s is None:
        factors = tuple(_times(runs[0].wall_s, value, is_at_least=True) for value in values[1:])
    else:
        factors = tuple(_times(base_s, value) for value in values[1:])
    return FactorRow(key="seconds_to_target", name=name, values=values, texts=texts, factors=factors)


def _reached_text(run: LabeledRun) -> str:
    if run.seconds_to_target is not None:
        return duration_text(run.seconds_to_target)
    return NOT_AVAILABLE if run.wall_s is None else f"not in {duration_text(run.wall_s)}"


def _times_row(
    runs: Sequence[LabeledRun], key: str, name: str, text_of: Callable[[float | None], str], *, is_less_better: bool
) -> FactorRow:
    values: tuple[float | None, ...] = tuple(getattr(run, key) for run in runs)
    base = values[0]
    pairs = [(base, value) if is_less_better else (value, base) for value in values[1:]]
    factors = tuple(_times(*pair) for pair in pairs)
    return FactorRow(key=key, name=name, values=values, texts=tuple(map(text_of, values)), factors=factors)


def _difference_row(runs: Sequence[LabeledRun], key: str, name: str) -> FactorRow:
    values: tuple[float | None, ...] = tuple(getattr(run, key) for run in runs)
    base = values[0]
    differences = [None if base is None or value is None else value - base for value in values[1:]]
    factors = tuple(Factor(value=difference, kind="difference") for difference in differences)
    return FactorRow(key=key, name=name, values=values, texts=tuple(map(dice_text, values)), factors=factors)


def _plain_row(runs: Sequence[LabeledRun], key: str, name: str, text_of: Callable[[float | None], str]) -> FactorRow:
    values: tuple[float | None, ...] = tuple(getattr(run, key) for run in runs)
    # A wait halved from 0.2 % is not worth reporting as a factor of two.
    return FactorRow(key=key, name=name, values=values, texts=tuple(map(text_of, values)), factors=())


def _times(more: float | None, less: float | None, *, is_at_least: bool = False) -> Factor:
    value = more / less if more is not None and less else None
    return Factor(value=value, kind="times", is_at_least=is_at_least)
