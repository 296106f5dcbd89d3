"""How trainings differ: by which factor, in their settings with the reasons, in machine and versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voxelocity.report.labeled import LabeledRun
from voxelocity.report.parity import Parity
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    count_text,
    dice_text,
    duration_text,
    factor_text,
    rate_text,
    share_text,
    signed_text,
    value_text,
)
from voxelocity_observe.document.blocks import Table
from voxelocity_observe.document.settings import (
    different_machines,
    different_versions,
    differing_settings,
    machine_table,
)

Better = Literal["less", "more", "difference", "no factor"]

_MEASURES: tuple[tuple[str, str, Callable[[float | None], str], Better], ...] = (
    ("seconds_per_epoch", "Time per epoch", duration_text, "less"),
    ("images_per_s", "Images per second", rate_text, "more"),
    ("wall_s", "Whole training", duration_text, "less"),
    # A wait halved from 0.2 % is not worth reporting as a factor of two.
    ("wait_share", "Waiting for data", share_text, "no factor"),
    ("peak_host_bytes", "Peak main memory", bytes_text, "less"),
    ("peak_device_bytes", "Peak device memory", bytes_text, "less"),
    ("best_dice", "Best Dice", dice_text, "difference"),
)


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
        if self.value is None or self.is_at_least:
            return False
        return self.value < (-5e-4 if self.kind == "difference" else 0.95)

    @property
    def is_even(self) -> bool:
        """Whether the run is neither better nor worse than the first, or that is not known."""
        if self.value is None:
            return True
        return not self.is_worse and self.value <= (5e-4 if self.kind == "difference" else 1.05)

    @property
    def text(self) -> str:
        """As it is shown: "3.2×", "> 3.2×", "+0.004"."""
        if self.kind == "difference":
            return signed_text(self.value)
        return ("> " if self.is_at_least and self.value is not None else "") + factor_text(self.value)


_NO_DIFFERENCE = Factor(value=None, kind="difference")


@dataclass(frozen=True, kw_only=True)
class FactorRow:
    """One line of the comparison: a value per run, and a factor per run after the first."""

    key: str
    name: str
    values: tuple[float | None, ...]
    texts: tuple[str, ...]
    factors: tuple[Factor, ...]


def compare(
    runs: Sequence[LabeledRun], *, target_dice: float | None = None, parity: Parity | None = None
) -> tuple[FactorRow, ...]:
    """One row per measure that at least one run knows. Factors above 1 are better than the first run.

    The final Dice is that of the cases judged in both: `parity` has it for the first run and the last one. Without it,
    the Dice of runs that were judged on different cases has no difference.

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
        *(_row(runs, *measure) for measure in _MEASURES),
        _final_dice_row(runs, parity),
    )
    return tuple(row for row in rows if any(value is not None for value in row.values))


def comparison_values(
    runs: Sequence[LabeledRun], *, target_dice: float | None = None, parity: Parity | None = None
) -> dict[str, Any]:
    """Plain data: every run and every factor, and the accuracy where it was paired.

    Raises:
        InputError: fewer than two runs, or two with one label.
    """
    rows = compare(runs, target_dice=target_dice, parity=parity)
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


def factor_table(
    runs: Sequence[LabeledRun], *, target_dice: float | None = None, parity: Parity | None = None
) -> Table:
    """The factor table of a document: a column per run, and a factor after each but the first."""
    rows = compare(runs, target_dice=target_dice, parity=parity)
    heads = ["Measure", runs[0].label, *(head for run in runs[1:] for head in (run.label, "Factor"))]
    cells = []
    for row in rows:
        factors = [factor.text for factor in row.factors] or [""] * (len(runs) - 1)
        rest = (cell for pair in zip(row.texts[1:], factors, strict=True) for cell in pair)
        cells.append([row.name, row.texts[0], *rest])
    return Table(
        caption="Factors",
        heads=heads,
        rows=cells,
        worse_cells=_cells_of(rows, lambda factor: factor.is_worse),
        even_cells=_cells_of(rows, lambda factor: factor.is_even),
        marked_columns=frozenset(range(3, len(heads), 2)),
    )


def _cells_of(rows: Sequence[FactorRow], is_so: Callable[[Factor], bool]) -> frozenset[tuple[int, int]]:
    places = ((number, place, factor) for number, row in enumerate(rows) for place, factor in enumerate(row.factors))
    return frozenset((number, 3 + 2 * place) for number, place, factor in places if is_so(factor))


def _to_target_row(runs: Sequence[LabeledRun], name: str) -> FactorRow:
    values = tuple(run.seconds_to_target for run in runs)
    texts = tuple(_reached_text(run) for run in runs)
    base_s = values[0]
    if base_s is None:
        factors = tuple(_times(runs[0].wall_s, value, is_at_least=True) for value in values[1:])
    else:
        factors = tuple(_times(base_s, value) for value in values[1:])
    return FactorRow(key="seconds_to_target", name=name, values=values, texts=texts, factors=factors)


