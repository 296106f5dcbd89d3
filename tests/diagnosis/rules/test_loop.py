"""What the loop does beside learning: each fault planted in facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import CallFacts, OptimizerFacts


def test_gradients_filled_with_zeros_cost_their_bytes(clean, find):
    optimizer = replace(clean.optimizer, sets_to_none=False)
    (found,) = find("VX341", replace(clean, optimizer=optimizer))
    assert "fills 1,000,000 gradients" in found.cause
    # 12 MB a step at 10 GB/s, 100 steps.
    assert found.saves_s == pytest.approx(0.12)
    assert find("VX341", clean) == ()


@pytest.mark.parametrize(("name", "option", "saves"), [("AdamW", "fused", True), ("RAdam", "foreach", False)])
def test_a_looping_optimizer_is_told_the_form_that_it_has(clean, make, find, name, option, saves):
    facts = replace(
        clean,
        steps=make.steps({"forward": 0.04, "backward": 0.04, "optimizer": 0.02}),
        optimizer=OptimizerFacts(name=name, implementation="for-loop", where="train.py:30"),
    )
    (found,) = find("VX342", facts)
    assert found.change == f"optimizer = torch.optim.{name}(..., {option}=True)"
    assert found.saves_s == (pytest.approx(1.0) if saves else None)
    assert f"{name} takes 2.0 s of 10 s (20 %)" in found.cause
    assert find("VX342", clean) == ()


def test_collecting_garbage_each_step_costs_its_calls(clean, find):
    call = CallFacts(call="gc.collect", where="train.py:62", line="gc.collect()", count=100, num_steps=100, seconds=3.0)
    (found,) = find("VX361", replace(clean, calls=[call]))
    assert (found.saves_s, found.basis, found.where) == (3.0, "measured", "train.py:62")
    assert find("VX361", replace(clean, calls=[replace(call, count=1)])) == ()


def test_logging_is_found_by_its_stacks(clean, make, find):
    stacks = [
        make.stack("other", "log", 20, where="train.py:63", line="print(step, loss)"),
        make.stack("forward", "other", 80),
    ]
    (found,) = find("VX362", replace(clean, stacks=stacks))
    assert "Logging and printing take 2.0 s of 10 s (20 %)" in found.cause
    assert found.saves_s == pytest.approx(1.8)
    assert found.change == "if step % 50 == 0:\n    print(step, loss)"
    assert find("VX362", replace(clean, stacks=stacks[1:])) == ()


def test_a_busy_loop_is_told_where_it_was_found(clean, make, find):
    facts = replace(
        clean,
        steps=make.steps({"forward": 0.03, "backward": 0.03, "other": 0.04}),
        stacks=[make.stack("other", "other", 90, where="train.py:70", line="draw(batch)")],
    )
    (found,) = find("VX363", facts)
    assert "Between data, network and optimizer the loop spends 4.0 s of 10 s (40 %)" in found.cause
    assert found.where == "train.py:70"
    assert found.saves_s == pytest.approx(4.0)
    assert find("VX363", clean) == ()


def test_a_busy_loop_leaves_to_others_what_they_explain(clean, make, find):
    """Of what is beside the network a half is logging, which has its own rule."""
    facts = replace(
        clean,
        steps=make.steps({"forward": 0.03, "backward": 0.03, "other": 0.04}),
        stacks=[make.stack("other", "other", 50), make.stack("other", "log", 50)],
    )
    (found,) = find("VX363", facts)
    assert found.saves_s == pytest.approx(2.0)
