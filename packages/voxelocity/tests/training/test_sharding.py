"""Networks distributed by shards, stages or checkpointing: they train, save, resume and predict as one process does."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import voxelocity as vx
from shared.ranks import finish, start_ranks
from voxelocity.parallel import Place
from voxelocity.step import OPTIMIZERS
from voxelocity.training import sharding
from voxelocity.training.open_session import _check_ranks
from voxelocity.training.sharding import _check_mode
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.events import read_events

# Three steps, a state that another way continues from, two more steps. Three patches, so that no shares are equal.
_STEPS = """
import copy, os, sys
import torch
from voxelocity.core.batch import Batch
from voxelocity.parallel import ALONE, join_world, shard
from voxelocity.step import NetworkConfig, OptimizerConfig, PrecisionConfig, TrainingStep, build_loss, build_network
from voxelocity.step import LossConfig
out, name = f"{sys.argv[1]}{os.environ['RANK']}.pt", sys.argv[2]
shapes = {"name": "dynunet", "widths": [5, 6, 7], "strides": [[2, 2, 2]] * 2}
config = OptimizerConfig(name=name, learning_rate=0.01, weight_decay=0.1, clip_norm=0.5, average_decay=0.9)

def batch(step):
    random = torch.Generator().manual_seed(step)
    image = torch.randn(3, 1, 8, 8, 8, generator=random)
    return Batch(image=image, label=(image[:, 0] > 0.3).to(torch.uint8), draws=(), regions=(), step=step)

def step_of(mode, world):
    network = build_network(NetworkConfig.parse(shapes), num_channels=1, num_classes=2, seed=7)
    sharding = shard(network, world, mode, device=torch.device("cpu"), cuts=[2], num_microbatches=2)
    total = {"total": world.total} if sharding.takes_shares and not world.is_alone else {}
    return TrainingStep(
        sharding, build_loss(LossConfig(), **total), optimizer=config, device=torch.device("cpu"), world=world,
        precision=PrecisionConfig(compute="float32"),
    )

def run(step, numbers, world):
    losses = []
    for number in numbers:
        whole = batch(number)
        if step.takes_shares and not world.is_alone:
            part = slice(0, 2) if world.is_leader else slice(2, 3)
            whole = whole.with_(image=whole.image[part], label=whole.label[part])
        losses.append(float(step(whole, 0.01)))
    return losses

alone = step_of("one device", ALONE)
found = {"alone": {"first": run(alone, range(3), ALONE)}}
# Later steps change its tensors.
middle = found["alone"]["middle"] = copy.deepcopy(alone.state())
found["alone"]["last"] = run(alone, range(3, 5), ALONE)
with join_world() as world:
    for mode in ("ddp", "checkpointing", "fsdp", "pipeline"):
        step = step_of(mode, world)
        first, state = run(step, range(3), world), copy.deepcopy(step.state())
        assert step.is_finite()
        resumed = step_of(mode, world)
        resumed.load_state(copy.deepcopy(middle))
        found[mode] = {"first": first, "middle": state, "last": run(resumed, range(3, 5), world)}
        image = batch(9).image
        found[mode]["averaged"] = resumed.averaged()(image).detach()
