"""What a run's folder says, as plain frozen records. `facts` reads them, everything else here draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxelocity.core.cases import Fold
from voxelocity.core.learning import unlearned
from voxelocity.core.records import CaseScore, Choice
from voxelocity.core.volume import Array

Status = Literal["finished", "interrupted", "unfinished"]


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """The data set of a run. `classes` begins with the background; `held_out` is False where cases were trained on.

    Overlapping classes have their names in `regions`, with the values of each; classes that stand for several of the
    data set have them in `merged`, with the names of these. `exposed` has the held-out cases that the model which the
    run started from may have learned from, and why.
    """

    name: str
    path: str = ""
    layout: str = ""
    num_cases: int = 0
    num_training: int = 0
    num_validation: int = 0
    fold: Fold = 0
    held_out: bool = True
    classes: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    regions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    merged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    exposed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StartRecord:
    """The beginning of one session of the run: where and with which versions. One per resume."""

    time_s: float
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """One stage that ended at `time_s`."""

    time_s: float
    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A stretch of optimizer steps.

    Attributes:
        time_s: when it ended, in seconds of the run.
        step: optimizer steps done at its end.
        loss: mean over the stretch; NaN where it was not finite.
        seconds: wall time of the stretch.
        wait_s: part of it spent waiting for data.
        parts: part of it by activity: wait, forward, backward, optimizer; on a CUDA device as its stream saw
            them. Runs of an earlier version have other names, and no "wait" among them.
    """

    time_s: float
    step: int
    epoch: int
    loss: float
    learning_rate: float
    num_steps: int
    num_images: int
    seconds: float
    wait_s: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one of several ranks did in the training steps that all of them made: seconds, and those by activity."""

    rank: int
    seconds: float
    num_steps: int
    parts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """One validation on the way.

    `dice` holds one value per foreground class; NaN where there was none. `num_cases` is None where it was not stored.
    """

    time_s: float
    step: int
    seconds: float
    mean_dice: float
    dice: Mapping[str, float]
    is_best: bool
    num_cases: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One saved state; `path` is relative to the run's folder."""

    time_s: float
    step: int
    path: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FinishRecord:
    """The end of a run, with the figures that sum it up over all its sessions.

    Attributes:
        peak_host_bytes: most memory of the last session's process at once; None for runs that did not store it.
        peak_device_bytes: most memory of tensors on its CUDA devices; None where there were none, or not stored.
        load_average: programs that wanted a core in the last 15 minutes, this one included; None where not stored.
        unlearned: why the training is too short to be scored; "" where it is not, None where not stored.
    """

    time_s: float
    seconds: float
    step: int
    mean_dice: float
    num_images: int
    images_per_s: float
    wait_share: float
    budget_s: float | None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    load_average: float | None = None
    unlearned: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceStack:
    """Slices of a scan across one direction, with truth and prediction.

    Attributes:
        plane: "axial", "coronal" or "sagittal".
        image: (n, h, w) uint8, 0 black to 255 white.
        truth: (n, h, w) uint8 class indices; None if it is not known.
        prediction: (n, h, w) uint8 class indices.
        pixel_mm: height and width of a pixel.
    """

    plane: str
    image: Array
    truth: Array | None
    prediction: Array
    pixel_mm: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class SliceFigure:
    """Slices of one case.

    Attributes:
        title: the case, and how well it was segmented.
        stacks: one for each direction, at least one.
    """

    title: str
    stacks: tuple[SliceStack, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFacts:
    """Everything a run's folder says about it. Lists are in order of time.

    `steps` and `validations` hold the steps that led to the result; those done again after an interruption are left
    out, and their seconds are summed in `lost_s`.
    """

    folder: Path
    status: Status
    dataset: DatasetFacts
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    seed: int | None = None
    device: str = ""
    command: str = ""
    starts: tuple[StartRecord, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    validations: tuple[ValidationRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    signal_number: int | None = None
    finish: FinishRecord | None = None
    lost_s: float = 0.0
    last_event_s: float = 0.0
    scores: tuple[CaseScore, ...] = ()
    slices: tuple[SliceFigure, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    """Of a training on several."""
    parallel_mode: str = ""
    parallel_reason: str = ""
    """How the network was distributed in the last session, and why; empty where each rank simply had a copy."""
    keep_largest: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Classes of which predictions keep only the largest component, with the mean Dice without and with that step."""

    @property
    def seconds(self) -> float:
        """Wall time of all sessions, up to the end or the last event known."""
        # The page is made after the run has finished, and that time is recorded last.
        closing_s = sum(stage.seconds for stage in self.stages if self.finish and stage.time_s > self.finish.time_s)
        return self.finish.seconds + closing_s if self.finish else self.last_event_s

    @property
    def environment(self) -> Mapping[str, Any]:
        """Machine and versions of the last session."""
        return self.starts[-1].environment if self.starts else {}

    @property
    def foreground(self) -> tuple[str, ...]:
        """Names of what is scored: the regions, or the classes without the background, in their order."""
        return tuple(self.dataset.regions) or self.dataset.classes[1:]

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.finish.step if self.finish else self.steps[-1].step if self.steps else 0

    @property
    def unlearned(self) -> str:
        """Why the training is too short for a headline score, in words; "" where it is not, or has not ended."""
        if self.finish is None:
            return ""
        # Earlier versions did not store it.
        return self.finish.unlearned or ("" if self.finish.step else unlearned(0, steps_of_a_pass=1.0))

    @property
    def best_validation(self) -> ValidationRecord | None:
        """The validation on the way with the highest mean Dice."""
        finite = [record for record in self.validations if math.isfinite(record.mean_dice)]
        return max(finite, key=lambda record: record.mean_dice, default=None)

    @property
    def budget_s(self) -> float | None:
        """The time budget of the run; None without one."""
        if self.finish:
            return self.finish.budget_s
        budget_s = self._train_setting("time_budget_s")
        return budget_s if budget_s > 0.0 else None

    @property
    def target_dice(self) -> float | None:
        """The validation Dice at which training was to end; None without one."""
        target = self._train_setting("target_dice")
        return target if target > 0.0 else None

    def _train_setting(self, key: str) -> float:
        section = self.plan.get("train")
        value = section.get(key) if isinstance(section, Mapping) else None
        return float(value) if isinstance(value, int | float) else 0.0
