"""What `voxelocity tune` found on this machine, kept for the plan: a readable file for each machine, network and data.

The file may be removed at any time; the rules then choose again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from voxelocity.core.config import check_key, check_value
from voxelocity.core.errors import ConfigError
from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import bytes_text
from voxelocity.core.records import Measured
from voxelocity.observe.measured import keep_measured, measured_path, read_measured
from voxelocity.planning.config import Plan
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.fingerprint import DatasetFingerprint
from voxelocity.planning.machine import Machine
from voxelocity.planning.step_timing import machine_key
from voxelocity.step import NetworkConfig

_FORMAT_VERSION = 1


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
        return f"{self.found(key)}; --no-tuned leaves it to the rules"

    def found(self, key: str) -> str:
        """When the value of `key` was found, for what, and what it brought."""
        if key in self.reasons:
            return self.reasons[key]
        gain = (
            f"measured here: with all tuned settings a run takes {self.ratio:.2f} times as long as with the rules' "
            f"({self.low:.2f} to {self.high:.2f}, n = {self.rounds})"
            if self.rounds
            else "the rules' settings did not fit into the memory that was allowed"
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
    """What tuned settings are valid for: this machine, network, patch, shape of the data and version of torch.

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


def keep_tuned(folder: Path, about: Mapping[str, Any], tuned: Tuned) -> Path | None:
    """Keeps it for `read_tuned`, in place of what was kept before.

    Returns:
        The file; None, with a warning, if it cannot be written.
    """
    if keep_measured(folder, about, plain_data(tuned, where="plan")):
        return measured_path(folder, about)
    warnings.warn(
        f"tune: {folder} is full or cannot be written, so later plans do not take what was found", stacklevel=2
    )
    return None


def read_tuned(folder: Path, about: Mapping[str, Any]) -> Tuned | None:
    """What was tuned for exactly this; None if nothing was, or its file is damaged."""
    record = read_measured(folder, about)
    return None if record is None else Tuned.from_plain(record)


def find_tuned(folder: Path, facts: PlanFacts) -> tuple[Tuned | None, str]:
    """What was tuned for the plan of these facts, and why it cannot be taken; "" if it can, or if there is nothing."""
    try:
        network = NetworkConfig.parse(facts.section("network"))
    except ConfigError:
        # The user's keys do not fit together, which the check of the whole plan reports.
        return None, ""
    plan = {"network": network.to_plain(), "data": facts.settled["data"]}
    tuned = read_tuned(folder, tuned_key(plan, facts.data, facts.machine))
    if tuned is None or not tuned.values:
        return None, ""
    machine = facts.machine
    free_bytes = machine.memory_bytes if machine.device == "cpu" else machine.device_free_bytes
    if tuned.peak_bytes > free_bytes:
        return None, (
            f"plan: settings were tuned on {tuned.date}, but took {bytes_text(tuned.peak_bytes)} and only "
            f"{bytes_text(free_bytes)} are free, so the rules choose; tune again, or free memory"
        )
    return tuned, ""
