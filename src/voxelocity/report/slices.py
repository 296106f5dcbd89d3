"""Slices of scans with classes drawn over them, as PNG to embed in a page."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.report.palette import class_color

# Pictures smaller than this are enlarged, so that the outline stays thin against the voxels.
_MIN_SIDE_PIXEL = 320
_FILL_OPACITY = 0.28


def overlay(image: Array, classes: Array) -> npt.NDArray[np.uint8]:
    """The slice in grey with each class filled lightly and outlined.

    Args:
        image: (h, w) uint8.
        classes: (h, w) class indices; 0 is not drawn.

    Returns:
        (h * k, w * k, 3) uint8, a fresh array, where k enlarges a small slice by whole voxels.
    """
    factor = max(1, -(-_MIN_SIDE_PIXEL // max(image.shape)))
    grey, large = _enlarge(np.asarray(image), factor), _enlarge(np.asarray(classes), factor)
    colors = np.zeros((int(large.max()) + 1, 3), dtype=np.float32)
    for index in range(1, len(colors)):
        colors[index] = class_color(index)
    opacity = np.where(_outline(large, width=2 if factor > 1 else 1), 1.0, _FILL_OPACITY * (large > 0))[..., None]
    mixed = grey[..., None] * (1.0 - opacity) + colors[large] * opacity
    return np.round(mixed).astype(np.uint8)


def png_data_uri(pixels: npt.NDArray[np.uint8]) -> str:
    """The picture (h, w, 3) as a `data:` address for an `img`."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # No version of the drawing library inside: the same facts give the same bytes.
    imsave(buffer, pixels, format="png", metadata={"Software": "voxelocity"}, pil_kwargs={"optimize": True})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _enlarge(plane: Array, factor: int) -> Array:
    return plane.repeat(factor, axis=0).repeat(factor, axis=1)


def _outline(classes: Array, *, width: int) -> npt.NDArray[np.bool_]:
    """Pixels of a class that lie within `width` of another class or the background, along rows and columns."""
    edge = np.zeros(classes.shape, dtype=bool)
    for distance in range(1, width + 1):
        for axis in (0, 1):
            ahead, behind = _shifted(classes, distance, axis), _shifted(classes, -distance, axis)
            edge |= (ahead != classes) | (behind != classes)
    return edge & (classes > 0)


def _shifted(classes: Array, distance: int, axis: int) -> Array:
    """The plane moved along an axis, its border repeated."""
    index = np.clip(np.arange(classes.shape[axis]) + distance, 0, classes.shape[axis] - 1)
    return classes.take(index, axis=axis)
