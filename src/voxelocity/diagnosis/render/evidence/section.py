"""How a section of evidence is made."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from voxelocity.report.document import Section, Table, Text


def section(key: str, title: str, tables: Sequence[Table], *, hint: str = "") -> Section:
    """Tables that answer one question, with how to read them."""
    return Section(key=key, title=title, blocks=[*([Text(text=hint, is_hint=True)] if hint else []), *tables])


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
