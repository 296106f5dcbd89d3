"""How the parts of the watched time look: one letter, one terminal color and one page color for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxelocity.core.time_parts import TimeShare, part_label


@dataclass(frozen=True, kw_only=True)
class PartStyle:
    """A part's look, the same on every screen and page.

    Attributes:
        letter: one capital that stands for it where there is no color.
        terminal: background color, as rich names it.
        color: on a page, a variable of the style sheet.
    """

    letter: str
    terminal: str
    color: str

    @property
    def css(self) -> str:
        """The color on a page as a CSS value."""
        return f"var(--{self.color})"


# In the order of a bar: no two neighbors look alike to any color vision.
_LOOKS = {
    "waiting for data": PartStyle(letter="W", terminal="yellow", color="part-5"),
    "copy to the device": PartStyle(letter="C", terminal="magenta", color="part-4"),
    "forward": PartStyle(letter="F", terminal="cyan", color="part-1"),
    "backward": PartStyle(letter="B", terminal="bright_blue", color="part-3"),
    "optimizer": PartStyle(letter="O", terminal="green", color="part-2"),
    "validation": PartStyle(letter="V", terminal="bright_magenta", color="part-8"),
    "saving": PartStyle(letter="S", terminal="bright_cyan", color="part-7"),
    "epoch start": PartStyle(letter="E", terminal="bright_yellow", color="part-6"),
    "other": PartStyle(letter="-", terminal="white", color="part-other"),
}


def style_for(name: str) -> PartStyle:
    """The look of a part, by its name in a split or its key in a step; an unknown part looks like "other",
    with its own first letter.
    """
    known = _LOOKS.get(part_label(name))
    return known or PartStyle(letter=name[:1].upper() or "-", terminal="white", color="part-other")


def shown(split: Iterable[TimeShare]) -> list[TimeShare]:
    """The parts that took any time."""
    return [share for share in split if share.seconds > 0.0]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each share gets: they sum to `width`, and the largest remainders are rounded up.

    A share above zero gets at least one cell if there are as many cells as shares.
    """
    whole = sum(shares)
    if whole <= 0.0:
        return [0] * len(shares)
    exact = [share / whole * width for share in shares]
    least = 1 if len(shares) <= width else 0
    given = [max(int(value), least if share > 0.0 else 0) for value, share in zip(exact, shares, strict=True)]
    while sum(given) < width:
        place = max(range(len(exact)), key=lambda i: exact[i] - given[i])
        given[place] += 1
    while sum(given) > width:
        place = max((i for i in range(len(given)) if given[i] > least), key=lambda i: given[i] - exact[i])
        given[place] -= 1
    return given
