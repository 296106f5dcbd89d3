"""What can be tuned of our own runs: keys of the plan with the values worth trying on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from typing import Any

from voxelocity.core.config import flatten
from voxelocity.data.cache import TIERS
from voxelocity.planning import CHANGE_RESULTS, Machine, Plan, Planned
from voxelocity.tuning.space import Knob, only, sizes
from voxelocity_observe.core.errors import ConfigError

ROUNDINGS = ("precision.channels_last", "precision.compile", "backend.cudnn_benchmark")
"""Keys that change results by roundings alone, as another machine does."""

_MOST_WINDOWS = {"cpu": 8, "cuda": 64}
_COMPILE = "precision.compile"


def run_knobs(planned: Planned, *, fixed: Collection[str] = (), names: Collection[str] = ()) -> tuple[Knob, ...]:
    """The knobs that change no results, except by roundings, beginning at the plan's values.

    Args:
        planned: the plan to improve.
        fixed: keys that the user has set, which stay.
        names: keys to search, all others stay; none stands for all that are usually worth it.

    Raises:
        ConfigError: a name is unknown, changes results, or is fixed.
    """
    values = flatten(Plan, planned.plan.to_plain())
    choices = _choices(values, planned)
    for name in names:
        if name in CHANGE_RESULTS:
            raise ConfigError(
                f"tune: {name} changes results, so it cannot be chosen by speed; use --for time-to-dice, which "
                "compares the Dice of trainings"
            )
        if name in fixed:
            raise ConfigError(f"tune: {name} should be searched, but your configuration sets it; leave one of them out")
    knobs = tuple(
        Knob(name=key, choices=(values[key],), default=values[key])
        if key in fixed
        else Knob(
            name=key,
            choices=tuple(dict.fromkeys([values[key], *found] if key != "window.batch_size" else found)),
            default=values[key],
            grows_memory=key == "window.batch_size",
        )
        for key, found in choices.items()
    )
    if names:
        return tuple(knob for knob in only(knobs, list(names)) if knob.is_open)
    usual = (knob for knob in knobs if knob.name != _COMPILE or planned.machine.device == "cuda")
    return tuple(knob for knob in usual if knob.is_open)


def _choices(values: Mapping[str, Any], planned: Planned) -> dict[str, list[Any]]:
    """Values worth trying, by key, the most promising keys first."""
    machine = planned.machine
    on_gpu = machine.device == "cuda"
    found: dict[str, list[Any]] = {
        "data.feed.num_threads": _threads(machine),
        "window.batch_size": list(_windows(values["window.batch_size"], machine)),
        "precision.channels_last": [True, False],
        "data.cache.tier": _tiers(values, machine),
        "data.feed.num_batches_ahead": [2, 4, 8],
    }
    if on_gpu:
        found["backend.cudnn_benchmark"] = [False, True]
        found["window.sum_on"] = ["auto", "memory"]
        found["backend.expandable_segments"] = [False, True]
        if values["data.cache.device_max_bytes"]:
            found["data.cache.device_max_bytes"] = [values["data.cache.device_max_bytes"], 0]
    if on_gpu or shutil.which("g++"):
        found[_COMPILE] = ["none", "default"]
    return found


def _threads(machine: Machine) -> list[int]:
    most = max(1, min(16, machine.num_cpus - (machine.device == "cuda")))
    return sorted({0, 1, 2, most // 2, most} - ({0} if machine.device == "cuda" else set()))


def _windows(planned: int, machine: Machine) -> tuple[int, ...]:
    return sizes(1, max(planned, _MOST_WINDOWS[machine.device]), default=planned)


def _tiers(values: Mapping[str, Any], machine: Machine) -> list[str]:
    """Tiers that keep every case, between which nothing but speed differs."""
    tier = values["data.cache.tier"]
    if not TIERS[tier].holds_every_case or "://" in values["data.cache.folder"] or machine.num_ranks > 1:
        return [tier]
    return ["memory", "disk"] if values["data.cache.max_bytes"] else ["disk"]
