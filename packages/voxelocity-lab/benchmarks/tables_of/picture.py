"""The picture of the README: bars of the time until a Dice is reached, as SVG text made only from the result files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_COLORS = {
    "MONAI, fast recipe": "#8d99a6",
    "MONAI, plain script": "#c3ccd4",
    "Voxelocity, the peers' network": "#7cc4c5",
    "Voxelocity": "#0f8b8d",
}
_WIDTH, _LEFT, _RIGHT = 800, 235, 140
_BAR, _GAP, _GROUP_GAP, _TOP = 16, 4, 26, 44
_INK, _PAPER = "#24292f", "#ffffff"


def bars_svg(groups: Sequence[tuple[str, Sequence[tuple[float, str] | None]]], sides: Sequence[str], title: str) -> str:
    """Groups of horizontal bars, one bar a side; each group has a scale of its own, which ends at its longest bar.

    Args:
        groups: name of each, and length and label of each side's bar, None without one; an infinite one is drawn open
            at the right edge.
        sides: names, in the order of the bars.
        title: what readers without eyes are told.
    """
    parts, y = [_legend(sides)], _TOP
    for name, found in groups:
        bars = [(*bar, _COLORS[side]) for bar, side in zip(found, sides, strict=True) if bar is not None]
        height = len(bars) * (_BAR + _GAP)
        parts += [_name_line(line, y + height / 2 - 4 + 15 * i) for i, line in enumerate(_two_lines(name))]
        longest = max(length for length, *_ in bars if math.isfinite(length))
        is_open = any(math.isinf(length) for length, *_ in bars)
        for i, (length, label, color) in enumerate(bars):
            share = 1.0 if math.isinf(length) else length / longest * (0.8 if is_open else 1.0)
            width, top = share * (_WIDTH - _LEFT - _RIGHT), y + i * (_BAR + _GAP)
            parts.append(f'<rect x="{_LEFT}" y="{top}" width="{width:.0f}" height="{_BAR}" fill="{color}"/>')
            parts.append(
                f'<text x="{_LEFT + width + 6:.0f}" y="{top + _BAR - 4}" font-size="12" fill="{_INK}">'
                f"{escape(label)}</text>"
            )
        y += height + _GROUP_GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}" '
            f'font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{y}" rx="6" fill="{_PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _legend(sides: Sequence[str]) -> str:
    # A letter of 12 pixels' height is about 6.5 wide.
    widths = [48 + 6.5 * len(side) for side in sides]
    places = [round(_LEFT / 2 + sum(widths[:i])) for i in range(len(sides))]
    return "\n".join(
        f'<rect x="{x}" y="14" width="12" height="12" fill="{_COLORS[side]}"/>'
        f'<text x="{x + 18}" y="24" font-size="12" fill="{_INK}">{escape(side)}</text>'
        for x, side in zip(places, sides, strict=True)
    )


def _two_lines(name: str) -> list[str]:
    """The name, cut at the space nearest to its middle where it is long."""
    if len(name) <= 26:
        return [name]
    cut = min((i for i, letter in enumerate(name) if letter == " "), key=lambda i: abs(i - len(name) / 2))
    return [name[:cut], name[cut + 1 :]]


def _name_line(text: str, y: float) -> str:
    return f'<text x="{_LEFT - 10}" y="{y:.0f}" font-size="12" text-anchor="end" fill="{_INK}">{escape(text)}</text>'
