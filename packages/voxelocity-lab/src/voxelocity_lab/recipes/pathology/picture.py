"""Pictures of slides with their heat maps: cropped to tissue, whose parts stand side by side if glass lies between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.heatmap import HeatMap
from voxelocity_lab.recipes.pathology.page import SlidePicture
from voxelocity_lab.recipes.pathology.slides import Box, Pixels, Slide
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import count_text

_Positions = npt.NDArray[np.floating[Any]]
PICTURE_SIDE = 900
"""Pixels of a drawn slide along its longer side, at the most."""
_MOST_PARTS = 24
# Squares between two parts.
_GAP = 1
# Parts are drawn apart if that saves this share of their common rectangle.
_LEAST_SAVED = 0.4
# A longer part is cut, as strips of tissue are else drawn as a line.
_MOST_ASPECT = 6
# Rows of a level that are read at once.
_ROWS = 2048


def picture_of(title: str, slide: Slide, heat: HeatMap, annotation: Annotation | None) -> SlidePicture:
    """A slide with the heat map of all of it. What cannot be read is white."""
    parts = tissue_parts(np.isfinite(heat.probability))
    places, (rows, columns) = pack([(part.height, part.width) for part in parts])
    zoom = min(PICTURE_SIDE / max(rows, columns), heat.step)
    # Whole pixels, where a square has some.
    zoom = math.floor(zoom) if zoom >= 1.0 else zoom
    shape = max(1, round(rows * zoom)), max(1, round(columns * zoom))
    pixels = np.full((3, *shape), 255, np.uint8)
    probability = np.full(shape, np.nan, np.float32)
    truth = None if annotation is None else np.zeros(shape, bool)
    for part, (row, column) in zip(parts, places, strict=True):
        y, x = round(row * zoom), round(column * zoom)
        height, width = (max(1, round(side * zoom)) for side in (part.height, part.width))
        target = Box(y=y, x=x, height=height, width=width).clip(*shape)
        down, across = (
            first + (np.arange(num) + 0.5) / zoom for first, num in ((part.y, target.height), (part.x, target.width))
        )
        pixels[(slice(None), *target.slices)] = _sampled(slide, down * heat.step, across * heat.step)
        squares = (at.astype(int).clip(0, n - 1) for at, n in zip((down, across), heat.probability.shape, strict=True))
        probability[target.slices] = heat.probability[np.ix_(*squares)]
        if annotation is not None and truth is not None:
            box = Box(y=round(part.y * zoom), x=round(part.x * zoom), height=target.height, width=target.width)
            truth[target.slices] = annotation.mask(box, heat.step / zoom)
    if len(parts) > 1:
        title = f"{title}, {count_text(len(parts), 'part')} with tissue"
    return SlidePicture(title=title, pixels=pixels, probability=probability, truth=truth)


def tissue_parts(is_seen: npt.NDArray[np.bool_]) -> list[Box]:
    """Rectangles of squares around what was looked at, the largest first; all of it if nothing was.

    One if little lies between, else at most 24, none of which has anything in common with another.
    """
    whole = Box(y=0, x=0, height=is_seen.shape[0], width=is_seen.shape[1])
    labels, num = ndimage.label(ndimage.binary_dilation(is_seen, np.ones((3, 3))), structure=np.ones((3, 3)))
    found = [_box(rows, columns) for rows, columns in ndimage.find_objects(labels, num)]
    if not found:
        return _cut(whole)
    around = _around(found)
    parts: list[Box] = []
    for box in sorted(found, key=_area, reverse=True)[:_MOST_PARTS]:
        while meeting := [part for part in parts if _meet(part, box)]:
            parts = [part for part in parts if part not in meeting]
            box = _around([box, *meeting])
        parts.append(box)
    if sum(map(_area, parts)) > (1.0 - _LEAST_SAVED) * _area(around):
        return _cut(around)
    return [piece for part in sorted(parts, key=_area, reverse=True) for piece in _cut(part)]


def _box(rows: slice, columns: slice) -> Box:
    return Box(y=rows.start, x=columns.start, height=rows.stop - rows.start, width=columns.stop - columns.start)


def _area(box: Box) -> int:
    return box.height * box.width


def _meet(one: Box, other: Box) -> bool:
    return (
        one.y < other.y + other.height and other.y < one.y + one.height
        and one.x < other.x + other.width and other.x < one.x + one.width
    )  # fmt: skip


def _around(boxes: Sequence[Box]) -> Box:
    y, x = min(box.y for box in boxes), min(box.x for box in boxes)
    bottom, right = max(box.y + box.height for box in boxes), max(box.x + box.width for box in boxes)
    return Box(y=y, x=x, height=bottom - y, width=right - x)


def _cut(box: Box) -> list[Box]:
    """The box, or pieces of equal length if it is much longer than wide."""
    longer, shorter = max(box.height, box.width), max(1, min(box.height, box.width))
    if longer <= _MOST_ASPECT * shorter:
        return [box]
    num = math.ceil(math.sqrt(longer / shorter))
    ends = [number * longer // num for number in range(num + 1)]
    spans = [(start, stop - start) for start, stop in itertools.pairwise(ends)]
    if box.height > box.width:
        return [Box(y=box.y + start, x=box.x, height=size, width=box.width) for start, size in spans]
    return [Box(y=box.y, x=box.x + start, height=box.height, width=size) for start, size in spans]


def pack(sizes: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Where rectangles (height, width) stand, as rows and columns, and the size of the area around all.

    The highest stand in the first row, as many as fit into a nearly square area, with a gap between.
    """
    area = sum((height + _GAP) * (width + _GAP) for height, width in sizes)
    widest = max(math.ceil(math.sqrt(area)), *(width for _, width in sizes))
    places: dict[int, tuple[int, int]] = {}
    top, left, bottom, right = 0, 0, 0, 0
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number][0]):
        height, width = sizes[number]
        if left and left + width > widest:
            top, left = bottom + _GAP, 0
        places[number] = top, left
        bottom, right = max(bottom, top + height), max(right, left + width)
        left += width + _GAP
    return [places[number] for number in range(len(sizes))], (bottom, right)


def _sampled(slide: Slide, y: _Positions, x: _Positions) -> Pixels:
    """(3, y, x): the pixels at these positions of the finest level, which rise evenly."""
    downsample = max(1.0, float(y[-1] - y[0]) / len(y), float(x[-1] - x[0]) / len(x))
    level = slide.level_of(downsample)
    rows, columns = (
        np.minimum((at / slide.downsamples[level]).astype(int), side - 1)
        for at, side in zip((y, x), slide.shapes[level], strict=True)
    )
    found = np.full((3, len(rows), len(columns)), 255, np.uint8)
    size = max(1, int(_ROWS * slide.downsamples[level] / downsample))
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        box = Box(
            y=int(some[0]), x=int(columns[0]),
            height=int(some[-1] - some[0]) + 1, width=int(columns[-1] - columns[0]) + 1,
        )  # fmt: skip
        try:
            pixels = slide.read(box, level)
        except ScanError:
            # The heat map has said so.
            continue
        found[:, first : first + size] = pixels[:, some - some[0]][:, :, columns - columns[0]]
    return found
