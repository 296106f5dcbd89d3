"""Keeps what a tuning found where the plan finds it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxelocity.core.config import flatten
from voxelocity.planning import CHANGE_RESULTS, Plan, Planned, Tuned, keep_tuned, read_tuned, results_key, tuned_key
from voxelocity_observe.core.measured import FOLDER_NAME


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

    Those that change what is learned are in a file of their own, which holds for less (`results_key`); it is the one
    returned if both are written.

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
    kept: Path | None = None
    for is_of_results in (False, True):
        keys = [key for key in {*values, *searched} if (key in CHANGE_RESULTS) == is_of_results]
        if not keys:
            continue
        tuned = Tuned(
            values={key: value for key, value in values.items() if key in keys},
            date=time.strftime("%Y-%m-%d"),
            goal=goal,
            ratio=statistics.median(ratios) if ratios else 1.0,
            low=min(ratios, default=1.0),
            high=max(ratios, default=1.0),
            rounds=len(ratios),
            peak_bytes=peak_bytes,
        )
        kept = _keep(planned, tuned, keys, cache, is_of_results=is_of_results)
    return kept


def _keep(
    planned: Planned, tuned: Tuned, searched: Collection[str], cache: Path, *, is_of_results: bool
) -> Path | None:
    """Keeps `tuned` with what an earlier tuning found for other keys."""
    about, own = _about(planned, is_of_results=is_of_results), flatten(Plan, planned.plan.to_plain())
    before = read_tuned(cache / FOLDER_NAME, about)
    stays = {
        key: value
        for key, value in ({} if before is None else before.values).items()
        if key not in tuned.values and (key not in searched or own.get(key) == value)
    }
    if before is not None and stays:
        reasons = {key: before.found(key) for key in stays}
        values, most_bytes = {**stays, **tuned.values}, max(tuned.peak_bytes, before.peak_bytes)
        # Without values of its own, nothing that this tuning measured is taken.
        tuned = (
            replace(tuned, values=values, reasons=reasons, peak_bytes=most_bytes)
            if tuned.values
            else replace(before, values=stays)
        )
    return keep_tuned(cache / FOLDER_NAME, about, tuned)


def keep_value(planned: Planned, key: str, value: Any, *, reason: str, cache: Path) -> Path | None:
    """Keeps a single value next to those that were tuned before; the file, None if it cannot be written."""
    about = _about(planned, is_of_results=key in CHANGE_RESULTS)
    date = time.strftime("%Y-%m-%d")
    none = Tuned(values={}, date=date, goal="", ratio=1.0, low=1.0, high=1.0, rounds=0, peak_bytes=0)
    before = read_tuned(cache / FOLDER_NAME, about) or none
    reasons = {**before.reasons, key: f"tuned on {date}: {reason}"}
    tuned = replace(before, values={**before.values, key: value}, reasons=reasons)
    return keep_tuned(cache / FOLDER_NAME, about, tuned)


def _about(planned: Planned, *, is_of_results: bool) -> dict[str, Any]:
    key_of = results_key if is_of_results else tuned_key
    return key_of(planned.plan.to_plain(), planned.fingerprint, planned.machine)
