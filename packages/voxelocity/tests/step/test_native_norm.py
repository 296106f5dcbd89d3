"""Instance norm with its activation in C: values and gradients against torch's, and where networks use it."""

import copy

import pytest
import torch

from voxelocity.core import native
from voxelocity.step import NetworkConfig, build_network, native_norm
from voxelocity.step.fused import set_fused
from voxelocity.step.fused_norm import InstanceNorm, NormedSequence, join, use_own_norms
from voxelocity.step.native_norm import can_run, knows, norm_act

CHANNELS_LAST = torch.channels_last_3d
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 5e-3}
pytestmark = pytest.mark.skipif(not native.has_loops(), reason="the loops are not compiled")


@pytest.fixture
def calls(monkeypatch):
    """The activations that the loops computed together with a norm."""
    made = []
    monkeypatch.setattr(native_norm, "norm_act", lambda *given: made.append(given[2]) or norm_act(*given))
    return made


@pytest.fixture
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def features(shape, *, mean=0.3, dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    made = mean + (0.5 + torch.rand(1, shape[1], 1, 1, 1, generator=rng)) * torch.randn(shape, generator=rng)
    return made.to(dtype).to(memory_format=CHANNELS_LAST).requires_grad_()


def norm_of(num_channels, *, affine=True):
    norm = InstanceNorm(num_channels, affine=affine)
    for number, parameter in enumerate(norm.parameters()):
        torch.nn.init.normal_(parameter, 1.0 - number, generator=torch.Generator().manual_seed(number))
    return norm


def error(found, wanted):
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def check(x, norm, activation, tolerance=None):
    """Compares values and all gradients with float64."""
    exact, function = copy.deepcopy(norm).double(), copy.deepcopy(activation)
    exact.__class__ = torch.nn.InstanceNorm3d
    after = torch.nn.Identity() if function is None else function.double()
    inputs = x.detach().double().requires_grad_()
    before = exact(inputs)
    # The gradient jumps at zero, where a rounding decides.
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    slope = torch.where(before.abs() < 1e-2, 0.0, noise.to(before)).to(x)
    found, wanted = norm_act(x, norm, activation), after(before)
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=CHANNELS_LAST)
    learned = [*norm.parameters(), *([] if activation is None else activation.parameters())]
    ours = torch.autograd.grad(found, [x, *learned], slope)
    theirs = torch.autograd.grad(wanted, [inputs, *exact.parameters(), *after.parameters()], slope.double())
    for own, torchs in zip((found, *ours), (wanted, *theirs), strict=True):
        assert error(own, torchs) < (tolerance or TOLERANCE[x.dtype])
    return found, *ours


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("num_channels", "sides"), [(16, (17, 19, 23)), (5, (6, 7, 8)), (36, (3, 4, 5)), (320, (2, 3, 4)), (1, (2, 2, 3))]
)
def test_values_and_gradients_are_those_of_torch(num_channels, sides, dtype):
    x = features((2, num_channels, *sides), dtype=dtype)
    check(x, norm_of(num_channels), torch.nn.LeakyReLU(0.01))


@pytest.mark.parametrize(
    "activation", [None, torch.nn.LeakyReLU(0.2), torch.nn.PReLU()], ids=["none", "leaky", "prelu"]
)
@pytest.mark.parametrize("affine", [True, False])
def test_every_activation_with_and_without_weights(activation, affine):
    check(features((2, 12, 3, 4, 5)), norm_of(12, affine=affine), activation)


@pytest.mark.parametrize("mean", [100.0, -3000.0])
def test_a_large_mean_costs_only_its_own_rounding(mean):
    check(features((2, 16, 9, 10, 11), mean=mean), norm_of(16), torch.nn.LeakyReLU(0.01), tolerance=abs(mean) * 2e-7)


