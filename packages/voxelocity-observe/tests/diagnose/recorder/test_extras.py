"""What is seen beside the steps: all of it started, written and stopped; what fails is told and left out."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder import extras, recording
from voxelocity_observe.diagnose.recorder.extras import Extras
from voxelocity_observe.diagnose.recorder.profile import Profiler
from voxelocity_observe.diagnose.recorder.transforms import TransformTimer
from voxelocity_observe.diagnose.recorder.writer import Writer


def written(writer: Writer) -> list[str]:
    writer.close()
    path = Path(writer.path)
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


def test_what_a_worker_reads_and_waits_for_is_written_when_it_ends(writer: Writer) -> None:
    beside = Extras(writer, is_worker=True)
    assert beside.syncs is None, "a worker has no device to wait for"
    beside.start()
    beside.stop()
    beside.stop()
    assert written(writer) == ["files"]


def test_where_no_step_was_counted_nothing_is_written(writer: Writer) -> None:
    beside = Extras(writer)
    beside.start()
    beside.stop()
    assert written(writer) == []


def test_a_forked_process_says_nothing_of_what_its_parent_saw(writer: Writer) -> None:
    beside = Extras(writer, is_worker=True)
    beside.start()
    beside.drop()
    assert written(writer) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_waits_for_no_lock_of_threads_that_it_has_not(writer: Writer) -> None:
    beside = Extras(writer, is_worker=True)
    beside.start()
    # As the thread that looks may hold them at the moment of a fork.
    with beside.stacks._stop._cond, beside.stacks._lock:  # type: ignore[attr-defined]
        child = os.fork()
        if child == 0:
            beside.drop(is_forked=True)
            os._exit(0)
    until_s = time.monotonic() + HANGS_S
    ended, status = 0, -1
    while not ended and time.monotonic() < until_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    beside.stop()
    assert (ended, status) == (child, 0)


def test_one_that_fails_is_told_of_and_the_others_go_on(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: TransformTimer) -> None:
        raise OSError("planted")

    monkeypatch.setattr(extras.TransformTimer, "start", fail)
    beside = Extras(writer, is_worker=True)
    beside.start()
    beside.stop()
    assert written(writer) == ["files"]
    assert "TransformTimer failed in start" in (tmp_path / "errors.txt").read_text()


def test_why_looking_at_stacks_ended_is_told(writer: Writer) -> None:
    beside = Extras(writer, is_worker=True)
    beside.start()
    beside.stacks.failure = "planted"
    beside.stop()
    assert written(writer) == ["files", "unseen"]


@pytest.fixture
def train(learn: Any) -> Callable[[], None]:
    def program() -> None:
        while True:
            learn()

    return program


class Told(Profiler):
    """A profiler that only tells what it is asked."""

    told: list[str]
    answer = ""

    def __init__(self, folder: str, **_: Any) -> None:
        assert Path(folder).is_dir()

    def start(self) -> str:
        self.told.append("start")
        return self.answer

    def part(self, name: str) -> None:
        self.told.append(name)

    def step(self) -> bool:
        self.told.append("step")
        return True

    def stop(self, *, is_complete: bool = True) -> None:
        self.told.append("stop")


def test_three_steps_are_profiled_after_the_counted_ones_and_told_their_parts(
    recorded: Callable[..., Facts], train: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Told.told = []
    monkeypatch.setattr(recording.Recording, "_new_profiler", lambda self: Told(self.settings.folder))
    facts = recorded(train, whole=False, profile=True, min_steps=2, seconds=0.01)
    told = Told.told
    assert [word for word in told if word in ("start", "step", "stop")] == ["start", "step", "step", "stop"]
    assert {"forward", "backward", "optimizer"} <= set(told)
    assert told[-1] == "stop", "parts are told no more"
    assert sum(step.phase == "profiled" for step in facts.steps) == 3


def test_why_there_is_no_profile_is_told(
    recorded: Callable[..., Facts], train: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Told.told = []
    monkeypatch.setattr(Told, "answer", "the program runs torch.profiler itself")
    monkeypatch.setattr(recording.Recording, "_new_profiler", lambda self: Told(self.settings.folder))
    facts = recorded(train, whole=False, profile=True, min_steps=2, seconds=0.01)
    assert "kernels and operators: the program runs torch.profiler itself" in facts.not_measured
    assert Told.told == ["start"]
