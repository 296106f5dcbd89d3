"""Tiny programs to record in this process, and what was recorded of them."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from voxelocity_observe.diagnose.facts import Facts, read_facts
from voxelocity_observe.diagnose.recorder.timeline import Ledger
from voxelocity_observe.diagnose.recorder.writer import Writer
from voxelocity_observe.diagnose.watching.attach import record_here


@pytest.fixture(scope="module", autouse=True)
def _what_other_tests_left_is_not_searched() -> None:
    """Each diagnosis looks through all objects of the process, which would take it up to a second more."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sleeps_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the ledger, only sleeping in this thread takes time, so that a busy machine changes no duration."""
    now_s, sleep, own = 100.0, time.sleep, threading.get_ident()

    def pass_time(seconds: float) -> None:
        nonlocal now_s
        if threading.get_ident() != own:
            sleep(seconds)
            return
        now_s += seconds

    def clock() -> float:
        nonlocal now_s
        # Two readings differ.
        now_s += 1e-7
        return now_s

    monkeypatch.setattr(time, "sleep", pass_time)
    monkeypatch.setattr(Ledger.__init__, "__defaults__", (clock,))


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Facts]:
    """Runs a program while it is recorded and returns the facts; steps count from the second one on."""
    numbers = itertools.count()

    def run(program: Callable[[], Any], **options: Any) -> Facts:
        folder = tmp_path / f"recording-{next(numbers)}"
        limits = {"warmup_steps": 1, "warmup_seconds": 0.0, **options}
        with record_here(folder, **limits):
            program()
        assert not (folder / "errors.txt").exists(), (folder / "errors.txt").read_text()
        return read_facts(folder)

    return run


class Net(nn.Module):
    """Two layers, each a module within another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Items(torch.utils.data.Dataset[Any]):
    """Items of four numbers and a class."""

    def __init__(self, num_items: int = 8) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def items() -> Items:
    return Items()


@pytest.fixture
def learn(net: Net) -> Callable[..., None]:
    """One learning step of `net`, on a batch (x, y) if one is given."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    usual = torch.ones(2, 4), torch.tensor([0, 1])

    def step(*batch: torch.Tensor) -> None:
        x, y = batch or usual
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step.optimizer = optimizer  # type: ignore[attr-defined]
    return step


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Writes into tmp_path/1-a.jsonl."""
    return Writer(str(tmp_path), "1-a", lambda: 0.0)
