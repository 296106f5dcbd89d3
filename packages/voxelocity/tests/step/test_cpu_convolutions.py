"""Gradients of convolutions over short inputs, in half precision on a CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from voxelocity.step import OptimizerConfig, PrecisionConfig, TrainingStep, guard_gradients

CPU = torch.device("cpu")
HALF = PrecisionConfig(compute="bfloat16", channels_last=True)


def gradient(convolution, image, compute):
    """Of the weights, after memory that is given back was filled with large numbers."""
    for number in range(4):
        del_me = torch.full((1 << (14 + number),), 1e3)
        del del_me
    convolution.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute == "bfloat16"):
        made = convolution(image.to(memory_format=torch.channels_last_3d))
    (made.float() * torch.linspace(-1.0, 1.0, made.numel()).reshape(made.shape)).sum().backward()
    return convolution.weight.grad.clone()


@pytest.mark.parametrize("kind", [nn.Conv3d, nn.ConvTranspose3d])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("length", [1, 2, 4, 6])
@pytest.mark.parametrize("num_channels", [16, 32])
def test_gradients_of_guarded_convolutions_are_those_of_float32(kind, kernel, length, num_channels):
    torch.manual_seed(0)
    # As of the way up, which does not halve an axis that is short.
    stride = 1 if kind is nn.Conv3d else (1, 2, 2)
    plain = kind(num_channels, num_channels, kernel, stride, padding=kernel // 2)
    guarded = guard_gradients(nn.Sequential(copy.deepcopy(plain)), HALF, CPU)[0]
    image = torch.randn(2, num_channels, length, 4, 4)
    wanted = gradient(plain, image, "float32")
    for _ in range(3):
        found = gradient(copy.deepcopy(guarded), image, "bfloat16")
        assert (found - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_only_short_inputs_are_computed_in_float32_and_only_where_it_is_needed():
    network = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Conv3d(2, 2, 1), nn.Conv3d(2, 2, (1, 3, 3)))
    names, kinds = [*network.state_dict()], [type(module) for module in network]
    for precision, device in ((PrecisionConfig(compute="float32"), CPU), (HALF, torch.device("cuda"))):
        guard_gradients(network, precision, device)
        assert [type(module) for module in network] == kinds
    guard_gradients(guard_gradients(network, HALF, CPU), HALF, CPU)
    assert [type(module) is kind for module, kind in zip(network, kinds, strict=True)] == [False, True, True]
    assert [*network.state_dict()] == names
    with torch.autocast("cpu", dtype=torch.bfloat16):
        types = [network[0](torch.randn(1, 1, length, 4, 4)).dtype for length in (2, 3)]
    assert types == [torch.float32, torch.bfloat16]


def test_a_training_step_guards_its_network():
    network = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1))
    step = TrainingStep(
        network,
        lambda logits, label: logits.mean(),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        precision=HALF,
        device=CPU,
    )
    assert type(step.network[0]) is not nn.Conv3d