found["alone"]["averaged"] = alone.averaged()(batch(9).image).detach()
torch.save(found, out)
"""


@pytest.mark.parametrize("optimizer", ["muon", "adamw", pytest.param("sgd", marks=pytest.mark.nightly)])
def test_steps_and_states_are_those_of_one_process_however_a_network_is_distributed(optimizer, tmp_path):
    ended = finish(start_ranks(2, [tmp_path / "rank", optimizer], memory=tmp_path, script=_STEPS))
    assert [status for status, _, _ in ended] == [0, 0], ended
    found = torch.load(tmp_path / "rank0.pt", weights_only=True)
    alone = found.pop("alone")
    assert alone["last"][-1] < 0.95 * alone["first"][0], "it learns"
    assert set(found) == {"ddp", "checkpointing", "fsdp", "pipeline"}
    for mode, kept in found.items():
        for part in ("first", "last"):
            assert kept[part] == pytest.approx(alone[part], rel=1e-4), (mode, part)
        torch.testing.assert_close(kept["middle"], alone["middle"], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(kept["averaged"], alone["averaged"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("balance", "fits"), [("equal", [False, False]), ((0.8, 0.2), [False, True])])
def test_a_rank_is_expected_to_hold_the_patches_that_it_takes(
    tiny_msd, tiny_plan, tmp_path, monkeypatch, balance, fits
):
    # Ten patches, and memory for four.
    monkeypatch.setattr(sharding, "device_bytes", lambda patch, *, batch_size: batch_size)
    keys = {**tiny_plan, "data.batch_size": 10, "parallel.balance": balance}
    planned = vx.plan(vx.open(tiny_msd), overrides=keys, device="cpu", cache_folder=tmp_path)
    machine = SimpleNamespace(device="cuda", device_free_bytes=4)

    def expected(rank):
        world = SimpleNamespace(place=Place(rank=rank, size=2), agree=lambda values, flag: (values, flag))
        session = SimpleNamespace(
            plan=planned.plan, planned=SimpleNamespace(machine=machine), world=world,
            spec=SimpleNamespace(channels=("CT",), num_outputs=2),
        )  # fmt: skip
        return sharding._expect_to_fit(session)

    assert [expected(rank) for rank in range(2)] == fits


def train(size, dataset, out, sets, folder, *more):
    return finish(
        start_ranks(size, ["train", dataset, "-o", out, "--device", "cpu", *sets, *more], memory=folder / "memory")
    )


@pytest.mark.parametrize("mode", ["pipeline", pytest.param("fsdp", marks=pytest.mark.nightly)])
def test_a_run_has_the_results_of_one_process(mode, voxelocity, tiny_msd, tiny_sets, tmp_path):
    # Others make steps of noise where gradients are zero but for roundings.
    keys = ("data.batch_size=3", "train.validate_every_steps=3", "optimizer.name=sgd")
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    assert voxelocity("train", tiny_msd, "-o", tmp_path / "one", "--device", "cpu", *sets).status == 0
    here = ("--set", f"parallel.mode={mode}", "--set", "parallel.balance=measured")
    ended = train(2, tiny_msd, tmp_path / "two", [*sets, *here], tmp_path)
    assert [(status, err) for status, _, err in ended] == [(0, "")] * 2
    assert f"parallel.mode = {mode}: a step takes" in ended[0][1]
    assert f"parallel.balance=measured is not used with parallel.mode={mode}" in ended[0][1]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0.0, atol=1e-4)
    scores = [json.loads((tmp_path / name / "scores.json").read_text())["cases"] for name in ("one", "two")]
    assert [case["dice"] for case in scores[1]] == [pytest.approx(case["dice"], abs=0.01) for case in scores[0]]
    events = read_events(tmp_path / "two" / "events.jsonl")
    (decision,) = [event for event in events if event["event"] == "parallel"]
    assert decision["mode"] == mode
    assert len(decision["predicted_bytes"]) == 2
    parts = next(event["parts"] for event in events if event["event"] == "steps")
    assert {"wait", "forward", "backward", "optimizer", "exchange"} <= parts.keys()
    assert all(seconds > 0.0 for seconds in parts.values())


def test_one_process_that_lacks_memory_computes_activations_twice(voxelocity, tiny_msd, tiny_sets, tmp_path):
    keys = ("network.name=dynunet", "network.widths=[4,8,8]", "network.strides=[[2,2,2],[2,2,2]]", "optimizer.name=sgd")
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    limited = [*sets, "--set", "parallel.max_bytes=[2.3e6]"]
    ended = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *limited)
    assert ended.status == 0, ended.err
    assert "parallel.mode = checkpointing: a step takes" in ended.out
    assert "one device would take" in ended.out
    assert voxelocity("train", tiny_msd, "-o", tmp_path / "plain", "--device", "cpu", *sets).status == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "plain"))
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["parallel.max_bytes=[1e9,1e9]"], "parallel.max_bytes has 2 values for 1 ranks"),
        (["parallel.max_bytes=[1e5]"], "does not fit: one device would take .* checkpointing would take"),
        (["parallel.mode=shards"], "parallel.mode"),
    ],
)
def test_impossible_settings_are_refused(keys, expected, voxelocity, tiny_msd, tiny_sets, tmp_path):
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    ended = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *sets)
    assert ended.status == 2
    assert re.search(expected, ended.err), ended.err


def test_what_does_not_go_with_a_mode_is_refused():
    plan = SimpleNamespace(
        precision=SimpleNamespace(compute="float32"),
        optimizer=SimpleNamespace(name=""),
        parallel=SimpleNamespace(mode="pipeline", max_bytes=()),
        data=SimpleNamespace(batch_size=2, cache=SimpleNamespace(num_parts=2)),
    )
    plan.precision.compute = "float16"
    with pytest.raises(
        ConfigError, match=r"parallel\.mode=pipeline cannot be combined with precision\.compute=float16"
    ):
        _check_mode("pipeline", plan)
    plan.precision.compute = "float32"
    for plan.optimizer.name, kind in OPTIMIZERS.items():
        refused = rf"parallel\.mode=fsdp cannot be combined with optimizer\.name={plan.optimizer.name}"
        with pytest.raises(ConfigError, match=refused) if kind.needs_whole else nullcontext():
            _check_mode("fsdp", plan)
    with pytest.raises(ConfigError, match=r"data\.cache\.num_parts=2 cannot be combined with parallel\.mode=pipeline"):
        _check_ranks(SimpleNamespace(plan=plan, machine=SimpleNamespace(num_ranks=2)))
