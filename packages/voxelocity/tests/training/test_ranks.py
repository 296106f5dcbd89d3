"""One training on several processes: the same weights as one, every case validated once, one folder written."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from shared.limits import HANGS_S
from shared.ranks import COMMAND, finish, free_port, start_ranks
from voxelocity.training.checkpoint import Checkpoints
from voxelocity_observe.core.events import read_events

# Five patches, so that no number of ranks but one has equal shares.
_STEPS = """
import json, sys
import torch
import voxelocity as vx
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.parallel import even_shares, join_world
from voxelocity.planning import make_plan
from voxelocity.step import TrainingStep, build_loss, build_network
out, dataset, keys, num_steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
with join_world() as world:
    planned = make_plan(vx.open(dataset), overrides=keys, device="cpu")
    plan, place = planned.plan, world.place
    refs = planned.cases.split(0).training
    cases = PreparedCases(
        refs, label_values=(0, 1, 2), prepare=plan.data.prepare, cache=plan.data.cache, warn=print
    )
    network = build_network(plan.network, num_channels=1, num_classes=3, seed=place.rank)
    loss = build_loss(plan.loss) if world.is_alone else build_loss(plan.loss, total=world.total)
    step = TrainingStep(
        network, loss, optimizer=plan.optimizer, precision=plan.precision, device=torch.device("cpu"), world=world
    )
    shares = even_shares(plan.data.batch_size, place.size)
    with Feed(
        cases, plan.data, seed=5, rank=place.rank, world_size=place.size, shares=shares
    ) as feed:
        losses = [step(next(feed), 0.01).item() for _ in range(num_steps)]
