"""How large a step on a GPU may be, so that enough of them fit into the time: as large as nnU-Net's if they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.patch_fit import Vector, coarsen, fit_patch, strides_for
from voxelocity.planning.precision_rule import patch_pass
from voxelocity.planning.step_forecast import ENOUGH_STEPS, forecast_step_s

GPU_PATCH_VOXELS = 128**3
"""nnU-Net's maximum."""
GPU_WIDTHS = (32, 64, 128, 256, 320, 320)
"""nnU-Net's widths, finest level first."""
MOST_BATCH = 8
"""Patches in a batch, for each rank."""

TARGET_S = 60.0
"""A run to a target is planned as if its steps had this long, so that it takes a network that learns soon."""
LONG_BUDGET_S = 600.0
"""A time budget from which on a run is long: on a GPU smaller batches and patches are then better than a coarser grid,
as in nnU-Net; on a CPU larger networks and stronger augmentation pay."""
START_S = 5.0
"""Seconds from the start of the program to the first step, besides preparing cases (H100, 2026-11-27)."""
_STEPS_SHARE = 0.9
_LEAST_SHARE = 0.05
# Preparing many cases may leave no time in the first run, but the next one finds them in the cache.
_SIZED_SHARE = 0.6
# On one core, decoding included: 1.5 s for a CT of 512 x 512 x 100. Not what was measured in this run, so that the same
# data and machine always give the same plan.
_PREPARE_S_PER_VOXEL = 57e-9

_FULL_PATCHES = 64
# At 1.5 mm a CT of the abdomen with slices of 5 mm has 7.4 million voxels: 8 patches of 96^3.
_SHORT_VOXELS = 8 * 96**3
_CROP_SHARE = 0.8
FEWEST_STRIDES = 2


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """The most that a step may compute.

    Attributes:
        max_voxels: of a patch.
        batch_size: patches, for each rank.
        has_stem: whether the network has no level as fine as the patch, and cases are made coarser.
    """

    max_voxels: int
    batch_size: int
    has_stem: bool = False

    @property
    def max_patches(self) -> int:
        """Of the median case: with more voxels than fit into these, it is made coarser."""
        return _SHORT_VOXELS // self.max_voxels if self.has_stem else _FULL_PATCHES


_FULL = tuple(StepSize(max_voxels=GPU_PATCH_VOXELS, batch_size=n) for n in (8, 4, 2))
_STEM = tuple(
    StepSize(max_voxels=side**3, batch_size=n, has_stem=True)
    for side, n in ((96, 8), (96, 4), (64, 8), (64, 4), (64, 2), (48, 2))
)
_SHORT_SIZES = (*_FULL[:2], *_STEM)
_LONG_SIZES = (*_FULL, StepSize(max_voxels=96**3, batch_size=2), *_STEM)


def steps_s(facts: PlanFacts, *, least_share: float = _LEAST_SHARE) -> float:
    """Seconds that are left for training steps; infinite if the number of steps ends the run.

    Args:
        facts: of the plan.
        least_share: of a time budget that goes into steps in any case.
    """
    budget_s, left_s = facts.time_budget_s, math.inf
    if budget_s:
        left_s = max(least_share * budget_s, _STEPS_SHARE * budget_s - _before_steps_s(facts))
    return min(left_s, TARGET_S) if is_to_target(facts) else left_s


def budget_for(facts: PlanFacts, num_steps: int, step_s: float) -> float:
    """A time budget that leaves time for this many steps, also if it makes them larger and cases are prepared first."""
    # Steps grow until as many as are enough take all of the share that they are sized for.
    growth = _SIZED_SHARE * num_steps / ENOUGH_STEPS
    assert growth < _STEPS_SHARE, "more steps than a first run has"
    return (_before_steps_s(facts) + num_steps * step_s) / (_STEPS_SHARE - growth)


def _before_steps_s(facts: PlanFacts) -> float:
    """Seconds until the first step: of the start, and of preparing the cases."""
    return START_S + (_PREPARE_S_PER_VOXEL * facts.data.num_voxels * len(facts.data.channels) / facts.machine.num_cpus)


