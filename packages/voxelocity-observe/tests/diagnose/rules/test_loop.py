from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import CallFacts, ExperimentFacts, HeldFacts, MemoryFacts, OptimizerFacts
from voxelocity_observe.diagnose.judging import diagnose


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


MIB = 1 << 20


@pytest.fixture
def single(clean, make):
    """Four calls a step with one sample each, from one batch of four."""
    return replace(
        clean,
        loaders=[make.loader(batch_size=4)],
        network=replace(clean.network, input_shapes=[((1, 1, 8, 8, 8), 400)]),
        optimizer=replace(clean.optimizer, forwards_per_step=4.0, batches_per_step=1.0),
        stacks=[make.stack("forward", "other", 9, line="outputs.append(network(image[None]))")],
    )


def test_a_network_called_once_a_sample_is_found_with_what_a_batch_brings(single, find):
    tried = [
        ExperimentFacts(name="network, one sample", unit="sample", seconds=[0.02]),
        ExperimentFacts(name="network, a batch", unit="sample", seconds=[0.005]),
    ]
    (found,) = find("VX314", replace(single, experiments=tried))
    assert "calls the network 4 times with 1 × 1 × 8 × 8 × 8; one call with 4 × 1 × 8 × 8 × 8" in found.cause
    assert found.saves_s == pytest.approx(0.75 * 100 * (0.0405 + 0.055))
    assert found.where == "train.py:55"
    assert "# instead of: outputs.append(network(image[None]))" in found.change
    (found,) = find("VX314", single)
    assert found.saves_s is None, "without the experiment nobody knows"


def test_accumulation_and_batches_of_one_are_not_called_sample_by_sample(single, make, find):
    accumulated = replace(single.optimizer, batches_per_step=4.0, backwards_per_step=4.0)
    assert find("VX314", replace(single, optimizer=accumulated)) == ()
    assert find("VX314", replace(single, loaders=[make.loader(batch_size=1)])) == ()
    whole = replace(single.network, input_shapes=[((4, 1, 8, 8, 8), 400)])
    assert find("VX314", replace(single, network=whole)) == ()


def test_without_a_loader_many_calls_for_one_backward_are_its_samples(single, find):
    own = replace(single, loaders=[], optimizer=replace(single.optimizer, batches_per_step=0.0))
    assert find("VX314", own)
    each = replace(own.optimizer, backwards_per_step=4.0)
    assert find("VX314", replace(own, optimizer=each)) == (), "perhaps an accumulation"


def test_sums_of_gradients_at_each_micro_batch_are_found_with_what_they_cost(clean, find):
    ranks = replace(clean.main, world_size=2)
    optimizer = replace(clean.optimizer, backwards_per_step=4.0, synced_per_step=4.0, sync_s=0.01)
    (found,) = find("VX315", replace(clean, main=ranks, optimizer=optimizer))
    assert found.saves_s == pytest.approx(100 * 3 * 0.01)
    assert "after 4 of them; once, after the last, is enough" in found.cause
    assert "network.no_sync()" in found.change
    assert find("VX315", replace(clean, optimizer=optimizer)) == (), "one rank has nothing to sum"
    right = replace(optimizer, synced_per_step=1.0)
    assert find("VX315", replace(clean, main=ranks, optimizer=right)) == ()


def held(**fields):
    given = {"name": "losses", "where": "train.py:9", "line": "losses.append(loss)", "count": 90, "num_steps": 90}
    return HeldFacts(**{**given, "item_bytes": 4, "holds_graph": True, **fields})


def test_a_list_of_losses_with_their_graphs_is_the_cause_and_tells_when_memory_ends(clean, find):
    growing = MemoryFacts(samples=[(step, 500 * MIB + step * MIB, 0) for step in range(1, 101, 5)])
    facts = replace(clean, memory=growing, held=[held(name="images", item_bytes=8 * MIB, holds_graph=False), held()])
    (found,) = find("VX508", facts)
    assert "`losses` grew by 90 entries in 90 steps, each with the graph of its step." in found.cause
    assert "grows by 1.00 MiB a step; free memory lasts about 65,536 steps." in found.cause
    assert (found.where, found.saves_s, found.is_cause) == ("train.py:9", None, True)
    assert ".item()" in found.change
    assert diagnose(facts).verdict == (
        "This program runs out of memory if it trains for long enough: memory grows with every step, as results are "
        "kept."
    )


def test_numbers_that_are_kept_are_no_leak_and_arrays_are(clean, find):
    assert find("VX508", replace(clean, held=[held(holds_graph=False)])) == ()
    (found,) = find("VX508", replace(clean, held=[held(holds_graph=False, item_bytes=MIB)]))
    assert "grows by 1.00 MiB a step" in found.cause


def test_growth_without_a_name_is_told_and_is_no_cause(clean, find):
    growing = MemoryFacts(samples=[(step, 500 * MIB + step * MIB, 0) for step in range(1, 101, 5)])
    (found,) = find("VX508", replace(clean, memory=growing))
    assert not found.is_cause
    filled = MemoryFacts(samples=[(step, 500 * MIB + min(step, 40) * 4 * MIB, 0) for step in range(1, 101, 5)])
    assert find("VX508", replace(clean, memory=filled)) == (), "a cache that was filled"


def test_predictions_scored_at_each_step_are_named_before_the_loop_itself(clean, make, find):
    facts = replace(
        clean,
        steps=make.steps({"forward": 0.03, "backward": 0.03, "other": 0.04}),
        stacks=[
            make.stack("forward", "other", 60, where="train.py:66", line="outputs = model(inputs)"),
            make.stack("other", "transform", 60, where="train.py:71", line="outs = [post(o) for o in outputs]"),
            make.stack("other", "other", 30, where="train.py:72", line="dice(outs, labels)", function="torch.sum"),
            make.stack("other", "other", 5, where="train.py:72", line="dice(outs, labels)", function="monai.metrics.f"),
            make.stack("other", "other", 5, where="train.py:80", line="draw(batch)"),
        ],
    )
    (found,) = find("VX364", facts)
    assert found.saves_s == pytest.approx(4.0 * 0.95)
    assert found.where == "train.py:71"
    assert found.change.splitlines()[1:] == ["    outs = [post(o) for o in outputs]", "    dice(outs, labels)"]
    assert [finding.code for finding in diagnose(facts).findings if finding.is_cause] == ["VX364"]
    assert find("VX364", replace(facts, loaders=[])) == (), "without a loader, transforms make the batches"
    before = make.stack("other", "transform", 95, where="train.py:60", line="inputs = augment(inputs)")
    assert find("VX364", replace(facts, stacks=[facts.stacks[0], before])) == (), "made ready for the network"
