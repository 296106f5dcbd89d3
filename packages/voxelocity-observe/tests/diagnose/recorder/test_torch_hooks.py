"""Hooks of torch: what is seen of a loop, and that nothing of a program changes by them."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders
from torch.utils.data._utils import fetch as torch_fetch

from voxelocity_observe.diagnose.facts import Facts, read_facts
from voxelocity_observe.diagnose.recorder.timeline import Ledger
from voxelocity_observe.diagnose.recorder.torch_hooks import TorchHooks, _goes_to_device
from voxelocity_observe.diagnose.watching.attach import record_here

Recorded = Callable[..., Facts]
OWNERS: tuple[Any, ...] = (
    torch, torch.serialization, torch.Tensor, torch.autograd, torch.nn.Module, torch.nn.utils, torch.nn.utils.clip_grad,
    gc, torch.optim.Optimizer, torch.optim.SGD, torch.optim.Adam, torch.amp.GradScaler,
    torch_loaders.DataLoader, torch_loaders._BaseDataLoaderIter, torch_loaders._MultiProcessingDataLoaderIter,
    torch_fetch._BaseDatasetFetcher, torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher,
)  # fmt: skip


def test_stop_restores_everything_exactly(tmp_path: Path, net: nn.Module) -> None:
    torch.optim.SGD(net.parameters())
    torch.optim.Adam(net.parameters())
    before = [dict(vars(owner)) for owner in OWNERS]
    with record_here(tmp_path):
        hooked = [dict(vars(owner)) for owner in OWNERS]
    after = [dict(vars(owner)) for owner in OWNERS]
    assert sum(a != b for a, b in zip(before, hooked, strict=True)) > 10
    for owner, a, b in zip(OWNERS, before, after, strict=True):
        assert a.keys() == b.keys(), owner
        assert [name for name in a if a[name] is not b[name]] == [], owner


def test_parts_of_a_plain_loop_hold_its_planted_sleeps(recorded: Recorded, items: Any) -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            time.sleep(0.010)
            return _SlowBackward.apply(self.layer(x))

    net = Slow()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def late(batch: list[Any]) -> Any:
        time.sleep(0.015)
        return torch.utils.data.default_collate(batch)

    def program() -> None:
        for x, y in DataLoader(items, batch_size=2, collate_fn=late):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(net(x), y).backward()
            optimizer.step()
            time.sleep(0.005)

    steps = recorded(program).counted
    assert len(steps) == 3
    for step in steps:
        assert step.num_images == 2
        assert step.parts["wait"] >= 0.015
        assert step.parts["forward"] >= 0.010
        assert step.parts["backward"] >= 0.020
        assert step.parts["other"] >= 0.005
        assert sum(step.parts.values()) == pytest.approx(step.seconds, abs=1e-5)
        assert step.host_parts == step.parts


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(0.020)
        return gradient


def test_accumulated_gradients_are_one_step(recorded: Recorded, net: nn.Module, items: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def program() -> None:
        for _ in range(3):
            for index, (x, y) in enumerate(DataLoader(items, batch_size=1)):
                nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                if index % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()

    facts = recorded(program)
    assert len(facts.steps) == 6
    assert [step.num_images for step in facts.steps] == [4] * 6
    assert facts.optimizer.forwards_per_step == 4.0
    assert facts.optimizer.name == "SGD"


def test_two_optimizers_on_one_batch_end_one_step_together(recorded: Recorded, items: Any) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())

    def program() -> None:
        for x, _ in DataLoader(items, batch_size=2):
            with torch.no_grad():
                fake = generator(x)
            first.zero_grad()
            (critic(fake) - critic(x)).mean().backward()
            first.step()
            second.zero_grad()
            critic(generator(x)).mean().backward()
            second.step()

    facts = recorded(program)
    assert len(facts.steps) == 4
    assert [p for p in facts.passes if p.kind == "validation"] == []


def test_scaler_that_leaves_out_a_step_ends_the_step(recorded: Recorded, net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def program() -> None:
        for index in range(4):
            scale = torch.inf if index == 1 else 1.0
            scaler.scale(net(torch.ones(2, 4)).sum() * scale).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()

    assert len(recorded(program).steps) == 4


def test_optimizer_whose_scheduler_is_older_than_the_recording_is_seen(recorded: Recorded, learn: Any) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(learn.optimizer, 1)

    def program() -> None:
        for _ in range(4):
            learn()
            scheduler.step()

    facts = recorded(program)
    assert len(facts.steps) == 4
    assert all(step.parts["optimizer"] > 0 for step in facts.steps)


def test_closure_of_an_optimizer_counts_as_forward_and_backward(recorded: Recorded, net: nn.Module) -> None:
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        time.sleep(0.002)
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    def program() -> None:
        for _ in range(3):
            optimizer.step(closure)  # type: ignore[arg-type]

    step = recorded(program).counted[-1]
    assert step.parts["optimizer"] >= 0.002
    assert step.parts["forward"] > 0
    assert step.parts["backward"] > 0


def test_training_in_a_thread_of_its_own_is_seen(recorded: Recorded, learn: Any, items: Any) -> None:
    def train() -> None:
        for _ in range(2):
            for x, y in DataLoader(items, batch_size=2):
                learn(x, y)

    def program() -> None:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    facts = recorded(program)
    assert len(facts.steps) >= 6
    assert facts.counted[-1].parts["wait"] > 0


def test_modules_that_other_threads_call_make_no_parts(recorded: Recorded, learn: Any) -> None:
    other = nn.Linear(4, 4)
    stop = threading.Event()

    def beside() -> None:
        while not stop.is_set():
            other(torch.ones(1, 4))

    def program() -> None:
        thread = threading.Thread(target=beside)
        thread.start()
        for _ in range(5):
            learn()
        stop.set()
        thread.join()

    facts = recorded(program)
    assert [step.num_images for step in facts.steps] == [2] * 5
    assert facts.network.name == "Net"


@pytest.mark.usefixtures("sleeps_cost_time")
def test_validation_and_saving_are_told_apart_from_steps(
    recorded: Recorded, net: nn.Module, learn: Any, items: Any, tmp_path: Path
) -> None:
    training, held_out = DataLoader(items, batch_size=2), DataLoader(items, batch_size=4)

    def program() -> None:
        for _ in range(2):
            net.train()
            for x, y in training:
                learn(x, y)
            net.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    time.sleep(0.010)
                    net(x)
            torch.save(net.state_dict(), tmp_path / "weights.pt")

    facts = recorded(program)
    validations = [p for p in facts.passes if p.kind == "validation"]
    assert len(facts.steps) == 8
    assert [(v.num_forwards, v.batch_shapes, v.has_gradients) for v in validations] == [(2, (((4, 4), 2),), False)] * 2
    assert [v.seconds for v in validations] == pytest.approx([0.02, 0.02], abs=1e-3), "two sleeps"
    assert all(v.where.startswith(f"{__file__}:") for v in validations)
    assert sum(p.kind == "saving" for p in facts.passes) == 2
    assert sum(p.kind == "epoch start" for p in facts.passes) == 2
    assert max(step.seconds for step in facts.counted) < 0.001
    (save,) = facts.calls
    assert (save.call, save.count) == ("torch.save", 2)
    assert save.line == 'torch.save(net.state_dict(), tmp_path / "weights.pt")'
    assert [(loader.is_for_training, loader.num_epochs) for loader in facts.loaders] == [(True, 2), (False, 2)]


def test_validation_that_records_gradients_is_told(recorded: Recorded, net: nn.Module, learn: Any) -> None:
    def program() -> None:
        for _ in range(3):
            learn()
        net.eval()
        net(torch.ones(5, 4))
        net.train()
        learn()

    (validation,) = recorded(program).passes
    assert validation.has_gradients
    assert validation.batch_shapes == (((5, 4), 1),)


def test_networks_are_copied_pickled_scripted_and_traced_as_ever(tmp_path: Path, net: nn.Module) -> None:
    x = torch.ones(2, 4)
    expected = net(x)
    with record_here(tmp_path):
        made = [
            copy.deepcopy(net),
            pickle.loads(pickle.dumps(net)),
            torch.fx.symbolic_trace(net),
        ]
        results = [function(x) for function in made]
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        copied = copy.deepcopy(optimizer)
        net(x).sum().backward()
        optimizer.step()
        scheduler.step()
    assert all(torch.equal(result, expected) for result in results)
    # Made while recorded, used afterwards.
    optimizer.step()
    copied.step()
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_functions_of_torch_can_be_sent_to_other_processes_as_ever(tmp_path: Path) -> None:
    with record_here(tmp_path):
        for function in (torch.save, torch.autograd.backward, torch.nn.utils.clip_grad_norm_, torch.Tensor.item):
            assert pickle.loads(pickle.dumps(function)) == function


class Odd(torch.optim.SGD):
    """What libraries look for in loaders, it computes itself, and not at any time."""

    @property
    def dataset(self) -> Any:
        raise RuntimeError("not now")


class Listed(nn.Linear):
    """A network with a list of parameters, which optimizers take."""

    def parameters(self, recurse: bool = True) -> Any:
        return list(super().parameters(recurse))


def test_networks_and_optimizers_with_members_of_their_own_are_trained_as_ever(recorded: Recorded) -> None:
    net = Listed(4, 2)

    def program() -> None:
        optimizer = Odd(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()

        assert [*inspect.signature(optimizer.step).parameters] == ["closure"], "a scaler looks at them"

    facts = recorded(program)
    assert (facts.network.name, facts.optimizer.name) == ("Listed", "Odd")


def test_compiled_networks_have_the_same_graphs_and_no_breaks_with_hooks(tmp_path: Path, net: nn.Module) -> None:
    import torch._dynamo.utils

    def counts() -> tuple[dict[str, int], dict[str, int]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(copy.deepcopy(net), backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(compiled.parameters(), 0.1)
        for _ in range(4):
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()

        @torch.compile(backend="eager", fullgraph=True)
        def function(x: torch.Tensor) -> torch.Tensor:
            return net(x) * 2  # type: ignore[no-any-return]

        function(torch.ones(2, 4))
        counters = torch._dynamo.utils.counters
        return dict(counters["frames"]), dict(counters["stats"])

    without = counts()
    with record_here(tmp_path):
        assert counts() == without
    assert counts() == without
    assert without[1]["unique_graphs"] == 2


def test_recompiles_after_the_first_steps_are_told(recorded: Recorded, net: nn.Module) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(net, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def program() -> None:
        for size in (2, 2, 2, 3, 4):
            compiled(torch.ones(size, 4)).sum().backward()
            optimizer.step()

    facts = recorded(program)
    assert facts.compiled.num_recompiles == 2
    assert (facts.network.name, facts.network.wrapper) == ("Net", "OptimizedModule")


def test_errors_of_the_program_pass_through_and_are_told(tmp_path: Path, net: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), record_here(tmp_path):
        net(torch.ones(2, 5))
    ended = read_facts(tmp_path).ended
    assert ended.reason == "error"
    assert ended.note.startswith("RuntimeError: mat1 and mat2 shapes")


def test_collecting_garbage_in_each_step_is_counted_by_its_line(
    recorded: Recorded, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a whole test session it would take seconds.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    compiler: dict[str, Any] = {"__name__": "torch._inductor.graph", "gc": gc}
    exec("def collect():\n    gc.collect()", compiler)

    def program() -> None:
        for _ in range(5):
            learn()
            gc.collect()
            compiler["collect"]()

    # What torch's compiler collects by itself is nobody's line.
    (call,) = recorded(program).calls
    assert (call.call, call.line) == ("gc.collect", "gc.collect()")
    assert call.count == call.num_steps == 4
    assert call.where.startswith(f"{__file__}:")


def test_copies_to_a_device_are_known_by_their_target() -> None:
    def goes(*args: Any, **kwargs: Any) -> bool:
        return _goes_to_device(torch.device, args, kwargs)

    meta = torch.empty(1, device="meta")
    assert all([goes("cuda"), goes(0), goes(torch.device("meta")), goes(meta), goes(device="cuda:1"), goes(other=meta)])
    assert not any([goes("cpu"), goes(torch.float16), goes(torch.ones(1)), goes(dtype=torch.float16), goes()])
    assert not goes(torch.device("cpu"), non_blocking=True)


def test_hooks_stand_aside_within_a_trial_and_it_is_put_back() -> None:
    from voxelocity.planning import step_timing

    ledger, depths = Ledger(), []

    def time_steps(times: float) -> float:
        depths.append(ledger.depth)
        if times < 0:
            raise ValueError("no time")
        return 2 * times

    module: Any = SimpleNamespace(time_steps=time_steps)
    nothing: Any = None
    hooks = TorchHooks(torch, ledger, nothing, nothing, nothing)
    hooks.ignore("time_steps", module)
    assert module.time_steps(3) == 6
    with pytest.raises(ValueError, match="no time"):
        module.time_steps(-1)
    assert (depths, ledger.depth) == ([1, 1], 0)
    hooks._patches.restore()
    assert module.time_steps is time_steps
    assert callable(step_timing.time_steps), "the planner still has what is passed over"
