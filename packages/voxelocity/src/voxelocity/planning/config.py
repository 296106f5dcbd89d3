"""The plan: every value a run needs, all of them settled. This is what `run.yaml` keeps and `--set` changes."""

from __future__ import annotations

import json
import math
import shlex
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from voxelocity.core.class_merging import ClassesConfig
from voxelocity.core.config import Config, check_key, flatten, set_value
from voxelocity.data.augment import BUILT_IN_EFFECTS
from voxelocity.data.cache import FOLDER_TIERS
from voxelocity.data.pipeline import DataConfig
from voxelocity.infer import WindowConfig
from voxelocity.parallel.config import ParallelConfig
from voxelocity.step import BackendConfig, LossConfig, NetworkConfig, OptimizerConfig, PrecisionConfig, ScheduleConfig
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.plain import shortened

Measure = Literal["once", "again", "never"]


PLACES = ("data.cache.folder", "data.cache.folder_max_bytes")
"""Keys that say where a run writes and what it may remove there. Those in a file that someone else may have written do
not count: they come from the command, or from the rules."""


class PlannerConfig(Config):
    """How the plan itself is made. Changes nothing in a run that already has a plan."""

    measure: Measure = "once"
    """Whether choices that depend on the machine are measured with a few steps of the planned network: "once" for each
    network, machine and version of torch, and kept in the cache folder; "again" even if a measurement is kept, and on a
    GPU for longer than half a second; "never" leaves all of them to the rules."""
    use_tuned: bool = True
    """Whether settings that `voxelocity tune` found on this machine, for this network and data, are taken."""
    allowed_code: tuple[str, ...] = ()
    """Code of yours (package.module:name) that may run because the file of an earlier run names it, when that run is
    resumed or tuned. Only what the command itself says counts, not what the file says."""


class TrainConfig(Config):
    """How long to train, and when to validate, save and stop."""

    steps: int = Field(ge=0, le=10_000_000)
    """Optimizer steps of the whole run; 0 lets the time budget decide."""
    time_budget_s: float = Field(ge=0.0)
    """Seconds from the start of the program to its end, validation and report included; 0 sets no limit."""
    validation_share: float = Field(default=0.04, ge=0.0, le=0.5)
    """Share of the training time that intermediate validations may take; 0 validates only at the end."""
    validate_every_steps: int = Field(default=0, ge=0)
    """Steps between two intermediate validations; 0 follows `validation_share`."""
    validation_cases: int = Field(default=16, ge=0)
    """Cases that an intermediate validation uses, evenly chosen; 0 takes all. The final one always takes all."""
    target_dice: float = Field(default=0.0, ge=0.0, le=1.0)
    """Stop when an intermediate validation reaches this mean foreground Dice; 0 sets no target."""
    checkpoint_every_s: float = Field(default=60.0, gt=0.0)
    """Seconds of training between two checkpoints."""
    checkpoint_every_epochs: int = Field(default=0, ge=0)
    """Epochs between two checkpoints, written in addition to those by time; 0 writes none for epochs."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints kept; an older one serves if the newest is damaged."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps == 0 and self.time_budget_s == 0.0:
            raise ValueError("steps and time_budget_s are both 0, so the run would never end; set one of them")
        return self


class Plan(Config):
    """Everything a run does, settled. Equal plans on equal data and machine train equal weights."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of weights, order, patches and augmentation."""
    planner: PlannerConfig = PlannerConfig()
    """How the plan was made."""
    data: DataConfig
    """From files to batches."""
    classes: ClassesConfig = ClassesConfig()
    """Which classes are learned."""
    network: NetworkConfig
    """What is trained."""
    precision: PrecisionConfig
    """Number formats, memory format and compilation of a step."""
    backend: BackendConfig = BackendConfig()
    """Switches of CUDA's libraries."""
    loss: LossConfig = LossConfig()
    """What a step minimizes."""
    optimizer: OptimizerConfig
    """How weights follow gradients."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over the run."""
    train: TrainConfig
    """How long to train, and when to validate, save and stop."""
    parallel: ParallelConfig = ParallelConfig()
    """How several ranks train together."""
    window: WindowConfig
    """How volumes are covered with windows in the final validation and in prediction."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        divisor = self.network.divisor
        patch = self.data.patch
        shapes = {"data.patch.shape_voxel": patch.shape_voxel, "window.shape_voxel": self.window.shape_voxel}
        shapes |= {f"data.patch.growth[{n}].shape_voxel": stage.shape_voxel for n, stage in enumerate(patch.growth)}
        if self.window.is_of_volume:
            raise ValueError(f"window.shape_voxel {self.window.shape_voxel} must have no 0 in a training")
        for name, shape in shapes.items():
            if any(n % d for n, d in zip(shape, divisor, strict=True)):
                raise ValueError(f"{name} {shape} must be a multiple of {divisor}, the network's down-sampling")
        return self


def steps_of_passes(num_passes: int, num_cases: int, *, draws_per_case: int, batch_size: int) -> int:
    """Optimizer steps of these passes over the training cases; the last one may go on into another pass."""
    return math.ceil(num_passes * num_cases * draws_per_case / batch_size)


def check_code(plan: Plan, overrides: Mapping[str, Any], *, where: str) -> None:
    """Refuses a plan read from a file that would run code which this command does not name.

    Args:
        plan: read from the file of a run, which someone else may have written.
        overrides: keys that the command gives, nested or dotted. Code that they name may run.
        where: the file, for messages.

    Raises:
        ConfigError: the plan names other code.
    """
    effects = plan.data.augment.to_plain()["effects"]
    _check_code(_code_of({"network.factory": plan.network.factory, "data.augment.effects": effects}), overrides, where)


def keys_of_record(keys: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The dotted keys of a plan in the file of a run that a command takes them from, without its places.

    Args:
        keys: nested keys, as the file has them.
        overrides: other keys that the command gives, nested or dotted.
        where: the file, for messages.

    Raises:
        ConfigError: they name code that the command does not name, or a key is unknown.
    """
    found = flatten(Plan, keys)
    _check_code(_code_of(found), overrides, where)
    return without_places(found, overrides, where=where)


