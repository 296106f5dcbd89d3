"""From cases to a plan: survey the machine, take the fingerprint, run the rules, check the result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.class_merging import merge_cases
from voxelocity.core.config import AUTO, check_key, check_value, flatten, set_value
from voxelocity.core.records import Choice
from voxelocity.core.requests.plan import PlanOptions, PlanRequest
from voxelocity.data.decode.notes import as_one_data_set
from voxelocity.data.pipeline import declare_channels, declare_labels
from voxelocity.infer import CaseDivision, ModelSpec
from voxelocity.planning.config import Measure, Plan
from voxelocity.planning.facts import PlanFacts, Start
from voxelocity.planning.fingerprint import DatasetFingerprint, take_fingerprint
from voxelocity.planning.machine import Machine, survey
from voxelocity.planning.rules import RULES
from voxelocity.planning.size_rule import budget_for
from voxelocity.planning.step_forecast import ENOUGH_STEPS, Forecast
from voxelocity.planning.step_timing import CachedStepTimer
from voxelocity.planning.taken_over import SharedKeys, keys_taken_over
from voxelocity.planning.tuned import CHANGE_RESULTS, find_tuned
from voxelocity.report.tables import choice_tables
from voxelocity.step import build_network, check_compiler, keep_float32
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.measured import FOLDER_NAME
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.document.blocks import Document, Section, Text

_HOW_TO_CHANGE = (
    'Change a choice with `overrides`, as in `vx.plan(cases, overrides={"data.batch_size": 4})`; `vx.train` takes the '
    'same. The value `"auto"` gives a choice back to its rule.'
)
_NUM_SAMPLED = 8
_MEASURE: Measure = "once"
# If the trial of a plan runs out of memory, the plan is made again for this share of the memory it was to take.
_LESS = 0.8
# Fewer steps on a GPU train nothing.
_FEWEST_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with everything that led to it."""

    plan: Plan
    choices: tuple[Choice, ...]
    fingerprint: DatasetFingerprint
    machine: Machine
    cases: Cases
    """With the classes declared, and merged as the plan has it."""
    fold: Fold
    forecast: Forecast | None = None
    """What the run is expected to get done; None on a CPU."""
    exposed: Mapping[str, str] = field(default_factory=dict)
    """Held-out cases from which the model that the run starts from may have learned, and why."""
    before: CaseDivision | None = None
    """The cases of the model that the run starts from; None for new weights, and where they are not known."""

    def __repr__(self) -> str:
        """One line that says what would be trained."""
        return f"Planned({self._in_short()}; {count_text(len(self.choices), 'choice')} with their reasons in .choices)"

    def _in_short(self) -> str:
        plan = self.plan
        shape = " x ".join(map(str, plan.data.patch.shape_voxel))
        length = f"{plan.train.steps:,} steps" if plan.train.steps else duration_text(plan.train.time_budget_s)
        return (
            f"{self.cases.name}, fold {self.fold}: {plan.network.name} on {self.machine.device}, "
            f"{count_text(plan.data.batch_size, 'patch', 'patches')} of {shape} a step, {length}"
        )

    def _repr_html_(self) -> str:
        """How notebooks show it: every choice with its reason."""
        document = Document(
            kind="plan",
            title=f"Plan for {self.cases.name}",
            verdict=f"{self._in_short()}.",
            sections=[
                Section(
                    title="Choices and their reasons", blocks=[Text(text=_HOW_TO_CHANGE), *choice_tables(self.choices)]
                )
            ],
            footer="`vx.train(cases, out)` makes the same plan and trains.",
        )
        return document._repr_html_()

    def to_record(self) -> dict[str, Any]:
        """What `run.yaml` keeps of the plan and its origin."""
        split = self.cases.split(self.fold)
        return {
            "dataset": {
                "name": self.cases.name,
                "path": str(self.cases.root.resolve()),
                "layout": self.cases.layout,
                "num_cases": len(self.cases),
                "num_patients": self.cases.num_patients,
                "num_training": len(split.training),
                "num_validation": len(split.validation),
                "fold": self.fold,
                "held_out": split.held_out,
                "num_shared_patients": split.num_shared_patients if split.held_out else 0,
                "classes": list(self.cases.class_names),
                "regions": {name: list(values) for name, values in self.cases.regions.items()},
                "merged": {
                    self.cases.labels[value]: list(members.values()) for value, members in self.cases.merged.items()
                },
                "channels": list(self.cases.channels),
                **({"exposed": dict(self.exposed)} if self.exposed else {}),
            },
            "seed": self.plan.seed,
            "device": self.machine.device,
            "plan": self.plan.to_plain(),
            "choices": [plain_data(choice, where="plan") for choice in self.choices],
            "fingerprint": self.fingerprint.to_plain(),
            **({} if self.forecast is None else {"forecast": self.forecast.to_plain()}),
        }