torch.save({"losses": losses, "network": network.state_dict()}, f"{out}{place.rank}.pt")
"""


def losses_and_weights(size, dataset, keys, folder, *, num_steps=50):
    """Of each rank."""
    arguments = [folder / f"of{size}_", dataset, json.dumps(keys), num_steps]
    ended = finish(start_ranks(size, arguments, memory=folder / "memory", script=_STEPS))
    assert [status for status, _, _ in ended] == [0] * size, ended
    return [torch.load(folder / f"of{size}_{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("over_batch", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_ranks_with_unequal_shares_have_the_losses_and_weights_of_one_process(
    size, over_batch, tiny_msd, tiny_plan, tmp_path
):
    keys = {**tiny_plan, "data.batch_size": 5, "optimizer.name": "sgd", "loss.dice_over_batch": over_batch}
    (alone,) = losses_and_weights(1, tiny_msd, keys, tmp_path)
    several = losses_and_weights(size, tiny_msd, keys, tmp_path)
    assert alone["losses"][-1] < 0.8 * alone["losses"][0], "it learns"
    for group in several:
        np.testing.assert_allclose(group["losses"], alone["losses"], rtol=2e-4)
        assert group["losses"] == several[0]["losses"]
        for name, weight in group["network"].items():
            assert torch.equal(weight, several[0]["network"][name]), name
            torch.testing.assert_close(weight, alone["network"][name], rtol=0.0, atol=2e-3)


def train(size, dataset, out, sets, folder, *more, script=COMMAND):
    return start_ranks(
        size, ["train", dataset, "-o", out, "--device", "cpu", *sets, *more], memory=folder / "memory", script=script
    )


def test_a_run_on_two_ranks_writes_one_folder_with_the_results_of_one(voxelocity, tiny_msd, tiny_sets, tmp_path):
    keys = ("data.batch_size=3", "train.validate_every_steps=3", "optimizer.name=sgd")
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    assert voxelocity("train", tiny_msd, "-o", tmp_path / "one", "--device", "cpu", *sets).status == 0
    ended = finish(train(2, tiny_msd, tmp_path / "two", sets, tmp_path))
    assert [(status, err) for status, _, err in ended] == [(0, "")] * 2
    assert "(6 steps)" in ended[0][1]
    assert ended[1][1] == "", "one rank prints"
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0.0, atol=1e-4)
    scores = [json.loads((tmp_path / name / "scores.json").read_text())["cases"] for name in ("one", "two")]
    assert [case["case_id"] for case in scores[0]] == [case["case_id"] for case in scores[1]]
    validations = [
        [event for event in read_events(tmp_path / name / "events.jsonl") if event["event"] == "validation"]
        for name in ("one", "two")
    ]
    assert len(validations[0]) == len(validations[1]) > 0
    assert validations[1][0]["mean_dice"] == pytest.approx(validations[0][0]["mean_dice"], abs=1e-3)
    own = read_events(tmp_path / "two" / "events-rank1.jsonl")
    assert sum(event["num_steps"] for event in own if event["event"] == "steps") == 6
    assert {path.name for path in (tmp_path / "two").iterdir()} - {
        path.name for path in (tmp_path / "one").iterdir()
    } == {"events-rank1.jsonl"}


@pytest.mark.nightly
def test_a_run_of_two_ranks_is_resumed_by_one_from_its_last_checkpoint(voxelocity, tiny_msd, tiny_sets, tmp_path):
    sets = [*tiny_sets, "--set", "train.steps=100000", "--set", "train.checkpoint_every_s=1"]
    out = tmp_path / "run"
    processes = train(2, tiny_msd, out, sets, tmp_path)
    checkpoints = Checkpoints(out / "checkpoints", keep=2)
    wait_until(lambda: checkpoints.latest_step() > 0, processes)
    # As Ctrl-C and a launcher do it, which reach all ranks.
    for process in processes:
        process.send_signal(signal.SIGTERM)
    ended = finish(processes)
    assert [status for status, _, _ in ended] == [143, 143], ended
    assert f"stopped by SIGTERM at step {checkpoints.latest_step()}" in ended[0][2]
    assert ended[1][2] == ""
    step = checkpoints.latest_step()
    resumed = train(1, tiny_msd, out, sets, tmp_path, "--resume")
    wait_until(lambda: checkpoints.latest_step() > step, resumed)
    resumed[0].send_signal(signal.SIGTERM)
    assert finish(resumed)[0][0] == 143


@pytest.mark.nightly
def test_ranks_train_the_folds_that_are_left(voxelocity, tiny_msd, tiny_sets, tmp_path):
    command = ("train", tiny_msd, "-o", tmp_path / "cv", "--device", "cpu", *tiny_sets, "--folds")
    voxelocity(*command, "0").succeeded()
    ended = finish(start_ranks(2, [*command, "0,1"], memory=tmp_path / "memory"))
    assert [(status, err) for status, _, err in ended] == [(0, "")] * 2
    assert "fold 0 is finished" in ended[0][1]
    assert "over 4 cases" in ended[0][1]
    assert ended[1][1] == ""


@pytest.mark.nightly
def test_a_training_continues_on_the_nodes_that_are_left(tiny_msd, tiny_sets, tmp_path):
    out = tmp_path / "run"
    sets = [*tiny_sets, "--set", "train.steps=1000000", "--set", "train.checkpoint_every_s=1"]
    begin = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=elastic"),
    ]
    end = ["-m", "voxelocity", "train", str(tiny_msd), "-o", str(out), "--device", "cpu", *sets]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # Each stands for a node.
    nodes = []
    try:
        for number in range(2):
            # The first one holds the meeting point.
            command = [*begin, f"--rdzv-conf=is_host={1 - number},last_call_timeout=10", *end]
            nodes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))
        checkpoints = Checkpoints(out / "checkpoints", keep=2)
        wait_until(lambda: checkpoints.latest_step() > 0 and (out / "events-rank1.jsonl").exists(), nodes)
        kill_with_children(nodes[1])
        step, num_before = checkpoints.latest_step(), num_starts(out)
        wait_until(lambda: num_starts(out) > num_before and checkpoints.latest_step() > step, nodes[:1], most_s=120.0)
        nodes[0].send_signal(signal.SIGTERM)
        nodes[0].wait(timeout=HANGS_S)
    finally:
        for node in nodes:
            kill_with_children(node)


def test_when_a_rank_is_killed_the_others_end_and_the_last_checkpoint_is_whole(tiny_msd, tiny_sets, tmp_path):
    sets = [*tiny_sets, "--set", "train.steps=100000", "--set", "train.checkpoint_every_s=1"]
    out = tmp_path / "run"
    processes = train(2, tiny_msd, out, sets, tmp_path)
    checkpoints = Checkpoints(out / "checkpoints", keep=2)
    wait_until(lambda: checkpoints.latest_step() > 0, processes)
    processes[1].kill()
    (status, _, err), _ = finish(processes, timeout_s=HANGS_S)
    assert status == 1
    assert "another rank has ended" in err
    assert "Traceback" not in err
    assert torch.load(checkpoints.paths()[-1], weights_only=True)["loop"]["step"] == checkpoints.latest_step()


@pytest.mark.nightly
def test_ranks_with_a_cache_in_parts_prepare_half_of_the_training_cases_each(tiny_msd, tiny_sets, tmp_path):
    sets = [*tiny_sets, "--set", "data.cache.num_parts=2", "--set", "data.cache.tier=disk"]
    ended = finish(
        train(2, tiny_msd, tmp_path / "run", [*sets, "--set", f"data.cache.folder={tmp_path}/cache"], tmp_path)
    )
    assert [(status, err) for status, _, err in ended] == [(0, "")] * 2
    assert "prepared 2 cases" in ended[0][1]


_HANG = """
import importlib, time
from voxelocity.parallel import read_place
def plant(module, name, method, rank, number):
    owner = getattr(importlib.import_module(module), name)
    made, calls = getattr(owner, method), [0]
    def hangs(*arguments, **options):
        calls[0] += 1
        if calls[0] == number:
            time.sleep(300)
        return made(*arguments, **options)
    if read_place().rank == rank:
        setattr(owner, method, hangs)
