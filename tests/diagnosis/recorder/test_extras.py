"""Modules that see more than the steps: started if they are there, stopped in turn, left out where they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.recorder import conductor, extras
from voxelocity.diagnosis.recorder.writer import Writer


def test_modules_that_are_there_are_started_and_stopped_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def module(name: str) -> Any:
        def fail(*_: Any) -> None:
            raise OSError("planted")

        def start(writer: Writer, current_part: Callable[[], str]) -> None:
            told.append(f"{name} starts in {current_part()}")

        is_broken = name == "broken"
        return SimpleNamespace(
            __name__=name, start=fail if is_broken else start, stop=lambda: told.append(f"{name} stops")
        )

    monkeypatch.setattr(extras, "find_module", lambda name: None if name == "missing" else module(name))
    writer = Writer(str(tmp_path), "1-a", lambda: 0.0)
    started = extras.start_extras(writer, lambda: "wait", ("first", "missing", "broken", "second"))
    extras.stop_extras(started, writer.folder)
    assert told == ["first starts in wait", "second starts in wait", "second stops", "first stops"]
    assert started == []
    assert "broken could not be started" in (tmp_path / "errors.txt").read_text()


def test_module_that_is_not_there_is_none() -> None:
    assert extras.find_module("no_such_module") is None
    assert extras.find_module("ledger").__name__ == "voxelocity.diagnosis.recorder.ledger"


def test_three_steps_are_profiled_after_the_counted_ones(
    recorded: Callable[..., Facts], net: nn.Module, learn: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    class Profiler:
        def __init__(self, folder: str) -> None:
            assert Path(folder).is_dir()

        def start(self) -> None:
            told.append("start")

        def step(self) -> None:
            told.append("step")

        def stop(self) -> None:
            told.append("stop")

    monkeypatch.setattr(conductor, "find_module", lambda name: SimpleNamespace(Profiler=Profiler))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def program() -> None:
        while True:
            learn(net, optimizer, torch.ones(2, 4), torch.tensor([0, 1]))

    facts = recorded(program, whole=False, profile=True, min_steps=2, seconds=0.01)
    assert told == ["start", "step", "step", "step", "stop"]
    assert sum(step.phase == "profiled" for step in facts.steps) == 3
