"""Events of a made-up run in two sessions, the first of which was killed after its last checkpoint, at step 20."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from voxelocity_observe.sinks import Outlets, RunStart, Sink

Event = dict[str, Any]


@pytest.fixture(autouse=True)
def _environment_stays_as_it_was() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        yield


def steps(first: int, last: int, time_s: float, *, loss: float) -> Event:
    return {
        "event": "steps",
        "time_s": time_s,
        "step": last,
        "epoch": last // 10,
        "loss": loss,
        "learning_rate": 0.01,
        "num_steps": last - first,
        "num_images": 2 * (last - first),
        "seconds": 2.0,
        "wait_s": 0.5,
        "parts": {"network": 1.5},
    }


def validation(step: int, time_s: float, mean_dice: float | None) -> Event:
    dice = {"left atrium (LA)": mean_dice, "wall": None}
    return {
        "event": "validation",
        "time_s": time_s,
        "step": step,
        "seconds": 1.0,
        "mean_dice": mean_dice,
        "dice": dice,
        "is_best": mean_dice is not None,
    }


@pytest.fixture
def first_session() -> list[Event]:
    return [
        {"event": "run_started", "time_s": 0.0, "environment": {}},
        steps(0, 10, 1.0, loss=0.9),
        steps(10, 20, 2.0, loss=0.8),
        validation(20, 3.0, 0.5),
        {"event": "checkpoint", "time_s": 3.5, "step": 20, "path": "checkpoints/20.pt", "seconds": 0.1},
        steps(20, 30, 4.0, loss=0.77),
    ]


@pytest.fixture
def second_session() -> list[Event]:
    return [
        {"event": "run_started", "time_s": 4.0, "environment": {}},
        {"event": "warning", "time_s": 4.1, "text": "one scan has no foreground"},
        steps(20, 27, 5.0, loss=0.75),
        steps(27, 40, 6.0, loss=0.6),
        validation(40, 7.0, 0.7),
        {
            "event": "run_finished",
            "time_s": 9.0,
            "seconds": 9.0,
            "step": 40,
            "mean_dice": 0.72,
            "num_images": 80,
            "images_per_s": 10.0,
            "wait_share": 0.25,
            "budget_s": None,
        },
    ]


@pytest.fixture
def start(tmp_path: Path) -> RunStart:
    config = {"seed": 3, "optimizer": {"name": "adamw", "learning_rate": 0.01}, "network": {"widths": [4, 8]}}
    return RunStart(
        name="spleen", folder=tmp_path / "tracking", config=config, environment={"cpu": "AMD EPYC", "gpu": None}
    )


@pytest.fixture
def tell(start: RunStart) -> Callable[..., list[str]]:
    """`tell(sink, events, earlier)`: one session; what was warned of."""

    def tell(sink: Sink, events: list[Event], earlier: list[Event] | tuple[()] = ()) -> list[str]:
        warnings: list[str] = []
        with Outlets([sink], start, earlier=earlier, warn=warnings.append) as outlets:
            for event in events:
                outlets.write(event)
        return warnings

    return tell
