"""What differs between two or more trainings: settings with their reasons, machine, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxelocity.core.quantities import value_text
from voxelocity.report.labeled import LabeledRun, differing_settings
from voxelocity.report.tables import machine_table
from voxelocity.report.views import Table

_MACHINE_KEYS = ("device", "gpu", "cpu", "num_cpus")
_VERSION_KEYS = ("voxelocity", "commit", "torch", "monai", "numpy", "python")
_COMMIT_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class DifferentSetting:
    """One setting that is not the same in all trainings.

    Attributes:
        key: dotted.
        texts: its value in each.
        reasons: why, each with the labels of the trainings that have this reason; none where nobody gave one.
    """

    key: str
    texts: tuple[str, ...]
    reasons: tuple[str, ...]


def different_settings(runs: Sequence[LabeledRun]) -> tuple[tuple[DifferentSetting, ...], int]:
    """The settings that differ, and how many are equal in all."""
    differing, num_equal = differing_settings(runs)
    found = tuple(
        DifferentSetting(key=key, texts=tuple(value_text(value, key) for value in values), reasons=_reasons(runs, key))
        for key, values in differing.items()
    )
    return found, num_equal


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
