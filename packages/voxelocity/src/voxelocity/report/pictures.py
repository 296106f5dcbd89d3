"""Pictures: the progress of a run that is still going, and slices of scans to embed in a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.report.records import RunFacts
from voxelocity_observe.core.quantities import dice_text, duration_text
from voxelocity_observe.document.charts import (
    CLASS_COLORS,
    LIGHT_COLORS,
    Series,
    class_color,
    draw_time_axes,
    literally,
    smoothed,
    thinned,
    write_png,
)

PLANES = ("axial", "coronal", "sagittal")
_FILL_OPACITY = 0.55
MISSED, EXTRA, CONFUSED = (208, 69, 46), (47, 138, 196), (192, 96, 155)
"""Colors of a difference: truth that was not predicted, prediction that is not true, another class."""
Pixels = npt.NDArray[np.uint8]


def render_progress_png(run: RunFacts, path: str | Path) -> Path:
    """The path, which now holds a picture of loss and Dice over time; it is replaced in one move.

    Takes 0.2 s on one core, and 0.5 s more for the first picture of a process.

    Raises:
        OutputError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(9.0, 3.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08), dpi=110)
    # Short runs may never be validated on the way.
    loss_axes, *others = figure.subplots(1, 2 if run.validations else 1, squeeze=False)[0]
    until_s = run.seconds
    draw_time_axes(loss_axes, loss_series(run), y_label="loss", until_s=until_s, colors=LIGHT_COLORS)
    for dice_axes in others:
        draw_time_axes(
            dice_axes,
            dice_series(run),
            y_label="Dice",
            y_limits=(0.0, 1.0),
            target=run.target_dice,
            until_s=until_s,
            colors=LIGHT_COLORS,
        )
        if dice_axes.get_legend_handles_labels()[1]:
            dice_axes.legend(loc="lower right", frameon=False, labelcolor=LIGHT_COLORS["chart-ink"])
    figure.suptitle(_title(run), fontsize=11, color=LIGHT_COLORS["chart-ink"])
    return write_png(figure, path)


def loss_series(run: RunFacts) -> list[Series]:
    """The loss as measured, faint, and smoothed, strong."""
    points = thinned([(record.time_s, record.loss) for record in run.steps])
    if len(points) < 20:
        return [Series(points=points)]
    return [Series(points=points, color="accent-faint", style="thin"), Series(points=smoothed(points))]


def dice_series(run: RunFacts) -> list[Series]:
    """The mean Dice, strong, over one thin line per class where there are two classes to seven."""
    classes = run.foreground if 2 <= len(run.foreground) <= len(CLASS_COLORS) else ()
    lines = [
        Series(
            points=[(record.time_s, record.dice[name]) for record in run.validations if name in record.dice],
            color=f"class-{index}",
            name=literally(name),
            style="thin",
        )
        for index, name in enumerate(classes, start=1)
    ]
    mean = Series(points=[(r.time_s, r.mean_dice) for r in run.validations], color="ink", name="mean", has_markers=True)
    return [*lines, mean]


def _title(run: RunFacts) -> str:
    # A network that has not learned has no headline.
    best = None if run.unlearned else run.best_validation
    dice = "" if best is None else f", best Dice {dice_text(best.mean_dice)}"
    return f"{literally(run.dataset.name)}: step {run.step:,}, {duration_text(run.seconds)}{dice}"


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


def painted(image: Array, layer: Pixels) -> Pixels:
    """A layer (h, w, 4) on a grey image (h, w) uint8, as (h, w, 3) uint8."""
    opacity = layer[..., 3:] / 255.0
    mixed: Pixels = np.round(image[..., None] * (1.0 - opacity) + layer[..., :3] * opacity).astype(np.uint8)
    return mixed


def png_bytes(pixels: Pixels) -> bytes:
    """The picture, grey (h, w), in color (h, w, 3) or with transparency (h, w, 4)."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    colored = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=-1)
    # No version of the drawing library inside: the same facts give the same bytes.
    imsave(buffer, colored, format="png", metadata={"Software": "voxelocity"})
    return buffer.getvalue()


def png_data_uri(pixels: Pixels) -> str:
    """`png_bytes` as a `data:` address for an `img`."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode("ascii")


def _outline(classes: Array) -> npt.NDArray[np.bool_]:
    """Pixels of a class next to another class or the background, along rows and columns."""
    edge = np.zeros(classes.shape, dtype=bool)
    for axis in (0, 1):
        for distance in (-1, 1):
            index = np.clip(np.arange(classes.shape[axis]) + distance, 0, classes.shape[axis] - 1)
            edge |= classes.take(index, axis=axis) != classes
    return edge & (classes > 0)