def sized_s(facts: PlanFacts) -> float:
    """Seconds of steps that their size is chosen for: as many as there are once cases are cached, or nearly."""
    return steps_s(facts, least_share=_SIZED_SHARE)


def is_to_target(facts: PlanFacts) -> bool:
    """Whether a Dice ends the run."""
    return bool(facts.overrides.get("train.target_dice", 0.0))


def step_size(facts: PlanFacts) -> StepSize:
    """The largest size of which enough steps fit into the time; the smallest if there is none."""
    available_s, size = sized_s(facts), _FULL[0]
    if math.isinf(available_s):
        return size
    is_long = not is_to_target(facts) and facts.time_budget_s >= LONG_BUDGET_S
    sizes = _LONG_SIZES if is_long else _SHORT_SIZES
    if not _may_have_stem(facts):
        sizes = tuple(replace(size, has_stem=False) for size in sizes)
    for size in sizes:
        if _expected_s(facts, size) * ENOUGH_STEPS <= available_s:
            break
    return size


def _may_have_stem(facts: PlanFacts) -> bool:
    """Whether the user's keys leave it to the rules that the network has a stem."""
    given = facts.overrides
    return (
        given.keys().isdisjoint({"network.strides", "network.widths"})
        and given.get("network.name", "dynunet") == "dynunet"
        and tuple(given.get("network.stem_stride", ())) != (1, 1, 1)
    )


def planned_spacing(facts: PlanFacts, size: StepSize) -> Vector:
    """The median spacing, made coarser if a patch of this size would cover too little of the median case."""
    spacing = np.array(facts.data.spacing_mm.median, dtype=np.float64)
    shape = np.array(facts.data.extent_mm.median) / spacing
    wanted = size.max_patches * size.max_voxels / (_crop_share(facts) if size.has_stem else 1.0)
    return coarsen(spacing, shape, wanted) if shape.prod() > wanted else spacing


def _expected_s(facts: PlanFacts, size: StepSize) -> float:
    """Seconds of a step of this size with the user's keys; 0 if they do not fit together, which is reported later."""
    given = facts.overrides.get("data.prepare.spacing_mm", planned_spacing(facts, size))
    spacing = np.array(facts.data.spacing_mm.median if isinstance(given, str) else given, dtype=np.float64)
    shape = np.maximum(np.array(facts.data.extent_mm.median) / spacing * _crop_share(facts) ** (1 / 3), 1.0)
    fit = fit_patch(shape, spacing, max_voxels=size.max_voxels, max_levels=len(GPU_WIDTHS))
    patch, strides = facts.overrides.get("data.patch.shape_voxel", fit.shape_voxel), fit.strides
    if tuple(patch) != fit.shape_voxel:
        strides = strides_for(tuple(patch), spacing, max_levels=len(GPU_WIDTHS))
    section = network_section(strides, GPU_WIDTHS, has_stem=size.has_stem) | facts.section("network")
    passed = patch_pass(facts, section, patch)
    if passed is None:
        return 0.0
    batch_size = math.ceil(facts.overrides.get("data.batch_size", size.batch_size * facts.machine.num_ranks))
    share = math.ceil(batch_size / facts.machine.num_ranks)
    return forecast_step_s(passed, facts.machine, batch_size=share)[0]


def network_section(
    strides: Sequence[Sequence[int]], widths: Sequence[int], *, has_stem: bool = False
) -> dict[str, object]:
    """Keys of a network with these halvings of a patch, the first of them in a stem if there are enough."""
    stem: Sequence[int] = (1, 1, 1)
    if has_stem and len(strides) > FEWEST_STRIDES:
        stem, strides = strides[0], strides[1:]
    return {
        "name": network_name(strides),
        "stem_stride": list(stem),
        "strides": [list(stride) for stride in strides],
        "widths": list(widths[: len(strides) + 1]),
    }


def network_name(strides: Sequence[Sequence[int]]) -> str:
    """The network for this many levels."""
    return "dynunet" if len(strides) >= FEWEST_STRIDES else "unet"


def _crop_share(facts: PlanFacts) -> float:
    """The share of a case that cropping leaves, if it is cropped."""
    return facts.data.crop_share if facts.data.crop_share < _CROP_SHARE else 1.0
