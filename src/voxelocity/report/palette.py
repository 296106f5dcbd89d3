"""The colors of classes, the same in charts, legends and on slices.

The hues of Okabe and Ito, "Color Universal Design", 2008, brought to one lightness: each stands out 3 to 1 from a light
page, from a dark one and from the grey of a scan.
"""

from __future__ import annotations

Color = tuple[int, int, int]

CLASS_COLORS: tuple[Color, ...] = (
    (184, 122, 0),
    (47, 138, 196),
    (0, 145, 106),
    (192, 96, 155),
    (208, 69, 46),
    (122, 111, 208),
    (140, 123, 117),
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
    return css(class_color(index))


def css(color: Color) -> str:
    """A color for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*color)


def _towards_white(value: int, fade: float) -> int:
    return round(255 - (255 - value) * fade)
