"""What `plan`, `train` and `tune` all take, and the request of `plan`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict, get_args

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest

DeviceChoice = Literal["auto", "cpu", "cuda"]
FoldChoice = int | Literal["all", "auto"]


def read_fold(text: str) -> FoldChoice:
    """A fold number or "all".

    Raises:
        ConfigError: the text is neither.
    """
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise ConfigError("neither a number from 0 nor 'all'")
    return int(text)


def read_device(text: str) -> str:
    """The device in a text.

    Raises:
        ConfigError: the text names one of several GPUs.
    """
    if re.fullmatch(r"cuda:\d+", text):
        number = text.partition(":")[2]
        raise ConfigError(
            f"the first visible GPU is used; for number {number} start the command with CUDA_VISIBLE_DEVICES={number} "
            "and give cuda"
        )
    return text


ALIASES: Mapping[str, tuple[str, Mapping[Any, Any]]] = {
    "amp": ("precision.compute", {True: "auto", False: "float32"}),
}
"""Keys by the names of other programs: the key of a plan, and its value for each of theirs."""


def in_own_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values of a plan, with those of other programs in our words.

    Raises:
        ConfigError: an alias has another value than the program gives it, or its key is given as well.
    """
    found = dict(values)
    for alias, (key, meanings) in ALIASES.items():
        if alias not in found:
            continue
        value = found.pop(alias)
        if not any(value is known for known in meanings):
            means = ", ".join(f"{alias}={str(known).lower()} for {key}={own}" for known, own in meanings.items())
            raise ConfigError(f"config: {alias} is {value!r}; write {means}")
        if key in found:
            raise ConfigError(f"config: {alias} and {key} set the same; give one of them")
        found[key] = meanings[value]
    return found


@dataclass(frozen=True, kw_only=True)
class PlanKeys(UserRequest):
    """What a plan is made for."""

    fold: Annotated[FoldChoice, Option(read=read_fold, shown="0")] = "auto"
    """Fold to hold out, or 'all' to train and validate on all cases.

    "auto" holds out fold 0, or the fold of a resumed run.
    """
    time_budget_s: Annotated[
        float | Literal["auto"], Option(flags=("--time-budget",), read=parse_duration_s, shown="")
    ] = "auto"
    """Time limit, validation and report included: 90s, 5m, 1h.

    Seconds as a number; 0 sets no limit. "auto" is 0, or the budget of a resumed run.
    """
    seed: Annotated[int | Literal["auto"], Option(least=0, shown=0)] = "auto"
    """Seed of weights, order, patches and augmentation.

    "auto" is 0, or the seed of a resumed run.
    """
    device: Annotated[DeviceChoice, Option(read=read_device)] = "auto"
    """cpu, cuda or auto.

    It is not part of the plan: a run may resume on another device, with a warning.
    """
    plans: Annotated[Path | None, Option()] = None
    """Use spacing, patch, batch, intensities and network of nnU-Net's plans: FILE or FILE:CONFIGURATION.

    The default configuration is 3d_fullres; `overrides` take precedence. A resumed run does not need the file.
    """
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the plan, nested or dotted; the value "auto" leaves a key to the rules."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", in_own_keys(self.overrides or {}))
        super().__post_init__()

    def _check(self) -> None:
        if self.fold not in ("all", "auto") and (not isinstance(self.fold, int) or isinstance(self.fold, bool)):
            raise self.refusal("give a whole number or 'all'", "fold")
        if self.time_budget_s != "auto":
            self.check_number(
                "time_budget_s",
                "give seconds as a number, or 0 for no limit; time_budget also takes a text such as '5m'",
            )
        if self.seed != "auto":
            self.check_number("seed", "give a whole number from 0", is_whole=True)
        self.check_choice("device", get_args(DeviceChoice))


@dataclass(frozen=True, kw_only=True)
class StartKeys(PlanKeys):
    """The same of a run that may start from a model."""

    start_from: Annotated[tuple[Path, ...], Option(flags=("--from",))] = ()
    """Fine-tune: start from the weights of this model: a run, nnU-Net's results, or a MONAI bundle.

    Its network is taken over, and its spacing, patch and intensities if they suit the data. Of several models, the
    training starts from the one with the lowest loss after a few steps; `scratch` stands for new weights.
    """
    start_map: Annotated[tuple[str, ...], Option(flags=("--map",))] = ()
    """With --from: NEW=OLD, a channel or class of DATASET and its name in that model; NEW= initializes it.

    Equal names are matched without it.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "start_from", self.start_from or ())
        super().__post_init__()

    def _check(self) -> None:
        super()._check()
        if self.plans is not None and self.start_from:
            reason = "a run that starts from a model uses its network, spacing and intensities; give only one of them"
            raise self.refusal(reason, "plans", "start_from")
        if self.start_map and not self.start_from:
            raise self.refusal("it maps to the names of a model; also give --from", "start_map")


@dataclass(frozen=True, kw_only=True)
class PlanRequest(PlanKeys):
    """What a plan takes."""

    CALL: ClassVar[str] = "vx.plan"

    epochs: Annotated[int | None, Option(least=1)] = None
    """Train for this many passes over the training cases.

    With a time budget, the run ends at whichever comes first.
    """
    cache_folder: Path | None = None
    """Folder of the disk cache and of earlier measurements; default: `default_cache_folder()`."""
    skip_broken: bool = False
    """Exclude sampled cases whose voxels cannot be read from the statistics."""

    def _check(self) -> None:
        super()._check()
        if self.epochs is not None:
            self.check_number("epochs", "give a whole number from 1", least=1, is_whole=True)


@dataclass(frozen=True, kw_only=True)
class RunPlanRequest(PlanRequest, StartKeys):
    """What `voxelocity.plan` and `voxelocity plan` take."""

    def _check(self) -> None:
        super()._check()
        if len(set(self.start_from)) > 1:
            raise self.refusal(
                "a plan is made for one model; give only one. `voxelocity train` compares several over a few steps",
                "start_from",
            )


def plan_request(keys: PlanKeys) -> PlanRequest:
    """The request for a plan that another request implies."""
    return PlanRequest(
        origin=keys.origin,
        fold=keys.fold,
        time_budget_s=keys.time_budget_s,
        seed=keys.seed,
        device=keys.device,
        plans=keys.plans,
        overrides=keys.overrides,
        epochs=getattr(keys, "epochs", None),
    )


class PlanKeyOptions(TypedDict, total=False):
    """The fields of `PlanKeys` as keywords."""

    fold: FoldChoice
    time_budget: str | float
    time_budget_s: float | Literal["auto"]
    seed: int | Literal["auto"]
    device: DeviceChoice
    plans: Path | str | None
    overrides: Mapping[str, Any] | None


class PlanOptions(PlanKeyOptions, total=False):
    """The fields of `PlanRequest` as keywords."""

    epochs: int | None
    cache_folder: Path | None
    skip_broken: bool


class StartOptions(TypedDict, total=False):
    """The fields of `StartKeys` that those of `PlanKeys` lack."""

    start_from: Path | str | Sequence[Path | str] | None
    start_map: Sequence[str]


class RunPlanOptions(PlanOptions, StartOptions, total=False):
    """The fields of `RunPlanRequest` as keywords."""
