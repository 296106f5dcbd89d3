"""How the parts of the watched time look: one letter, one color of the terminal and one of the page for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxelocity.diagnosis.result import Share


@dataclass(frozen=True, kw_only=True)
class Look:
    """A part's look, the same on every screen and page.

    Attributes:
        letter: one capital that stands for it where there is no color.
        terminal: background color, as rich names it.
        style: class of the style sheet, "part-1".
    """

    letter: str
    terminal: str
    style: str


# In the order of a bar: no two that lie side by side look alike to any color vision.
_LOOKS = {
    "waiting for data": Look(letter="W", terminal="yellow", style="part-5"),
    "copy to the device": Look(letter="C", terminal="magenta", style="part-4"),
    "forward": Look(letter="F", terminal="cyan", style="part-1"),
    "backward": Look(letter="B", terminal="bright_blue", style="part-3"),
    "optimizer": Look(letter="O", terminal="green", style="part-2"),
    "validation": Look(letter="V", terminal="bright_magenta", style="part-8"),
    "saving": Look(letter="S", terminal="bright_cyan", style="part-7"),
    "epoch start": Look(letter="E", terminal="bright_yellow", style="part-6"),
    "other": Look(letter="-", terminal="white", style="part-other"),
}
_KEYS = {"wait": "waiting for data", "copy": "copy to the device", "optimizer": "optimizer"}


def look_of(name: str) -> Look:
    """The look of a part, by its name in a split or its key in a step; a part that nobody foresaw looks like the rest,
    with its own first letter.
    """
    known = _LOOKS.get(_KEYS.get(name, name))
    return known or Look(letter=name[:1].upper() or "-", terminal="white", style="part-other")


def name_of(key: str) -> str:
    """The name of a step's part as people read it."""
    return _KEYS.get(key, key)


def shown(split: Iterable[Share]) -> list[Share]:
    """The parts that took any time."""
    return [share for share in split if share.seconds > 0.0]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each share gets: they sum to it, and the largest remainders are rounded up.

    A share above nothing gets a cell as long as there are as many cells as shares.
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
