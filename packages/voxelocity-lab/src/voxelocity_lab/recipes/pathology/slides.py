"""Slides of tissue: levels, regions of pixels, and blocks that are read once. Only this module knows OpenSlide.

Arrays are (3, y, x) uint8, red, green and blue; what lies beyond a slide, or is transparent, is white.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voxelocity_observe.core.errors import InputError, ScanError

Pixels = npt.NDArray[np.uint8]
_WHITE = 255
_IMAGES = frozenset({".jpg", ".jpeg", ".png", ".bmp"})
SLIDES = frozenset({".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".dcm", *_IMAGES})
"""Endings of files that are taken for slides."""
# Reads the first tile and one in the middle of each level, within an address space that no real tile needs.
_TRIAL = """
import sys
import openslide
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
except (ImportError, ValueError, OSError):
    pass
slide = openslide.OpenSlide(sys.argv[1])
width, height = slide.dimensions
for level in range(slide.level_count):
    for corner in ((0, 0), (width // 2, height // 2)):
        slide.read_region(corner, level, (16, 16))
"""
_TRIAL_BYTES, _TRIAL_S = 8 << 30, 60.0
# Python's own status after an exception.
_PYTHON_FAILED = 1
# Of a pixel. Files that know none name that of a printer: 72 and 300 dots an inch are 353 and 85 micrometers.
_LEAST_MICROMETERS, _MOST_MICROMETERS = 0.01, 50.0
# Of the first image that a description in OME-XML names.
_PIXELS = re.compile(r"<(?:\w{1,20}:)?Pixels\s([^>]{1,4096})>")
_ATTRIBUTE = re.compile(r"(PhysicalSizeX(?:Unit)?)\s*=\s*[\"']([^\"']{1,40})[\"']")
_MICROMETERS = {
    **dict.fromkeys(("um", "\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m", "micron"), 1.0),
    "nm": 1e-3,
    "mm": 1e3,
    "cm": 1e4,
    "m": 1e6,
}
# Tags of TIFF; resolutions are of an inch or a centimeter.
_TILE_WIDTH, _DESCRIPTION, _RESOLUTION, _RESOLUTION_UNIT = 322, 270, 282, 296
_MICROMETERS_PER_RESOLUTION = {2: 25_400.0, 3: 10_000.0}
# What Pillow raises about a damaged file.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error)


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle of pixels of one level, which may reach beyond the slide."""

    y: int
    x: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Of an array (y, x) of the level."""
        return slice(self.y, self.y + self.height), slice(self.x, self.x + self.width)

    def clip(self, height: int, width: int) -> Box:
        """The part within a level of this size; empty if there is none."""
        y, x = min(max(self.y, 0), height), min(max(self.x, 0), width)
        bottom, right = min(max(self.y + self.height, y), height), min(max(self.x + self.width, x), width)
        return Box(y=y, x=x, height=bottom - y, width=right - x)


class Slide:
    """A slide, open for reading; safe from several threads.

    Args:
        path: of a format that OpenSlide reads, or a photograph (JPEG, PNG, TIFF without tiles), which has one level.
        ground: seen where a photograph is transparent.

    Attributes:
        shapes: (height, width) of each level, the finest first.
        downsamples: of each level; 1 for the finest.
        micrometers: width of a pixel of the finest level, as OME says it, else its format; None where neither does.
        photograph: all its pixels; None of what OpenSlide reads.

    Raises:
        InputError: the file cannot be opened, or OpenSlide is not installed.
    """

    def __init__(self, path: Path, ground: Literal["white", "black"] = "white") -> None:
        self.path = path
        self._lock = threading.Lock()
        self.photograph: Pixels | None = None
        self.shapes: tuple[tuple[int, int], ...] = ()
        self.downsamples: tuple[float, ...] = ()
        self.micrometers: float | None = None
        if path.suffix.lower() in _IMAGES:
            self._show(*_picture(path, ground))
            return
        _try_in_another_process(path)
        try:
            self._slide = _open(path)
        except InputError as refused:
            # OpenSlide reads tiles alone; a TIFF of strips is a picture.
            try:
                self._show(*_picture(path, ground, ("TIFF",)))
            except InputError:
                raise refused from None
            return
        self.shapes = tuple((height, width) for width, height in self._slide.level_dimensions)
        self.downsamples = tuple(map(float, self._slide.level_downsamples))
        properties = self._slide.properties
        ome = properties.get("tiff.ImageDescription") or properties.get("openslide.comment") or ""
        self.micrometers = _first_width(_width_in_ome(ome), properties.get("openslide.mpp-x"))

    def _show(self, pixels: Pixels, micrometers: float | None) -> None:
        """Makes the slide one level, of pixels that are in memory."""
        self.photograph = pixels
        self.shapes, self.downsamples = (pixels.shape[1:],), (1.0,)
        self.micrometers = micrometers

    def level_of(self, downsample: float) -> int:
        """The coarsest level that is at most this coarse.

        Raises:
            InputError: there is none, as for a value below 1.
        """
        fitting = [level for level, value in enumerate(self.downsamples) if value <= downsample * 1.01]
        if not fitting:
            raise InputError(f"pathology: {self.path} has no level of downsample {downsample:g}; the finest is 1")
        return fitting[-1]

    def downsample_of(self, level: int) -> float:
        """Pixels of the finest level along one of this level.

        Raises:
            InputError: the slide lacks the level.
        """
        if not 0 <= level < len(self.shapes):
            raise InputError(
                f"pathology: {self.path} has no level {level}; it has {len(self.shapes)} (0 to {len(self.shapes) - 1})"
            )
        return self.downsamples[level]

    def read(self, box: Box, level: int = 0) -> Pixels:
        """(3, height, width) of a level.

        Raises:
            InputError: the slide lacks the level.
            ScanError: the pixels there cannot be read.
        """
        self.downsample_of(level)
        pixels = np.full((3, box.height, box.width), _WHITE, np.uint8)
        inside = box.clip(*self.shapes[level])
        if inside.height and inside.width:
            rows, columns = Box(y=inside.y - box.y, x=inside.x - box.x, height=inside.height, width=inside.width).slices
            pixels[:, rows, columns] = self._inside(inside, level)
        return pixels

    def _inside(self, box: Box, level: int) -> Pixels:
        if self.photograph is not None:
            return self.photograph[(slice(None), *box.slices)]
        factor = self.downsamples[level]
        corner = round(box.x * factor), round(box.y * factor)
        try:
            region = self._slide.read_region(corner, level, (box.width, box.height))
        except _errors() as error:
            # OpenSlide answers nothing more once something could not be read.
            with self._lock:
                self._slide = _open(self.path)
            raise ScanError(
                f"pathology: {self.path}: {box.width} x {box.height} pixels at x {box.x}, y {box.y} of level {level} "
                f"cannot be read ({error}); copy the slide again from its source"
            ) from None
        pixels = np.asarray(region)
        color: Pixels = np.ascontiguousarray(pixels[..., :3].transpose(2, 0, 1))
        if (pixels[..., 3] == 0).any():
            color[:, pixels[..., 3] == 0] = _WHITE
        return color


def checked_micrometers(width: float) -> float:
    """The width of a pixel.

    Raises:
        ValueError: no slide has pixels of this width.
    """
    if not _LEAST_MICROMETERS <= width <= _MOST_MICROMETERS:
        raise ValueError(f"{width:g} micrometers are outside of {_LEAST_MICROMETERS} to {_MOST_MICROMETERS}")
    return width


def _first_width(*widths: float | str | None) -> float | None:
    """The first of these widths of a pixel that can be one."""
    for width in widths:
        with contextlib.suppress(ValueError, TypeError):
            return checked_micrometers(float(width))  # type: ignore[arg-type]
    return None


def _width_in_ome(text: str) -> float | None:
    """The width of a pixel in micrometers that a description in OME-XML gives; None if it gives none.

    By a pattern: a parser of XML expands what a crafted description makes it repeat.
    """
    pixels = _PIXELS.search(text)
    attributes = dict(_ATTRIBUTE.findall(pixels[1])) if pixels else {}
    unit = html.unescape(attributes.get("PhysicalSizeXUnit", "um")).strip()
    try:
        return float(attributes.get("PhysicalSizeX", "nan")) * _MICROMETERS[unit]
    except (KeyError, ValueError):
        return None


def _errors() -> tuple[type[Exception], ...]:
    import openslide

    return openslide.OpenSlideError, OSError


def _try_in_another_process(path: Path) -> None:
    """Refuses a slide that ends the process that reads it.

    OpenSlide's libraries abort where memory cannot be had, as for tiles that claim 2^30 pixels along a side, and no
    Python code can catch that. A slide that merely cannot be opened is reported by the process that opens it next.
    """
    if not path.is_file():
        raise InputError(f"pathology: the slide {path} does not exist")
    command = [sys.executable, "-c", _TRIAL, os.fspath(path.absolute()), str(_TRIAL_BYTES)]
    try:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TRIAL_S
        ).returncode
    except subprocess.TimeoutExpired:
        raise InputError(
            f"pathology: {path} could not be read within {_TRIAL_S:.0f} s; convert it to a pyramidal TIFF with JPEG or "
            "deflate compression, or leave it out"
        ) from None
    if status < 0 or status > _PYTHON_FAILED:
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise InputError(
            f"pathology: {path} ends the program that reads it ({name}), as a damaged or crafted file may; copy the "
            "slide again from its source, or leave it out"
        )


def _open(path: Path) -> Any:
    try:
        import openslide
    except ImportError:
        raise InputError(
            f"pathology: reading {path} needs OpenSlide, which is not installed; pip install 'voxelocity[slides]'"
        ) from None
    try:
        return openslide.OpenSlide(path)
    except (openslide.OpenSlideError, OSError) as error:
        raise InputError(
            f"pathology: {path} cannot be opened as a slide ({error}); convert it to a pyramidal TIFF with JPEG or "
            "deflate compression, or leave it out"
        ) from None


def _picture(path: Path, ground: str, formats: tuple[str, ...] | None = None) -> tuple[Pixels, float | None]:
    """The pixels of an image without tiles, and their width in micrometers, if it is a TIFF that says so.

    Args:
        path: of the image.
        ground: seen where it is transparent.
        formats: that it may have, as Pillow calls them; None for all.

    Raises:
        InputError: it cannot be read, or has tiles.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=formats) as image:
            tags = dict(getattr(image, "tag_v2", {}))
            if _TILE_WIDTH in tags:
                raise ValueError("it has tiles")
            # Pillow takes the bytes of a text for Latin-1.
            ome = str(tags.get(_DESCRIPTION, "")).encode("latin-1", "ignore").decode("utf-8", "replace")
            unit, per_unit = _MICROMETERS_PER_RESOLUTION.get(tags.get(_RESOLUTION_UNIT, 0)), tags.get(_RESOLUTION)
            width = unit / float(per_unit) if unit and per_unit else None
            pixels = np.ascontiguousarray(_colors(image, ground).transpose(2, 0, 1))
            return pixels, _first_width(_width_in_ome(ome), width)
    except FileNotFoundError:
        raise InputError(f"pathology: the image {path} does not exist") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"pathology: the image {path} has more pixels than are read at once; convert it to a pyramidal TIFF"
        ) from None
    except _DAMAGE as error:
        raise InputError(f"pathology: the image {path} cannot be read ({error}); replace it or leave it out") from None


