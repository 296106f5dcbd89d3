"""How a run was started, as `run.yaml` keeps it, and what a command that resumes it must not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import AUTO, Auto
from voxelocity.core.errors import ConfigError
from voxelocity.core.plain import shortened
from voxelocity.planning import Plan, Planned, read_overrides
from voxelocity.report import duration_text

_NUM_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """The beginning of a run.

    Attributes:
        plan: every setting.
        fold: which cases were held out, or "all".
        device: where it was trained; "" if that was not stored.
        dataset: path, channels, classes and labels of the data set.
        case_ids: ids of the cases for "training" and for "validation"; empty for runs that did not store them.
    """

    plan: Plan
    fold: Fold
    device: str
    dataset: Mapping[str, Any]
    case_ids: Mapping[str, Sequence[str]]

    @classmethod
    def parse(cls, record: Mapping[str, Any], *, where: str) -> Self:
        """The beginning of a run, from the content of its `run.yaml`.

        Raises:
            ConfigError: a part is missing, damaged, or was written by another version.
        """
        dataset = _mapping(record, "dataset", where=where)
        fold = dataset.get("fold")
        if fold != "all" and not isinstance(fold, int):
            raise ConfigError(f"train: {where} names no fold ({shortened(fold)}); start again with --overwrite")
        case_ids = _mapping(record, "cases", where=where) if "cases" in record else {}
        if not all(isinstance(ids, list) and all(isinstance(one, str) for one in ids) for ids in case_ids.values()):
            raise ConfigError(f"train: {where}: 'cases' is damaged; start again with --overwrite")
        try:
            plan = Plan.parse(_mapping(record, "plan", where=where), where=where)
        except ConfigError as error:
            raise ConfigError(f"{error}; restore it, or start again with --overwrite") from None
        return cls(plan=plan, fold=fold, device=str(record.get("device") or ""), dataset=dataset, case_ids=case_ids)

    def dataset_path(self, *, where: str) -> Path:
        """Where the data set of the run was.

        Raises:
            ConfigError: it was not stored.
        """
        path = self.dataset.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"train: {where} names no data set; give it: voxelocity train DATASET -o RUN --resume")
        return Path(path)


def saved_run_record(planned: Planned) -> dict[str, Any]:
    """What `run.yaml` keeps of a run's beginning, as plain data. The cases, which may be many, come last."""
    record = planned.to_record()
    record["dataset"]["labels"] = dict(planned.cases.labels)
    return {**record, "cases": _case_ids(planned.cases, planned.fold)}


def other_path(saved: SavedRun, cases: Cases) -> list[str]:
    """One line if the data set is in another place than the run's, else no line."""
    now = {"path": str(cases.root.resolve())}
    return differing_keys(_stored(saved, now), now)


def other_data(saved: SavedRun, cases: Cases) -> list[str]:
    """What differs between the run's data set and this one, whose classes are declared, as lines of text.

    Values that an earlier version did not store are not compared.
    """
    lines = []
    if saved.case_ids:
        now_ids = _case_ids(cases, saved.fold)
        for part, ids in now_ids.items():
            lines.extend(_moved_cases(part, before=saved.case_ids.get(part, ()), now=ids))
    now: dict[str, Any] = {"channels": list(cases.channels)}
    if "labels" in saved.dataset:
        now["labels"] = dict(cases.labels)
    else:
        now["classes"] = list(cases.class_names)
    return lines + differing_keys(_stored(saved, now), now)


def conflicting_options(
    saved: SavedRun,
    *,
    fold: Fold | Auto,
    time_budget_s: float | Auto,
    seed: int | Auto,
    overrides: Mapping[str, Any],
) -> list[str]:
    """The given values that differ from the run's, as `--seed 4 where 0 is stored`. "auto" does not count as given.

    Raises:
        ConfigError: an override is unknown or out of range.
    """
    lines = []
    if fold not in (AUTO, saved.fold):
        lines.append(f"--fold {fold} where {saved.fold} is stored")
    given = read_overrides(overrides)
    stored = saved.plan.to_plain()
    if seed not in (AUTO, stored["seed"]):
        lines.append(f"--seed {seed} where {stored['seed']} is stored")
    budget_s = stored["train"]["time_budget_s"]
    if time_budget_s not in (AUTO, budget_s):
        lines.append(f"--time-budget {_budget_text(time_budget_s)} where {_budget_text(budget_s)} is stored")
    for key, value in given.items():
        before = _value_at(stored, key)
        if value != before:
            lines.append(f"{key}={value} where {before} is stored")
    return lines


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two plain mappings, as `key: old -> new`."""
    lines: list[str] = []
    for key in sorted({*old, *new}, key=str):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines.extend(differing_keys(before, after, f"{prefix}{key}."))
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def in_short(lines: Sequence[str]) -> str:
    """The first few lines, joined into one."""
    return "; ".join([*lines[:_NUM_NAMED], *(["..."] if len(lines) > _NUM_NAMED else [])])


def _mapping(record: Mapping[str, Any], key: str, *, where: str) -> dict[str, Any]:
    if key not in record:
        raise ConfigError(f"train: {where} lacks '{key}'; start again with --overwrite")
    if not isinstance(record[key], dict):
        raise ConfigError(
            f"train: {where}: '{key}' is {shortened(record[key])}, not keys and values; start again with --overwrite"
        )
    values: dict[str, Any] = record[key]
    return values


def _stored(saved: SavedRun, now: dict[str, Any]) -> dict[str, Any]:
    """The values of the run's data set under the same keys; a value that was not stored counts as equal."""
    return {key: saved.dataset.get(key, value) for key, value in now.items()}


def _case_ids(cases: Cases, fold: Fold) -> dict[str, list[str]]:
    split = cases.split(fold)
    return {
        "training": [ref.case_id for ref in split.training],
        "validation": [ref.case_id for ref in split.validation],
    }


def _moved_cases(part: str, *, before: Sequence[str], now: Sequence[str]) -> list[str]:
    stored = {*map(str, before)}
    added, missing = sorted({*now} - stored), sorted(stored - {*now})
    lines = [f"{len(added)} new {part} cases: {_named(added)}"] if added else []
    return lines + ([f"{len(missing)} {part} cases missing: {_named(missing)}"] if missing else [])


def _named(case_ids: Iterable[str]) -> str:
    names = list(case_ids)
    return ", ".join([*names[:_NUM_NAMED], *(["..."] if len(names) > _NUM_NAMED else [])])


def _value_at(values: Mapping[str, Any], dotted_key: str) -> Any:
    found: Any = values
    for name in dotted_key.split("."):
        found = found[name]
    return found


def _budget_text(seconds: float | Auto) -> str:
    return duration_text(float(seconds)) if seconds else "none"
