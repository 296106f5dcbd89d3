"""Line charts as SVG that takes its colors and fonts from the page around it, so that it follows light and dark.

Matplotlib draws with stand-in colors; afterwards each becomes a variable of the style sheet (`templates/style.css`).
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxelocity_observe.core.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
ChartStyle = Literal["strong", "thin", "faint"]

MAX_POINTS = 240
_SIZE_INCH = (6.0, 3.1)
_FONT_SIZE = 12.0
_LINE_WIDTHS = {"strong": 2.2, "thin": 1.3, "faint": 1.0}
STAND_INS = {
    "chart-ink": "#010102",
    "chart-grid": "#010103",
    "chart-target": "#010104",
    "ink": "#010101",
    "accent": "#010105",
    "accent-faint": "#010106",
    "baseline": "#010107",
    "part-other": "#010108",
    **{f"class-{i}": f"#0102{i:02x}" for i in range(1, 8)},
    **{f"part-{i}": f"#0103{i:02x}" for i in range(1, 13)},
}
_TIME_UNITS = ((172_800.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))

Color = tuple[int, int, int]
# The hues of Okabe and Ito, "Color Universal Design", 2008, brought to one lightness: each stands out 3 to 1 from a
# light page, from a dark one and from the grey of a scan.
CLASS_COLORS: tuple[Color, ...] = (
    (184, 122, 0),
    (47, 138, 196),
    (0, 145, 106),
    (192, 96, 155),
    (208, 69, 46),
    (122, 111, 208),
    (140, 123, 117),
)
_PART_COLORS = (
    "#0f6f6a",
    "#5fa8a3",
    "#35607f",
    "#8fb3cc",
    "#a8843c",
    "#d8c28c",
    "#7c6a94",
    "#bfb2cf",
    "#a4506a",
    "#dda3b4",
    "#5f7d32",
    "#b3c98c",
)


def class_color(index: int) -> Color:
    """The color of class `index` (1 is the first foreground class) over a scan.

    Beyond the seventh class the colors return, each time half as far from white.
    """
    turn, place = divmod(index - 1, len(CLASS_COLORS))
    fade = 0.5 ** (turn % 3)
    red, green, blue = CLASS_COLORS[place]
    return (_towards_white(red, fade), _towards_white(green, fade), _towards_white(blue, fade))


def css(color: Color) -> str:
    """A color for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*color)


def _towards_white(value: int, fade: float) -> int:
    return round(255 - (255 - value) * fade)


LIGHT_COLORS = {
    "chart-ink": "#4a5560",
    "chart-grid": "#dfe3e7",
    "chart-target": "#9a5b00",
    "ink": "#17212b",
    "accent": "#0f6f6a",
    "accent-faint": "#b3d5d2",
    "part-other": "#c9d0d6",
    **{f"class-{index}": css(color) for index, color in enumerate(CLASS_COLORS, start=1)},
    **{f"part-{index}": color for index, color in enumerate(_PART_COLORS, start=1)},
}
"""The light colors of the style sheet, for pictures; their text is a little darker."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart.

    Attributes:
        points: (seconds, value), in order; those that are not finite are left out.
        color: a color variable of the style sheet, without its dashes.
        name: for a legend inside the picture; pages have theirs next to it.
    """

    points: Points
    color: str = "accent"
    name: str = ""
    style: ChartStyle = "strong"
    has_markers: bool = False


def time_chart(
    name: str,
    series: Sequence[Series],
    *,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
    target: float | None = None,
    until_s: float = 0.0,
) -> str:
    """An SVG element of lines over the seconds of a run; the time axis takes the unit that suits the longest line.

    Args:
        name: unique within the page; all ids begin with it. The same arguments give the same text.
        series: drawn in order, later ones on top.
        y_label: of the value axis.
        y_limits: of the value axis; fitted to the lines if not given.
        target: a value to mark with a dashed line.
        until_s: the time axis reaches at least this far, so that charts of one run can be compared by eye.
    """
    with drawing(name):
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE_INCH, layout="constrained")
        draw_time_axes(figure.add_subplot(), series, y_label=y_label, y_limits=y_limits, target=target, until_s=until_s)
        return inline(figure, name)


def stacked_chart(
    name: str, layers: Sequence[Series], *, x_label: str, y_label: str, y_limit: float | None = None
) -> str:
    """An SVG element of layers on top of each other, a column for each point: no line implies values in between.

    Args:
        name: unique within the page; all ids begin with it. The same arguments give the same text.
        layers: the lowest first; all have their points at the same numbers, which count something.
        x_label: what is counted.
        y_label: of the value axis, which begins at 0.
        y_limit: where the value axis ends, so that one outlier does not flatten the rest; fitted if not given.
    """
    with drawing(name):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        # A column reaches half way to its neighbors; the outermost ones as far as the first and the last number.
        numbers = [number for number, _ in layers[0].points]
        edges = [numbers[0] - 0.5, *numbers, numbers[-1] + 0.5]
        heights = [[value for _, value in layer.points] for layer in layers]
        figure = Figure(figsize=_SIZE_INCH, layout="constrained")
        axes = figure.add_subplot()
        axes.stackplot(
            edges,
            *([values[0], *values, values[-1]] for values in heights),
            colors=[STAND_INS[layer.color] for layer in layers],
            linewidth=0,
            step="mid",
        )
        axes.set_ylim(0.0, y_limit)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel(x_label, color=STAND_INS["chart-ink"])
        axes.set_ylabel(y_label, color=STAND_INS["chart-ink"])
        calm(axes, STAND_INS)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        return inline(figure, name)


