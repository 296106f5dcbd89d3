"""Variables that grow with the steps, found by name and by the line that adds to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder import growth

Recorded = Callable[..., Facts]


class Keeper:
    """Something of the user's that keeps what it is given."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def take(self, output: Any) -> None:
        self.outputs.append(output)


def steps_of(net: nn.Module, after: Callable[[Any], None], num_steps: int = 20) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        after(loss)


def test_lists_sums_and_attributes_that_keep_graphs_are_found(recorded: Recorded, net: nn.Module) -> None:
    history: dict[str, list[Any]] = {"loss": []}
    keeper, losses, numbers = Keeper(), [], []
    total: Any = 0.0

    def program() -> None:
        nonlocal total
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
            history["loss"].append(loss)
            keeper.take(loss)
            total = total + loss
            numbers.append(loss.item())

    found = {held.name: held for held in recorded(program).held}
    assert set(found) >= {"losses", "history['loss']", "keeper.outputs", "total"}
    assert "numbers" not in found
    assert all(found[name].holds_graph for name in ("losses", "history['loss']", "keeper.outputs", "total"))
    assert found["losses"].line == "losses.append(loss)"
    assert found["total"].line == "total = total + loss"
    assert found["keeper.outputs"].line == "self.outputs.append(output)"


def test_the_memory_of_the_process_is_told_for_counted_steps(recorded: Recorded, net: nn.Module) -> None:
    facts = recorded(lambda: steps_of(net, lambda loss: None))
    numbers = [sample[0] for sample in facts.memory.samples]
    assert numbers == sorted(numbers)
    assert all(sample[1] > 1 << 20 and sample[2] == 0 for sample in facts.memory.samples)
    assert facts.held == ()


def test_samples_of_long_programs_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_MAX_SAMPLES", 8)
    writer = WatchedMoment()
    watched = growth.Growth(torch, writer)
    for step in range(1, 101):
        watched.after_step(step, None)
    watched.write(is_last=True)
    numbers = [sample[0] for sample in writer.written("memory")[0]["samples"]]
    assert len(numbers) < 8
    assert numbers[-1] >= 80


@pytest.mark.usefixtures("sleeps_cost_time")
def test_what_is_looked_at_after_a_step_is_part_of_the_own_cost(
    recorded: Recorded, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth.Growth, "after_step", lambda self, num_counted, device: time.sleep(1.0))
    facts = recorded(lambda: steps_of(net, lambda loss: None, num_steps=10))
    assert facts.cost.seconds > len(facts.counted) - 2
