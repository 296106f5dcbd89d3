"""What differs between two or more trainings: settings with their reasons, machine, versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import dotted, value_text
from voxelocity.report.document import Block, Section, Table, Text
from voxelocity.report.labeled import LabeledRun
from voxelocity.report.tables import machine_table

_MACHINE_KEYS = ("device", "gpu", "cpu", "num_cpus")
_VERSION_KEYS = ("voxelocity", "commit", "torch", "monai", "numpy", "python")
_COMMIT_LENGTH = 12


def differing_settings(settings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Dotted settings whose values differ, with a value per side (None where it has no such setting), and how many
    are equal on all sides.
    """
    flat = [dotted(values) if values else {} for values in settings]
    keys = dict.fromkeys(key for values in flat for key in values)
    differing = {}
    for key in keys:
        values = tuple(plain_data(side.get(key), where="settings") for side in flat)
        if any(value != values[0] for value in values[1:]):
            differing[key] = values
    return differing, len(keys) - len(differing)


def settings_before_and_after(
    before: Mapping[str, Any], after: Mapping[str, Any], *, text_of: Callable[[Any, str], str] = value_text
) -> tuple[Section, dict[str, Any]]:
    """What was set differently: a section, and plain data by dotted key."""
    differing, num_equal = differing_settings([before, after])
    rows = [(key, *(text_of(value, key) for value in values)) for key, values in differing.items()]
    plain = {key: {"before": old, "after": new} for key, (old, new) in differing.items()}
    return settings_section(rows, ("Before", "After"), num_equal), plain


def different_settings(runs: Sequence[LabeledRun]) -> tuple[list[list[str]], int]:
    """A row for each setting that differs, as `settings_section` takes it, and how many settings are equal in all."""
    differing, num_equal = differing_settings([run.settings for run in runs])
    reasons = {key: "; ".join(_reasons(runs, key)) for key in differing}
    rows = [
        [key, *(value_text(value, key) for value in values), *([reasons[key]] if any(reasons.values()) else [])]
        for key, values in differing.items()
    ]
    return rows, num_equal


def settings_section(rows: Sequence[Sequence[str]], labels: Sequence[str], num_equal: int) -> Section:
    """What was set differently.

    Args:
        rows: each setting with its value on each side and, behind them where there are more cells, the reasons.
        labels: of the sides.
        num_equal: settings that are the same on all sides.
    """
    blocks = list[Block]()
    if rows:
        heads = ["Setting", *labels, *(["Why"] if len(rows[0]) > len(labels) + 1 else [])]
        columns = frozenset(range(1, len(heads)))
        blocks.append(
            Table(caption="Settings that differ", heads=heads, rows=rows, text_columns=columns, hides_caption=True)
        )
        if num_equal:
            text = f"{num_equal} more {'setting is' if num_equal == 1 else 'settings are'} equal."
            blocks.append(Text(text=text, is_hint=True))
    elif num_equal:
        equal = "the one setting is" if num_equal == 1 else f"all {num_equal} settings are"
        blocks.append(Text(text=f"Nothing: {equal} equal."))
    else:
        blocks.append(Text(text="No settings were recorded."))
    return Section(title="What was set differently", blocks=blocks)


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
    versions = _differing(machines, _VERSION_KEYS)
    if versions:
        notices.append(
            f"The runs were made with different versions ({versions}); differences may come from them and not "
            "from the settings."
        )
    return notices


def different_machines(machines: Sequence[Mapping[str, object]]) -> str:
    """How the machines differ, as `observe.environment` describes them: "cpu: EPYC, Xeon; num_cpus: 8, 4".

    Empty for equal ones; a fact that one of them lacks is not a difference.
    """
    return _differing(machines, _MACHINE_KEYS)


def _differing(machines: Sequence[Mapping[str, object]], keys: Sequence[str]) -> str:
    texts = []
    for key in keys:
        values = [_text(machine, key) for machine in machines if key in machine]
        if len(set(values)) > 1:
            texts.append(f"{key}: {', '.join(values)}")
    return "; ".join(texts)


def _text(machine: Mapping[str, object], key: str) -> str:
    text = value_text(machine[key], key)
    if key != "commit":
        return text
    commit, dirty, _ = text.partition("-dirty")
    return commit[:_COMMIT_LENGTH] + dirty


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