def model_spec(planned: Planned) -> ModelSpec:
    """What the network of a plan expects and predicts, as stored with the model on disk."""
    plan, cases = planned.plan, planned.cases
    return ModelSpec(
        network=plan.network,
        channels=cases.channels,
        labels=dict(cases.labels),
        region_order=cases.region_order,
        regions=cases.region_indices,
        ignore_value=cases.ignore_value,
        merged={value: dict(members) for value, members in cases.merged.items()},
        prepare=plan.data.prepare,
        window=plan.window,
        # Windows are predicted without compilation, which would have to be repeated for each batch shape.
        precision=plan.precision.model_copy(update={"compile": "none"}),
        backend=plan.backend,
        trained_on=planned.fingerprint.trained_on(),
        division=CaseDivision.of(cases.split(planned.fold), before=planned.before, exposed=planned.exposed),
    )


def make_plan(
    cases: Cases, *, saved_plan: Plan | None = None, shared: SharedKeys | None = None, **options: Unpack[PlanOptions]
) -> Planned:
    """The plan for these cases on this machine, each value with its reason. Reads headers and a few cases.

    Trains a few steps on random patches if that decides a choice and has not been measured on this machine before (on a
    CPU at most three seconds and 1 % of a time budget, on a GPU half a second; `planner.measure=never` skips it).

    Args:
        cases: what `voxelocity.open` returned.
        saved_plan: the plan of an unfinished run that is to be continued; what it measured stays unchanged.
        shared: keys that this run has in common with another one; they win over rules, `plans` over them, and
            `overrides` over both.
        options: the fields of `PlanRequest`, and `time_budget` as a text such as "5m".

    Raises:
        ConfigError: an argument or an override is unknown or out of range, or the two contradict each other.
        DatasetError: the fold holds no case.
        ScanError: a header, a label file or a sampled case cannot be used.
    """
    request = PlanRequest.of_call(options)
    with request.errors_as_written():
        return plan_cases(cases, request, saved_plan=saved_plan, shared=shared)