def test_constant_channels_and_one_far_from_its_first_rows_are_finite():
    x = torch.ones(1, 8, 16, 16, 16)
    x[:, 1, 4:] = 1000.0
    found = norm_act(x.to(memory_format=CHANNELS_LAST), norm_of(8), None)
    exact = torch.nn.functional.instance_norm(
        x.double(), weight=norm_of(8).weight.double(), bias=norm_of(8).bias.double()
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_nan_stays_within_its_channel_and_patch():
    x = features((2, 8, 4, 5, 6)).detach()
    x[1, 3, 0, 0, 0] = torch.nan
    found = norm_act(x, norm_of(8), torch.nn.LeakyReLU(0.01)).isnan()
    assert found[1, 3].all()
    assert found.sum() == found[1, 3].numel()


@pytest.mark.usefixtures("_three_threads")
def test_the_number_of_threads_changes_nothing():
    x, norm, activation = features((2, 16, 17, 19, 23)), norm_of(16), torch.nn.PReLU()
    assert native_norm.pool_of_threads()
    shared = check(x, norm, activation)
    torch.set_num_threads(1)
    assert native_norm.pool_of_threads() == 0
    for one, other in zip(shared, check(x, norm, activation), strict=True):
        assert torch.equal(one, other)


def test_without_the_threads_of_torch_or_the_loops_torch_computes(monkeypatch):
    x = features((1, 8, 3, 4, 5))
    with monkeypatch.context() as patch:
        patch.setattr(native_norm, "thread_pool", lambda: 0)
        assert can_run(x) == (torch.get_num_threads() == 1)
    with monkeypatch.context() as patch:
        patch.setattr(native_norm, "has_loops", lambda: False)
        assert not can_run(x)
    set_fused("norm", False)
    try:
        assert not can_run(x)
    finally:
        set_fused("norm", True)
    assert can_run(x)


def test_what_the_loops_do_not_take_is_left_to_torch():
    x = features((2, 8, 3, 4, 5)).detach()
    assert can_run(x)
    others = (
        x.contiguous(), x.double(), x[..., 0], x[:0], x[..., :1, :1, :1].contiguous(memory_format=CHANNELS_LAST),
        x.as_subclass(type("Tensor", (torch.Tensor,), {})), x[:, :4],
    )  # fmt: skip
    assert not any(map(can_run, others))
    assert [knows(part) for part in (torch.nn.PReLU(8), torch.nn.ReLU())] == [False, False]


SMALL = {"num_res_units": 0, "widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 1]]}


@pytest.mark.parametrize(("name", "num_fused"), [("dynunet", 10), ("unet", 4)])
def test_networks_with_the_loops_are_those_with_torchs_norm(name, num_fused, calls):
    config = NetworkConfig.parse({"name": name, **SMALL})
    networks = [build_network(config, num_channels=1, num_classes=3, seed=0) for _ in range(2)]
    image, found = features((2, 1, 12, 12, 6)).detach(), []
    try:
        for network, is_on in zip(networks, (False, True), strict=True):
            set_fused("norm", is_on)
            network.to(memory_format=CHANNELS_LAST)
            logits = network(image)
            logits.square().mean().backward()
            found.append([logits, *(parameter.grad for parameter in network.parameters())])
    finally:
        set_fused("norm", True)
    assert len(calls) == num_fused
    assert all(activation is not None for activation in calls)
    for torchs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=2e-3, atol=2e-4 * float(torchs.detach().abs().max()) + 1e-6)


def test_what_is_dropped_lies_between_a_norm_and_its_activation(calls):
    network = build_network(
        NetworkConfig.parse({"name": "unet", "dropout": 0.1, **SMALL}), num_channels=1, num_classes=3, seed=0
    )
    image = features((2, 1, 12, 12, 6)).detach()
    network.to(memory_format=CHANNELS_LAST)(image)
    assert calls == [None] * 4
    network.eval()(image)
    assert all(activation is not None for activation in calls[4:])
    assert len(calls) == 8


def test_gradients_of_joined_features_are_dense_and_those_of_torch():
    parts = [features((2, channels, 3, 4, 5)) for channels in (8, 3)]
    slope = torch.randn(2, 11, 3, 4, 5).to(memory_format=CHANNELS_LAST)
    ours, theirs = join(*parts), torch.cat(parts, dim=1)
    assert torch.equal(ours, theirs)
    for own, torchs in zip(*(torch.autograd.grad(whole, parts, slope) for whole in (ours, theirs)), strict=True):
        assert torch.equal(own, torchs)
        assert own.is_contiguous(memory_format=CHANNELS_LAST)


def test_a_second_derivative_is_refused():
    x = features((1, 8, 3, 4, 5))
    with pytest.raises(RuntimeError, match=r"backend\.fused_norm=false"):
        torch.autograd.grad(norm_act(x, norm_of(8), None).square().sum(), x, create_graph=True)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_predictions_need_no_gradients(context):
    norm = norm_of(8)
    with context():
        found = norm_act(features((1, 8, 3, 4, 5)) * 1.0, norm, None)
    assert not found.requires_grad
    assert error(found, torch.nn.InstanceNorm3d.forward(norm, features((1, 8, 3, 4, 5)))) < 3e-6


def test_in_torchs_sequences_the_activation_is_fused_with_the_norm_before_it(calls):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Conv3d(2, 6, 3, padding=1),
        torch.nn.InstanceNorm3d(6, affine=True),
        torch.nn.LeakyReLU(inplace=True),
        torch.nn.Conv3d(6, 4, 3, padding=1),
        torch.nn.InstanceNorm3d(4),
    )
    ours = copy.deepcopy(plain)
    use_own_norms(ours, in_sequences=True)
    assert type(ours) is NormedSequence
    assert list(ours.state_dict()) == list(plain.state_dict())
    made, wanted = (
        network.to(memory_format=CHANNELS_LAST)(features((2, 2, 6, 5, 4)).detach()) for network in (ours, plain)
    )
    assert [type(activation) for activation in calls] == [torch.nn.LeakyReLU, type(None)]
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    made.square().sum().backward()
    wanted.square().sum().backward()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
