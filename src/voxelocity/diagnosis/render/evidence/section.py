"""One section of evidence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from voxelocity.report.views import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """Tables that answer one question.

    Attributes:
        key: names it within a page.
        hint: how to read it.
    """

    key: str
    title: str
    tables: Sequence[Table]
    hint: str = ""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated linearly; needs at least one value."""
    if len(values) < 2:
        return values[0]
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 2)
    return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])


def median(values: Sequence[float]) -> float | None:
    """The median; None for no values."""
    return statistics.median(values) if values else None
