"""What the recorder sees of a training on a GPU: its stream's own clock, copies, waits for it, its kernels."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder.kept_state import KeptState
from voxelocity_observe.diagnose.recorder.profile import TRACE_NAME, Profiler
from voxelocity_observe.diagnose.tracing.trace import profile_facts
from voxelocity_observe.monitor.gpu import GpuSampler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SIZE = 4096


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, sleep_s: float, count: int) -> None:
        self.sleep_s, self.count = sleep_s, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.ones(SIZE)


def train(sleep_s: float, *, count: int = 400) -> None:
    net = nn.Sequential(*[nn.Linear(SIZE, SIZE) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 1e-6)
    for row in DataLoader(Rows(sleep_s, count), batch_size=10):
        optimizer.zero_grad()
        loss = net(row.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()


def test_parts_of_a_step_are_those_of_the_stream(recorded: Callable[..., Facts]) -> None:
    facts = recorded(lambda: train(0.001), warmup_steps=5)
    assert facts.settings.device == "cuda"
    parts = {name: sum(step.parts.get(name, 0.0) for step in facts.counted) for name in ("wait", "forward", "backward")}
    whole_s = sum(step.seconds for step in facts.counted)
    # Ten items of a millisecond each, while the stream has nothing to do, as `.item()` has waited for it.
    assert 0.010 * len(facts.counted) <= parts["wait"] < whole_s
    assert parts["forward"] > 0.0
    assert parts["backward"] > parts["forward"]
    (wait,) = [sync for sync in facts.syncs if sync.call == "Tensor.item"]
    assert wait.on_device
    assert wait.count == len(facts.counted)


def test_kernels_of_profiled_steps_are_counted_by_group(tmp_path: Path) -> None:
    net, row = nn.Linear(SIZE, SIZE).cuda(), torch.ones(10, SIZE)
    net(row.cuda()).sum().backward()
    profiler = Profiler(str(tmp_path))
    assert profiler.start() == ""
    profiler.part("forward")
    net(row.cuda()).sum().backward()
    torch.cuda.synchronize()
    profiler.stop()
    profile = profile_facts(tmp_path / TRACE_NAME)
    assert profile.groups["All kernels"].number > 0
    assert profile.groups["All kernels"].gpu_ns > 0
    assert profile.groups["Memory copies"].number > 0
    assert 0 < profile.gpu_busy_ns <= profile.wall_ns


def test_the_driver_tells_of_the_gpu_that_computes() -> None:
    with contextlib.closing(GpuSampler()) as sampler:
        assert sampler.gpus, sampler.missing
        matrix = torch.randn(8192, 8192, device="cuda")
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            matrix @ matrix
            torch.cuda.synchronize()
        (sample, *_) = sampler.sample()
    assert 4 * 8192**2 <= sample.memory_used_bytes <= sample.memory_total_bytes
    assert sample.busy_share is None or sample.busy_share > 0.0


def test_weights_optimizer_and_random_states_on_the_device_are_put_back() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 8, device="cuda")).square().mean().backward()
        optimizer.step()

    def state() -> list[torch.Tensor]:
        held = [tensor.clone() for per in optimizer.state.values() for tensor in per.values()]
        return [*(tensor.clone() for tensor in net.state_dict().values()), *held, torch.cuda.get_rng_state()]

    step()
    kept = KeptState(torch, [])
    kept.keep()
    before = state()
    step()
    assert not all(map(torch.equal, state(), before))
    kept.put_back()
    assert all(map(torch.equal, state(), before))
