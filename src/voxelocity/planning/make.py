"""From cases to a plan: survey the machine, take the fingerprint, run the rules, check the result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import AUTO, check_key, check_value, flatten, set_value
from voxelocity.core.records import Choice
from voxelocity.data.pipeline import declare_channels, declare_labels
from voxelocity.planning.config import Plan
from voxelocity.planning.facts import Facts, Request
from voxelocity.planning.fingerprint import Fingerprint, take_fingerprint
from voxelocity.planning.machine import DeviceChoice, Machine, survey
from voxelocity.planning.rules import RULES

_NUM_SAMPLED = 8


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with everything that led to it."""

    plan: Plan
    choices: tuple[Choice, ...]
    fingerprint: Fingerprint
    machine: Machine
    cases: Cases
    """With the classes declared."""
    fold: Fold

    def to_record(self) -> dict[str, Any]:
        """What `run.yaml` keeps of it."""
        split = self.cases.split(self.fold)
        return {
            "dataset": {
                "name": self.cases.name,
                "path": str(self.cases.root.resolve()),
                "layout": self.cases.layout,
                "num_cases": len(self.cases),
                "num_training": len(split.training),
                "num_validation": len(split.validation),
                "fold": self.fold,
                "held_out": split.held_out,
                "classes": list(self.cases.class_names),
                "channels": list(self.cases.channels),
            },
            "seed": self.plan.seed,
            "device": self.machine.device,
            "plan": self.plan.to_plain(),
            "choices": [_plain(asdict(choice)) for choice in self.choices],
            "fingerprint": self.fingerprint.to_plain(),
        }


def make_plan(
    cases: Cases,
    *,
    fold: Fold = 0,
    time_budget_s: float = 0.0,
    seed: int = 0,
    device: DeviceChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    cache_folder: Path | None = None,
) -> Planned:
    """The plan for these cases on this machine, each value with its reason. Reads headers and a few cases.

    Args:
        cases: what `voxelocity.open` returned.
        fold: which cases to hold out, or "all".
        time_budget_s: seconds for the whole run; 0 for no limit.
        seed: of the run.
        device: where to train.
        overrides: nested or dotted keys to fix; the value "auto" leaves a key to the rules.
        cache_folder: where a disk cache lies; `default_cache_folder()` if not given.

    Raises:
        ConfigError: an override is unknown or out of range.
        DatasetError: the fold holds no case.
        ScanError: a header, a label file or a sampled case cannot be used.
    """
    chosen = read_overrides(overrides or {})
    folder = (cache_folder or default_cache_folder()).expanduser()
    split = cases.split(fold)
    machine = survey(device, cache_folder=folder)
    cases = declare_labels(declare_channels(cases), num_threads=machine.num_cpus)
    fingerprint = take_fingerprint(cases, num_sampled=_NUM_SAMPLED, num_threads=machine.num_cpus)
    request = Request(
        num_training=len(split.training),
        num_validation=len(split.validation),
        time_budget_s=float(chosen.get("train.time_budget_s", time_budget_s)),
        seed=int(chosen.get("seed", seed)),
        cache_folder=str(folder),
    )
    facts = Facts(data=fingerprint, machine=machine, request=request, overrides=chosen)
    for rule in RULES:
        rule(facts)
    ruled = {choice.key for choice in facts.choices}
    for key, value in chosen.items():
        if key not in ruled:
            facts.choices.append(Choice(key=key, value=value, reason="set by you"))
            set_value(facts.settled, key, value)
    plan = Plan.parse(facts.settled, where="plan")
    return Planned(
        plan=plan, choices=tuple(facts.choices), fingerprint=fingerprint, machine=machine, cases=cases, fold=fold
    )


def read_overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and checked values of what a person has set; keys set to "auto" are left out.

    Raises:
        ConfigError: a key is unknown (the nearest valid one is named) or its value is out of range.
    """
    chosen: dict[str, Any] = {}
    for key, value in flatten(Plan, values).items():
        check_key(Plan, key)
        if value != AUTO:
            chosen[key] = check_value(Plan, key, value)
    return chosen


def default_cache_folder() -> Path:
    """Where prepared cases are kept between runs: the XDG cache folder of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "voxelocity"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
