"""What `voxelocity tune` found on this machine, kept for the plan as readable files.

Settings that change speed alone hold for a machine, a network and the shape of data. Those that change what is learned
hold only where they were measured: for one data set, optimizer, loss and schedule. The files may be removed at any
time; the rules then choose again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from voxelocity.core.config import Config, check_key, check_value
from voxelocity.core.records import Measured
from voxelocity.planning.config import Plan
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.fingerprint import DatasetFingerprint
from voxelocity.planning.machine import Machine
from voxelocity.planning.step_timing import machine_key
from voxelocity.step import LossConfig, NetworkConfig, OptimizerConfig, ScheduleConfig
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.measured import keep_measured, measured_path, read_measured
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import bytes_text

CHANGE_RESULTS = (
    "data.batch_size",
    "data.patch.draws_per_case",
    "optimizer.learning_rate",
    "precision.compute",
    "backend.tf32",
)
"""Keys that change what is learned: compared by the Dice that trainings reach with them, never by throughput alone."""

_FORMAT_VERSION = 1
_RATE = "learning_rate"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Settings that were tuned, and what they brought.

    Attributes:
        values: of the plan, by dotted key.
        date: on which they were measured, YYYY-MM-DD.
        goal: what was tuned for.
        ratio: time with them over time with the plan's own settings, the median of all rounds; below 1 they are
            quicker. `low` and `high` are the extremes.
        rounds: how many there were; 0 if the plan's own settings did not fit into memory.
        peak_bytes: the most memory that they took, of the device or, on a CPU, of the host.
        reasons: of single values that were found in another way, by key.
    """

    values: Mapping[str, Any]
    date: str
    goal: str
    ratio: float
    low: float
    high: float
    rounds: int
    peak_bytes: int
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> Measured | None:
        """As the plan shows it."""
        if not self.rounds:
            return None
        return Measured(
            what="tuned settings together against the plan's own",
            ratio=self.ratio,
            low=self.low,
            high=self.high,
            rounds=self.rounds,
            decided=True,
        )

    def reason(self, key: str) -> str:
        """Why the plan takes the value of `key`, in words."""
        where = "data set, optimizer, loss and schedule" if key in CHANGE_RESULTS else "network and shape of the data"
        return f"{self.found(key)}; for the same {where}; --no-tuned ignores it"

    def found(self, key: str) -> str:
        """When the value of `key` was found, for what, and what it brought."""
        if key in self.reasons:
            return self.reasons[key]
        gain = (
            f"measured here: with all tuned settings a run takes {self.ratio:.2f} times as long as with the rules' "
            f"({self.low:.2f} to {self.high:.2f}, n = {self.rounds})"
            if self.rounds
            else "the rules' settings did not fit into the memory limit"
        )
        return f"tuned on {self.date} for {self.goal}; {gain}"

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self | None:
        """What was kept; None if it is damaged, or names keys that the plan does not have now."""
        try:
            for key, value in plain["values"].items():
                check_key(Plan, key)
                check_value(Plan, key, value)
            return cls(**{name: plain[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError, AttributeError, ConfigError):
            return None


def tuned_key(plan: Mapping[str, Any], data: DatasetFingerprint, machine: Machine) -> dict[str, Any]:
    """What settings that change only speed are valid for: this machine, network, patch, shape of the data and torch.

    Args:
        plan: nested plain values; `network` and the shape of a patch are settled.
        data: of the data set.
        machine: where it will run.
    """
    shapes = {name: list(getattr(data.shape_voxel, name)) for name in ("low", "median", "high")}
    about: dict[str, Any] = plain_data(
        {
            "format_version": _FORMAT_VERSION,
            "machine": {**machine_key(machine), "num_ranks": machine.num_ranks},
            "tuned": {
                "network": plan["network"],
                "patch_voxel": list(plan["data"]["patch"]["shape_voxel"]),
                "num_channels": len(data.channels),
                "num_classes": len(data.class_names),
                "shape_voxel": shapes,
                "spacing_mm": list(data.spacing_mm.median),
            },
        },
        where="plan",
    )
    return about


def results_key(plan: Mapping[str, Any], data: DatasetFingerprint, machine: Machine) -> dict[str, Any]:
    """What tuned values of `CHANGE_RESULTS` are valid for: as `tuned_key`, and one data set, optimizer, loss, schedule.

    Args:
        plan: nested plain values; `optimizer`, `loss` and `schedule` are settled too.
        data: of the data set, whose statistics identify it wherever it lies.
        machine: where it will run.
    """
    statistics = {name: value for name, value in data.to_plain().items() if name != "prepare_s"}
    text = json.dumps(statistics, sort_keys=True)
    about: dict[str, Any] = plain_data(
        {
            **tuned_key(plan, data, machine),
            "results": {
                "dataset": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
                "optimizer": {name: value for name, value in plan["optimizer"].items() if name != _RATE},
                "loss": plan["loss"],
                "schedule": plan["schedule"],
            },
        },
        where="plan",
    )
    return about


def keep_tuned(folder: Path, about: Mapping[str, Any], tuned: Tuned) -> Path | None:
    """Keeps it for `read_tuned`, in place of what was kept before.

    Returns:
        The file; None, with a warning, if it cannot be written.
    """
    if keep_measured(folder, about, plain_data(tuned, where="plan")):
        return measured_path(folder, about)
    warnings.warn(f"tune: {folder} is full or cannot be written, so later plans cannot use the result", stacklevel=2)
    return None


def read_tuned(folder: Path, about: Mapping[str, Any]) -> Tuned | None:
    """What was tuned for exactly this; None if nothing was, or its file is damaged."""
    record = read_measured(folder, about)
    return None if record is None else Tuned.from_plain(record)


def find_tuned(folder: Path, facts: PlanFacts, *, given: Mapping[str, Any]) -> tuple[dict[str, Tuned], list[str]]:
    """What was tuned for the plan of these facts, by key, and why some of it cannot be taken, in words.

    Values that change what is learned were measured together. So if one of them is `given` another value, the others
    are left to the rules.
    """
    parts: dict[str, type[Config]] = {
        "network": NetworkConfig,
        "optimizer": OptimizerConfig,
        "loss": LossConfig,
        "schedule": ScheduleConfig,
    }
    try:
        plan = {name: kind.parse(facts.section(name)).to_plain() for name, kind in parts.items()}
    except ConfigError:
        # The user's keys do not fit together, which the check of the whole plan reports.
        return {}, []
    plan["data"] = facts.settled["data"]
    machine = facts.machine
    free_bytes = machine.memory_bytes if machine.device == "cpu" else machine.device_free_bytes
    found: dict[str, Tuned] = {}
    why_not: list[str] = []
    for key_of, is_of_results in ((tuned_key, False), (results_key, True)):
        tuned = read_tuned(folder, key_of(plan, facts.data, machine))
        values = (
            {} if tuned is None else {k: v for k, v in tuned.values.items() if (k in CHANGE_RESULTS) == is_of_results}
        )
        if tuned is None or not values:
            continue
        differing = [key for key in values if is_of_results and given.get(key, values[key]) != values[key]]
        if differing:
            key = differing[0]
            if key not in facts.overrides:
                why_not.append(
                    f"plan: settings were tuned on {tuned.date} with {key}={values[key]}, but {given[key]} is taken "
                    f"over here ({facts.kept_reasons.get(key, facts.kept_reason)}), so the rules choose the others; "
                    f"--set {key}={values[key]} takes what was tuned"
                )
            continue
        if tuned.peak_bytes > free_bytes:
            why_not.append(
                f"plan: settings were tuned on {tuned.date}, but took {bytes_text(tuned.peak_bytes)} and only "
                f"{bytes_text(free_bytes)} are free, so the rules choose; tune again, or free memory"
            )
            continue
        found |= dict.fromkeys(values, tuned)
    return found, why_not
