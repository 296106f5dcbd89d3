"""Who a process is: how many ranks of its training share the machine."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.facts.process_file import read_process
from voxelocity_observe.diagnose.recorder import process
from voxelocity_observe.diagnose.recorder.process import (
    core_wait_s,
    num_local_ranks,
    program_words,
    rank_and_world_size,
)
from voxelocity_observe.diagnose.watching.attach import record_here


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("python train.py --token=x", "python train.py"),
        ("python -u -W ignore -X dev train.py --password x", "python -u -W ignore -X dev train.py"),
        ("python -m pack.train --token x", "python -m pack.train"),
        ("python -c password='x' y", "python -c"),
        ("python -uc password='x' y", "python -uc"),
        ("python -Bcpassword='x'", "python -Bc"),
        ("python -W -c train.py x", "python -W -c train.py"),
        ("python", "python"),
    ],
)
def test_a_recording_keeps_the_program_and_not_its_arguments(words: str, kept: str) -> None:
    assert program_words(words.split()) == kept.split()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "node-3"}, 2),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}, 4),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "node-3"}, 1),
        ({"LOCAL_WORLD_SIZE": "", "WORLD_SIZE": "many", "MASTER_ADDR": "127.0.0.1"}, 1),
    ],
)
def test_ranks_of_this_machine_are_told_by_torchrun_or_by_where_they_meet(
    variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert num_local_ranks() == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"}, (1, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "two", "PMI_SIZE": "4"}, (0, 1)),
    ],
)
def test_a_record_has_the_rank_that_any_known_launcher_has_given(
    variables: dict[str, str], expected: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with record_here(tmp_path):
        pass
    (file,) = tmp_path.glob("*.jsonl")
    facts = read_process(file).facts
    assert (facts.rank, facts.world_size) == expected


def test_only_ranks_that_train_together_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert rank_and_world_size() == (0, 1)


@pytest.mark.parametrize(
    ("text", "expected"), [("150353000 1837147000 2\n", 1.837147), ("0 0 0\n", None), ("no account\n", None)]
)
def test_waiting_for_a_core_is_read_where_the_system_counts_it(
    text: str, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def opened(path: str, **_: Any) -> io.StringIO:
        asked.append(path)
        return io.StringIO(text)

    monkeypatch.setattr(process, "open", opened, raising=False)
    assert core_wait_s(17) == expected
    assert asked == ["/proc/self/task/17/schedstat"]


def test_waiting_of_a_thread_that_does_not_exist_is_not_told() -> None:
    assert core_wait_s(-1) is None


def test_waiting_for_a_core_is_counted_from_the_first_counted_step_on(
    recorded: Callable[..., Facts], learn: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = iter([2.0, 2.5])
    threads: list[int] = []

    def wait_of(thread: int) -> float:
        threads.append(thread)
        return next(waited)

    monkeypatch.setattr("voxelocity_observe.diagnose.recorder.training.core_wait_s", wait_of)
    facts = recorded(lambda: [learn() for _ in range(6)])
    assert facts.core_wait.seconds == pytest.approx(0.5)
    assert facts.core_wait.of_s >= sum(step.seconds for step in facts.counted[1:])
    assert threads == [threading.get_native_id()] * 2