def plan_cases(
    cases: Cases,
    request: PlanRequest,
    *,
    saved_plan: Plan | None = None,
    shared: SharedKeys | None = None,
    start: Start | None = None,
) -> Planned:
    """The plan for a request; see `make_plan`. Keys of `start`, the model that the run starts from, win over rules."""
    # Users type this in notebooks, where nothing checks types.
    if not isinstance(cases, Cases):
        raise ConfigError(f"plan: cases is {cases!r}; give what voxelocity.open(...) returns")
    fold = 0 if request.fold == AUTO else request.fold
    chosen = read_overrides(request.overrides)
    if request.epochs is not None and "train.steps" in chosen:
        raise request.refusal(f"train.steps={chosen['train.steps']} gives the length too; leave one out", "epochs")
    folder = (request.cache_folder or default_cache_folder()).expanduser()
    split = cases.split(fold)
    machine = survey(request.device, cache_folder=folder)
    as_one_data_set(file for ref in cases.refs for file in ref.files)
    cases = declare_labels(declare_channels(cases), num_threads=machine.num_cpus)
    cases = merge_cases(cases, chosen.get("classes.merge", {}))
    fingerprint = take_fingerprint(
        cases, num_sampled=_NUM_SAMPLED, num_threads=machine.num_cpus, skip_broken=request.skip_broken
    )
    measure = chosen.get("planner.measure", _MEASURE)
    timer = CachedStepTimer(folder=folder / FOLDER_NAME, machine=machine, refresh=measure == "again")
    kept, reasons = keys_taken_over(
        request, num_channels=cases.num_channels, start=start, shared=shared, saved_plan=saved_plan
    )
    facts = PlanFacts(
        data=fingerprint,
        machine=machine,
        num_training=len(split.training),
        time_budget_s=_given(request, "time_budget_s", chosen, "train.time_budget_s"),
        seed=_given(request, "seed", chosen, "seed"),
        cache_folder=str(folder),
        overrides=chosen,
        kept=kept,
        kept_reason=shared.reason if shared and saved_plan is None else "as at the start of the run",
        kept_reasons=reasons,
        start=start,
        time_steps=None if measure == "never" else timer,
        measures_again=measure == "again",
        epochs=request.epochs or 0,
    )
    facts = _run_rules(facts)
    if chosen.get("planner.use_tuned", True):
        facts = _apply_tuned(facts, folder / FOLDER_NAME, saved_plan)
    _warn_if_short(facts)
    _warn_if_mixed(facts)
    _settle_without_rule(facts)
    plan = Plan.parse(facts.settled, where="plan")
    _check_step(plan, fingerprint, machine)
    return Planned(
        plan=plan,
        choices=tuple(facts.choices),
        fingerprint=fingerprint,
        machine=machine,
        cases=cases,
        fold=fold,
        forecast=facts.forecast,
    )


def _check_step(plan: Plan, fingerprint: DatasetFingerprint, machine: Machine) -> None:
    """Refuses now what the first step would refuse, after the cache is filled."""
    if plan.precision.compile != "none":
        check_compiler(plan.precision.compile, machine.torch_device)
    if plan.precision.float32_layers:
        with torch.device("meta"):
            network = build_network(
                plan.network, num_channels=len(fingerprint.channels), num_classes=fingerprint.num_outputs, seed=0
            )
        keep_float32(network, plan.precision.float32_layers)


def _settle_without_rule(facts: PlanFacts) -> None:
    """Settles what the user set, or is taken over, where no rule decides."""
    ruled = {choice.key for choice in facts.choices}
    for key, value in facts.overrides.items():
        if key not in ruled:
            facts.choices.append(Choice(key=key, value=value, reason=facts.reason_of_user(key, value, value)))
            set_value(facts.settled, key, value)
    for key, value in facts.kept.items():
        if key in ruled or key in facts.overrides:
            continue
        # An architecture is a page long, and what is empty says nothing.
        if key in facts.kept_reasons and value and key != "network.architecture":
            facts.choices.append(Choice(key=key, value=value, reason=facts.kept_reasons[key]))
        set_value(facts.settled, key, value)


def _warn_if_mixed(facts: PlanFacts) -> None:
    data = facts.data
    if data.is_ct and data.without_air:
        warnings.warn(
            f"plan: the channel is called {data.channels[0]}, but {len(data.without_air)} of {data.num_sampled} "
            f"sampled cases, such as {data.without_air[0]}, contain no air near -1000, unlike the others; if they "
            "are MR scans or have other units, one window is wrong for them: leave them out, or give the channel "
            "another name "
            "in dataset.json, so that each case is scaled separately",
            UserWarning,
            stacklevel=3,
        )