plant({module!r}, {name!r}, {method!r}, {rank}, {number})
from voxelocity_observe.cli.main import main
main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "name", "method", "rank", "number"),
    [
        # The first 20 steps have no limit.
        ("voxelocity.data.pipeline", "Feed", "__next__", 1, 30),
        ("voxelocity.training.validation", "Validation", "intermediate", 1, 2),
        ("voxelocity.training.checkpoint", "Checkpoints", "save", 0, 2),
    ],
)
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pipeline"])
def test_a_rank_that_hangs_is_named_once_and_ends_the_others(
    module, name, method, rank, number, mode, tiny_msd, tiny_sets, tmp_path
):
    if mode == "pipeline" and name == "Feed":
        # Which only rank 0 has.
        rank = 0
    keys = (
        "train.steps=100000",
        "parallel.silence_s=5",
        f"parallel.mode={mode}",
        "train.checkpoint_every_s=0.2",
        "train.validate_every_steps=30",
        "train.validation_cases=2",
    )
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    script = _HANG.format(module=module, name=name, method=method, rank=rank, number=number)
    ended = finish(train(2, tiny_msd, tmp_path / "run", sets, tmp_path, script=script), timeout_s=HANGS_S)
    assert [status for status, _, _ in ended] == [1, 1]
    err = "".join(err for _, _, err in ended)
    assert re.search(rf"for rank {rank} for \d+ s; rank {rank} is at .*\(hangs\)", err), err
    assert err.count("check its disk") == 1
    assert "Traceback" not in err


def kill_with_children(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in (*psutil.Process(process.pid).children(recursive=True), process):
            member.kill()
    process.wait()


def num_starts(run):
    return sum(event["event"] == "run_started" for event in read_events(run / "events.jsonl"))


def wait_until(is_so, processes, *, most_s=60.0):
    end_s = time.monotonic() + most_s
    while not is_so():
        assert all(process.poll() is None for process in processes), finish(processes)
        assert time.monotonic() < end_s
        time.sleep(0.05)


# From the second epoch on, the forward passes of rank 1 take three times as long.
_SLOWS_DOWN = """
from voxelocity.parallel import read_place
from voxelocity.step.unet import UNet
forward, num_calls = UNet.forward, 0
def slow(network, image):
    global num_calls
    num_calls += network.training
    for _ in range(2 * (read_place().rank == 1 and num_calls > 40)):
        forward(network, image)
    return forward(network, image)
UNet.forward = slow
"""


@pytest.mark.nightly
def test_a_rank_that_becomes_slow_takes_fewer_patches_from_the_next_epoch_on(tiny_msd, tiny_sets, tmp_path):
    keys = ("train.steps=150", "data.batch_size=6", "data.patch.draws_per_case=60", "parallel.balance=measured",
            "optimizer.name=sgd")  # fmt: skip
    sets = [*tiny_sets, *(part for key in keys for part in ("--set", key))]
    ended = finish(train(2, tiny_msd, tmp_path / "two", sets, tmp_path, script=_SLOWS_DOWN + COMMAND))
    assert [(status, err) for status, _, err in ended] == [(0, "")] * 2
    events = read_events(tmp_path / "two" / "events.jsonl")
    changes = [tuple(event["shares"]) for event in events if event["event"] == "balance"]
    assert changes
    assert changes[-1][0] > changes[-1][1] >= 1
    assert sum(changes[-1]) == 6
    assert "less time for its forward passes" in " ".join(ended[0][1].split())
    # Each patch was still trained on once: the weights are those of one process.
    (one,) = finish(train(1, tiny_msd, tmp_path / "one", sets, tmp_path))
    assert one[0] == 0, one
    alone, several = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in alone.items():
        torch.testing.assert_close(several[name], weight, rtol=0.0, atol=2e-3)
