"""A run for a terminal: its plan, data set and scores, readable at 60 columns, in a pipe and without color.

Meaning is never in color alone, and text from data is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from voxelocity.core.records import CaseScore, Choice
from voxelocity.report.columns import CLASS_COLUMNS, Column, T, case_columns, classes_of, worst_first
from voxelocity.report.summary import absent_text, without_surface_text
from voxelocity.report.tables import HOW_TO_CHANGE, ChoiceGroup, choice_groups, regions_text
from voxelocity_observe.core.quantities import count_text, ml_text, value_text
from voxelocity_observe.document.terminal import Wrapped, indented, open_table

# Three columns with reasons of two lines each need about this much.
_WIDE_COLUMNS = 100
_VALUE_COLUMNS = 28
_NUM_WORST_CASES = 5


def plan_table(choices: Sequence[Choice]) -> RenderableType:
    """Every automatic choice with its reason, grouped by what another value would change, and how to change it."""
    groups = choice_groups(choices)
    notes = ["+ with a measurement on this machine"] if any(choice.measured for choice in choices) else []
    lines = [Wrapped(note, style="dim") for note in (*notes, HOW_TO_CHANGE)]
    return _ByWidth(wide=Group(*_wide_plan(groups), *lines), narrow=Group(*_narrow_plan(groups), *lines))


def dataset_panel(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> RenderableType:
    """What the data set is, as `run.yaml` describes it under the same names."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _dataset_lines(dataset, fingerprint):
        if value:
            grid.add_row(Text(name), Text(value))
    return Panel(
        grid, title=Text(str(dataset.get("name", "data set"))), title_align="left", box=box.ROUNDED, expand=False
    )


def score_table(scores: Sequence[CaseScore]) -> RenderableType:
    """Scores by class, what their means leave out, and below them the worst cases."""
    left_out = without_surface_text(scores)
    notes = [text for text in (absent_text(scores), left_out and f"HD95: {left_out}") if text]
    classes = Group(_table(CLASS_COLUMNS, classes_of(scores)), *(Wrapped(note, style="dim") for note in notes))
    if len(scores) < 2:
        return classes
    worst = _table(case_columns(scores, most_classes=0), worst_first(scores)[:_NUM_WORST_CASES])
    if worst.row_count < len(scores):
        worst.columns[0].header = "worst cases"
    return Group(classes, "", worst)


def _table(columns: Iterable[Column[T]], records: Iterable[T]) -> Table:
    """The columns that have a head for a terminal."""
    table, shown = open_table(), [column for column in columns if column.short]
    for number, column in enumerate(shown):
        table.add_column(column.short, justify="right" if number else "left", overflow="ellipsis" if number else "fold")
    for record in records:
        table.add_row(*(Text(column.text(column.value(record))) for column in shown))
    return table


def volume_table(volumes: Mapping[str, Sequence[tuple[int, float]]]) -> RenderableType:
    """Predicted voxels and milliliters of each class; for several scans the least, median and most.

    Args:
        volumes: by class name, one pair for each scan.
    """
    num_scans = max(map(len, volumes.values()), default=0)
    table = open_table()
    table.add_column("class", overflow="fold")
    heads = ("voxels", "ml") if num_scans == 1 else ("scans with it", "least ml", "median ml", "most ml")
    for head in heads:
        table.add_column(head, justify="right")
    for name, found in volumes.items():
        sizes = [ml for _, ml in found]
        if num_scans == 1:
            cells = [f"{found[0][0]:,}", ml_text(sizes[0])]
        else:
            count = sum(num > 0 for num, _ in found)
            cells = [f"{count} of {num_scans}", *map(ml_text, (min(sizes), median(sizes), max(sizes)))]
        table.add_row(Text(name), *cells)
    return table