def _final_dice_row(runs: Sequence[LabeledRun], parity: Parity | None) -> FactorRow:
    values: list[float | None] = [run.last_dice for run in runs]
    name = "Final Dice"
    if parity is not None and parity.overall.difference is not None:
        values[0], values[-1] = parity.overall.first, parity.overall.second
        if parity.unit == "case" and (parity.num_only_first or parity.num_only_second):
            name = f"Final Dice, {count_text(parity.overall.n, 'case')} of both"
    factors = list(_dice_factors(runs, values))
    if parity is not None:
        # The first value is then that of the cases which the last run judged too.
        others = factors[:-1] if values[0] == runs[0].last_dice else [_NO_DIFFERENCE] * (len(factors) - 1)
        factors = [*others, *_factors([values[0], values[-1]], "difference")]
    texts = tuple(map(dice_text, values))
    return FactorRow(key="last_dice", name=name, values=tuple(values), texts=texts, factors=tuple(factors))


def _dice_factors(runs: Sequence[LabeledRun], values: Sequence[float | None]) -> tuple[Factor, ...]:
    """Differences to the first run; none of a run that was judged on other cases."""
    judged = runs[0].judged
    return tuple(
        _NO_DIFFERENCE if judged and run.judged and judged != run.judged else factor
        for run, factor in zip(runs[1:], _factors(values, "difference"), strict=True)
    )


def _reached_text(run: LabeledRun) -> str:
    if run.seconds_to_target is not None:
        return duration_text(run.seconds_to_target)
    return NOT_AVAILABLE if run.wall_s is None else f"not in {duration_text(run.wall_s)}"


def _row(
    runs: Sequence[LabeledRun], key: str, name: str, text_of: Callable[[float | None], str], better: Better
) -> FactorRow:
    values: tuple[float | None, ...] = tuple(getattr(run, key) for run in runs)
    texts = tuple(map(text_of, values))
    factors = _dice_factors(runs, values) if better == "difference" else _factors(values, better)
    return FactorRow(key=key, name=name, values=values, texts=texts, factors=factors)


def _factors(values: Sequence[float | None], better: Better) -> tuple[Factor, ...]:
    base, *others = values
    match better:
        case "less":
            return tuple(_times(base, value) for value in others)
        case "more":
            return tuple(_times(value, base) for value in others)
        case "difference":
            changes = (None if base is None or value is None else value - base for value in others)
            return tuple(Factor(value=change, kind="difference") for change in changes)
    return ()


def _times(more: float | None, less: float | None, *, is_at_least: bool = False) -> Factor:
    value = more / less if more is not None and less else None
    return Factor(value=value, kind="times", is_at_least=is_at_least)


def different_settings(runs: Sequence[LabeledRun]) -> tuple[list[list[str]], int]:
    """A row for each setting that differs, as `settings_section` takes it, and how many settings are equal in all."""
    differing, num_equal = differing_settings([run.settings for run in runs])
    reasons = {key: "; ".join(_reasons(runs, key)) for key in differing}
    rows = [
        [key, *(value_text(value, key) for value in values), *([reasons[key]] if any(reasons.values()) else [])]
        for key, values in differing.items()
    ]
    return rows, num_equal


def machines_table(runs: Sequence[LabeledRun]) -> Table:
    """Machine and versions in one column where all are alike, else a column for each training."""
    tables = [machine_table(run.machine) for run in runs]
    if all(run.machine == runs[0].machine for run in runs):
        return tables[0]
    by_name = [{row[0]: row[1] for row in table.rows} for table in tables]
    names = dict.fromkeys(name for values in by_name for name in values)
    return Table(
        caption=tables[0].caption,
        heads=["What", *(run.label for run in runs)],
        rows=[[name, *(values.get(name, "") for values in by_name)] for name in names],
        text_columns=frozenset(range(1, len(runs) + 1)),
    )


def machine_notices(runs: Sequence[LabeledRun]) -> list[str]:
    """A sentence for what makes times or results hard to compare: another machine, other versions."""
    notices = []
    machines = [run.machine for run in runs]
    if different := different_machines(machines):
        notices.append(
            f"The runs were made on different machines ({different}); their times are not directly comparable."
        )
    versions = different_versions(machines)
    if versions:
        notices.append(
            f"The runs were made with different versions ({versions}); differences may come from them and not "
            "from the settings."
        )
    return notices


def _reasons(runs: Sequence[LabeledRun], key: str) -> tuple[str, ...]:
    labels: dict[str, list[str]] = {}
    for run in runs:
        reason = _reason(run.reasons, key)
        if reason:
            labels.setdefault(reason, []).append(run.label)
    if len(labels) == 1 and len(next(iter(labels.values()))) == len(runs):
        return tuple(labels)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in labels.items())


def _reason(reasons: Mapping[str, str], key: str) -> str:
    """The reason of the setting, or of the section that was chosen as one."""
    while key not in reasons and "." in key:
        key = key.rpartition(".")[0]
    return reasons.get(key, "")
