"""The guard of `conftest.py` sees what a test leaves behind, and puts it back."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shared import leaks
from shared.leaks import restore, seed_everything, state_now


def _set_handler():
    signal.signal(signal.SIGUSR2, lambda *_: None)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: os.environ.update(A_NEW_ONE="a"), "variable A_NEW_ONE"),
        (lambda: os.environ.update(PATH="/nowhere"), "variable PATH"),
        (lambda: os.environ.pop("PATH"), "variable PATH"),
        (lambda: os.chdir("/"), "working directory"),
        (_set_handler, f"handler {int(signal.SIGUSR2)}"),
    ],
)
def test_a_change_of_the_process_is_named_and_undone(change, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = state_now()
    assert restore(before) == []
    change()
    lines = restore(before)
    assert len(lines) == 1, lines
    assert name in lines[0]
    assert state_now() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: os.environ.update(OMP_WAIT_POLICY="PASSIVE"),
        lambda: sys.path.insert(0, "/nowhere"),
        lambda: torch.set_num_threads(3),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_grad_enabled(False),
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    ],
)
def test_what_a_command_sets_for_its_own_process_is_undone(change):
    before = state_now()
    change()
    assert state_now() != before
    assert restore(before) == []
    assert state_now() == before


def test_a_child_that_is_left_behind_is_named_and_one_that_ends_is_not(monkeypatch):
    before = state_now()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        monkeypatch.setattr(leaks, "_ENDS_S", 0.0)
        (line,) = restore(before)
        assert str(child.pid) in line
        monkeypatch.undo()
        child.kill()
        assert restore(before) == []
    assert restore(before) == []


def test_memory_of_this_process_is_named_and_that_of_others_is_not(monkeypatch):
    before = state_now()
    names = [f"torch_{os.getpid()}_12", f"torch_{os.getpid()}1_12", "sem.mp-abc", f"voxelocity-test-{os.getpid()}-a"]
    monkeypatch.setattr(os, "listdir", lambda place: names if Path(place) == Path("/dev/shm") else [])
    assert len(restore(before)) == 2


def test_draws_are_the_same_in_each_test():
    from monai.transforms import RandFlip

    def draws():
        seed_everything()
        return random.random(), float(np.random.rand()), float(torch.rand(())), float(RandFlip().R.rand())  # noqa: NPY002

    assert draws() == draws()
