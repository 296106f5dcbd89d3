"""Several ranks: losses, speed and Dice by their number, unequal ones, the cost of a world of one.

    python benchmarks/ranks.py [--only losses unequal overhead dice] [--out FOLDER]

Ranks are processes of this machine with one thread each, on MSD's hippocampus. Writes `results/ranks.json`;
measurements that were not asked for are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness import VOXELOCITY, measure_each, real_data
from voxelocity_observe.core.events import read_events

_NUM_STEPS = 50
_PLAN: dict[str, Any] = {
    "network.name": "unet",
    "network.widths": [16, 32, 64],
    "network.strides": [[2, 2, 2]] * 2,
    "data.patch.shape_voxel": [40, 56, 40],
    "window.shape_voxel": [40, 56, 40],
    "data.batch_size": 5,
    "data.cache.tier": "disk",
    "optimizer.name": "sgd",
    "precision.compute": "float32",
    "train.steps": _NUM_STEPS,
}

# Makes the steps of a training, and prints what they took. The last argument slows rank 1 down.
_STEPS = """
import json, sys, time
import torch
import voxelocity as vx
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.parallel import even_shares, join_world
from voxelocity.planning import make_plan
from voxelocity.step import TrainingStep, build_loss, build_network
dataset, keys, shares, slow = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
with join_world() as world:
    planned = make_plan(vx.open(dataset), overrides=keys, device="cpu")
    plan, place = planned.plan, world.place
    cases = PreparedCases(
        planned.cases.split(0).training[:40], label_values=(0, 1, 2), prepare=plan.data.prepare, cache=plan.data.cache,
        warn=lambda text: None,
    )
    network = build_network(plan.network, num_channels=1, num_classes=3, seed=0)
    forward = network.forward
    def slowed(image):
        for _ in range(slow if place.rank == 1 else 0):
            # As much work again as the whole step takes, without a trace.
            torch.autograd.grad(forward(image).sum(), list(network.parameters()))
        return forward(image)
    network.forward = slowed
    loss = build_loss(plan.loss) if world.is_alone else build_loss(plan.loss, total=world.total)
    step = TrainingStep(
        network, loss, optimizer=plan.optimizer, precision=plan.precision, device=torch.device("cpu"), world=world
    )
    shares = tuple(shares) or even_shares(plan.data.batch_size, place.size)
    losses, seconds = [], []
    with Feed(
        cases, plan.data, seed=5, rank=place.rank, world_size=place.size, shares=shares
    ) as feed:
        for _ in range(plan.train.steps):
            batch = next(feed)
            start_s = time.perf_counter()
            losses.append(step(batch, 0.01).item())
            seconds.append(time.perf_counter() - start_s)
            if len(losses) == 1:
                weights = torch.cat([value.flatten() for value in network.state_dict().values()]).double()
                first = [float(weights.sum()), float(weights.square().sum())]
print(json.dumps({"losses": losses, "seconds": seconds, "first": first}))
"""

# Makes the steps of a training twice, alternating: with our step, and with the loop that anyone would write.
_OVERHEAD = """
import json, statistics, sys, time
import torch
from voxelocity.core.batch import Batch
from voxelocity.parallel import join_world
from voxelocity.step import NetworkConfig, OptimizerConfig, PrecisionConfig, TrainingStep, build_loss, build_network
from voxelocity.step import LossConfig
torch.set_num_threads(2)
CPU = torch.device("cpu")
with join_world() as world:
    config = NetworkConfig.parse({"name": "unet", "widths": [16, 32, 64], "strides": [[2, 2, 2]] * 2})
    make = lambda: build_network(config, num_channels=1, num_classes=3, seed=0)
    numbers = torch.Generator().manual_seed(0)
    image = torch.randn(4, 1, 40, 56, 40, generator=numbers)
    label = torch.randint(3, (4, 40, 56, 40), generator=numbers).to(torch.uint8)
    batch = Batch(image=image, label=label, draws=(), regions=(), step=0)
    ours = TrainingStep(
        make(), build_loss(LossConfig()), optimizer=OptimizerConfig(name="sgd", learning_rate=0.01),
        precision=PrecisionConfig(compute="float32"), device=CPU, world=world,
    )
    network, loss = make(), build_loss(LossConfig())
    weights = list(network.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5, fused=True)
    def plain():
        optimizer.zero_grad()
        value = loss(network(image), label)
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights, 12.0)
        optimizer.step()
    ways, seconds = {"ours": lambda: ours(batch, 0.01), "plain": plain}, {"ours": [], "plain": []}
    for number in range(int(sys.argv[1])):
        for name in sorted(ways, reverse=number % 2 == 1):
            start_s = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - start_s)
