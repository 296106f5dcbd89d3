"""Figures as findings and verdicts print them: shares, counts of steps, places in code."""

from __future__ import annotations

from collections.abc import Sequence


def percent(share: float) -> str:
    """ "61 %", and "3.2 %" below ten."""
    return f"{share * 100:.1f} %" if share < 0.0995 else f"{share * 100:.0f} %"


def shape_text(shape: Sequence[int]) -> str:
    """ "2 × 1 × 96 × 96 × 96"."""
    return " × ".join(str(length) for length in shape)


def at(where: str) -> str:
    """ " at train.py:12", or nothing if the place is not known."""
    return f" at {where}" if where else ""


def clause(title: str) -> str:
    """A title as the end of a sentence; names in capitals and code keep their form."""
    return title if title[1:2].isupper() or not title[:1].isalpha() else title[:1].lower() + title[1:]
