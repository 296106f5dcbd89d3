"""Each example trains on batches of `vx.Feed` under the launcher of its own library, on two ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from voxelocity_observe.core.environment import python_path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "feed"
# What the example needs of Horovod, which has had no release since 2023, on gloo.
HOROVOD = """
import torch
import torch.distributed as dist
init = lambda: dist.init_process_group("gloo")
rank, size, local_rank = dist.get_rank, dist.get_world_size, dist.get_rank
def broadcast_parameters(state, root_rank):
    for value in state.values():
        dist.broadcast(value, root_rank)
def DistributedOptimizer(optimizer, named_parameters):
    named, step = dict(named_parameters), optimizer.step
    def averaged():
        for value in named.values():
            dist.all_reduce(value.grad.div_(size()))
        step()
    optimizer.step = averaged
    return optimizer
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "library", "launcher", "ranks"),
    [
        ("own_loop", "torch", TORCHRUN, ()),
        ("with_monai", "monai", TORCHRUN, ()),
        ("with_ignite", "ignite", (), ("2",)),
        ("with_lightning", "lightning", (), ("2",)),
    ],
)
def test_two_ranks_of_an_example_learn(name, library, launcher, ranks, tiny_msd, tmp_path):
    pytest.importorskip(library)
    learns(name, launcher, ranks, tiny_msd, tmp_path)


@pytest.mark.nightly
def test_two_ranks_of_the_example_for_horovod_learn_with_its_interface(tiny_msd, tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "torch.py").write_text(HOROVOD)
    learns("with_horovod", TORCHRUN, (), tiny_msd, tmp_path)


def learns(name, launcher, ranks, dataset, folder):
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / f"{name}.py", dataset, *ranks, "40"],
        env={
            **os.environ,
            "PYTHONPATH": f"{python_path()}{os.pathsep}{folder}",
            "XDG_CACHE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"step (\d+), loss ([\d.]+)", done.stdout)
    assert [int(step) for step, _ in found] == [10, 20, 30, 40], done.stdout
    assert float(found[-1][1]) < 0.9 * float(found[0][1])
