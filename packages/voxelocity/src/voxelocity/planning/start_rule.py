"""What a plan takes from the model that a run starts from, and how gently it is trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.planning.fingerprint import DatasetFingerprint
from voxelocity.planning.machine import Machine
from voxelocity.planning.patch_rule import CPU_PATCH_VOXELS

PATCH, WINDOW, SPACING = "data.patch.shape_voxel", "window.shape_voxel", "data.prepare.spacing_mm"
# A patch of this many times as many voxels makes too few steps on a CPU.
_MOST_TIMES_CPU = 4
TUNING_RATE = 0.5
"""Of the learning rate of a new network, for one that starts from trained weights. Not measured yet."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model that a run starts from, as its plan sees it.

    Attributes:
        name: as the user named it.
        keys: that the plan takes over, by dotted key.
        patch: what it was trained on, in voxels.
        divisor: a patch must be a multiple of; None if its network is not taken over.
    """

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    patch: Index3 | None = None
    divisor: Index3 | None = None

    @property
    def reason(self) -> str:
        return f"taken from {self.name}, which this run starts from"

    def all_keys(
        self, data: DatasetFingerprint, machine: Machine, overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """All keys that the plan takes over, with the patch for these cases and this machine; and their reasons."""
        values = dict(self.keys)
        reasons = dict.fromkeys(values, self.reason)
        if self.patch is None or self.divisor is None or PATCH in overrides:
            return values, reasons
        spacing = overrides.get(SPACING, values.get(SPACING, data.spacing_mm.median))
        median = data.spacing_mm.median if isinstance(spacing, str) else spacing
        shape = np.array(data.extent_mm.median) / np.array(median)
        most = _MOST_TIMES_CPU * CPU_PATCH_VOXELS if machine.device == "cpu" else math.inf
        patch = fit_to(self.patch, self.divisor, [float(n) for n in shape], most)
        why = self.reason
        if patch != self.patch:
            theirs = " x ".join(map(str, self.patch))
            why = (
                f"{self.name}, which this run starts from, has {theirs}: as much of it as the median case and the "
                f"{machine.device_name} allow, in multiples of {self.divisor}"
            )
        for key in (PATCH, WINDOW):
            if key not in overrides:
                values[key], reasons[key] = [*patch], why
        return values, reasons


def fit_to(patch: Index3, divisor: Index3, shape: list[float], most: float) -> Index3:
    """The patch, no longer than the median case and of at most so many voxels, in multiples of the divisor.

    Args:
        patch: of the model that the run starts from, in voxels.
        divisor: of its network.
        shape: of the median case, in voxels.
        most: voxels of the result, if that leaves two voxels at the coarsest level.
    """
    sides = [
        min(side, max(1, math.ceil(length / part)) * part)
        for side, length, part in zip(patch, shape, divisor, strict=True)
    ]
    while math.prod(sides) > most:
        longest = max(
            (axis for axis in range(3) if sides[axis] > divisor[axis]),
            key=lambda axis: sides[axis] / divisor[axis],
            default=None,
        )
        if longest is None:
            break
        sides[longest] -= divisor[longest]
    if all(side == part for side, part in zip(sides, divisor, strict=True)):
        # A single voxel at the coarsest level has no deviation to normalize by.
        sides[0] *= 2
    x, y, z = sides
    return (x, y, z)


def tuning_rate(start_name: str) -> tuple[float, str]:
    """By what the learning rate of a new network is multiplied in a run that starts from this model, and why."""
    if not start_name:
        return 1.0, ""
    return TUNING_RATE, f"; {TUNING_RATE:g} times as much, because the run starts from trained weights ({start_name})"
