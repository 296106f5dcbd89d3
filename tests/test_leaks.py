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
        (lambda: sys.path.insert(0, "/nowhere"), "sys.path"),
        (_set_handler, f"handler {int(signal.SIGUSR2)}"),
        (lambda: torch.set_num_threads(3), "threads"),
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_grad_enabled(False), "gradients"),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), "cudnn.benchmark"),
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


def test_a_child_that_is_left_behind_is_named():
    before = state_now()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        (line,) = restore(before)
        assert str(child.pid) in line
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
