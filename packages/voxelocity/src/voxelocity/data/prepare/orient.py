"""Turns a scan to the nearest RAS axes by exchanging and reversing axes. No voxel value changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxelocity.core.axis_order import AxisOrder, nearest_ras
from voxelocity.core.contracts import StageEffect
from voxelocity.core.volume import Array, Volume, VolumeSpec

STEP = "orient"


@dataclass(frozen=True)
class OrientToRAS:
    """Stage: axes exchanged and reversed so that (x, y, z) point right, anterior and superior as nearly as possible.

    The image and label of the result are views on those of the argument. Oblique scans stay oblique.
    """

    def describe(self, spec: VolumeSpec) -> StageEffect:
        grid = nearest_ras(spec.grid).turn_grid(spec.grid)
        spec = VolumeSpec(num_channels=spec.num_channels, grid=grid, dtype=spec.dtype)
        return StageEffect(spec=spec, scratch_bytes=0)

    def fingerprint(self) -> str:
        return "orient(RAS)"

    def __call__(self, volume: Volume) -> Volume:
        order = nearest_ras(volume.grid)
        if order.is_identity:
            return volume
        return volume.with_(
            image=order.turn(volume.image),
            label=None if volume.label is None else order.turn(volume.label),
            grid=order.turn_grid(volume.grid),
            trace=(*volume.trace, orient_record(order)),
        )


def orient_record(order: AxisOrder) -> dict[str, Any]:
    """The record of a turn in a volume's trace."""
    return {"step": STEP, "axes": list(order.axes), "flips": list(order.flips)}


def undo_orient(array: Array, record: Mapping[str, Any]) -> Array:
    """A view on the array (..., x, y, z) with the axes that the scan had before this step."""
    x, y, z = record["axes"]
    flip_x, flip_y, flip_z = record["flips"]
    return AxisOrder(axes=(int(x), int(y), int(z)), flips=(bool(flip_x), bool(flip_y), bool(flip_z))).undo(array)
