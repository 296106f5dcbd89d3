"""What a recipe is asked to do: the words of `voxelocity recipe`, as values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from voxelocity.core.config import AUTO, Config, set_value
from voxelocity.core.requests.plan import in_own_keys
from voxelocity.planning import DeviceChoice
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import listed
from voxelocity_observe.sinks import Sink

T = TypeVar("T", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a recipe.

    Attributes:
        data: the data set.
        out: the run's folder.
        device: to compute on.
        fast_bfloat16: whether that is faster in bfloat16 than in float32.
        seed: of everything random.
        time_budget_s: of the training; 0 if the settings have another end.
        overrides: values of the recipe's settings by dotted key.
        resume: continue an interrupted run.
        overwrite: replace a run.
        sinks: also receive every event.
        spent_s: seconds that the command has taken before the call, which count in its time budget.
        target_dice: mean Dice of the held-out cases that ends a training; 0 if the recipe has one, or none.
        num_seeds: rounds of a benchmark.
    """

    data: Path
    out: Path
    device: torch.device
    fast_bfloat16: bool
    console: Console
    seed: int = 0
    time_budget_s: float = 0.0
    overrides: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False
    sinks: Sequence[Sink] = ()
    spent_s: float = 0.0
    target_dice: float = 0.0
    num_seeds: int = 3

    @property
    def device_choice(self) -> DeviceChoice:
        """The kind of device, as `voxelocity train` takes it."""
        return "cuda" if self.device.type == "cuda" else "cpu"

    def parse_settings(self, kind: type[T], values: dict[str, Any], *, where: str) -> T:
        """The settings of a recipe: these values, changed by `overrides`; messages begin with `where`.

        Raises:
            ConfigError: a key does not exist, or a value cannot be used; "auto" leaves a key as the recipe has it.
        """
        for key, value in in_own_keys(self.overrides).items():
            if value != AUTO:
                set_value(values, key, value)
        return kind.parse(values, where=where)

    def change_settings(self, trained: T, keys: Collection[str], *, where: str) -> T:
        """The settings of a model, changed by `overrides` under these keys; messages begin with `where`.

        Raises:
            ConfigError: a key does not exist, a value cannot be used, or another setting differs from the model's.
        """
        changed = self.parse_settings(type(trained), trained.to_plain(), where=where)
        before, now = trained.to_plain(), changed.to_plain()
        if fixed := [key for key in now if key not in keys and now[key] != before[key]]:
            raise ConfigError(
                f"{where}: {listed(fixed)} cannot differ from the settings of the model in {self.out}; leave them out, "
                f"or train with them. A prediction may change {listed(sorted(keys))}"
            )
        return changed