def _warn_if_short(facts: PlanFacts) -> None:
    """Warns if a time budget leaves too few steps on a GPU to train anything."""
    expected = facts.forecast
    if expected is None or not facts.time_budget_s or expected.is_to_target:
        return
    if expected.num_steps < _FEWEST_STEPS:
        enough_s = budget_for(facts, _FEWEST_STEPS, expected.step_s)
        warnings.warn(
            f"plan: a time budget of {facts.time_budget_s:.0f} s leaves about {expected.available_s:.0f} s for "
            f"training, or {count_text(expected.num_steps, 'step')} of {1000.0 * expected.step_s:.3g} ms (forecast): "
            f"too few to train a network (at least {_FEWEST_STEPS}, better {ENOUGH_STEPS}); cached cases of an "
            f"earlier run are not considered. Give at least --time-budget {math.ceil(enough_s)}s",
            UserWarning,
            stacklevel=3,
        )


def _apply_tuned(facts: PlanFacts, folder: Path, saved_plan: Plan | None) -> PlanFacts:
    """The facts with what was tuned for their network and data, if there is anything."""
    # What an unfinished run took from its machine may have been tuned.
    given = facts.overrides if saved_plan is not None else {**facts.kept, **facts.overrides}
    found, why_not = find_tuned(folder, facts, given=given)
    for text in why_not:
        warnings.warn(text, UserWarning, stacklevel=3)
    if not found:
        return facts
    values = {key: tuned.values[key] for key, tuned in found.items()}
    reasons = {key: tuned.reason(key) for key, tuned in found.items()}
    measured = {key: tuned.measured for key, tuned in found.items() if key not in tuned.reasons}
    if saved_plan is not None:
        # The run may have begun before they were tuned.
        before = flatten(Plan, saved_plan.to_plain())
        values, measured = {key: before[key] for key in values}, {}
        reasons = dict.fromkeys(values, "as at the start of the run")
    facts = _run_rules(
        replace(
            facts, tuned=values, tuned_reasons=reasons, tuned_measured=measured, settled={}, choices=[],
            ran_out_of_memory=False,
        )
    )  # fmt: skip
    settled = {choice.key for choice in facts.choices}
    for key in values:
        if key not in settled and key not in facts.overrides:
            facts.settle(key, values[key], reasons[key], changes_results=key in CHANGE_RESULTS)
    return facts


def _run_rules(facts: PlanFacts) -> PlanFacts:
    """The facts with every rule applied; repeats with less device memory as long as a trial runs out of it."""
    last: PlanFacts | None = None
    while True:
        for rule in RULES:
            rule(facts)
        if not facts.ran_out_of_memory or facts.planned_bytes == 0:
            return facts
        if last is not None and facts.planned_bytes >= last.planned_bytes:
            # As small as the rules and the user's keys allow: training says what else can be done.
            return facts
        room_bytes = int(_LESS * facts.planned_bytes)
        last, facts = facts, replace(facts, room_bytes=room_bytes, settled={}, choices=[], ran_out_of_memory=False)


def read_overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and checked values that the user has set; keys set to "auto" are left out.

    Raises:
        ConfigError: a key is unknown (the nearest valid one is named) or its value is out of range.
    """
    chosen: dict[str, Any] = {}
    for key, value in flatten(Plan, values).items():
        check_key(Plan, key)
        if value != AUTO:
            chosen[key] = check_value(Plan, key, value)
    return chosen


def _given(request: PlanRequest, name: str, chosen: Mapping[str, Any], key: str) -> Any:
    """The argument or the override of the same value, whichever is given; 0 if neither is."""
    argument = getattr(request, name)
    if argument == AUTO:
        return chosen.get(key, 0)
    if chosen.get(key, argument) != argument:
        raise request.refusal(
            f"the configuration fixes {key} to {chosen[key]}; leave one of them out "
            f"(--set {key}={argument} replaces the value of a --config file)",
            name,
        )
    return argument