def _colors(image: Any, ground: str) -> Pixels:
    """(y, x, 3) of an image of Pillow: the upper eight bits of sixteen, and the ground where it is transparent."""
    from PIL import Image

    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        if values.dtype.kind == "f" or not 0 <= values.min() <= values.max() < 1 << 16:
            raise ValueError("its values are not those of 8 or 16 bits")
        # Masks may have small values in wide pixels.
        image = Image.fromarray((values >> 8 if values.max() >= 1 << 8 else values).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, ground), image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


class Blocks:
    """Square blocks of slides that are read once and kept, the ones used longest ago making room.

    Args:
        max_bytes: of pixels that are kept.
        side: of a block.
    """

    def __init__(self, max_bytes: int, side: int = 512) -> None:
        self._side = side
        self._most = max(1, max_bytes // (3 * side * side))
        self._kept: OrderedDict[tuple[Path, int, int, int], Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, slide: Slide, box: Box, level: int = 0) -> Pixels:
        """As `Slide.read`."""
        pixels = np.full((3, box.height, box.width), _WHITE, np.uint8)
        height, width = slide.shapes[level]
        inside = box.clip(height, width)
        side = self._side
        for row in range(inside.y // side, -(-(inside.y + inside.height) // side)):
            for column in range(inside.x // side, -(-(inside.x + inside.width) // side)):
                block = self._block(slide, level, row, column)
                part = Box(y=row * side, x=column * side, height=block.shape[1], width=block.shape[2])
                top, left = max(part.y, inside.y), max(part.x, inside.x)
                bottom = min(part.y + part.height, inside.y + inside.height)
                right = min(part.x + part.width, inside.x + inside.width)
                pixels[:, top - box.y : bottom - box.y, left - box.x : right - box.x] = block[
                    :, top - part.y : bottom - part.y, left - part.x : right - part.x
                ]
        return pixels

    def _block(self, slide: Slide, level: int, row: int, column: int) -> Pixels:
        key = (slide.path, level, row, column)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        side = self._side
        box = Box(y=row * side, x=column * side, height=side, width=side).clip(*slide.shapes[level])
        found = slide.read(box, level)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found
