"""Slices of scans, and classes to lay over them, as PNG to embed in a page."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.report.palette import class_color

PLANES = ("axial", "coronal", "sagittal")
_FILL_OPACITY = 0.55
MISSED, EXTRA, CONFUSED = (208, 69, 46), (47, 138, 196), (192, 96, 155)
"""Colors of a difference: truth that was not predicted, prediction that is not true, another class."""

Pixels = npt.NDArray[np.uint8]


def film(stack: Array) -> Array:
    """Slices (n, h, w) side by side, (h, n * w)."""
    return np.concatenate(list(stack), axis=1)


def class_layer(classes: Array) -> Pixels:
    """Each class filled lightly and outlined, on nothing.

    Args:
        classes: (h, w) class indices; 0 is not drawn.

    Returns:
        (h, w, 4) uint8, a fresh array.
    """
    colors = np.zeros((int(classes.max(initial=0)) + 1, 3), dtype=np.uint8)
    for index in range(1, len(colors)):
        colors[index] = class_color(index)
    return _layer(colors[classes], classes)


def difference_layer(truth: Array, prediction: Array) -> Pixels:
    """What was missed, what was added and what was taken for another class, on nothing; (h, w, 4) uint8."""
    kinds = np.zeros(truth.shape, dtype=np.uint8)
    kinds[(truth > 0) & (prediction == 0)] = 1
    kinds[(truth == 0) & (prediction > 0)] = 2
    kinds[(truth > 0) & (prediction > 0) & (truth != prediction)] = 3
    colors = np.array([(0, 0, 0), MISSED, EXTRA, CONFUSED], dtype=np.uint8)
    return _layer(colors[kinds], kinds)


def _layer(colors: Pixels, classes: Array) -> Pixels:
    opacity = np.where(_outline(classes), 1.0, _FILL_OPACITY * (classes > 0))
    return np.concatenate([colors, np.round(255.0 * opacity).astype(np.uint8)[..., None]], axis=-1)


def png_data_uri(pixels: Pixels) -> str:
    """The picture, grey (h, w) or with transparency (h, w, 4), as a `data:` address for an `img`."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    colored = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=-1)
    # No version of the drawing library inside: the same facts give the same bytes.
    imsave(buffer, colored, format="png", metadata={"Software": "voxelocity"}, pil_kwargs={"optimize": True})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _outline(classes: Array) -> npt.NDArray[np.bool_]:
    """Pixels of a class next to another class or the background, along rows and columns."""
    edge = np.zeros(classes.shape, dtype=bool)
    for axis in (0, 1):
        for distance in (-1, 1):
            index = np.clip(np.arange(classes.shape[axis]) + distance, 0, classes.shape[axis] - 1)
            edge |= classes.take(index, axis=axis) != classes
    return edge & (classes > 0)
