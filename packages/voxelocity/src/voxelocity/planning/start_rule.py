"""What a plan takes from the model that a run starts from, where that keeps what it knows, and how gently it trains.

`facts.kept` has what may be taken; these rules give back to the others what would not help on these cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.planning.cache_rule import prepared_spacing_mm
from voxelocity.planning.facts import PlanFacts, Start
from voxelocity.planning.patch_rule import CPU_PATCH_VOXELS

PATCH, WINDOW, SPACING = "data.patch.shape_voxel", "window.shape_voxel", "data.prepare.spacing_mm"
_INTENSITY = "data.prepare.intensity."
# A patch of this many times as many voxels as usual makes too few steps on a CPU.
_MOST_TIMES_CPU = 4
# Voxels of the model's spacing may be this many times as long or as large as those that the rule would choose, or this
# many times smaller; beyond that, details of these cases are lost, or a step sees too little of them. Not measured.
_MOST_LONGER, _MOST_LARGER, _MOST_SMALLER = 2.0, 4.0, 8.0
# A patch is only made shorter for the cases where that leaves out as much.
_LARGEST_SHARE = 0.5


def settle_start(facts: PlanFacts) -> None:
    """Gives back a window of intensities that was made for CT where these cases are not CT."""
    if facts.start is None or facts.data.is_ct or facts.kept.get(f"{_INTENSITY}mode") != "window":
        return
    for key in [key for key in facts.kept if key.startswith(_INTENSITY)]:
        facts.kept.pop(key)
        facts.given_back[key] = f"the window of {facts.start.name} is for CT numbers, which these cases do not have"


def settle_spacing(facts: PlanFacts, spacing_mm: Sequence[float], reason: str) -> None:
    """The spacing of the model that the run starts from, unless it is far from the one that the rule chooses."""
    theirs = facts.kept.get(SPACING)
    if facts.start is not None and isinstance(theirs, list | tuple) and not _is_near(theirs, spacing_mm):
        facts.kept.pop(SPACING)
        facts.given_back[SPACING] = (
            f"{facts.start.name} has {spacing_text(theirs)}, too different: details would be lost, or a patch would "
            "cover too little"
        )
    facts.settle(SPACING, [*spacing_mm], reason)


def settle_start_patch(facts: PlanFacts) -> None:
    """The patch that the model was trained on, as far as these cases and this machine need it."""
    start = facts.start
    if start is None or start.patch is None or start.divisor is None or PATCH in {**facts.kept, **facts.overrides}:
        return
    if 0 in start.patch:
        # It takes scans as long as they are.
        return
    shape = np.array(facts.data.extent_mm.median) / prepared_spacing_mm(facts)
    most = _MOST_TIMES_CPU * CPU_PATCH_VOXELS if facts.machine.device == "cpu" else math.inf
    patch = fit_to(start.patch, start.divisor, [float(length) for length in shape], most)
    reason = start.reason
    if patch != start.patch:
        reason = (
            f"{start.name}, which this run starts from, has {' x '.join(map(str, start.patch))}: as much of it as the "
            f"median case and the {facts.machine.device_name} need, in multiples of {start.divisor}"
        )
    for key in (PATCH, WINDOW):
        facts.kept[key], facts.kept_reasons[key] = [*patch], reason


def rate_reason(facts: PlanFacts) -> str:
    """Why trained weights are trained on with the learning rate of new ones; "" for new weights."""
    if facts.start is None:
        return ""
    return "; not reduced for fine-tuning: with half of it or less, short runs on a CPU reached a lower Dice (docs/log)"


def fit_to(patch: Index3, divisor: Index3, shape: Sequence[float], most: float) -> Index3:
    """The patch in multiples of the divisor, of at most this many voxels; no longer than a case if half were padding.

    Args:
        patch: of the model that the run starts from, in voxels.
        divisor: of its network.
        shape: of the median case, in voxels.
        most: voxels of the result, as far as that leaves two voxels at the coarsest level.
    """
    sides = [math.ceil(side / part) * part for side, part in zip(patch, divisor, strict=True)]
    needed = [
        min(side, max(1, math.ceil(length / part)) * part)
        for side, length, part in zip(sides, shape, divisor, strict=True)
    ]
    if math.prod(needed) <= _LARGEST_SHARE * math.prod(sides):
        sides = needed
    while math.prod(sides) > most:
        levels = [side // part for side, part in zip(sides, divisor, strict=True)]
        longest = levels.index(max(levels))
        if levels[longest] == 1:
            break
        sides[longest] -= divisor[longest]
    if all(side == part for side, part in zip(sides, divisor, strict=True)):
        # A single voxel at the coarsest level has no deviation to normalize by.
        sides[0] *= 2
    x, y, z = sides
    return (x, y, z)


def start_keys(start: Start | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys that a plan takes over from a model, and the reason of each."""
    if start is None:
        return {}, {}
    return dict(start.keys), dict.fromkeys(start.keys, start.reason)


def _is_near(theirs: Sequence[float], own: Sequence[float]) -> bool:
    factors = [float(length) / float(usual) for length, usual in zip(theirs, own, strict=True)]
    return max(factors) <= _MOST_LONGER and 1.0 / _MOST_SMALLER <= math.prod(factors) <= _MOST_LARGER


def spacing_text(values: Iterable[float]) -> str:
    """Lengths as they are usually written: "1 x 1 x 2.5 mm"."""
    return " x ".join(f"{float(value):.3g}" for value in values) + " mm"
