"""The colors of classes and runs, distinct to readers with any color vision.

Source: Okabe and Ito, "Color Universal Design", 2008; black and yellow come last, as they vanish on scans and on paper.
"""

from __future__ import annotations

Color = tuple[int, int, int]

CLASS_COLORS: tuple[Color, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
    (240, 228, 66),
)


def class_color(index: int) -> Color:
    """The color of class `index` (1 is the first foreground class) over a scan.

    Beyond the seventh class the colors return, each time half as far from white.
    """
    turn, place = divmod(index - 1, len(CLASS_COLORS))
    fade = 0.5 ** (turn % 3)
    red, green, blue = CLASS_COLORS[place]
    return (_towards_white(red, fade), _towards_white(green, fade), _towards_white(blue, fade))


def css_color(index: int) -> str:
    """The color of class `index` for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*class_color(index))


def _towards_white(value: int, fade: float) -> int:
    return round(255 - (255 - value) * fade)
