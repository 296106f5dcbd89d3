"""The request of `tune`, for a run and for a work folder of Auto3DSeg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict, get_args

from voxelocity.core.requests.plan import DeviceChoice, PlanKeyOptions, PlanKeys, read_device
from voxelocity_observe.core.quantities import parse_bytes, parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest

Goal = Literal["throughput", "memory", "time-to-dice"]
LEARNING_RATE = "learning-rate"
"""The key of `only` that makes a range test."""

_NO_MEMORY = "a memory limit must be above 0; write it as in 8GB, or leave it out"


@dataclass(frozen=True, kw_only=True)
class TuneRequest(PlanKeys):
    """What `voxelocity.tune` and `voxelocity tune` take."""

    CALL: ClassVar[str] = "vx.tune"

    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Folder of the trials and the page; default: tune-NAME."""
    goal: Annotated[Goal, Option(flags=("--for",), read=str)] = "throughput"
    """throughput: shortest run; memory: least memory; time-to-dice: compared by training.

    "throughput" searches settings that do not change results. "memory" uses settings that make a run at most 3 %
    longer. "time-to-dice" compares batch size with its learning rate, number format and patches per case.
    """
    trials: Annotated[int, Option(least=1)] = 20
    """Trials of the search.

    In addition, the winner and the plan's own settings are measured three times.
    """
    time_budget_s: Annotated[
        float | Literal["auto"], Option(flags=("--time-budget",), read=parse_duration_s, shown="")
    ] = "auto"
    """Time limit: 90s, 5m, 1h.

    Seconds as a number; 0 sets no limit, and ten minutes for "time-to-dice".
    """
    memory_limit_bytes: Annotated[int, Option(flags=("--memory-limit",), read=parse_bytes, shown="")] = 0
    """Memory limit of the GPU or, on a CPU, of main memory: 8GB, 512MiB."""
    only: Annotated[tuple[str, ...], Option()] = ()
    """Search only this key; repeatable. learning-rate runs a range test."""
    num_pairs: Annotated[int, Option(flags=("--pairs",), least=2)] = 3
    """Pairs of trainings that compare the result of time-to-dice.

    Each pair has its own seed.
    """
    train_s: Annotated[float, Option(flags=("--train",), read=parse_duration_s, shown="")] = 0.0
    """Then train this long with the plan's settings and with the tuned ones, for curves."""
    keep: Annotated[bool | None, Option(flags=("--keep/--no-keep",))] = None
    """Whether later plans use the result; by default yes, except for a range test."""
    overwrite: Annotated[bool, Option()] = False
    """Start again, even if the folder has trials."""
    cache_folder: Path | None = None
    """Folder where plans find the result; default: `default_cache_folder()`."""

    @property
    def is_range_test(self) -> bool:
        return LEARNING_RATE in self.only

    @property
    def limit_s(self) -> float:
        """Seconds for everything; 0 for no limit."""
        return 0.0 if self.time_budget_s == "auto" else self.time_budget_s

    @property
    def seed_or_0(self) -> int:
        """Of the search and of the run."""
        return 0 if self.seed == "auto" else self.seed

    def _check(self) -> None:
        super()._check()
        self.check_choice("goal", get_args(Goal))
        self.check_number("trials", "give a whole number from 1", least=1, is_whole=True)
        self.check_number("memory_limit_bytes", _NO_MEMORY)
        self.check_number("train_s", "give seconds as a number, or 0 for none")
        if self.is_range_test and len(self.only) > 1:
            others = ", ".join(key for key in self.only if key != LEARNING_RATE)
            raise self.refusal(f"{LEARNING_RATE} is a separate test; search {others} in another call", "only")
        if self.train_s and self.is_range_test:
            raise self.refusal("a range test has no curves; leave out one of them", "train_s", "only")
        if self.is_range_test and self.is_given("goal"):
            raise self.refusal("a range test has no other goal; leave out one of them", "only", "goal")
        if self.is_given("num_pairs") and self.goal != "time-to-dice":
            raise self.refusal("only time-to-dice makes pairs of trainings; leave it out, or choose that", "num_pairs")
        if self.goal == "time-to-dice":
            if self.fold == "all":
                reason = "a Dice of cases that were trained on chooses nothing; hold out a fold"
                raise self.refusal(reason, "fold", "goal")
            if self.train_s:
                raise self.refusal(
                    "curves are only for throughput and memory; leave out one of them", "train_s", "goal"
                )
            if self.only:
                raise self.refusal(
                    "single keys are searched only by speed or memory; leave out one of them", "only", "goal"
                )


class TuneOptions(PlanKeyOptions, total=False):
    """The fields of `TuneRequest` as keywords."""

    goal: Goal
    trials: int
    memory_limit: str | int
    memory_limit_bytes: int
    only: Sequence[str]
    num_pairs: int
    train: str | float
    train_s: float
    keep: bool | None
    overwrite: bool
    cache_folder: Path | None


@dataclass(frozen=True, kw_only=True)
class CustomizeRequest(UserRequest):
    """What `customize` and `voxelocity tune --auto3dseg` take."""

    CALL: ClassVar[str] = "customize"

    work_dir: Path
    """The folder that `BundleGen.generate` wrote into."""
    algos: Any = None
    """Algorithms to customize, as MONAI takes them; all that can be measured if None."""
    specs: Mapping[str, Any] | None = None
    """By algorithm or for all ("universal"), as in MONAI; see `AlgorithmSpecs`."""
    out: Annotated[Path | None, Option(flags=("-o", "--out"))] = None
    """Folder of the trials and pages; `work_dir`/tune if not given."""
    memory_limit_bytes: Annotated[int, Option(flags=("--memory-limit",), read=parse_bytes)] = 0
    """Of the GPU or, without one, of main memory; what is free if 0."""
    time_budget_s: Annotated[float, Option(flags=("--time-budget",), read=parse_duration_s)] = 0.0
    """Seconds for each search; 0 sets no limit."""
    device: Annotated[DeviceChoice, Option(read=read_device)] = "auto"
    """Where the algorithms will train."""
    seed: Annotated[int, Option(least=0)] = 0
    """Of the search."""
    overwrite: Annotated[bool, Option()] = False
    """Begin again, even if there are trials."""

    def _check(self) -> None:
        self.check_number("memory_limit_bytes", _NO_MEMORY)
        self.check_number("time_budget_s", "give seconds as a number, or 0 for no limit")
        self.check_number("seed", "give a whole number from 0", is_whole=True)
        self.check_choice("device", get_args(DeviceChoice))


class CustomizeOptions(TypedDict, total=False):
    """The fields of `CustomizeRequest` as keywords, but those that `customize` names itself."""

    out: Path | str | None
    memory_limit: str | int
    memory_limit_bytes: int
    time_budget: str | float
    time_budget_s: float
    device: DeviceChoice
    seed: int
    overwrite: bool