print(json.dumps({name: values[5:] for name, values in seconds.items()}))
"""


def losses(dataset: Path, work: Path) -> dict[str, Any]:
    """Of 1, 2 and 4 ranks: how far losses differ from one process, and patches a second."""
    found = {size: _steps(size, dataset, work)[0] for size in (1, 2, 4)}
    alone = found[1]["losses"]
    return {
        str(size): {
            "largest_difference": max(abs(a - b) for a, b in zip(figures["losses"], alone, strict=True)),
            "largest_loss": max(alone),
            "patches_per_s": _PLAN["data.batch_size"] / median(figures["seconds"][10:]),
        }
        for size, figures in found.items()
    }


def unequal(dataset: Path, work: Path) -> dict[str, Any]:
    """Seconds of a step with equal and with balanced shares, if rank 1 needs twice as long."""
    plan = {**_PLAN, "data.batch_size": 6}
    (alone,) = _steps(1, dataset, work, plan=plan)
    sides: dict[str, Any] = {"equal": [], "balanced": []}
    for _ in range(3):
        for name, shares in (("equal", (3, 3)), ("balanced", (4, 2))):
            first, _ = _steps(2, dataset, work, plan=plan, shares=shares, slow=1)
            sides[name].append(median(first["seconds"][10:]))
            difference = max(abs(a - b) / abs(b) for a, b in zip(first["first"], alone["first"], strict=True))
            sides[f"{name}_difference"] = difference
    return sides


def overhead(dataset: Path, work: Path) -> dict[str, Any]:
    """Seconds of steps in a world of one and in a loop without one, alternating."""
    found: dict[str, list[float]] = _run_ranks(1, ["-c", _OVERHEAD, "1005"], {"OMP_NUM_THREADS": "2"})[0]
    ratios = [ours / plain for ours, plain in zip(found["ours"], found["plain"], strict=True)]
    medians = {f"{name}_s": median(seconds) for name, seconds in found.items()}
    return {**medians, "ratio_quartiles": quantiles(ratios, n=4), "n": len(ratios)}


def dice(dataset: Path, work: Path) -> dict[str, Any]:
    """Dice and images a second of a run of five minutes on 1 and 2 ranks of one thread each, as it is planned."""
    found = {}
    for size in (1, 2):
        out = work / f"dice{size}"
        environ = {"XDG_CACHE_HOME": str(work / f"cache{size}")}
        arguments = [*VOXELOCITY[1:], "train", str(dataset), "-o", str(out), "--device", "cpu", "--time-budget", "5m"]
        processes = [
            _start(["taskset", "-c", str(rank)], arguments, {**_environment(rank, size), **environ})
            for rank in range(size)
        ]
        for process in processes:
            process.communicate()
        assert not any(process.returncode for process in processes)
        (ended,) = (event for event in read_events(out / "events.jsonl") if event["event"] == "run_finished")
        found[str(size)] = {key: ended[key] for key in ("mean_dice", "step", "images_per_s", "seconds")}
    return found


def _steps(
    size: int,
    dataset: Path,
    work: Path,
    *,
    plan: Mapping[str, Any] = _PLAN,
    shares: Sequence[int] = (),
    slow: int = 0,
) -> list[dict[str, Any]]:
    keys = {**plan, "data.cache.folder": str(work / "cache"), "planner.measure": "never"}
    return _run_ranks(size, ["-c", _STEPS, str(dataset), json.dumps(keys), json.dumps(shares), str(slow)])


def _run_ranks(size: int, arguments: Sequence[str], environ: Mapping[str, str] = {}) -> list[dict[str, Any]]:
    """What each rank prints as its last line."""
    processes = [_start([], arguments, {**_environment(rank, size), **environ}) for rank in range(size)]
    outputs = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), [process.returncode for process in processes]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _start(prefix: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, *arguments]
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


def _environment(rank: int, size: int) -> dict[str, str]:
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            _PORT[0] = free.getsockname()[1]
    return {
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_PORT[0]),
    }


_PORT = [0]


def _in_new_folders(measurement: Callable[[Path, Path], dict[str, Any]]) -> dict[str, Any]:
    """What it finds with a copy of the data and a working folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        return measurement(Path(shutil.copytree(real_data() / "hippocampus", work / "hippocampus")), work)


if __name__ == "__main__":
    measurements = (losses, unequal, overhead, dice)
    measure_each(
        "ranks", __doc__, {measurement.__name__: partial(_in_new_folders, measurement) for measurement in measurements}
    )
