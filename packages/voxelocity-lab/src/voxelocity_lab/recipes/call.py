"""What a recipe is asked to do: the words of `voxelocity recipe`, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from voxelocity.planning import DeviceChoice
from voxelocity_observe.sinks import Sink


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

    @property
    def device_choice(self) -> DeviceChoice:
        """The kind of device, as `voxelocity train` takes it."""
        return "cuda" if self.device.type == "cuda" else "cpu"


class Recipe(Protocol):
    """A module of a recipe."""

    def train(self, call: Call) -> None:
        """Trains on the data; what was learned stays in the run's folder."""

    def predict(self, call: Call) -> None:
        """Uses what was learned, and writes results and a report into the run's folder."""

    def benchmark(self, call: Call) -> None:
        """Compares with the usual way to do the same, on this machine."""
