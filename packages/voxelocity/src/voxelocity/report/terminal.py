"""A run for a terminal: its plan, data set and scores, readable at 60 columns, in a pipe and without color.

Meaning is never in color alone, and text from data is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from voxelocity.core.records import CaseScore, Choice
from voxelocity.report.columns import CLASS_COLUMNS, Column, T, case_columns, classes_of, worst_first
from voxelocity.report.summary import absent_text, without_surface_text
from voxelocity.report.tables import HOW_TO_CHANGE, ChoiceGroup, choice_groups, regions_text
from voxelocity_observe.core.quantities import count_text, duration_text, joined, listed, ml_text, value_text
from voxelocity_observe.core.terminal_text import printable
from voxelocity_observe.document.blocks import Table
from voxelocity_observe.document.terminal import TableView, Wrapped, WrappedRows, indented, prose

# Reasons that have less width than this stand below their choices.
_LEAST_COLUMNS = 32
_VALUE_COLUMNS = 28
_WHERE_REASONS_ARE = "Every choice with its reason: --verbose, `voxelocity plan`, or the page of the run."
_NUM_WORST_CASES = 5
_MOST_CLASSES = 40


def plan_table(choices: Sequence[Choice]) -> RenderableType:
    """Every automatic choice with its reason, grouped by what another value would change, and how to change it."""
    groups = choice_groups(choices)
    notes = ["+ measured on this machine"] if any(choice.measured for choice in choices) else []
    lines = [Wrapped(note, style="dim") for note in (*notes, HOW_TO_CHANGE)]
    return Group(_PlanTable(groups), *lines)


def dataset_panel(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> RenderableType:
    """What the data set is, as `run.yaml` describes it under the same names."""
    return _named(str(dataset.get("name", "data set")), _dataset_lines(dataset, fingerprint))


def plan_summary(record: Mapping[str, Any]) -> RenderableType:
    """What a run will do, a line each, as `run.yaml` describes it."""
    dataset, plan = record["dataset"], record["plan"]
    fingerprint = record.get("fingerprint") or {}
    title = f"{dataset.get('name', 'data set')}: {count_text(_num_cases(dataset), 'case')}, {_split_text(dataset)}"
    return Group(_named(title, _summary_lines(dataset, fingerprint, plan)), Wrapped(_WHERE_REASONS_ARE, style="dim"))


def _named(title: str, lines: Sequence[tuple[str, str]]) -> RenderableType:
    """A title, and below it texts with their names in a column; those without a text are left out."""
    rows = [(f"  {name}", text) for name, text in lines if text]
    widths = [max((cell_len(name) for name, _ in rows), default=0)]
    return Group(Wrapped(title, style="bold"), WrappedRows(rows=rows, widths=widths))


def _summary_lines(
    dataset: Mapping[str, Any], fingerprint: Mapping[str, Any], plan: Mapping[str, Any]
) -> list[tuple[str, str]]:
    data, network, precision, train = (plan[name] for name in ("data", "network", "precision", "train"))
    sizes = fingerprint.get("shape_voxel") or {}
    shape = f"; {value_text(sizes['median'], 'shape_voxel')} voxels" if "median" in sizes else ""
    spacing = data["prepare"]["spacing_mm"]
    widths = network.get("widths") or ()
    layers = f", {count_text(len(widths), 'level')} of {value_text(widths)} channels" if widths else ""
    compiled = "" if precision["compile"] == "none" else f"compiled ({precision['compile']})"
    ends = (
        duration_text(train["time_budget_s"]) if train["time_budget_s"] else "",
        count_text(train["steps"], "step") if train["steps"] else "",
        f"Dice {train['target_dice']:g}" if train["target_dice"] else "",
    )
    classes = [str(name) for name in dataset.get("classes") or ()]
    return [
        ("data", f"{listed([*map(str, dataset.get('channels') or ())])}: {listed(classes)}{shape}"),
        ("patch", f"{value_text(data['patch']['shape_voxel'], 'shape_voxel')} voxels"
                  + (f" of {value_text(spacing, 'spacing_mm')} mm" if spacing else "")),
        ("network", f"{network['name']}{layers}"),
        ("batch", f"{count_text(data['batch_size'], 'patch', 'patches')}, {plan['optimizer']['name']}, "
                  f"learning rate {plan['optimizer']['learning_rate']:g}"),
        ("precision", joined((precision["compute"], compiled, "CUDA graph" if precision["step_graph"] else ""))),
        ("cache", data["cache"]["tier"]),
        ("time", f"until {' or '.join(text for text in ends if text)}"),
    ]  # fmt: skip


def score_table(scores: Sequence[CaseScore]) -> RenderableType:
    """Scores by class, what their means leave out, and below them the worst cases."""
    left_out = without_surface_text(scores)
    notes = [text for text in (absent_text(scores), left_out and f"HD95: {left_out}") if text]
    classes = Group(_table(CLASS_COLUMNS, classes_of(scores)), *(Wrapped(note, style="dim") for note in notes))
    if len(scores) < 2:
        return classes
    head = "worst cases" if len(scores) > _NUM_WORST_CASES else ""
    worst = _table(case_columns(scores, most_classes=0), worst_first(scores)[:_NUM_WORST_CASES], first=head)
    return Group(classes, "", worst)


def _table(columns: Iterable[Column[T]], records: Iterable[T], *, first: str = "") -> TableView:
    """The columns that have a head for a terminal; `first` is the head of the first one, if it differs."""
    shown = [column for column in columns if column.short]
    heads = [column.short for column in shown]
    rows = [[column.text(column.value(record)) for column in shown] for record in records]
    return TableView(Table(caption="", heads=[first or heads[0], *heads[1:]], rows=rows, hides_caption=True))


def volume_table(volumes: Mapping[str, Sequence[tuple[int, float]]]) -> RenderableType:
    """Predicted voxels and milliliters of each class; for several scans the least, median and most.

    Args:
        volumes: by class name, one pair for each scan.
    """
    num_scans = max(map(len, volumes.values()), default=0)
    heads = ("voxels", "ml") if num_scans == 1 else ("scans with it", "least ml", "median ml", "most ml")
    rows = []
    for name, found in volumes.items():
        sizes = [ml for _, ml in found]
        if num_scans == 1:
            cells = [f"{found[0][0]:,}", ml_text(sizes[0])]
        else:
            count = sum(num > 0 for num, _ in found)
            cells = [f"{count} of {num_scans}", *map(ml_text, (min(sizes), median(sizes), max(sizes)))]
        rows.append([name, *cells])
    return TableView(Table(caption="", heads=("class", *heads), rows=rows, hides_caption=True))


@dataclass(frozen=True)
class _PlanTable:
    """Reasons next to their choices, or below them if too little width is left for them."""

    groups: Sequence[ChoiceGroup]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [choice for group in self.groups for choice in group.choices]
        # One width for all groups, so that their columns line up.
        widths = [
            max((cell_len(text) for text in texts), default=0)
            for texts in (["setting", *map(_marked, shown)], ["value", *map(_value, shown)])
        ]
        widths[1] = min(_VALUE_COLUMNS, widths[1])
        for group in self.groups:
            rows = [("setting", "value", "why"), *((_marked(c), _value(c), c.reason) for c in group.choices)]
            table = WrappedRows(rows=rows, widths=widths, bold=1, has_heads=True)
            if table.last_width(options.max_width) < _LEAST_COLUMNS:
                yield from _narrow_plan(self.groups)
                return
            yield from prose(f"{group.title.upper()}: {group.hint}", options.max_width)
            yield table
            yield Text()


def _narrow_plan(groups: Sequence[ChoiceGroup]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for group in groups:
        lines += [Text(group.title.upper(), style="bold"), indented(group.hint)]
        for choice in group.choices:
            value = (printable(_value(choice)), "bold")
            lines += [Text.assemble(_marked(choice), " = ", value, overflow="fold"), indented(choice.reason)]
        lines.append(Text())
    return lines


def _value(choice: Choice) -> str:
    return value_text(choice.value, choice.key)


def _marked(choice: Choice) -> str:
    return f"{choice.key}{' +' if choice.measured else ''}"


def _dataset_lines(dataset: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> list[tuple[str, str]]:
    num_cases = _num_cases(dataset)
    num_patients = int(dataset.get("num_patients", num_cases))
    shares = num_patients < num_cases
    of_patients = f" of {count_text(num_patients, 'patient')}" if shares else ", each counted as a separate patient"
    spreads = [(key, _spread_text(fingerprint.get(key), key)) for key in ("shape_voxel", "spacing_mm")]
    return [
        ("cases", f"{count_text(num_cases, 'case')}{of_patients}: {_split_text(dataset)}"),
        ("channels", ", ".join(map(str, dataset.get("channels") or ()))),
        ("classes", listed([*map(str, dataset.get("classes") or ())], _MOST_CLASSES)),
        ("regions", regions_text(dataset.get("regions") or {})),
        ("merged", regions_text(dataset.get("merged") or {})),
        *((key.rsplit("_", 1)[0], text) for key, text in spreads),
        ("voxels", _voxels_text(dataset, fingerprint)),
        ("intensity", _intensity_text(dataset, fingerprint)),
        ("placement", _placement_text(fingerprint)),
        ("files", value_text(fingerprint["file_bytes"], "file_bytes") if "file_bytes" in fingerprint else ""),
        ("layout", str(dataset.get("layout") or "")),
        ("folder", str(dataset.get("path") or "")),
    ]


def _num_cases(dataset: Mapping[str, Any]) -> int:
    return int(dataset.get("num_cases", 0))


def _split_text(dataset: Mapping[str, Any]) -> str:
    """How many cases are for what, and whether the scores are of cases that were held out."""
    judged = f"fold {dataset.get('fold')} held out" if dataset.get("held_out", True) else "the same cases, not held out"
    if num_shared := int(dataset.get("num_shared_patients", 0)):
        judged += f"; {count_text(num_shared, 'patient')} on both sides, which makes the score too high"
    num_training, num_validation = dataset.get("num_training", 0), dataset.get("num_validation", 0)
    return f"{num_training:,} for training, {num_validation:,} for validation ({judged})"


def _placement_text(fingerprint: Mapping[str, Any]) -> str:
    """What may misplace left and right, or image and prediction; empty if nothing may."""
    texts = []
    if num := int(fingerprint.get("num_unplaced", 0)):
        texts.append(f"{count_text(num, 'case')} without a position in space, so left and right are uncertain")
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
