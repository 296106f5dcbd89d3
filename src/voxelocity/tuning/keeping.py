"""Keeps what a tuning found where the plan finds it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxelocity.core.config import flatten
from voxelocity.observe.measured import FOLDER_NAME
from voxelocity.planning import Plan, Planned, Tuned, keep_tuned, read_tuned, tuned_key


def keep_settings(
    planned: Planned,
    values: Mapping[str, Any],
    *,
    searched: Collection[str],
    goal: str,
    ratios: Sequence[float],
    peak_bytes: int,
    cache: Path,
) -> Path | None:
    """Keeps tuned settings for later plans; returns the file, None if it cannot be written.

    Of what an earlier tuning found, the keys that this one did not search stay, and those that it began with and left.

    Args:
        planned: the plan that was tuned.
        values: keys of the plan that change; empty if its own settings are best.
        searched: keys that could have changed.
        goal: what was tuned for.
        ratios: seconds with them over seconds with the plan's own, by round.
        peak_bytes: the most memory that they took.
        cache: the cache folder.
    """
    about, own = _about(planned), flatten(Plan, planned.plan.to_plain())
    before = read_tuned(cache / FOLDER_NAME, about)
    stays = {
        key: value
        for key, value in ({} if before is None else before.values).items()
        if key not in values and (key not in searched or own.get(key) == value)
    }
    tuned = Tuned(
        values={**stays, **values},
        date=time.strftime("%Y-%m-%d"),
        goal=goal,
        ratio=statistics.median(ratios) if ratios else 1.0,
        low=min(ratios, default=1.0),
        high=max(ratios, default=1.0),
        rounds=len(ratios),
        peak_bytes=peak_bytes,
    )
    if before is not None and stays:
        reasons = {key: before.found(key) for key in stays}
        tuned = replace(tuned, reasons=reasons, peak_bytes=max(peak_bytes, before.peak_bytes))
        # Nothing that this tuning measured is taken.
        tuned = tuned if values else replace(before, values=stays)
    return keep_tuned(cache / FOLDER_NAME, about, tuned)


def keep_value(planned: Planned, key: str, value: Any, *, reason: str, cache: Path) -> Path | None:
    """Keeps a single value next to those that were tuned before; the file, None if it cannot be written."""
    about = _about(planned)
    date = time.strftime("%Y-%m-%d")
    none = Tuned(values={}, date=date, goal="", ratio=1.0, low=1.0, high=1.0, rounds=0, peak_bytes=0)
    before = read_tuned(cache / FOLDER_NAME, about) or none
    reasons = {**before.reasons, key: f"tuned on {date}: {reason}"}
    tuned = replace(before, values={**before.values, key: value}, reasons=reasons)
    return keep_tuned(cache / FOLDER_NAME, about, tuned)


def _about(planned: Planned) -> dict[str, Any]:
    return tuned_key(planned.plan.to_plain(), planned.fingerprint, planned.machine)
