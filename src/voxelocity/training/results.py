"""What a run keeps for the user: slices of a few scored cases for the report, and its curves as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.quantities import dice_text
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Array, Volume
from voxelocity.core.whole_file import put_in_place, whole_file
from voxelocity.report import RunFacts

Classes = npt.NDArray[np.uint8]

_NUM_SLICES = 7
# Larger slices are thinned out, so that a report stays a few megabytes.
_MOST_PIXELS = 256
# Axes of the patient (0 right, 1 front, 2 head): across the slices, down a slice, along its rows. Radiologists look
# from the feet and from the front: the patient's right is on the left, front or head is at the top.
_AXES = {"axial": (2, 1, 0), "coronal": (1, 2, 0), "sagittal": (0, 2, 1)}


@dataclass(frozen=True, kw_only=True)
class _Kept:
    mean_dice: float
    title: str
    arrays: Mapping[str, Array]


class SlicePictures:
    """Keeps slices of a few scored cases: worst, middle and best, for the report."""

    def __init__(self, *, limit: int = 4) -> None:
        self._limit = limit
        self._kept: list[_Kept] = []

    def add(self, score: CaseScore, scan: Volume, prediction: Classes) -> None:
        """Keeps slices of a case through its foreground, in three directions."""
        assert scan.label is not None
        arrays: dict[str, Array] = {}
        foreground = (scan.label > 0) | (prediction > 0)
        for plane, axes in _AXES.items():
            look = _Look(scan, axes)
            places = look.places(foreground)
            arrays |= {
                f"{plane}_image": _to_uint8(look.slices(scan.image[0], places)),
                f"{plane}_truth": look.slices(scan.label, places),
                f"{plane}_prediction": look.slices(prediction, places),
                f"{plane}_pixel_mm": np.array(look.pixel_mm),
            }
        mean_dice = 1.0 if score.mean_dice is None else score.mean_dice
        title = f"{score.case_id}, Dice {dice_text(score.mean_dice)}"
        self._kept.append(_Kept(mean_dice=mean_dice, title=title, arrays=arrays))
        if len(self._kept) > 2 * self._limit:
            self._kept = self._spread()

    def save(self, path: Path) -> None:
        """Writes `slices.npz`: for each case i and plane the arrays `<i>_<plane>_image`, `_truth`, `_prediction`
        (n, h, w) uint8 and `_pixel_mm` (height, width), and `<i>_title`.
        """
        arrays: dict[str, Any] = {}
        for i, kept in enumerate(self._spread()):
            arrays |= {f"{i}_{name}": array for name, array in kept.arrays.items()}
            arrays[f"{i}_title"] = np.array(kept.title)
        with whole_file(path) as file:
            np.savez_compressed(file, **arrays)

    def _spread(self) -> list[_Kept]:
        ordered = sorted(self._kept, key=lambda kept: (kept.mean_dice, kept.title))
        if len(ordered) <= self._limit:
            return ordered
        picks = np.linspace(0, len(ordered) - 1, self._limit).round().astype(int)
        return [ordered[i] for i in picks]


class _Look:
    """How a volume is cut across one axis of the patient.

    Args:
        scan: whose grid says where its axes run.
        axes: of the patient: across the slices, down a slice, along its rows.
    """

    def __init__(self, scan: Volume, axes: tuple[int, int, int]) -> None:
        matrix = scan.grid.matrix[:3, :3]
        of_patient = _voxel_axes(matrix)
        self._axes = tuple(of_patient[axis] for axis in axes)
        # Rows and columns run against the patient's axes, slices along them.
        signs = (1.0, -1.0, -1.0)
        self._is_flipped = [matrix[a, of_patient[a]] * sign < 0.0 for a, sign in zip(axes, signs, strict=True)]
        shape = [scan.grid.shape[axis] for axis in self._axes]
        self._every = max(1, -(-max(shape[1:]) // _MOST_PIXELS))
        spacing_mm = [float(np.linalg.norm(matrix[:, axis])) for axis in self._axes]
        self.pixel_mm = (spacing_mm[1] * self._every, spacing_mm[2] * self._every)

    def places(self, foreground: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Indices of slices, evenly spaced through the foreground; through all of the volume if there is none."""
        found = np.flatnonzero(foreground.any(axis=tuple(axis for axis in range(3) if axis != self._axes[0])))
        low, high = (int(found[0]), int(found[-1])) if found.size else (0, foreground.shape[self._axes[0]] - 1)
        # The middles of equal parts: the first and the last slice of a structure show little of it.
        count = min(_NUM_SLICES, high - low + 1)
        places = (low + (high - low + 1) * (np.arange(count) + 0.5) / count).astype(np.intp)
        return places[::-1] if self._is_flipped[0] else places

    def slices(self, volume: Array, places: npt.NDArray[np.intp]) -> Array:
        """The slices (n, h, w), a fresh array."""
        cut = np.take(volume, places, axis=self._axes[0]).transpose(self._axes)
        cut = cut[:, :: self._every, :: self._every]
        for axis in (1, 2):
            cut = np.flip(cut, axis) if self._is_flipped[axis] else cut
        return np.ascontiguousarray(cut)


def _voxel_axes(matrix: npt.NDArray[np.float64]) -> dict[int, int]:
    """For each axis of the patient the axis of the array that runs most along it; each is used once."""
    left = np.abs(matrix / np.linalg.norm(matrix, axis=0))
    found: dict[int, int] = {}
    for _ in range(3):
        patient, voxel = np.unravel_index(left.argmax(), left.shape)
        found[int(patient)] = int(voxel)
        left[patient, :], left[:, voxel] = -1.0, -1.0
    return found


def _to_uint8(slices: npt.NDArray[Any]) -> Classes:
    low, high = np.percentile(slices, [1.0, 99.0])
    scaled = (slices.astype(np.float32) - low) / max(float(high - low), 1e-6)
    grey: Classes = (scaled.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return grey


def write_metrics(facts: RunFacts, path: Path) -> None:
    """Writes `metrics.csv`: one row per logged stretch of steps and one per validation, in order of time.

    A class that is in none of the validated cases has an empty cell and counts as absent.
    """
    classes = sorted({name for validation in facts.validations for name in validation.dice})
    header = [
        "time_s", "step", "epoch", "loss", "learning_rate", "images_per_s", "wait_share", "mean_dice",
        "num_absent_classes",
    ]  # fmt: skip
    rows: list[tuple[float, list[object]]] = []
    for s in facts.steps:
        rate, share = s.num_images / max(s.seconds, 1e-9), s.wait_s / max(s.seconds, 1e-9)
        row = [s.time_s, s.step, s.epoch, s.loss, s.learning_rate, round(rate, 3), round(share, 5), "", ""]
        rows.append((s.time_s, row + [""] * len(classes)))
    for v in facts.validations:
        dice = [v.dice.get(name, math.nan) for name in classes]
        row = [v.time_s, v.step, "", "", "", "", "", _cell(v.mean_dice), sum(math.isnan(value) for value in dice)]
        rows.append((v.time_s, row + [_cell(value) for value in dice]))
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(header + [f"dice_{name}" for name in classes])
    table.writerows(row for _, row in sorted(rows, key=lambda pair: pair[0]))
    put_in_place(path, text.getvalue().encode())


def _cell(value: float) -> object:
    return value if math.isfinite(value) else ""
