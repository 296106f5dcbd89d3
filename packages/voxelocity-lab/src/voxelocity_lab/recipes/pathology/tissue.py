"""Where a slide holds tissue: pixels of a coarse level that are more colorful than glass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxelocity_lab.recipes.pathology.settings import TissueConfig
from voxelocity_lab.recipes.pathology.slides import Box, Pixels, Slide

# Rows of a level at once, so that a slide without coarse levels is never held whole.
_ROWS = 2048


class Tissue:
    """The tissue of a slide.

    Args:
        slide: that is looked at.
        config: how.

    Attributes:
        downsample: of `mask`.
        mask: (y, x), whether a pixel is tissue.
        darkness: (y, x) uint8, 0 white to 255 black.
    """

    def __init__(self, slide: Slide, config: TissueConfig) -> None:
        self._least_share = config.least_share
        level = slide.level_of(config.downsample)
        step = max(1, int(config.downsample / slide.downsamples[level]))
        self.downsample = slide.downsamples[level] * step
        height, width = slide.shapes[level]
        rows = _ROWS // step * step
        colors, shades = [], []
        for y in range(0, height, rows):
            pixels = _reduced(slide.read(Box(y=y, x=0, height=min(rows, height - y), width=width), level), step)
            colors.append(saturation(pixels) > config.least_saturation)
            shades.append(255 - pixels.mean(axis=0).astype(np.uint8))
        self.mask, self.darkness = np.concatenate(colors), np.concatenate(shades)

    def has(self, box: Box) -> bool:
        """Whether enough of a box in pixels of the finest level is tissue."""
        low = Box(
            y=int(box.y / self.downsample), x=int(box.x / self.downsample),
            height=max(1, round(box.height / self.downsample)), width=max(1, round(box.width / self.downsample)),
        ).clip(*self.mask.shape)  # fmt: skip
        return bool(low.height and low.width and self.mask[low.slices].mean() > self._least_share)


def _reduced(pixels: Pixels, step: int) -> Pixels:
    """The mean of squares of this side; what is left over at the end is a square of its own."""
    if step == 1:
        return pixels
    _, height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, -height % step), (0, -width % step)), mode="edge")
    squares = padded.reshape(3, padded.shape[1] // step, step, -1, step)
    reduced: Pixels = np.rint(squares.mean(axis=(2, 4), dtype=np.float32)).astype(np.uint8)
    return reduced


def saturation(pixels: Pixels) -> npt.NDArray[np.float32]:
    """(y, x) from 0 to 1, as HSV has it."""
    most, least = pixels.max(axis=0).astype(np.float32), pixels.min(axis=0).astype(np.float32)
    shares: npt.NDArray[np.float32] = (most - least) / np.maximum(most, 1.0)
    return shares