@dataclass(frozen=True, kw_only=True)
class _ByWidth:
    """One of two forms of the same thing, by the available width."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= _WIDE_COLUMNS else self.narrow

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        form = self.wide if options.max_width >= _WIDE_COLUMNS else self.narrow
        return Measurement.get(console, options, form)


def _wide_plan(groups: Sequence[ChoiceGroup]) -> list[RenderableType]:
    shown = [choice for group in groups for choice in group.choices]
    # One width for all groups, so that their columns line up.
    key_width = max((cell_len(_marked(choice)) for choice in shown), default=0)
    value_width = min(_VALUE_COLUMNS, max((cell_len(value_text(c.value, c.key)) for c in shown), default=0))
    parts: list[RenderableType] = []
    for group in groups:
        table = open_table()
        table.add_column("setting", no_wrap=True, min_width=key_width)
        table.add_column("value", overflow="fold", min_width=max(value_width, len("value")), max_width=_VALUE_COLUMNS)
        table.add_column("why", ratio=1, overflow="fold")
        for choice in group.choices:
            value = Text(value_text(choice.value, choice.key), style="bold")
            table.add_row(Text(_marked(choice)), value, Text(choice.reason))
        parts += [Text.assemble((group.title.upper(), "bold"), f": {group.hint}"), table, Text()]
    return parts


def _narrow_plan(groups: Sequence[ChoiceGroup]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for group in groups:
        lines += [Text(group.title.upper(), style="bold"), indented(group.hint)]
        for choice in group.choices:
            value = (value_text(choice.value, choice.key), "bold")
            lines += [Text.assemble(_marked(choice), " = ", value, overflow="fold"), indented(choice.reason)]
        lines.append(Text())
    return lines


def _marked(choice: Choice) -> str:
    return f"{choice.key}{' +' if choice.measured else ''}"


def _dataset_lines(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> list[tuple[str, str]]:
    fold = dataset.get("fold")
    judged = f"fold {fold} held out" if dataset.get("held_out", True) else "the same cases, not held out"
    num_cases, num_shared = int(dataset.get("num_cases", 0)), int(dataset.get("num_shared_patients", 0))
    num_patients = int(dataset.get("num_patients", num_cases))
    shares = num_patients < num_cases
    of_patients = f" of {count_text(num_patients, 'patient')}" if shares else ", each taken as its own patient"
    if num_shared:
        judged += f"; {count_text(num_shared, 'patient')} on both sides, which flatters the score"
    split = (
        f"{dataset.get('num_training', 0):,} to train on, {dataset.get('num_validation', 0):,} to judge by ({judged})"
    )
    spreads = [(key, _spread_text(fingerprint.get(key), key)) for key in ("shape_voxel", "spacing_mm")]
    return [
        ("cases", f"{count_text(num_cases, 'case')}{of_patients}: {split}"),
        ("channels", ", ".join(map(str, dataset.get("channels") or ()))),
        ("classes", ", ".join(map(str, dataset.get("classes") or ()))),
        ("regions", regions_text(dataset.get("regions") or {})),
        *((key.rsplit("_", 1)[0], text) for key, text in spreads),
        ("voxels", _voxels_text(dataset, fingerprint)),
        ("intensity", _intensity_text(dataset, fingerprint)),
        ("placement", _placement_text(fingerprint)),
        ("files", value_text(fingerprint["file_bytes"], "file_bytes") if "file_bytes" in fingerprint else ""),
        ("layout", str(dataset.get("layout") or "")),
        ("folder", str(dataset.get("path") or "")),
    ]


def _placement_text(fingerprint: Mapping[str, Any]) -> str:
    """What may misplace left and right, or image and prediction; empty if nothing may."""
    texts = []
    if num := int(fingerprint.get("num_unplaced", 0)):
        texts.append(f"{count_text(num, 'case')} without a position in space, so left and right are a guess")
    if num := int(fingerprint.get("num_placed_twice", 0)):
        texts.append(f"{count_text(num, 'case')} where sform and qform differ; the sform is used")
    if num := int(fingerprint.get("num_spaced_twice", 0)):
        texts.append(f"{count_text(num, 'case')} whose pixdim is not the spacing of the affine; the affine is used")
    return "; ".join(texts)


def _spread_text(spread: Any, key: str) -> str:
    if not isinstance(spread, Mapping) or not {"low", "median", "high"} <= spread.keys():
        return "" if spread is None else value_text(spread, key)
    unit = key.rsplit("_", 1)[1]
    low, median, high = (value_text(spread[part], key) for part in ("low", "median", "high"))
    return f"{median} {unit}" if low == high else f"{median} {unit} (from {low} to {high})"


def _voxels_text(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """Stored types, and how much of a case each class but the background takes."""
    dtypes = ", ".join(f"{name} ({count:,})" for name, count in (fingerprint.get("stored_dtypes") or {}).items())
    background = next(iter(dataset.get("classes") or ()), None)
    shares = fingerprint.get("class_shares") or {}
    rarest = sorted((share, name) for name, share in shares.items() if name != background)[:3]
    rare = ", ".join(f"{name} {share:.2%}" for share, name in rarest)
    return "; ".join(part for part in (dtypes, f"rarest: {rare}" if rare else "") if part)


def _intensity_text(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """Per channel: mean and deviation within the foreground, and the range of all voxels."""
    lines = []
    for name, part in zip(dataset.get("channels") or (), fingerprint.get("intensity") or (), strict=False):
        text = f"{name}: foreground {part['mean']:.4g} ± {part['std']:.3g}"
        if "lowest" in part:
            text += f", all {part['lowest']:.4g} to {part['highest']:.4g}"
        lines.append(text)
    sampled = fingerprint.get("num_sampled")
    return "\n".join(lines) + (f" ({count_text(int(sampled), 'case')} sampled)" if lines and sampled else "")
