"""What is tumor in a slide: a mask, or outlines in its finest pixels that are filled at any level."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Slide
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import listed

Mask = npt.NDArray[np.bool_]
Outline = npt.NDArray[np.float64]
"""(n, 2), x and y, closed by a line from the last point to the first."""
_OUTLINES = frozenset({".json", ".xml"})
# Groups of ASAP, in lower case. CAMELYON16 has tumor in _0, _1 and Tumor, and holes in _2 and Exclusion; CAMELYON17 has
# metastases and normal. An outline may also be in no group.
_TUMOR = frozenset({"", "none", "_0", "_1", "tumor", "tumour", "metastases", "metastasis"})
_HOLES = frozenset({"_2", "exclusion", "normal"})
# Kinds of annotations without an area.
_AREAS = frozenset({"", "polygon", "rectangle", "spline"})
# Of the range of a mask.
_HALF = 127


class Annotation:
    """The tumor of one slide.

    Args:
        path: a mask (an image or a slide, above half of the range is tumor), or outlines: JSON as NCRF has it,
            `{"positive": [[[x, y], ...], ...], "negative": ...}`, or XML of ASAP, as CAMELYON16 comes.
        slide: that it belongs to.
        blocks: keeps what is read of a mask; by default the last 64 MiB of this one.

    Raises:
        InputError: the file cannot be read, or does not fit to the slide.
    """

    def __init__(self, path: Path, slide: Slide, blocks: Blocks | None = None) -> None:
        self._path, self._slide, self._blocks = path, slide, blocks or Blocks(2**26)
        self._tumor: list[Outline] = []
        self._holes: list[Outline] = []
        self._mask: Slide | None = None
        if path.suffix.lower() in _OUTLINES:
            self._tumor, self._holes = read_outlines(path)
            self._check_outlines()
        else:
            self._mask = Slide(path, ground="black")
            if self._mask.shapes[0] != slide.shapes[0]:
                (height, width), (other_height, other_width) = self._mask.shapes[0], slide.shapes[0]
                raise InputError(
                    f"pathology: the mask {path} has {width} x {height} pixels, and its slide {slide.path} has "
                    f"{other_width} x {other_height}; they must be equal"
                )
            self._check_values()

    def _check_values(self) -> None:
        """Refuses an image of labels that count from 0, or of colors, none of which would be tumor."""
        pixels = None if self._mask is None else self._mask.photograph
        if pixels is not None and pixels.any() and not (pixels[0] > _HALF).any():
            raise InputError(
                f"pathology: the mask {self._path} has values up to {int(pixels.max())}, but none above {_HALF} in its "
                "first channel, the threshold for tumor; write tumor as 255 and all else as 0"
            )

    def _check_outlines(self) -> None:
        height, width = self._slide.shapes[0]
        for number, outline in enumerate(self._tumor):
            low, high = outline.min(axis=0), outline.max(axis=0)
            if (high < 0).any() or low[0] >= width or low[1] >= height:
                raise InputError(
                    f"pathology: outline {number} of {self._path} lies outside of {self._slide.path} ({width} "
                    f"x {height} pixels; x {low[0]:.0f} to {high[0]:.0f}, y {low[1]:.0f} to {high[1]:.0f}); it must be "
                    "in pixels of the finest level"
                )

    def mask(self, box: Box, downsample: float) -> Mask:
        """(height, width) of a box in pixels of this downsample: whether their centers are tumor."""
        if self._mask is None:
            return filled(self._tumor, box, downsample) & ~filled(self._holes, box, downsample)
        level = self._mask.level_of(downsample)
        ratio = downsample / self._mask.downsamples[level]
        if ratio == 1.0:
            return self._read_mask(self._mask, box, level)
        rows = np.floor((np.arange(box.height) + box.y + 0.5) * ratio).astype(int)
        columns = np.floor((np.arange(box.width) + box.x + 0.5) * ratio).astype(int)
        outer = Box(
            y=int(rows[0]),
            x=int(columns[0]),
            height=int(rows[-1] - rows[0]) + 1,
            width=int(columns[-1] - columns[0]) + 1,
        )
        return self._read_mask(self._mask, outer, level)[np.ix_(rows - rows[0], columns - columns[0])]

    def _read_mask(self, mask: Slide, box: Box, level: int) -> Mask:
        """False outside of the slide."""
        inside = box.clip(*mask.shapes[level])
        found = np.zeros((box.height, box.width), bool)
        if inside.height and inside.width:
            part = Box(y=inside.y - box.y, x=inside.x - box.x, height=inside.height, width=inside.width)
            found[part.slices] = self._blocks.read(mask, inside, level)[0] > _HALF
        return found


def read_outlines(path: Path) -> tuple[list[Outline], list[Outline]]:
    """Outlines of tumor, and of holes in it.

    Raises:
        InputError: the file cannot be read, or an outline has fewer than three points or a number that is not finite.
    """
    try:
        text = path.read_text()
        tumor, holes = _of_json(text) if path.suffix.lower() == ".json" else _of_xml(text)
        outlines = [[np.asarray(points, np.float64).reshape(-1, 2) for points in group] for group in (tumor, holes)]
    except FileNotFoundError:
        raise InputError(f"pathology: the annotation {path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ElementTree.ParseError) as error:
        raise InputError(
            f"pathology: the annotation {path} cannot be read ({error}); it must be JSON with the lists `positive` and "
            "`negative` of outlines, or XML as ASAP writes it"
        ) from None
    for number, outline in enumerate([*outlines[0], *outlines[1]]):
        if len(outline) < 3 or not np.isfinite(outline).all():
            raise InputError(
                f"pathology: outline {number} of {path} has {len(outline)} points, or one that is not a number; an "
                "outline has at least three"
            )
    return outlines[0], outlines[1]


def _of_json(text: str) -> tuple[Sequence[Sequence[object]], Sequence[Sequence[object]]]:
    found = json.loads(text)
    unknown = sorted(name for name in set(found) - {"positive", "negative"} if isinstance(found[name], list))
    if unknown:
        raise ValueError(f"it also has {listed(unknown)}, which may or may not be tumor")
    return found["positive"], found.get("negative", [])


def _of_xml(text: str) -> tuple[list[list[list[float]]], list[list[list[float]]]]:
    tumor: list[list[list[float]]] = []
    holes: list[list[list[float]]] = []
    for element in ElementTree.fromstring(text).iter("Annotation"):
        group, kind = element.get("PartOfGroup", "").strip(), element.get("Type", "").strip()
        if group.lower() not in _TUMOR | _HOLES:
            raise ValueError(
                f"annotation {element.get('Name')!r} is in the group {group!r}, which may or may not be tumor; name "
                f"groups {listed(sorted(_TUMOR - {''}))} for tumor, "
                f"{listed(sorted(_HOLES))} for what is not"
            )
        if kind.lower() not in _AREAS:
            raise ValueError(
                f"annotation {element.get('Name')!r} is a {kind}, which has no area; remove it or draw a polygon"
            )
        points = sorted(element.iter("Coordinate"), key=lambda point: int(point.get("Order", "0")))
        outline = [[float(point.attrib["X"]), float(point.attrib["Y"])] for point in points]
        (holes if group.lower() in _HOLES else tumor).append(outline)
    return tumor, holes


def filled(outlines: Iterable[Outline], box: Box, downsample: float) -> Mask:
    """(height, width): whether the center of each pixel of a box lies within any outline, by the even-odd rule.

    Each edge turns over, in every row that it crosses, all pixels to the right of where it does: a sum along each row.
    """
    found = np.zeros((box.height, box.width), bool)
    for outline in outlines:
        # In pixels of the box, so that the center of pixel 0 is at 0.
        points = outline / downsample - (box.x, box.y) - 0.5
        top = max(0, int(np.ceil(points[:, 1].min())))
        bottom = min(box.height, int(np.floor(points[:, 1].max())) + 1)
        if top >= bottom or points[:, 0].max() < 0 or points[:, 0].min() > box.width - 1:
            continue
        turns = np.zeros((bottom - top, box.width + 1), np.int32)
        (x0, y0), (x1, y1) = points.T, np.roll(points, -1, axis=0).T
        is_edge = y0 != y1
        x0, y0, x1, y1 = x0[is_edge], y0[is_edge], x1[is_edge], y1[is_edge]
        first = np.maximum(np.ceil(np.minimum(y0, y1)), top).astype(int)
        # An edge has its upper end and not its lower one, so that a point where two meet counts once.
        last = np.minimum(np.ceil(np.maximum(y0, y1)), bottom).astype(int)
        counts = np.maximum(last - first, 0)
        edge = np.repeat(np.arange(len(counts)), counts)
        row = first[edge] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        x = x0[edge] + (row - y0[edge]) * (x1[edge] - x0[edge]) / (y1[edge] - y0[edge])
        np.add.at(turns, (row - top, np.clip(np.ceil(x), 0, box.width).astype(int)), 1)
        found[top:bottom] |= np.cumsum(turns, axis=1)[:, :-1] % 2 == 1
    return found
