"""Two ranks that accumulate gradients: sums over the ranks at each micro-batch are seen, and those of `no_sync` not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.diagnose.facts import read_facts
from voxelocity_observe.diagnose.judging import diagnose
from voxelocity_observe.diagnose.watching.attach import recording_environment

PROGRAM = """
import os, sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
network = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024)))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    for micro in range(4):
        skips = sys.argv[1] == "no_sync" and micro < 3
        with network.no_sync() if skips else nullcontext():
            network(torch.ones(2, 256)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["each", "no_sync"])
def test_an_accumulation_that_sums_at_each_micro_batch_is_found(way: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "recording"
    script.write_text(PROGRAM)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), way]
    subprocess.run(words, check=True, env=recording_environment(folder, whole=True, experiments=False), timeout=HANGS_S)
    facts = read_facts(folder)
    assert facts.main.world_size == 2
    assert facts.optimizer.backwards_per_step == 4.0
    assert facts.optimizer.synced_per_step == (4.0 if way == "each" else 1.0)
    found = [finding for finding in diagnose(facts).findings if finding.code == "VX315"]
    assert bool(found) == (way == "each")
    assert way == "no_sync" or found[0].saves_s > 0.0
