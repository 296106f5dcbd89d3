"""What label values mean, as ITK-SNAP and 3D Slicer read it: a name and a color for each."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping

# Steps of this share of the circle of hues never come near to an earlier one (the golden ratio).
_HUE_STEP = 0.618033988749895
_LIGHTS = ((0.65, 0.95), (0.5, 0.75), (0.85, 0.85))
_SNAP_HEAD = """\
################################################
# ITK-SnAP Label Description File
# File format:
# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL
# Fields:
#    IDX:   Zero-based index
#    -R-:   Red color component (0..255)
#    -G-:   Green color component (0..255)
#    -B-:   Blue color component (0..255)
#    -A-:   Label transparency (0.00 .. 1.00)
#    VIS:   Label visibility (0 or 1)
#    MSH:   Label mesh visibility (0 or 1)
#  LABEL:   Label description
################################################
"""


def class_color(value: int) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, of a label value: always the same, and unlike those of its neighbors."""
    saturation, brightness = _LIGHTS[value % len(_LIGHTS)]
    red, green, blue = colorsys.hsv_to_rgb(value * _HUE_STEP % 1.0, saturation, brightness)
    return round(255 * red), round(255 * green), round(255 * blue)


def snap_table(labels: Mapping[int, str]) -> bytes:
    """A label description file of ITK-SNAP (.label).

    Args:
        labels: names by value; 0 is the background.
    """
    lines = []
    for value, name in sorted(labels.items()):
        red, green, blue = class_color(value) if value else (0, 0, 0)
        shown = int(value != 0)
        color = f"{red:>5} {green:>4} {blue:>4}"
        lines.append(f'{value:>5} {color} {shown:>8} {shown:>2} {shown:>2}    "{_quotable(name)}"\n')
    return (_SNAP_HEAD + "".join(lines)).encode()


def slicer_table(labels: Mapping[int, str]) -> bytes:
    """A color table of 3D Slicer (.ctbl), in which names have no spaces.

    Args:
        labels: names by value; 0 is the background.
    """
    lines = [f"# Color table file, {len(labels)} values\n"]
    for value, name in sorted(labels.items()):
        red, green, blue = class_color(value) if value else (0, 0, 0)
        lines.append(f"{value} {'_'.join(name.split()) or 'unnamed'} {red} {green} {blue} {255 if value else 0}\n")
    return "".join(lines).encode()


def _quotable(name: str) -> str:
    return " ".join(name.split()).replace('"', "'") or "unnamed"