def _check_code(code: set[str], overrides: Mapping[str, Any], where: str) -> None:
    given = flatten(Plan, overrides)
    allowed = given.get("planner.allowed_code", ())
    named = {*([allowed] if isinstance(allowed, str) else allowed), *_code_of(given)}
    unnamed = sorted(code - named - BUILT_IN_EFFECTS)
    if unnamed:
        raise ConfigError(
            f"plan: {where} names code: {', '.join(unnamed)}. The file may come from someone else, so the code runs "
            "only if you name it: if you trust it, add --set "
            f"'planner.allowed_code=[{', '.join(map(json.dumps, sorted(code - BUILT_IN_EFFECTS)))}]'"
        )


def without_places(keys: Mapping[str, Any], given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Dotted keys of a plan read from a file, without the places that this command does not name.

    Warns where the file keeps prepared cases in a folder, or on a server, that this command does not name.

    Args:
        keys: of the file.
        given: keys that the command gives, nested or dotted.
        where: the file, for messages.
    """
    folder = keys.get("data.cache.folder", "")
    is_used = keys.get("data.cache.tier") in FOLDER_TIERS and folder != str(default_cache_folder())
    if is_used and "data.cache.folder" not in flatten(Plan, given):
        warnings.warn(
            f"plan: {where} keeps prepared cases in {shortened(folder)}. The file may come from someone else, so "
            f"they are now kept in {default_cache_folder()}; if that folder is yours, add --set "
            f"{shlex.quote(f'data.cache.folder={folder}')}",
            UserWarning,
            stacklevel=2,
        )
    return {key: value for key, value in keys.items() if key not in PLACES}


def _code_of(keys: Mapping[str, Any]) -> set[str]:
    """The code that these dotted keys name; values of a wrong type are reported when the plan is checked."""
    effects = keys.get("data.augment.effects")
    listed = effects if isinstance(effects, list | tuple) else ()
    found = [effect.get("factory") for effect in listed if isinstance(effect, Mapping)]
    return {name for name in (keys.get("network.factory"), *found) if isinstance(name, str) and name}


def plan_with(plan: Plan, keys: Mapping[str, Any], *, where: str) -> Plan:
    """The plan with these dotted keys.

    Args:
        plan: that has them with other values.
        keys: as `--set` takes them.
        where: start of the error text.

    Raises:
        ConfigError: a key is unknown, or they do not fit the plan.
    """
    values: dict[str, Any] = {}
    for key, value in {**flatten(Plan, plan.to_plain()), **keys}.items():
        check_key(Plan, key)
        set_value(values, key, value)
    return Plan.parse(values, where=where)
