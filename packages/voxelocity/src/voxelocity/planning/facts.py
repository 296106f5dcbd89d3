"""What a rule may look at: statistics, machine, and the choices of earlier rules and of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voxelocity.core.config import set_value
from voxelocity.core.records import Choice, Measured
from voxelocity.core.region import Index3
from voxelocity.planning.config import steps_of_passes
from voxelocity.planning.fingerprint import DatasetFingerprint
from voxelocity.planning.machine import Machine
from voxelocity.planning.step_forecast import Forecast
from voxelocity.planning.step_timing import StepTimer


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model that a run starts from, as its plan sees it.

    Attributes:
        name: as the user named it.
        keys: that the plan may take over, by dotted key.
        replaced: its other keys, in place of which the user has set some.
        patch: what it was trained on, in voxels; None where the plan does not take over its network.
        divisor: of its network; a patch must be a multiple of it.
    """

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    replaced: Mapping[str, Any] = field(default_factory=dict)
    patch: Index3 | None = None
    divisor: Index3 | None = None

    @property
    def reason(self) -> str:
        """Why the plan has one of its keys."""
        return f"taken from {self.name}, which this run starts from"


@dataclass(kw_only=True)
class PlanFacts:
    """Statistics, machine and what the user asked for, with the values settled so far.

    Attributes:
        num_training: number of training cases.
        time_budget_s: seconds for the whole run; 0 for no limit.
        seed: of the run.
        cache_folder: where a disk cache would be.
        overrides: dotted keys the user has set; they win over every rule, and later rules see them.
        kept: dotted keys taken over from elsewhere, which win over rules: what an unfinished run took from its machine,
            by measuring or from the memory that was free, or what a run must share with another.
        kept_reason: why they are.
        kept_reasons: why some of them are, in place of that.
        start: the model that the run starts from, whose keys are among those; None for new weights.
        given_back: keys of that model that were left to the rules after all, and why.
        tuned: values by dotted key that were tuned on this machine; they win over rules.
        tuned_reasons: why each is taken. `tuned_measured` has the measurement behind it, if there is one.
        time_steps: measures how long a step takes; None where rules choose without measuring.
        room_bytes: device memory that training may take, known from a trial that ran out of it; 0 if none did.
        planned_bytes: device memory that training is expected to take; 0 before its rule has run, and on a CPU.
        ran_out_of_memory: whether a trial of the planned step ran out of memory.
        window_bytes: device memory that a window of a validation is expected to take; 0 before the rule of the batch.
        fits_graph: whether the device has the memory for the planned step as a CUDA graph, which keeps it, and a
            window next to it.
        forecast: what the run is expected to get done; None before its rule has run, and on a CPU.
        epochs: passes over the training cases that the user asked for; 0 leaves the length to the rule.
        measures_again: whether the user asked for a measurement, however long it takes.
        settled: nested plain values of the plan so far.
        choices: every settled value with its reason, in order.
    """

    data: DatasetFingerprint
    machine: Machine
    num_training: int
    time_budget_s: float
    seed: int
    cache_folder: str
    overrides: Mapping[str, Any]
    kept: dict[str, Any] = field(default_factory=dict)
    kept_reason: str = "as at the start of the run"
    kept_reasons: dict[str, str] = field(default_factory=dict)
    start: Start | None = None
    given_back: dict[str, str] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    tuned_reasons: Mapping[str, str] = field(default_factory=dict)
    tuned_measured: Mapping[str, Measured | None] = field(default_factory=dict)
    time_steps: StepTimer | None = None
    room_bytes: int = 0
    planned_bytes: int = 0
    window_bytes: int = 0
    ran_out_of_memory: bool = False
    fits_graph: bool = True
    forecast: Forecast | None = None
    epochs: int = 0
    measures_again: bool = False
    settled: dict[str, Any] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)

    def settle(
        self,
        key: str,
        value: Any,
        reason: str,
        *,
        changes_results: bool = True,
        changes_roundings: bool = False,
        measured: Measured | None = None,
    ) -> Any:
        """Records the rule's choice for `key`, or the user's own value; returns the one that applies."""
        if key in self.overrides:
            chosen = self.overrides[key]
            reason = self.reason_of_user(key, chosen, value)
            value, measured = chosen, None
        elif key in self.kept:
            value, measured = self.kept[key], None
            reason = self.kept_reasons.get(key, self.kept_reason)
        elif key in self.tuned:
            value, reason, measured = self.tuned[key], self.tuned_reasons[key], self.tuned_measured.get(key)
        elif key in self.given_back:
            reason += f"; {self.given_back[key]}"
        set_value(self.settled, key, value)
        self.choices.append(
            Choice(
                key=key,
                value=value,
                reason=reason,
                changes_results=changes_results,
                changes_roundings=changes_roundings,
                measured=measured,
            )
        )
        return value

    def reason_of_user(self, key: str, chosen: Any, otherwise: Any) -> str:
        """Why a key has the user's value, and what it would have without it."""
        theirs = {} if self.start is None else {**self.start.replaced, **self.start.keys}
        if self.start is not None and theirs.get(key, chosen) != chosen:
            return f"set by you; {self.start.name}, which this run starts from, has {_short(theirs[key])}"
        return "set by you" + ("" if chosen == otherwise else f"; the rule would have chosen {_short(otherwise)}")

    def is_given(self, key: str) -> bool:
        """Whether the value of `key` does not come from a rule."""
        return key in self.overrides or key in self.kept or key in self.tuned

    def section(self, name: str) -> dict[str, Any]:
        """What is known so far of a section of the plan: settled values, and given keys not settled yet."""
        values = dict(self.settled.get(name, {}))
        for key, value in {**self.tuned, **self.kept, **self.overrides}.items():
            if key.startswith(f"{name}."):
                set_value(values, key.removeprefix(f"{name}."), value)
        return values

    def steps_of_epochs(self) -> int:
        """The optimizer steps of the epochs that the user asked for, once the size of a batch is settled."""
        data = self.section("data")
        draws_per_case = int(data.get("patch", {}).get("draws_per_case", 1))
        return steps_of_passes(
            self.epochs, self.num_training, draws_per_case=draws_per_case, batch_size=int(data["batch_size"])
        )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_short(inner) for inner in value) + ")"
    return str(value)
