"""Several ranks: losses and speed by their number, unequal ones, two nodes, models larger than a device.

    python benchmarks/ranks.py [--only losses unequal nodes fit] [--out FOLDER]

Ranks are processes of this machine with one thread each, on MSD's hippocampus. The nodes are network namespaces with
addresses of their own, which need root; `tc` limits their connection. Writes `results/ranks.json`; measurements that
were not asked for are kept.
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
from pathlib import Path
from statistics import median
from typing import Any

from safetensors.torch import load_file

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity.observe import Stopwatch

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
from voxelocity.parallel import even_shares, joined
from voxelocity.planning import make_plan
from voxelocity.step import TrainingStep, build_loss, build_network
dataset, keys, shares, slow = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
with joined() as world:
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
        cases, plan.data, seed=5, rank=place.rank, world_size=place.size, shares=shares, waits_for_loops=True
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

# Distributes three networks in each way, and prints what was predicted and measured, and how gradients differ.
_FIT = """
import json, sys
import torch
from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model, joined
from voxelocity.step import NetworkConfig, build_network
torch.set_num_threads(1)
TWOS = [[2, 2, 2]] * 3
NETWORKS = {
    "UNet": {"name": "unet", "widths": [16, 32, 64, 128], "num_res_units": 2},
    "DynUNet": {"name": "dynunet", "widths": [32, 64, 128, 256]},
    "SegResNet": {"name": "segresnet", "widths": [16, 32, 64, 128]},
}
numbers = torch.Generator().manual_seed(0)
image = torch.randn(4, 1, 48, 48, 48, generator=numbers)
label = torch.randint(2, (4, 48, 48, 48), generator=numbers)
loss, found = torch.nn.functional.cross_entropy, {}
with joined() as world:
    part = slice(2 * world.place.rank, 2 * world.place.rank + 2)
    for name, values in NETWORKS.items():
        make = lambda: build_network(
            NetworkConfig.parse({"strides": TWOS, **values}), num_channels=1, num_classes=2, seed=3
        )
        whole = make()
        loss(whole(image), label).backward()
        wanted = {key: value.grad for key, value in whole.named_parameters()}
        scale = max(float(value.abs().max()) for value in wanted.values())
        for mode in ("ddp", "fsdp", "checkpointing", "pipeline"):
            model, decision = auto_parallelize_model(
                make(), image, world=world, devices=[1 << 40] * 2, mode=mode, num_microbatches=4
            )
            if isinstance(model, PipelineParallelModule):
                model.make_gradients(image, label, loss)
                inner = {id(value): key for key, value in model.stage.state_dict(keep_vars=True).items()}
                gradients = {model.names[inner[id(value)]][0]: value.grad for value in model.parameters()}
            else:
                loss(model(image[part]), label[part]).backward()
                gradients = {
                    key.removeprefix("module.").removeprefix("network."): getattr(
                        value.grad, "full_tensor", lambda value=value: value.grad
                    )()
                    for key, value in model.named_parameters()
                }
            difference = max(float((gradients[key] - wanted[key]).abs().max()) for key in gradients) / scale
            found[f"{name}, {mode}"] = {
                "difference": max(world.gather(difference)),
                "predicted_bytes": decision.predicted_bytes,
                "measured_bytes": decision.measured_bytes,
            }
print(json.dumps(found))
"""


def losses(dataset: Path, work: Path) -> dict[str, Any]:
    """Of 1, 2 and 4 ranks: how far losses differ from one process, and patches a second."""
    found = {size: _steps(size, dataset, work)[0] for size in (1, 2, 4)}
    alone = found[1]["losses"]
    return {
        str(size): {
            "largest_difference": max(abs(a - b) for a, b in zip(each["losses"], alone, strict=True)),
            "largest_loss": max(alone),
            "patches_per_s": _PLAN["data.batch_size"] / median(each["seconds"][10:]),
        }
        for size, each in found.items()
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


def nodes(dataset: Path, work: Path) -> dict[str, Any]:
    """A training on two nodes, also with 100 Mbit/s between them: weights against those of two ranks on one node."""
    wanted = _train(2, dataset, work / "one_node", work)
    found = {"one node": {"seconds": wanted[1]}}
    for name, limit in (("two nodes", ""), ("two nodes, 100 Mbit/s", "100mbit")):
        weights, seconds = _train_on_nodes(dataset, work / name.replace(" ", "_").replace("/", "_"), work, limit)
        difference = max(float((weights[key] - wanted[0][key]).abs().max()) for key in weights)
        found[name] = {"seconds": seconds, "largest_difference": difference}
    return found


def fit(dataset: Path, work: Path) -> dict[str, Any]:
    """Gradients and memory of three networks in each way in which they are distributed over two ranks."""
    found: dict[str, Any] = _run_ranks(2, ["-c", _FIT], {})[0]
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
    return _run_ranks(size, ["-c", _STEPS, str(dataset), json.dumps(keys), json.dumps(shares), str(slow)], {})


def _run_ranks(size: int, arguments: Sequence[str], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each rank prints as its last line."""
    processes = [_start([], arguments, {**_environment(rank, size, "127.0.0.1"), **environ}) for rank in range(size)]
    outputs = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), [process.returncode for process in processes]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _start(prefix: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, *arguments]
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


