"""One informative slice of each of a few scored cases, kept for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.quantities import dice_text
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Volume
from voxelocity.core.whole_file import whole_file

Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class _Picture:
    mean_dice: float
    title: str
    image: Plane
    truth: Plane
    prediction: Plane


class SlicePictures:
    """Keeps one informative slice of each of a few scored cases: worst, middle and best, for the report."""

    def __init__(self, *, limit: int = 4) -> None:
        self._limit = limit
        self._kept: list[_Picture] = []

    def add(self, score: CaseScore, scan: Volume, prediction: Plane) -> None:
        """Keeps the slice of a case with the most foreground."""
        assert scan.label is not None
        # Axial slices: the scan axis nearest to head-foot, shown with the patient's right on the left.
        axis = int(np.argmax(np.abs(scan.grid.matrix[2, :3])))
        foreground = (scan.label > 0) | (prediction > 0)
        per_slice = foreground.sum(axis=tuple(a for a in range(3) if a != axis))
        index = int(per_slice.argmax())
        image = _to_uint8(np.take(scan.image[0], index, axis=axis))
        self._kept.append(
            _Picture(
                mean_dice=1.0 if score.mean_dice is None else score.mean_dice,
                title=f"{score.case_id}, Dice {dice_text(score.mean_dice)}",
                image=_upright(image, scan, axis),
                truth=_upright(np.take(scan.label, index, axis=axis), scan, axis),
                prediction=_upright(np.take(prediction, index, axis=axis), scan, axis),
            )
        )
        if len(self._kept) > 4 * self._limit:
            self._kept = self._spread()

    def save(self, path: Path) -> None:
        """Writes `slices.npz`: arrays `<i>_image`, `<i>_truth`, `<i>_prediction` (h, w) uint8 and `<i>_title`."""
        arrays: dict[str, Any] = {}
        for i, kept in enumerate(self._spread()):
            arrays |= {f"{i}_image": kept.image, f"{i}_truth": kept.truth, f"{i}_prediction": kept.prediction}
            arrays[f"{i}_title"] = np.array(kept.title)
        with whole_file(path) as file:
            np.savez_compressed(file, **arrays)

    def _spread(self) -> list[_Picture]:
        ordered = sorted(self._kept, key=lambda kept: (kept.mean_dice, kept.title))
        if len(ordered) <= self._limit:
            return ordered
        picks = np.linspace(0, len(ordered) - 1, self._limit).round().astype(int)
        return [ordered[i] for i in picks]


def _to_uint8(plane: npt.NDArray[Any]) -> Plane:
    low, high = np.percentile(plane, [1.0, 99.0])
    scaled = (plane.astype(np.float32) - low) / max(float(high - low), 1e-6)
    grey: Plane = (scaled.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return grey


def _upright(plane: Plane, scan: Volume, axis: int) -> Plane:
    """Rows from front to back, columns from the patient's right to left: the way radiologists look at a slice."""
    rest = [a for a in range(3) if a != axis]
    directions = scan.grid.matrix[:3, rest]
    if abs(directions[0, 0]) < abs(directions[0, 1]):
        plane, directions = plane.T, directions[:, ::-1]
    columns, rows = directions[0, 0], directions[1, 1]
    # RAS+: x grows to the patient's left-hand side of the picture when flipped; y grows to the front.
    plane = plane if columns < 0 else plane[::-1]
    plane = plane if rows < 0 else plane[:, ::-1]
    return np.ascontiguousarray(plane.T)
