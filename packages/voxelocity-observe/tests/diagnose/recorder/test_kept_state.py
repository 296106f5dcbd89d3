"""The state of a training is put back as it was, wherever it is held."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from voxelocity_observe.diagnose.recorder.kept_state import KeptState, free_bytes, kept_generators


class Trainer:
    """A class of the person's own."""

    def __init__(self, net: nn.Module) -> None:
        self.shadow = [p.detach().clone() for p in net.parameters()]
        self.losses: list[float] = []
        self.num_steps = 0
        self.counts = np.zeros((2, 2))
        self.rng = np.random.default_rng(3)

    def after(self, net: nn.Module, loss: float) -> None:
        self.num_steps += 1
        self.losses.append(loss)
        self.counts += 1
        self.rng.random()
        with torch.no_grad():
            for kept, now in zip(self.shadow, net.parameters(), strict=True):
                kept.lerp_(now, 0.1)


class Proxy:
    """As pydantic's stand-ins for schemas that are not built yet: any attribute that is missing raises an error."""

    __slots__ = ()

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"{name} is not built yet")


class Program:
    """A training with all that changes in its steps."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.net)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.trainer = Trainer(self.net)
        self.proxy = Proxy()
        self.own: dict[str, torch.Tensor] = {k: v.clone() for k, v in self.net.state_dict().items()}

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.randn(4, 4) + random.random() + float(np.random.rand())  # noqa: NPY002 - as people's code has it
        loss = self.net(x).square().mean()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.net)
        self.trainer.after(self.net, loss.item())
        for name, value in self.net.state_dict().items():
            self.own[name] = 0.9 * self.own[name] + 0.1 * value

    def state(self) -> dict[str, Any]:
        trainer = self.trainer
        return copy.deepcopy(
            {
                "net": self.net.state_dict(),
                "gradients": [p.grad for p in self.net.parameters()],
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "average": self.average.state_dict(),
                "scaler": self.scaler.state_dict(),
                "trainer": [trainer.shadow, trainer.losses, trainer.num_steps, trainer.counts.tolist()],
                "own": dict(self.own),
                "random": [torch.rand(1), random.random(), np.random.rand(), trainer.rng.random()],  # noqa: NPY002
            }
        )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("num_before", [0, 3])
def test_everything_that_steps_change_is_put_back_bit_by_bit(num_before: int) -> None:
    torch.manual_seed(1)
    program = Program()
    for _ in range(num_before):
        program.step()
    kept = KeptState(torch, [])
    kept.keep()
    weights = [id(p) for p in program.net.parameters()]
    before = program.state()
    for _ in range(4):
        program.step()
    program.net.eval()
    assert not same(program.state(), before)
    kept.put_back()
    assert same(program.state(), before)
    assert program.net.training
    assert [id(p) for p in program.net.parameters()] == weights
    # The training goes on as it would have.
    program.step()
    kept.put_back()
    assert not same(program.state(), before), "a second call does nothing"


def test_own_generators_of_loaders_and_of_transforms_are_put_back() -> None:
    transform = np.random.RandomState(5)
    python, given = random.Random(6), torch.Generator().manual_seed(7)
    batches = iter("what batchgenerators calls a generator")
    put_back = kept_generators(torch, [given, batches])

    def drawn() -> list[float]:
        return [transform.rand(), python.random(), float(torch.rand(1, generator=given)), float(torch.rand(1))]

    first = drawn()
    put_back()
    assert drawn() == first


def test_data_is_neither_copied_nor_changed() -> None:
    class Items(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.cache = [torch.zeros(1, 4, 4)]

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.cache[index]

    net = nn.Linear(4, 4)
    items, loose = Items(), [torch.zeros(300, 300, 30)]
    before = KeptState(torch, [])
    kept = KeptState(torch, [])
    kept.keep()
    items.cache[0] += 1
    items.cache.append(torch.ones(1))
    loose[0] += 1
    kept.put_back()
    assert kept.num_bytes == before.num_bytes < 1 << 30
    assert [tensor.sum().item() for tensor in (*items.cache, *loose)] == [16.0, 1.0, 2_700_000.0]
    assert net.weight.shape == (4, 4)


def test_a_weight_that_was_given_other_memory_or_another_shape_is_put_back() -> None:
    net = nn.Linear(2, 2, bias=False)
    before = net.weight.detach().clone()
    kept = KeptState(torch, [])
    kept.keep()
    net.weight.data = torch.zeros(3, 5)
    kept.put_back()
    assert torch.equal(net.weight, before)


@pytest.mark.parametrize("failure", [OSError("gone"), KeyboardInterrupt("gone")])
def test_what_fails_to_be_put_back_is_raised_after_all_else_was(failure: BaseException) -> None:
    net = nn.Linear(2, 2)
    before = net.weight.detach().clone()

    kept = KeptState(torch, [])
    kept.keep()
    failures = [failure]

    def fail() -> None:
        if failures:
            raise failures.pop()

    kept._undo.insert(0, fail)
    with torch.no_grad():
        net.weight.add_(1)
    with pytest.raises(type(failure), match="gone"):
        kept.put_back()
    assert torch.equal(net.weight, before)


def test_free_memory_is_what_the_machine_or_its_control_group_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import builtins
    import io

    files = {
        "/proc/meminfo": "MemTotal: 64 kB\nMemAvailable: 1024 kB\n",
        "/sys/fs/cgroup/memory.max": "600000\n",
        "/sys/fs/cgroup/memory.current": "500000\n",
        "/sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 50000\n",
    }

    def play(content: dict[str, str]) -> Callable[..., Any]:
        def opened(path: str, *args: Any, **kwargs: Any) -> Any:
            if path not in content:
                raise FileNotFoundError(path)
            return io.StringIO(content[path])

        return opened

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", play(files))
        group = free_bytes()
        patch.setattr(builtins, "open", play({**files, "/sys/fs/cgroup/memory.max": "max\n"}))
        machine = free_bytes()
        patch.setattr(builtins, "open", play({}))
        unknown = free_bytes()
    assert (group, machine, unknown) == (150_000, 1 << 20, 1 << 62)
