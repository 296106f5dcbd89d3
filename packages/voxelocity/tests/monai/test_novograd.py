"""Novograd under MONAI's name: the same updates and checkpoints, for all parameters at once."""

import copy
import inspect
import itertools

import monai.optimizers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voxelocity.monai import Novograd
from voxelocity_observe.core.errors import InputError

Peer = monai.optimizers.Novograd


def network(dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = torch.nn.Conv2d(2, 3, 3), torch.nn.PReLU(), torch.nn.Conv2d(3, 1, 3, bias=False)
        return torch.nn.Sequential(*layers).to(dtype)


def train(model, optimizer, num_steps, *, first=0):
    for step in range(first, first + num_steps):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            batch = torch.randn(2, 2, 8, 8).to(next(model.parameters()).dtype)
        loss = (model(batch) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def assert_equal(ours, theirs, tolerance=1e-5):
    for our_weight, their_weight in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our_weight, their_weight, atol=tolerance, rtol=tolerance)


def test_signature_is_monais_and_one_switch_more():
    ours, theirs = (inspect.signature(optimizer.__init__).parameters.values() for optimizer in (Novograd, Peer))
    assert [(p.name, p.kind, p.default) for p in theirs] == [(p.name, p.kind, p.default) for p in ours][:-1]
    assert [p.name for p in inspect.signature(Novograd.step).parameters.values()] == ["self", "closure"]


@settings(max_examples=25)
@given(
    betas=st.tuples(st.sampled_from([0.0, 0.9, 0.95]), st.sampled_from([0.0, 0.5, 0.98])),
    weight_decay=st.sampled_from([0, 0.01]),
    grad_averaging=st.booleans(),
    amsgrad=st.booleans(),
    eps=st.sampled_from([1e-8, 1e-2]),
    foreach=st.booleans(),
)
def test_sixty_updates_equal_monais(betas, weight_decay, grad_averaging, amsgrad, eps, foreach):
    chosen = {"betas": betas, "weight_decay": weight_decay, "grad_averaging": grad_averaging, "amsgrad": amsgrad}
    ours, theirs = network(), network()
    optimizers = (
        Novograd(ours.parameters(), 5e-3, eps=eps, foreach=foreach, **chosen),
        Peer(theirs.parameters(), 5e-3, eps=eps, **chosen),
    )
    rng = np.random.default_rng(0)
    for _ in range(60):
        # Given gradients: those of a loss would make rounding grow from step to step.
        for our_weight, their_weight in zip(ours.parameters(), theirs.parameters(), strict=True):
            our_weight.grad = torch.from_numpy(
                rng.standard_normal(our_weight.shape, np.float32) * rng.random(dtype=np.float32)
            )
            their_weight.grad = our_weight.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert_equal(ours, theirs)


def test_groups_have_their_own_values_and_dtypes_may_differ():
    def run(kind):
        model = network()
        model[2].double()
        groups = [
            {"params": model[0].parameters(), "lr": 1e-2, "amsgrad": True},
            {"params": [*model[1].parameters(), *model[2].parameters()], "grad_averaging": True, "weight_decay": 0.1},
        ]
        optimizer = kind(groups, lr=1e-3)
        for step in range(10):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full_like(parameter, 0.5 * (step + 1) * (-1) ** number)
            optimizer.step()
        return model

    assert_equal(run(Novograd), run(Peer))


def test_parameters_without_gradients_stay_and_a_norm_of_zero_starts_again():
    for kind in (Novograd, Peer):
        still, moved = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        optimizer = kind([still, moved], lr=0.1)
        for grad in (0.0, 0.0, 2.0):
            moved.grad = torch.full((3,), grad)
            optimizer.step()
        assert torch.equal(still, torch.ones(3))
        assert still not in optimizer.state
        assert optimizer.state[moved]["exp_avg_sq"] == 12.0
        torch.testing.assert_close(moved.detach(), torch.full((3,), 1 - 0.1 * 3**-0.5))


@pytest.mark.parametrize(("first", "second"), list(itertools.product([Novograd, Peer], repeat=2)))
@pytest.mark.parametrize("amsgrad", [False, True])
def test_checkpoints_of_either_load_in_the_other(first, second, amsgrad):
    model = network()
    optimizer = first(model.parameters(), lr=1e-2, amsgrad=amsgrad)
    train(model, optimizer, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, first=5)
    resumed = network()
    resumed.load_state_dict(saved[0])
    other = second(resumed.parameters(), lr=1.0, amsgrad=not amsgrad)
    other.load_state_dict(saved[1])
    train(resumed, other, 5, first=5)
    assert_equal(resumed, model)


def test_state_dict_has_monais_layout():
    def layout(kind):
        model = network()
        optimizer = kind(model.parameters(), amsgrad=True)
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        shapes = {
            index: {name: (getattr(value, "shape", None), type(value)) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        return shapes, state["param_groups"]

    assert layout(Novograd) == layout(Peer)


def test_gradients_are_left_as_they_are():
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.arange(4.0)
    Novograd([parameter], weight_decay=0.1, grad_averaging=True).step()
    assert torch.equal(parameter.grad, torch.arange(4.0))


def test_closure_runs_once_with_gradients_and_its_loss_comes_back():
    parameter, calls = torch.nn.Parameter(torch.ones(2)), []

    def closure():
        calls.append(torch.is_grad_enabled())
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert Novograd([parameter]).step(closure).item() == 2.0
    assert calls == [True]


def test_amsgrad_may_be_turned_on_later_where_monai_fails():
    model = network()
    optimizer = Novograd(model.parameters())
    train(model, optimizer, 2)
    optimizer.param_groups[0]["amsgrad"] = True
    train(model, optimizer, 2)
    assert all(state["max_exp_avg_sq"] > 0 for state in optimizer.state.values())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"lr": -1}, "Novograd: Invalid learning rate: -1; it must be 0 or more"),
        ({"eps": -1}, "Invalid epsilon value: -1"),
        ({"betas": (1.0, 0.98)}, "Invalid beta parameter at index 0: 1.0; choose from 0 to below 1"),
        ({"betas": (0.9, -1)}, "Invalid beta parameter at index 1: -1"),
        ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
    ],
)
def test_values_out_of_range_are_refused(values, named):
    with pytest.raises(InputError, match=named):
        Novograd([torch.nn.Parameter(torch.ones(1))], **values)


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="Sparse gradients are not supported; make the layer that has them dense"):
        Novograd(table.parameters()).step()
