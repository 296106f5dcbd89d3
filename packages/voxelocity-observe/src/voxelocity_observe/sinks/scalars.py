"""The events of a run as named numbers over its steps, with the names that users know from other trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxelocity_observe.sinks.protocol import Event


@dataclass(frozen=True, kw_only=True)
class Scalars:
    """Numbers that belong to one step. Finite ones only."""

    step: int
    values: Mapping[str, float]


class ScalarStream:
    """Turns events into numbers. An event without a step, such as a sample of the machine, takes the last step."""

    def __init__(self) -> None:
        self._step = 0

    def of(self, event: Event) -> Scalars | None:
        """The numbers of an event; None if it has none."""
        self._step = max(self._step, step_of(event) or 0)
        named = _named(event)
        values = {name: float(value) for name, value in named.items() if _is_number(value)}
        return Scalars(step=self._step, values=values) if values else None


def step_of(event: Event) -> int | None:
    """The optimizer step of an event; None for an event without one."""
    return int(event["step"]) if event["event"] in ("steps", "validation", "run_finished") else None


def begun_after(event: Event) -> int | None:
    """The step that a session had reached before the steps of the event; None for an event without one."""
    step = step_of(event)
    return step - int(event["num_steps"]) if step is not None and event["event"] == "steps" else step


def kept_events(earlier: Sequence[Event], first_step: int) -> list[Event]:
    """The events of earlier sessions that still count for one that continues from `first_step`.

    An earlier session may itself have done steps again that the one before it did after its last checkpoint.
    """
    kept: list[Event] = []
    is_new_session = False
    for event in earlier:
        is_new_session = is_new_session or event["event"] == "run_started"
        begun = begun_after(event)
        if is_new_session and begun is not None:
            kept, is_new_session = _up_to(begun, kept), False
        kept.append(event)
    return _up_to(first_step, kept)


class Told:
    """What a record holds of earlier sessions, where points cannot be removed.

    Args:
        events: written to the record, including those that are done again.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._last_step = max((int(event["step"]) for event in events if event["event"] == "steps"), default=0)
        self._validated = {int(event["step"]) for event in events if event["event"] == "validation"}

    def holds(self, event: Event) -> bool:
        """Whether the record has a point for this event."""
        if event["event"] == "steps":
            return int(event["step"]) <= self._last_step
        return event["event"] == "validation" and int(event["step"]) in self._validated


def _up_to(step: int, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if (step_of(event) or 0) <= step]


def _named(event: Event) -> dict[str, Any]:
    match event["event"]:
        case "steps":
            return _steps(event)
        case "validation":
            dice = {f"validation/dice/{name}": value for name, value in event["dice"].items()}
            return {"validation/mean_dice": event["mean_dice"], "validation/seconds": event["seconds"], **dice}
        case "run_finished":
            keys = ("mean_dice", "images_per_s", "wait_share", "seconds")
            return {f"final/{key}": event.get(key) for key in keys}
        case "sample":
            return _sample(event)
    return {}


def _steps(event: Event) -> dict[str, Any]:
    named = {f"train/{key}": event.get(key) for key in ("loss", "learning_rate", "epoch")}
    seconds = float(event["seconds"])
    if seconds > 0.0:
        named["train/images_per_s"] = event["num_images"] / seconds
        named["train/wait_share"] = event["wait_s"] / seconds
        parts = event.get("parts") or {}
        named |= {f"train/time_share/{part}": part_s / seconds for part, part_s in parts.items() if _is_number(part_s)}
    return named


def _sample(event: Event) -> dict[str, Any]:
    """A sample of the machine (`observe.samples`), written with its parts `host` and `gpus`."""
    host = dict(event.get("host") or {})
    shares = [share for share in host.pop("core_shares", ()) if _is_number(share)]
    ranks = host.pop("ranks", ())
    named = {f"system/{key}": value for key, value in host.items()}
    named |= {f"system/rank.{rank['rank']}/{key}": rank[key] for rank in ranks for key in ("cores", "memory_bytes")}
    if shares:
        named["system/cpu_busy_share"] = sum(shares) / len(shares)
    for gpu in event.get("gpus") or ():
        part = "" if gpu.get("slice") is None else f".{gpu['slice']}"
        fields = {key: value for key, value in gpu.items() if key not in ("index", "slice")}
        named |= {f"system/gpu.{gpu['index']}{part}/{key}": value for key, value in fields.items()}
    return named


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
