"""Curves in space: from three sides as SVG, with what lies behind them, and as pictures to scroll around them."""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voxelocity_observe.document.blocks import SliceFilm
from voxelocity_observe.document.charts import CLASS_COLORS, STAND_INS, drawing, inline, literally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL_SIZE, _LONGEST_LINE = 9.0, 20
# Between the inks of light and dark pages, because a picture cannot follow them.
_SHADOW_COLOR, _SHADOW_OPACITY = "#7b8794", 0.55
_FRAMES, _FRAME_INCHES, _FRAME_DPI, _CLASS = 24, 3.0, 100, "class-"
VIEWS = {"from the right": (1, 2), "from behind": (0, 2), "from above": (0, 1)}
"""How `projections` looks at space: the horizontal and the vertical axis in RAS."""


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """A volume seen from one side, to lie behind curves.

    Attributes:
        picture: (h, w), 0 for nothing to 1, the first row at the top.
        extent_mm: left, right, bottom and top edge in RAS mm.
    """

    picture: Any
    extent_mm: tuple[float, float, float, float]


def projections(
    name: str,
    columns: Mapping[str, Sequence[tuple[Sequence[Any], str]]],
    *,
    behind: Mapping[str, Shadow] | None = None,
) -> str:
    """An SVG element of curves in space, one column each, seen as `VIEWS` has it.

    Args:
        name: unique within the page.
        columns: by title, curves as arrays (p, 3) in RAS mm, with the color variable they are drawn in. Later ones lie
            on top.
        behind: by view, what lies behind the curves of every column, such as the brain.
    """
    with drawing(name):
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2.0 * len(columns), 2.1 * len(VIEWS)), layout="constrained")
        panels = figure.subplots(len(VIEWS), len(columns), squeeze=False)
        for column, (title, layers) in enumerate(columns.items()):
            for row, (view, axes) in enumerate(VIEWS.items()):
                panel = panels[row, column]
                for curves, color in layers:
                    flat = [curve[:, list(axes)] for curve in curves]
                    panel.add_collection(LineCollection(flat, colors=STAND_INS[color], linewidths=0.6))
                panel.autoscale()
                if behind:
                    _draw_shadow(panel, behind[view])
                panel.set_aspect("equal")
                panel.set_axis_off()
                words = literally(_in_lines(title)) if row == 0 else view
                panel.set_title(words, fontsize=_SMALL_SIZE, color=STAND_INS["chart-ink"])
        return inline(figure, name)


def turned(columns: Mapping[str, Sequence[tuple[Sequence[Any], str]]]) -> list[tuple[str, Sequence[SliceFilm]]]:
    """Pictures of curves side by side, each turned further around the axis of the head; one film a column.

    Args:
        columns: by title, curves as arrays (p, 3) in RAS mm, with their color variable, one of the classes'.
    """
    import numpy as np

    curves = [curve for layers in columns.values() for found, _ in layers for curve in found]
    points = np.concatenate([np.zeros((1, 3)), *curves])
    low, high = points[1:].min(axis=0, initial=np.inf), points[1:].max(axis=0, initial=-np.inf)
    center = (low + high) / 2.0 if curves else np.zeros(3)
    around = np.linalg.norm(points[1:, :2] - center[:2], axis=1).max(initial=1.0)
    up = np.abs(points[1:, 2] - center[2]).max(initial=1.0)
    films: list[tuple[str, Sequence[SliceFilm]]] = []
    for title, layers in columns.items():
        centered = [([curve - center for curve in found], color) for found, color in layers]
        image = _filmed(centered, width_mm=2.1 * around, height_mm=2.1 * up)
        films.append(
            (title, [SliceFilm(plane="turning", count=_FRAMES, ratio=float(around / up), image=image, layers={})])
        )
    return films


def _filmed(layers: Sequence[tuple[Sequence[Any], str]], *, width_mm: float, height_mm: float) -> str:
    """All turns of curves around their middle as one picture, a `data:` address."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_FRAME_INCHES * _FRAMES, _FRAME_INCHES * height_mm / width_mm), dpi=_FRAME_DPI)
    panel = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    for frame in range(_FRAMES):
        angle, middle = 2.0 * math.pi * frame / _FRAMES, (frame + 0.5) * width_mm
        for curves, color in layers:
            across = [math.cos(angle) * curve[:, 0] + math.sin(angle) * curve[:, 1] + middle for curve in curves]
            flat = [list(zip(x, curve[:, 2], strict=True)) for x, curve in zip(across, curves, strict=True)]
            rgb = [value / 255.0 for value in CLASS_COLORS[int(color.removeprefix(_CLASS)) - 1]]
            panel.add_collection(LineCollection(flat, colors=[rgb], linewidths=0.8, antialiaseds=False))
    panel.set_xlim(0.0, _FRAMES * width_mm)
    panel.set_ylim(-height_mm / 2.0, height_mm / 2.0)
    panel.set_axis_off()
    buffer = io.BytesIO()
    # No version of the drawing library inside: the same facts give the same bytes.
    figure.savefig(buffer, format="png", facecolor="black", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _draw_shadow(panel: Axes, shadow: Shadow) -> None:
    from matplotlib.colors import to_rgb

    color = to_rgb(_SHADOW_COLOR)
    pixels = [[(*color, _SHADOW_OPACITY * float(value)) for value in row] for row in shadow.picture]
    panel.imshow(pixels, extent=shadow.extent_mm, zorder=0, interpolation="bilinear")
    left, right, bottom, top = shadow.extent_mm
    panel.set_xlim(left, right)
    panel.set_ylim(bottom, top)


def _in_lines(title: str) -> str:
    """A title in lines, broken between words; a capital begins one."""
    return "\n".join(textwrap.wrap(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]+", " ", title), _LONGEST_LINE))