def xy_chart(
    name: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    crosses: Sequence[float] = (),
    marked: Sequence[float] = (),
    are_lines: bool = False,
    has_log_x: bool = False,
) -> str:
    """An SVG element of values over a number that is not a time: points, or lines where neighbors belong together.

    Args:
        name: unique within the page; all ids begin with it. The same arguments give the same text.
        series: drawn in order, later ones on top.
        x_label: of the horizontal axis.
        y_label: of the value axis.
        crosses: numbers without a value, drawn as crosses along the lower edge.
        marked: numbers to mark with a dashed line.
        are_lines: whether points are joined.
        has_log_x: whether equal steps are equal factors.
    """
    with drawing(name):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=_SIZE_INCH, layout="constrained")
        axes = figure.add_subplot()
        for line in series:
            points = [point for point in line.points if math.isfinite(point[1])]
            if points:
                style: dict[str, Any] = (
                    {"linewidth": _LINE_WIDTHS[line.style]} if are_lines else {"linestyle": "", "marker": "o"}
                )
                axes.plot(*zip(*points, strict=True), color=STAND_INS[line.color], markeredgewidth=0, **style)
        if crosses:
            edge = axes.get_xaxis_transform()
            axes.plot(
                crosses, [0.04] * len(crosses), "x", color=STAND_INS["chart-target"], transform=edge, clip_on=False
            )
        for number in marked:
            axes.axvline(number, color=STAND_INS["chart-target"], linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        axes.set_xlabel(x_label, color=STAND_INS["chart-ink"])
        axes.set_ylabel(y_label, color=STAND_INS["chart-ink"])
        calm(axes, STAND_INS)
        if has_log_x:
            axes.set_xscale("log")
            axes.tick_params(which="both", colors=STAND_INS["chart-ink"], length=0)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        return inline(figure, name)


def time_unit(longest_s: float) -> tuple[float, str]:
    """The seconds and the name of the unit that suits an axis of this length."""
    return next(((size, name) for least, size, name in _TIME_UNITS if longest_s >= least), (1.0, "seconds"))


def draw_time_axes(
    axes: Axes,
    series: Sequence[Series],
    *,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
    target: float | None = None,
    until_s: float = 0.0,
    colors: dict[str, str] | None = None,
) -> None:
    """Draws lines over seconds into existing axes, with the colors of `colors` or, without it, the stand-ins."""
    colors = colors or STAND_INS
    longest_s = max((seconds for line in series for seconds, _ in line.points), default=0.0)
    longest_s = max(longest_s, until_s) or 1.0
    unit_s, unit = time_unit(longest_s)
    for line in series:
        points = [(seconds / unit_s, value) for seconds, value in line.points if math.isfinite(value)]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=colors[line.color],
                label=line.name,
                linewidth=_LINE_WIDTHS[line.style],
                marker="o" if (line.has_markers and len(points) <= 40) or len(points) == 1 else "",
                markersize=4.5,
                markeredgewidth=0,
                solid_capstyle="round",
            )
    if target is not None:
        axes.axhline(target, color=colors["chart-target"], linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    if y_limits is not None:
        axes.set_ylim(*y_limits)
    axes.set_xlim(0.0, longest_s / unit_s * 1.02)
    axes.set_xlabel(f"time ({unit})", color=colors["chart-ink"])
    axes.set_ylabel(y_label, color=colors["chart-ink"])
    calm(axes, colors)


def thinned(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most `limit` points, each the mean of its neighbors; the points themselves where there are few enough."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= limit:
        return finite
    edges = [round(i * len(finite) / limit) for i in range(limit + 1)]
    groups = [finite[a:b] for a, b in itertools.pairwise(edges)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def smoothed(points: Points) -> Points:
    """Each value as the mean of its neighborhood, about a fifteenth of the line, so that no bend is delayed."""
    reach = max(1, len(points) // 30)
    smooth = []
    for i, (x, _) in enumerate(points):
        window = points[max(0, i - reach) : i + reach + 1]
        smooth.append((x, sum(y for _, y in window) / len(window)))
    return smooth


def calm(axes: Axes, colors: dict[str, str]) -> None:
    """Horizontal grid, no frame, few ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.set_axisbelow(True)
    axes.grid(axis="y", color=colors["chart-grid"], linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(colors["chart-grid"])
    axes.tick_params(colors=colors["chart-ink"], length=0, pad=5)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """Matplotlib set for one chart of a page; `name` is unique within the page."""
    from matplotlib import rc_context

    # Text stays text, so that it can be searched, read aloud and set in the font of the page.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": _FONT_SIZE, "axes.unicode_minus": False}
    with rc_context(settings):
        yield


def inline(figure: Figure, name: str) -> str:
    """The figure as an element to embed in a page: unique ids, no fonts, no foreign addresses, our colors."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"\s*font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'\sid="([^"]+)"', rf' id="{name}-\1"', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 aria-hidden="true" focusable="false"', svg, count=1)
    for variable, stand_in in STAND_INS.items():
        svg = svg.replace(stand_in, f"var(--{variable})")
    return svg.strip()


def write_png(figure: Figure, path: str | Path) -> Path:
    """The path, which now holds the figure as a picture; it is replaced in one move.

    Raises:
        OutputError: the file cannot be written.
    """
    buffer = io.BytesIO()
    # No version of the drawing library inside: the same facts give the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return write_whole(path, buffer.getvalue())


def literally(text: str) -> str:
    """The text for Matplotlib, where a dollar sign begins a formula and a leading underscore hides a legend entry."""
    return text.replace("$", r"\$").lstrip("_")
