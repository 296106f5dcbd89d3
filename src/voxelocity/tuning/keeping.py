"""Keeps what a tuning found where the plan finds it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxelocity.observe.measured import FOLDER_NAME
from voxelocity.planning import Planned, Tuned, keep_tuned, read_tuned, tuned_key


def keep_settings(
    planned: Planned, values: Mapping[str, Any], *, goal: str, ratios: Sequence[float], peak_bytes: int, cache: Path
) -> Path:
    """Keeps tuned settings for later plans, in place of those of an earlier tuning; returns the file.

    Args:
        planned: the plan that was tuned.
        values: keys of the plan that change; empty if its own settings are best.
        goal: what was tuned for.
        ratios: seconds with them over seconds with the plan's own, by round.
        peak_bytes: the most memory that they took.
        cache: the cache folder.
    """
    tuned = Tuned(
        values=values,
        date=time.strftime("%Y-%m-%d"),
        goal=goal,
        ratio=statistics.median(ratios) if ratios else 1.0,
        low=min(ratios, default=1.0),
        high=max(ratios, default=1.0),
        rounds=len(ratios),
        peak_bytes=peak_bytes,
    )
    return keep_tuned(cache / FOLDER_NAME, _about(planned), tuned)


def keep_value(planned: Planned, key: str, value: Any, *, reason: str, cache: Path) -> Path:
    """Keeps a single value next to those that were tuned before; returns the file."""
    about = _about(planned)
    date = time.strftime("%Y-%m-%d")
    none = Tuned(values={}, date=date, goal="", ratio=1.0, low=1.0, high=1.0, rounds=0, peak_bytes=0)
    before = read_tuned(cache / FOLDER_NAME, about) or none
    reasons = {**before.reasons, key: f"tuned on {date}: {reason}"}
    tuned = replace(before, values={**before.values, key: value}, reasons=reasons)
    return keep_tuned(cache / FOLDER_NAME, about, tuned)


def _about(planned: Planned) -> dict[str, Any]:
    return tuned_key(planned.plan.to_plain(), planned.fingerprint, planned.machine)
