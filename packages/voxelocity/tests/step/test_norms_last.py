"""Group and batch norms in channels_last on a CPU, where torch's own lose digits: the values are those of float64."""

import copy

import pytest
import torch

from voxelocity.step import NetworkConfig, build_network
from voxelocity.step.fused_norm import BatchNorm, use_exact_norms

LAST = torch.channels_last_3d


def far_from_zero(shape, *, mean=10.0, deviation=0.1):
    """Features in channels_last; torch's own norms add their squares in float32."""
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * deviation + mean
    features[:, :, : shape[2] // 3] += 0.5
    return features.to(memory_format=LAST)


def exact(norm, features):
    """The norm in float64 and the gradient of its sum with a fixed pattern."""
    norm, features = copy.deepcopy(norm).double(), features.detach().double().contiguous().requires_grad_()
    found = norm(features)
    (found * pattern(found)).sum().backward()
    return found.detach(), features.grad, norm.state_dict()


def pattern(features):
    return torch.linspace(-1.0, 1.0, features.numel(), dtype=features.dtype).reshape(features.shape)


def own_norm(kind, *numbers):
    norm = kind(*numbers)
    torch.nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.uniform_(norm.bias, generator=torch.Generator().manual_seed(2))
    own = torch.nn.Sequential(copy.deepcopy(norm))
    use_exact_norms(own)
    assert type(own[0]) is not kind
    return norm, own[0]


@pytest.mark.parametrize(("num_groups", "num_channels"), [(8, 16), (1, 12), (3, 9), (33, 33), (5, 40)])
def test_group_norms_in_channels_last_are_exact(num_groups, num_channels):
    norm, own = own_norm(torch.nn.GroupNorm, num_groups, num_channels)
    features = far_from_zero((2, num_channels, 24, 20, 18))
    expected, gradient, _ = exact(norm, features)
    with torch.no_grad():
        found = own(features)
    assert found.is_contiguous(memory_format=LAST)
    assert torch.allclose(found.double(), expected, atol=2e-3)
    assert (found.double() - expected).abs().mean() < 2e-4
    features.requires_grad_()
    trained = own(features)
    (trained * pattern(trained)).sum().backward()
    assert trained.is_contiguous(memory_format=LAST)
    assert torch.allclose(trained.double(), expected, atol=2e-3)
    assert torch.allclose(features.grad.double(), gradient, rtol=1e-2, atol=2e-2)


def test_batch_norms_in_channels_last_have_exact_statistics():
    norm, own = own_norm(torch.nn.BatchNorm3d, 6)
    features = far_from_zero((2, 6, 64, 64, 64), mean=1.0, deviation=0.3)
    expected, gradient, state = exact(norm.train(), features)
    features.requires_grad_()
    found = own.train()(features)
    (found * pattern(found)).sum().backward()
    assert found.is_contiguous(memory_format=LAST)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert torch.allclose(own.running_var.double(), state["running_var"], rtol=1e-5)
    assert torch.allclose(features.grad.double(), gradient, rtol=1e-3, atol=1e-4)
    assert torch.equal(own.eval()(features.detach()), copy.deepcopy(own)(features.detach()))


@pytest.mark.parametrize("name", ["unet", "dynunet", "segresnet"])
def test_networks_with_batch_norms_have_ours(name):
    config = NetworkConfig.parse(
        {"name": name, "widths": [8, 16, 16], "strides": [[2, 2, 2]] * 2, "norm": "batch"}, where="x"
    )
    network = build_network(config, num_channels=1, num_classes=2, seed=0)
    kinds = {type(module) for module in network.modules() if isinstance(module, torch.nn.BatchNorm3d)}
    assert kinds == {BatchNorm}
