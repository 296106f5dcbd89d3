"""Curves in space as SVG, seen from three sides, with what lies behind them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voxelocity_observe.document.charts import STAND_INS, drawing, inline, literally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL_SIZE, _LONGEST_LINE = 9.0, 20
# Between the inks of light and dark pages, because a picture cannot follow them.
_SHADOW_COLOR, _SHADOW_OPACITY = "#7b8794", 0.55
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