def _environment(rank: int, size: int, host: str, *, local_size: int = 0) -> dict[str, str]:
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            _PORT[0] = free.getsockname()[1]
    local_size = local_size or size
    return {
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(_PORT[0]),
    }


_PORT = [0]


def _arguments(dataset: Path, out: Path) -> list[str]:
    sets = [part for key, value in _PLAN.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    return [*VOXELOCITY[1:], "train", str(dataset), "-o", str(out), "--device", "cpu", *sets, "--overwrite"]


def _train(size: int, dataset: Path, out: Path, work: Path) -> tuple[dict[str, Any], float]:
    """Weights of a training on one node, and its seconds."""
    watch = Stopwatch()
    cache = {"XDG_CACHE_HOME": str(work / "cache_of_one")}
    processes = [
        _start([], _arguments(dataset, out), {**_environment(rank, size, "127.0.0.1"), **cache}) for rank in range(size)
    ]
    for process in processes:
        process.communicate()
    assert not any(process.returncode for process in processes)
    return load_file(out / "model.safetensors"), watch.elapsed_s


def _train_on_nodes(dataset: Path, out: Path, work: Path, limit: str) -> tuple[dict[str, Any], float]:
    """The same on two namespaces with a cache each, connected by a virtual cable."""
    for command in (
        "ip netns add node0",
        "ip netns add node1",
        "ip link add cable0 netns node0 type veth peer name cable1 netns node1",
        *(
            f"ip -n node{node} {what}"
            for node in (0, 1)
            for what in (
                f"addr add 10.77.0.{node + 1}/24 dev cable{node}",
                f"link set cable{node} up",
                "link set lo up",
            )
        ),
        *(
            f"ip netns exec node{node} tc qdisc add dev cable{node} root tbf rate {limit} burst 64kb latency 400ms"
            for node in (0, 1)
            if limit
        ),
    ):
        subprocess.run(command.split(), check=True)
    try:
        watch = Stopwatch()
        processes = [
            _start(
                ["ip", "netns", "exec", f"node{rank}"],
                _arguments(dataset, out),
                {
                    **_environment(rank, 2, "10.77.0.1", local_size=1),
                    "GLOO_SOCKET_IFNAME": f"cable{rank}",
                    "XDG_CACHE_HOME": str(work / f"cache_of_node{rank}"),
                },
            )
            for rank in (0, 1)
        ]
        for process in processes:
            process.communicate()
        assert not any(process.returncode for process in processes)
        return load_file(out / "model.safetensors"), watch.elapsed_s
    finally:
        for node in (0, 1):
            subprocess.run(["ip", "netns", "del", f"node{node}"], check=False)


MEASUREMENTS: Mapping[str, Callable[[Path, Path], dict[str, Any]]] = {
    "losses": losses,
    "unequal": unequal,
    "nodes": nodes,
    "fit": fit,
}


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    options = parser.parse_args()
    record = head("ranks", f"--only {' '.join(options.only)}")
    before = options.out / "ranks.json"
    found: dict[str, Any] = json.loads(before.read_text())["found"] if before.exists() else {}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            dataset = Path(shutil.copytree(real_data() / "hippocampus", work / "hippocampus"))
            found[name] = MEASUREMENTS[name](dataset, work)
            print(name, json.dumps(found[name], indent=1), flush=True)
        print(write_record({**record, "found": found}, "ranks", out=options.out))


if __name__ == "__main__":
    main()
