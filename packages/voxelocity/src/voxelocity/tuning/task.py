"""What a trial of our own runs receives: the plan with its settings, the cases, and how long to measure."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.planning import Planned
from voxelocity.planning.config import plan_with


@dataclass(frozen=True, kw_only=True)
class TrialScale:
    """How much a trial measures.

    Attributes:
        window_s: of each window of training steps. `num_windows` are measured.
        num_cases: that a trial prepares and trains on.
        validation_s: after which a validation is cut off and its time estimated.
    """

    window_s: float = 2.0
    num_windows: int = 4
    num_cases: int = 8
    validation_s: float = 20.0


USUAL_SCALE = TrialScale()


@dataclass(frozen=True, kw_only=True)
class MeasureTask:
    """What one process measures. Can be sent to it.

    Attributes:
        planned: with the plan to measure.
        training: cases that are trained on; few of them, as each trial prepares them.
        validated: the case that is validated, usually the largest.
        window_s: of each window of training steps.
        num_windows: that are measured.
        validation_s: after which a validation is cut off and its time estimated from the share that is done.
        rest_bytes: that the cases which are left out would take in memory.
        device_limit_bytes: memory of the device; 0 sets no limit.
    """

    planned: Planned
    training: tuple[VolumeRef, ...]
    validated: VolumeRef
    window_s: float
    num_windows: int
    validation_s: float
    rest_bytes: int
    device_limit_bytes: int = 0

    def with_keys(self, keys: Mapping[str, Any], *, device_limit_bytes: int) -> MeasureTask:
        """The task with these dotted keys of the plan.

        Raises:
            ConfigError: they do not fit the plan.
        """
        planned = replace(self.planned, plan=plan_with(self.planned.plan, keys, where="tune"))
        return replace(self, planned=planned, device_limit_bytes=device_limit_bytes)

    def write(self, path: Path) -> None:
        """Writes it for `read`; the file is as private as its folder."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, path: Path) -> MeasureTask:
        """The task that this program wrote there itself; unpickles it."""
        task = pickle.loads(path.read_bytes())
        assert isinstance(task, cls), f"{path} holds a {type(task).__name__}"
        return task


def measure_task(planned: Planned, scale: TrialScale) -> MeasureTask:
    """What every trial measures: some training cases, evenly chosen, and the largest case of the validation."""
    split = planned.cases.split(planned.fold)
    training, held = list(split.training), list(split.validation)
    both = [*training, *(held if split.held_out else ())]
    # Nothing is prepared here: only headers are read.
    sized = PreparedCases(
        both,
        label_values=planned.cases.stored_values,
        prepare=planned.plan.data.prepare,
        cache=CacheConfig(tier="none"),
        warn=lambda text: None,
    )
    num_bytes = {ref.case_id: sized.most_bytes(index) for index, ref in enumerate(both)}

    def size(ref: VolumeRef) -> int:
        return num_bytes[ref.case_id]

    count = min(scale.num_cases, len(training))
    chosen = [training[number * len(training) // count] for number in range(count)]
    validated = max(held or training, key=size)
    used = {ref.case_id for ref in (*chosen, validated)}
    return MeasureTask(
        planned=planned,
        training=tuple(chosen),
        validated=validated,
        window_s=scale.window_s,
        num_windows=scale.num_windows,
        validation_s=scale.validation_s,
        rest_bytes=sum(size for case_id, size in num_bytes.items() if case_id not in used),
    )
