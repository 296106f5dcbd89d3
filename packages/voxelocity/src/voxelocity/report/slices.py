"""Slices of a scan with what was predicted: cut as radiologists look at them, and as a block of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array, Volume
from voxelocity.report.pictures import (
    CONFUSED,
    EXTRA,
    MISSED,
    class_layer,
    difference_layer,
    film,
    painted,
    png_bytes,
    png_data_uri,
)
from voxelocity.report.records import SliceFigure, SliceStack
from voxelocity_observe.document.blocks import LegendEntry, SliceFilm, Slices
from voxelocity_observe.document.charts import class_color, css

_NUM_SLICES = 7
# Larger slices are thinned out, so that a report stays a few megabytes.
_MOST_PIXELS = 256
_PREVIEW_PIXELS = 384
# Axes of the patient (0 right, 1 front, 2 head): across the slices, down a slice, along its rows. Radiologists look
# from the feet and from the front: the patient's right is on the left, front or head is at the top.
_AXES = {"axial": (2, 1, 0), "coronal": (1, 2, 0), "sagittal": (0, 2, 1)}


def cut_slices(
    scan: Volume,
    prediction: Array,
    *,
    truth: Array | None = None,
    through: npt.NDArray[np.bool_] | None = None,
    num_slices: int = _NUM_SLICES,
) -> tuple[SliceStack, ...]:
    """Slices of a scan through its foreground, in three directions; its first channel stands for the image.

    Args:
        scan: as decoded.
        prediction: (x, y, z) uint8 class indices on its grid.
        truth: likewise, if it is known.
        through: (x, y, z), what the slices pass through; truth and prediction if not given. With it, several
            predictions of one scan are cut alike.
        num_slices: of each direction, at most.
    """
    stacks = []
    foreground = prediction > 0 if truth is None else (truth > 0) | (prediction > 0)
    foreground = foreground if through is None else through
    for plane, axes in _AXES.items():
        look = _Look(scan, axes)
        positions = look.positions(foreground, num_slices)
        stack = SliceStack(
            plane=plane,
            image=_to_uint8(look.slices(scan.image[0], positions)),
            truth=None if truth is None else look.slices(truth, positions),
            prediction=look.slices(prediction, positions),
            pixel_mm=look.pixel_mm,
        )
        stacks.append(stack)
    return tuple(stacks)


def slices_block(figures: Sequence[SliceFigure], class_names: Mapping[int, str]) -> Slices:
    """The slices of some cases, to scroll through.

    Args:
        figures: at least one; all with a truth, or none.
        class_names: by class index.
    """
    stacks = [stack for figure in figures for stack in figure.stacks]
    layers = [layer for stack in stacks for layer in (stack.truth, stack.prediction) if layer is not None]
    shown = {int(index) for layer in layers for index in np.unique(layer)} - {0}
    has_truth = any(stack.truth is not None for stack in stacks)
    differences = {"missed": MISSED, "not in the truth": EXTRA, "another class": CONFUSED} if has_truth else {}
    return Slices(
        figures=[(figure.title, [_film(stack) for stack in figure.stacks]) for figure in figures],
        legend=[
            LegendEntry(name=class_names.get(index, f"class {index}"), color=css(class_color(index)))
            for index in sorted(shown)
        ],
        difference_legend=[LegendEntry(name=name, color=css(color)) for name, color in differences.items()],
    )


def preview_png(stacks: Sequence[SliceStack]) -> bytes:
    """The middle slice of each direction with its prediction, side by side, true to scale, in a PNG file."""
    tiles = []
    for stack in stacks:
        middle = len(stack.image) // 2
        colored = painted(stack.image[middle], class_layer(stack.prediction[middle]))
        tiles.append(_true_to_scale(colored, stack.pixel_mm))
    height = max(len(tile) for tile in tiles)
    framed = []
    for tile in tiles:
        above = (height - len(tile)) // 2
        framed.append(np.pad(tile, ((above, height - len(tile) - above), (0, 0), (0, 0))))
    return png_bytes(np.concatenate(framed, axis=1))


def _true_to_scale(picture: Array, pixel_mm: tuple[float, float]) -> Array:
    """A picture (h, w, 3) whose longer side is `_PREVIEW_PIXELS`, with square pixels."""
    size_mm = [num * mm for num, mm in zip(picture.shape[:2], pixel_mm, strict=True)]
    pixels = [max(1, round(_PREVIEW_PIXELS * extent_mm / max(size_mm))) for extent_mm in size_mm]
    rows, columns = (
        (np.arange(to) * (num / to)).astype(np.intp) for to, num in zip(pixels, picture.shape[:2], strict=True)
    )
    scaled: Array = picture[rows][:, columns]
    return scaled


def _film(stack: SliceStack) -> SliceFilm:
    prediction = film(stack.prediction)
    layers = {"prediction": class_layer(prediction)}
    if stack.truth is not None:
        truth = film(stack.truth)
        layers |= {"truth": class_layer(truth), "difference": difference_layer(truth, prediction)}
    count, height, width = stack.image.shape
    height_mm, width_mm = stack.pixel_mm
    return SliceFilm(
        plane=stack.plane,
        count=count,
        ratio=(width * width_mm) / (height * height_mm),
        image=png_data_uri(film(stack.image)),
        layers={name: png_data_uri(pixels) for name, pixels in layers.items()},
    )


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

    def positions(self, foreground: npt.NDArray[np.bool_], most: int) -> npt.NDArray[np.intp]:
        """Indices of at most this many slices, evenly spaced through the foreground; through all without any."""
        found = np.flatnonzero(foreground.any(axis=tuple(axis for axis in range(3) if axis != self._axes[0])))
        low, high = (int(found[0]), int(found[-1])) if found.size else (0, foreground.shape[self._axes[0]] - 1)
        # The middles of equal parts: the first and the last slice of a structure show little of it.
        count = min(most, high - low + 1)
        positions = (low + (high - low + 1) * (np.arange(count) + 0.5) / count).astype(np.intp)
        return positions[::-1] if self._is_flipped[0] else positions

    def slices(self, volume: Array, positions: npt.NDArray[np.intp]) -> Array:
        """The slices (n, h, w), a fresh array."""
        # Slice by slice: `np.take` first copies a volume that is not in C order, 3 s for 512 x 512 x 300.
        across = volume.transpose(self._axes)
        cut = np.stack([across[position, :: self._every, :: self._every] for position in positions])
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


def _to_uint8(slices: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    low, high = np.percentile(slices, [1.0, 99.0])
    scaled = (slices.astype(np.float32) - low) / max(float(high - low), 1e-6)
    grey: npt.NDArray[np.uint8] = (scaled.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return grey
