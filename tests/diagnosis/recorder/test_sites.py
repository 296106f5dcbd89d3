"""Where loaders, data sets and optimizers were made, with the call and the name that the program gave them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.recorder.sites import call_at

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def main(items, run):
    net = nn.Linear(4, 2)
    train_loader = DataLoader(
        items, batch_size=2
    )
    adam = torch.optim.SGD(net.parameters(), lr=0.1)
    run(net, adam, train_loader)
"""
FRAMEWORK = """
from torch import nn

def fit(net, optimizer, loader):
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

class Trainer:
    def fit(self, *parts):
        fit(*parts)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., None]:
    """A user's script that hands its loop to a framework installed below site-packages."""
    script, library = tmp_path / "train.py", tmp_path / "site-packages" / "lightning" / "trainer.py"
    library.parent.mkdir(parents=True)
    names: dict[str, Any] = {"__name__": "train"}
    script.write_text(PROGRAM)
    library.write_text(FRAMEWORK)
    framework: dict[str, Any] = {"__name__": "lightning.trainer"}
    exec(compile(FRAMEWORK, str(library), "exec"), framework)
    exec(compile(PROGRAM, str(script), "exec"), names)
    return lambda items: names["main"](items, framework["Trainer"]().fit)


def test_a_framework_loop_is_told_at_the_lines_that_made_its_parts(
    recorded: Callable[..., Facts], program: Callable[..., None], items: Any, tmp_path: Path
) -> None:
    facts = recorded(lambda: program(items))
    (loader,) = facts.loaders
    script = tmp_path / "train.py"
    assert (loader.where, loader.built, loader.place) == ("", f"{script}:8", f"{script}:8")
    assert loader.call.startswith("DataLoader(\n        items, batch_size=2")
    assert loader.variable == "train_loader"
    assert loader.queue_workers is None
    assert facts.optimizer is not None
    assert facts.optimizer.where == f"{script}:11"
    assert facts.optimizer.call == "torch.optim.SGD(net.parameters(), lr=0.1)"
    assert facts.optimizer.variable == "adam"
    assert not [one for one in facts.stacks if one.where.endswith(":12")], "the line only started the framework"


def test_constructors_are_as_before_after_the_recording(recorded: Callable[..., Facts]) -> None:
    before = torch.utils.data.DataLoader.__init__, torch.optim.Optimizer.__init__
    recorded(lambda: None)
    assert (torch.utils.data.DataLoader.__init__, torch.optim.Optimizer.__init__) == before


def test_a_call_is_found_by_its_line_with_the_name_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "parts.py"
    script.write_text("self.a = make(\n    1)\nuse(other.make(2), 1)\nb = c = make(3)\n")
    assert call_at(str(script), 1, ("make",)) == ("make(\n    1)", "self.a")
    assert call_at(str(script), 3, ("make",)) == ("other.make(2)", "")
    assert call_at(str(script), 4, ("make",)) == ("make(3)", "")
    assert call_at(str(script), 4, ("another",)) == ("", "")
    assert call_at(str(script), 9, ("make",)) == ("", "")
    assert call_at(str(tmp_path / "missing.py"), 1, ("make",)) == ("", "")


def test_the_workers_of_a_queue_are_told(
    recorded: Callable[..., Facts], net: nn.Module, items: Any, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miniature of TorchIO's queue: a data set with `num_workers` of its own, in the module of that name."""
    module = types.ModuleType("torchio.data.queue")

    class Queue(type(items)):  # type: ignore[misc]
        def __init__(self, num_workers: int = 0) -> None:
            super().__init__()
            self.num_workers = num_workers

    Queue.__module__, module.Queue = "torchio.data.queue", Queue  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchio", types.ModuleType("torchio"))
    monkeypatch.setitem(sys.modules, "torchio.data.queue", module)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def program() -> None:
        patches = Queue(num_workers=3)
        for x, y in torch.utils.data.DataLoader(patches, batch_size=2):
            learn(net, optimizer, x, y)

    (loader,) = recorded(program).loaders
    assert (loader.queue_workers, loader.dataset_variable) == (3, "patches")
    assert loader.dataset_call == "Queue(num_workers=3)"
