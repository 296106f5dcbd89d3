"""Stores where the classes are, so that patches can be centered on them without a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import StageEffect
from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Array, Volume, VolumeSpec
from voxelocity.data.prepare.boxes import class_boxes

_MAX_VOXELS = 2**31 - 1
_VOXELS_PER_INDEX = 10


@dataclass(frozen=True, kw_only=True)
class FindForeground:
    """Stage: flat indices of the voxels of each class except the background, evenly chosen if there are too many.

    All classes together keep indices for at most a tenth of the voxels, so that they stay small even for a small case.
    """

    per_class: int

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The spec unchanged. Scratch covers one class that fills the scan."""
        return StageEffect(spec=spec, scratch_bytes=9 * spec.grid.num_voxels)

    def fingerprint(self) -> str:
        return f"foreground(per_class={self.per_class})"

    def __call__(self, volume: Volume) -> Volume:
        """The volume with its `foreground`.

        Raises:
            ScanError: it has more voxels than int32 can number.
        """
        if volume.grid.num_voxels > _MAX_VOXELS:
            raise ScanError(
                f"prepare.foreground: case '{volume.case_id}' has {volume.grid.num_voxels:,} voxels, at most "
                f"{_MAX_VOXELS:,} can be numbered; choose a coarser spacing_mm or crop the scan"
            )
        if volume.label is None:
            return volume.with_(foreground={})
        return volume.with_(
            foreground=find_foreground(
                volume.label, per_class=self.per_class, max_total=volume.label.size // _VOXELS_PER_INDEX
            )
        )


def find_foreground(label_xyz: Array, *, per_class: int, max_total: int) -> dict[int, npt.NDArray[np.int32]]:
    """Ascending int32 flat (C-order) indices into (x, y, z) of some voxels of each class that occurs.

    Args:
        label_xyz: (x, y, z) uint8.
        per_class: most voxels per class; from a class with more, they are evenly chosen.
        max_total: most voxels of all classes together, divided equally, but at least one for each class.
    """
    found: dict[int, npt.NDArray[np.int32]] = {}
    boxes = class_boxes(label_xyz)
    per_class = min(per_class, max(1, max_total // max(1, len(boxes))))
    for index, box in boxes.items():
        inside = label_xyz[box] == index
        places = np.flatnonzero(inside)
        if places.size > per_class:
            places = places[np.linspace(0, places.size - 1, per_class).round().astype(np.int64)]
        x, y, z = np.unravel_index(places, inside.shape)
        start_x, start_y, start_z = (part.start for part in box)
        flat = np.ravel_multi_index((x + start_x, y + start_y, z + start_z), label_xyz.shape)
        found[index] = flat.astype(np.int32)
    return found
