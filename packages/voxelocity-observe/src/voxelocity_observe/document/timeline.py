"""Charts of what a machine did: several lines, bands and named stretches on one time axis, as SVG or in a picture.

A chart is described first, as plain data, and drawn from that: the page and the picture share the description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from voxelocity_observe.document.charts import STAND_INS, Points, calm, drawing, inline, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCH = (6.0, 2.5)
# The same for every chart, so that charts below one another on a page share their time axis.
_EDGES = {"left": 0.135, "right": 0.985, "top": 0.96, "bottom": 0.215}
_LINE_WIDTH = {False: 1.9, True: 1.3}
_DASHES = (0, (4, 3))

Stroke = Literal["solid", "dashed", "dotted"]
_STROKES: Mapping[Stroke, str | tuple[int, tuple[float, float]]] = {
    "solid": "-",
    "dashed": (0, (6.0, 2.0)),
    "dotted": (0, (1.2, 1.6)),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line. A value that is not finite is a gap in it.

    Attributes:
        name: for the legend.
        color: a color variable of the style sheet, without its dashes.
        points: (seconds, value), in order.
    """

    name: str
    color: str
    points: Points
    is_thin: bool = False
    stroke: Stroke = "solid"


@dataclass(frozen=True, kw_only=True)
class Band:
    """What lies between two values over time, drawn faintly behind the lines; gaps as in `Line`.

    Attributes:
        points: (seconds, low, high), in order.
    """

    name: str
    color: str
    points: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, kw_only=True)
class TimeBand:
    """A named stretch of time, drawn as a faint ground. `color` is a variable of the style sheet, or "#rrggbb"."""

    name: str
    color: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One chart.

    Attributes:
        key: unique within the page.
        title: what it shows, in a few words.
        y_label: the quantity and its unit.
        limit: a value to mark with a dashed line, such as the available memory; `limit_name` is for the legend.
        y_top: the value axis reaches from 0 to here; as far as the lines do if not given.
        until_s: the time axis reaches this far.
    """

    key: str
    title: str
    y_label: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    limit: float | None = None
    limit_name: str = ""
    y_top: float | None = None
    until_s: float


def timeline_svg(timeline: Timeline, stretches: Sequence[TimeBand] = ()) -> str:
    """The chart as an SVG element that takes its colors and fonts from the page around it.

    The same description gives the same text. About 0.1 s of one core.
    """
    with drawing(timeline.key):
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE_INCH)
        figure.subplots_adjust(**_EDGES)
        draw_timeline(figure.add_subplot(), timeline, stretches, colors=STAND_INS)
        return inline(figure, timeline.key)


def draw_timeline(
    axes: Axes, timeline: Timeline, stretches: Sequence[TimeBand] = (), *, colors: Mapping[str, str]
) -> None:
    """Draws the chart into existing axes; `colors` gives each variable of the style sheet a color of Matplotlib's."""
    longest_s = timeline.until_s or 1.0
    unit_s, unit = time_unit(longest_s)
    for stretch in stretches:
        color = colors.get(stretch.color, stretch.color)
        axes.axvspan(stretch.start_s / unit_s, stretch.stop_s / unit_s, facecolor=color, alpha=0.2, linewidth=0)
    for band in timeline.bands:
        times, lows, highs = zip(*band.points, strict=True) if band.points else ((), (), ())
        axes.fill_between(
            [time / unit_s for time in times],
            lows,
            highs,
            where=[math.isfinite(low + high) for low, high in zip(lows, highs, strict=True)],
            color=colors[band.color],
            alpha=0.25,
            linewidth=0,
            label=band.name,
        )
    for line in timeline.lines:
        _draw_line(axes, line, unit_s, colors)
    if timeline.limit is not None:
        axes.axhline(
            timeline.limit,
            color=colors["chart-target"],
            linewidth=1.2,
            linestyle=_DASHES,
            zorder=1,
            label=timeline.limit_name,
        )
    axes.set_ylim(0.0, timeline.y_top or _top(timeline))
    # A little beyond, so that a marker at the end is fully visible.
    axes.set_xlim(0.0, longest_s / unit_s * 1.01)
    axes.set_xlabel(f"time ({unit})", color=colors["chart-ink"])
    axes.set_ylabel(timeline.y_label, color=colors["chart-ink"])
    calm(axes, dict(colors))


def _draw_line(axes: Axes, line: Line, unit_s: float, colors: Mapping[str, str]) -> None:
    if not line.points:
        return
    times, values = zip(*line.points, strict=True)
    # A point between two gaps has no line to stand on.
    is_known = [False, *map(math.isfinite, values), False]
    alone = [i for i in range(len(values)) if is_known[i : i + 3] == [False, True, False]]
    axes.plot(
        [time / unit_s for time in times],
        [value if math.isfinite(value) else math.nan for value in values],
        color=colors[line.color],
        linewidth=_LINE_WIDTH[line.is_thin],
        linestyle=_STROKES[line.stroke],
        label=line.name,
        marker="o" if alone else "",
        markevery=alone,
        markersize=4.5,
        markeredgewidth=0,
        solid_capstyle="round",
    )


def _top(timeline: Timeline) -> float:
    """A little more than the largest value, so that no line runs along the edge."""
    values = [value for line in timeline.lines for _, value in line.points]
    values += [high for band in timeline.bands for _, _, high in band.points]
    if timeline.limit is not None:
        values.append(timeline.limit)
    return max((value for value in values if math.isfinite(value)), default=0.0) * 1.08 or 1.0
