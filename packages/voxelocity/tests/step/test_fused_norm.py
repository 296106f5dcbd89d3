"""The fused norm: its kernels on a GPU or in Triton's interpreter, compiled ahead, and where networks use them."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import triton_kernels
from shared.examples import is_thorough
from voxelocity.core.kernels import compile_one
from voxelocity.step import BackendConfig, NetworkConfig, backend_as_found, build_network, fused_norm, set_backend
from voxelocity.step.fused import is_fused, set_fused
from voxelocity.step.fused_norm import InstanceNorm, NormLaunch, can_fuse, norm_act, possible_launches

HERE = Path(__file__)
CHANNELS_LAST = torch.channels_last_3d
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
HAS_CUDA = torch.cuda.is_available() and not IS_INTERPRETED
kernels = pytest.mark.skipif(not HAS_CUDA and not IS_INTERPRETED, reason="no CUDA device")
cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 5e-3, torch.float16: 5e-4}
SMALL = {"widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 1]]}


def rare(*values):
    """A parameter that only `make test-all` tries in Triton's interpreter, which takes a second for each."""
    is_skipped = IS_INTERPRETED and not is_thorough
    return pytest.param(*values, marks=pytest.mark.skipif(is_skipped, reason="few are interpreted"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thorough", "least"), [("0", 30), pytest.param("1", 45, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_kernels_agree_with_the_reference_in_tritons_interpreter(thorough, least):
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "on_device", "-p", "no:cacheprovider", HERE],
        env={**os.environ, "TRITON_INTERPRET": "1", "VOXELOCITY_THOROUGH": thorough},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


@pytest.fixture
def on_kernels(monkeypatch):
    """Counts the calls of the fused norm, which also takes tensors on the CPU where Triton interprets."""
    monkeypatch.setattr(fused_norm, "_DEVICES", {DEVICE.type})
    calls = []
    monkeypatch.setattr(
        fused_norm, "norm_act", lambda *a, **named: calls.append(named["slope"]) or norm_act(*a, **named)
    )
    return calls


def features(shape, *, mean=0.0, dtype=torch.float32, device=DEVICE, seed=0):
    rng = torch.Generator().manual_seed(seed)
    deviation = 0.5 + torch.rand(1, shape[1], 1, 1, 1, generator=rng)
    made = (mean + deviation * torch.randn(shape, generator=rng)).to(device, dtype)
    return made.to(memory_format=CHANNELS_LAST).requires_grad_()


def weights(num_channels, device=DEVICE):
    rng = torch.Generator().manual_seed(1)
    return [(shift + torch.randn(num_channels, generator=rng)).to(device).requires_grad_() for shift in (1.0, 0.0)]


def reference(x, weight, bias, slope):
    """In float64: the inputs, the values before and after the activation."""
    inputs = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    z = torch.nn.functional.instance_norm(inputs[0], None, None, *inputs[1:], eps=1e-5)
    return inputs, z, torch.where(z > 0, z, z * slope)


def error(found, wanted):
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def check(x, weight, bias, *, slope, launch=fused_norm.LAUNCH, tolerance=None):
    inputs, z, wanted = reference(x, weight, bias, slope)
    # The gradient jumps at zero, where a rounding decides.
    dy = torch.where(z.abs() < 1e-3, 0.0, torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(z)).to(x)
    found = norm_act(x, weight, bias, eps=1e-5, slope=slope, launch=launch)
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=CHANNELS_LAST)
    own = [x] if weight is None else [x, weight, bias]
    gradients = torch.autograd.grad(found, own, dy)
    assert [gradient.dtype for gradient in gradients] == [tensor.dtype for tensor in own]
    limit = tolerance or TOLERANCE[x.dtype]
    for name, ours, theirs in zip(
        ("y", "dx", "dweight", "dbias"),
        (found, *gradients),
        (wanted, *torch.autograd.grad(wanted, inputs, dy.double())),
        strict=False,
    ):
        assert error(ours, theirs) < limit, (name, error(ours, theirs))


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize(
    ("num_channels", "sides", "batch"),
    [
        (8, (5, 6, 7), 2),
        (24, (3, 9, 11), 1),
        (32, (4, 4, 9), 3),
        (100, (3, 5, 7), 2),
        (320, (2, 4, 5), 2),
        (1, (2, 3, 4), 1),
    ],
)
def test_values_and_gradients_on_device(num_channels, sides, batch, dtype):
    x = features((batch, num_channels, *sides), mean=0.3, dtype=dtype)
    check(x, *weights(num_channels), slope=0.01)


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("is_affine", [True, False])
def test_slopes_and_norms_without_weights_on_device(slope, is_affine):
    x = features((2, 12, 3, 4, 5))
    check(x, *(weights(12) if is_affine else (None, None)), slope=slope)


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize("mean", [100.0, -3000.0])
def test_a_large_mean_costs_only_its_own_rounding_on_device(mean):
    x = features((2, 16, 5, 6, 7), mean=mean)
    check(x, *weights(16), slope=0.01, launch=NormLaunch(tile=256, num_programs=16), tolerance=abs(mean) * 2e-7)


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize(("num_channels", "num_programs"), [(8, 1), (8, 64), (96, 5), rare(96, 1), rare(96, 64)])
def test_any_number_of_programs_gives_the_same_within_roundings_on_device(num_channels, num_programs):
    x = features((2, num_channels, 3, 7, 11), mean=2.0)
    check(x, *weights(num_channels), slope=0.01, launch=NormLaunch(tile=512, num_programs=num_programs))


@kernels
@pytest.mark.gpu
def test_constant_channels_and_one_far_from_its_first_rows_are_finite_on_device():
    x = torch.ones((1, 8, 8, 8, 8), device=DEVICE)
    x[:, 1, 4:] = 1000.0
    x = x.to(memory_format=CHANNELS_LAST)
    found = norm_act(x, *weights(8), eps=1e-5, slope=0.01, launch=NormLaunch(tile=64, num_programs=8))
    _, _, wanted = reference(x, *weights(8), 0.01)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@kernels
@pytest.mark.gpu
def test_gradients_in_other_memory_formats_are_taken_on_device():
    x, (weight, bias) = features((2, 8, 3, 4, 5)), weights(8)
    inputs, _, wanted = reference(x, weight, bias, 0.01)
    found = norm_act(x, weight, bias, eps=1e-5, slope=0.01)
    for make in (lambda y: y[:, 2:5, ::2].sum(), lambda y: (y.contiguous() ** 2).sum(), lambda y: y.mean()):
        ours = torch.autograd.grad(make(found), [x, weight, bias], retain_graph=True)
        theirs = torch.autograd.grad(make(wanted), inputs, retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@kernels
@pytest.mark.gpu
def test_sizes_and_dtypes_may_alternate_and_samples_do_not_see_each_other_on_device():
    weight, bias = weights(8)
    big, small = features((3, 8, 4, 5, 6)), features((1, 8, 2, 2, 3), seed=3)
    apply = lambda x: norm_act(x, weight, bias, eps=1e-5, slope=0.01)  # noqa: E731
    first, other, again = apply(big), apply(small), apply(big)
    assert torch.equal(first, again)
    check(small, weight, bias, slope=0.01)
    torch.testing.assert_close(
        apply(big[1:2].contiguous(memory_format=CHANNELS_LAST)), first[1:2], rtol=1e-5, atol=1e-6
    )
    assert other.shape == small.shape


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "values", "num_fused"),
    [
        rare("dynunet", {}, 10),
        rare("dynunet", {"num_res_units": 1}, 12),
        ("dynunet", {"stem_stride": [2, 2, 1], "dropout": 0.1}, 11),
        ("unet", {"num_res_units": 1}, 6),
        ("segresnet", {"widths": [8, 16, 32], "strides": [[2, 2, 2], [2, 2, 2]]}, 17),
        ("dynunet", {"norm": "batch"}, 0),
    ],
)
def test_networks_with_the_fused_norm_are_those_with_torchs_on_device(name, values, num_fused, on_kernels):
    config = NetworkConfig.parse({"name": name, **SMALL, **values})
    plain = build_network(config, num_channels=1, num_classes=3, seed=0).to(DEVICE, memory_format=CHANNELS_LAST)
    fused = copy.deepcopy(plain)
    assert fused.state_dict().keys() == plain.state_dict().keys()
    image = features((2, 1, *(3 * d for d in config.divisor)))
    found = []
    with backend_as_found(torch.device("cuda")):
        for network, is_on in ((plain, False), (fused, True)):
            set_backend(BackendConfig(fused_norm=is_on, tf32=False), torch.device("cuda"))
            torch.manual_seed(3)
            logits = network(image)
            logits.square().mean().backward()
            assert bool(on_kernels) == (is_on and num_fused > 0)
            if is_on and IS_INTERPRETED:
                # On a CPU the convolution of an input of one channel and voxel leaves channels_last.
                assert num_fused <= len(on_kernels) <= num_fused + 1
            found.append([logits, *(parameter.grad for parameter in network.parameters())])
        with torch.no_grad():
            torch.testing.assert_close(fused.eval()(image), fused(image), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(*reversed(found), strict=True):
        # Biases before a norm have gradients of zero, up to roundings.
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4 * float(theirs.detach().abs().max()) + 1e-6)


@kernels
@pytest.mark.gpu
def test_under_autocast_features_stay_in_half_precision_on_device(on_kernels):
    block = torch.nn.Sequential(torch.nn.Conv3d(2, 8, 3, padding=1), InstanceNorm(8, affine=True)).to(DEVICE)
    block.to(memory_format=CHANNELS_LAST)
    image = features((2, 2, 4, 5, 6))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        found = block(image)
    assert len(on_kernels) == 1
    assert found.dtype == torch.bfloat16
    found.float().square().mean().backward()
    wanted = copy.deepcopy(block).double()
    for parameter in wanted.parameters():
        parameter.grad = None
    wanted[1].__class__ = torch.nn.InstanceNorm3d
    wanted(image.detach().double()).square().mean().backward()
    assert block[1].weight.grad.dtype == torch.float32
    assert error(block[1].weight.grad, wanted[1].weight.grad) < 2e-2


@kernels
@pytest.mark.gpu
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_predictions_need_no_gradients_on_device(context):
    x, (weight, bias) = features((1, 8, 3, 4, 5)), weights(8)
    with context():
        found = norm_act(x.detach() * 1.0, weight, bias, eps=1e-5, slope=0.01)
    assert not found.requires_grad
    assert error(found, reference(x, weight, bias, 0.01)[2]) < TOLERANCE[x.dtype]


@kernels
@pytest.mark.gpu
def test_an_exported_network_has_torchs_norm_on_device(on_kernels):
    network = build_network(NetworkConfig.parse({"name": "dynunet", **SMALL}), num_channels=1, num_classes=2, seed=0)
    network = network.to(DEVICE, memory_format=CHANNELS_LAST).eval()
    image = features((1, 1, 8, 8, 4)).detach()
    exported = torch.export.export(network, (image,))
    assert on_kernels == []
    assert any("norm" in str(node.target) for node in exported.graph.nodes)


@kernels
@pytest.mark.gpu
def test_weights_of_any_strides_are_read_on_device():
    x, (weight, bias) = features((2, 8, 3, 4, 5)), weights(8)
    wide = torch.stack([weight, bias, weight], dim=1).detach().requires_grad_()
    found = norm_act(x, wide[:, 0], wide[:, 1], eps=1e-5, slope=0.01)
    assert torch.equal(found, norm_act(x, weight, bias, eps=1e-5, slope=0.01))
    dy = torch.ones_like(found)
    ours, wanted = torch.autograd.grad(found, wide, dy)[0], norm_act(x, weight, bias, eps=1e-5, slope=0.01)
    dweight, dbias = torch.autograd.grad(wanted, (weight, bias), dy)
    assert torch.equal(ours, torch.stack([dweight, dbias, torch.zeros_like(dbias)], dim=1))


@kernels
@pytest.mark.gpu
def test_gradients_add_up_and_are_those_of_a_checkpoint_and_of_frozen_weights_on_device(on_kernels):
    norm, x = InstanceNorm(8, affine=True).to(DEVICE), features((2, 8, 3, 4, 5))
    norm.weight.requires_grad_(False)
    for _ in range(2):
        torch.utils.checkpoint.checkpoint(
            norm, x, torch.nn.LeakyReLU(0.01), use_reentrant=False
        ).square().sum().backward()
    once = torch.autograd.grad(norm(x, torch.nn.LeakyReLU(0.01)).square().sum(), (x, norm.bias))
    assert norm.weight.grad is None
    assert torch.equal(x.grad, 2 * once[0])
    assert torch.equal(norm.bias.grad, 2 * once[1])
    assert len(on_kernels) == 5


@kernels
@pytest.mark.gpu
def test_a_second_derivative_is_refused_on_device():
    x = features((1, 8, 3, 4, 5))
    value = norm_act(x, *weights(8), eps=1e-5, slope=0.01)[:, :4].sum()
    with pytest.raises(RuntimeError, match=r"backend\.fused_norm=false"):
        torch.autograd.grad(value, x, create_graph=True)


def test_a_single_voxel_is_refused_as_by_torch():
    for memory_format in (torch.contiguous_format, CHANNELS_LAST):
        image = torch.ones(2, 4, 1, 1, 1).to(memory_format=memory_format)
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            InstanceNorm(4, affine=True)(image)


def test_what_the_kernels_do_not_take_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(fused_norm, "_DEVICES", {"cpu"})
    x = features((2, 8, 3, 4, 5), device="cpu").detach()
    assert can_fuse(x)
    others = {
        "contiguous": x.contiguous(),
        "float64": x.double(),
        "2-D": x[..., 0],
        "no sample": x[:0],
        "one voxel": x[..., :1, :1, :1].contiguous(memory_format=CHANNELS_LAST),
        "a subclass": x.as_subclass(type("Tensor", (torch.Tensor,), {})),
        "a part": x[:, :4],
    }
    assert [name for name, other in others.items() if can_fuse(other)] == []
    monkeypatch.setattr(fused_norm, "has_triton", lambda: False)
    assert not can_fuse(x)


def test_a_cpu_uses_torchs_norm_and_does_not_import_triton():
    code = """
import sys, torch
from voxelocity.step import NetworkConfig, build_network
config = NetworkConfig.parse({"name": "dynunet", "widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 1]]})
network = build_network(config, num_channels=1, num_classes=2, seed=0)
network(torch.ones(1, 1, 8, 8, 8).to(memory_format=torch.channels_last_3d)).sum().backward()
assert "triton" not in sys.modules and "voxelocity.step.triton_norm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_switch_is_the_process_s_and_is_put_back(monkeypatch):
    monkeypatch.setattr(fused_norm, "_DEVICES", {"cpu"})
    x = features((2, 8, 3, 4, 5), device="cpu").detach()
    cuda = torch.device("cuda")
    with backend_as_found(cuda):
        set_backend(BackendConfig(fused_norm=False), cuda)
        assert not is_fused("norm")
        assert not can_fuse(x)
        with backend_as_found(cuda):
            set_fused("norm", True)
        assert not is_fused("norm")
    assert is_fused("norm")


def test_memory_is_counted_with_shapes_alone(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(fused_norm, "_DEVICES", {"cpu"})
    with FakeTensorMode():
        norm = InstanceNorm(8, affine=True)
        x = torch.empty((2, 8, 4, 4, 4), dtype=torch.bfloat16).to(memory_format=CHANNELS_LAST).requires_grad_()
        assert can_fuse(x)
        y = norm(x, torch.nn.LeakyReLU(0.01))
        assert (y.dtype, y.shape) == (torch.bfloat16, x.shape)
        assert y.is_contiguous(memory_format=CHANNELS_LAST)
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert norm.weight.grad.shape == (8,)


@pytest.mark.parametrize("architecture", triton_kernels.ARCHITECTURES)
def test_every_form_of_the_kernels_compiles_without_spills(architecture):
    if IS_INTERPRETED:
        pytest.skip("interpreted kernels are not compiled")
    variants = triton_kernels.norm_variants()
    if architecture != 90 and not is_thorough:
        variants = list({variant.kernel: variant for variant in variants}.values())
    for variant in variants:
        row = triton_kernels.compiled(variant, architecture)
        assert row["spill_store_bytes"] == row["spill_load_bytes"] == 0, row
        # Two programs of eight warps fit on a multiprocessor.
        assert 0 < row["registers"] <= 128, row
        assert triton_kernels.bytes_of(row, "load")[-1] == (8 if variant.image == "fp16" else 16), row


@cuda
@pytest.mark.gpu
def test_a_captured_step_is_the_same_for_other_values():
    weight, bias = weights(32)
    x = features((2, 32, 12, 14, 10), dtype=torch.bfloat16).detach().requires_grad_()

    def step():
        y = norm_act(x, weight, bias, eps=1e-5, slope=0.01)
        return y, *torch.autograd.grad(y, [x, weight, bias], torch.ones_like(y))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(features(x.shape, mean=1.0, dtype=x.dtype, seed=5))
    graph.replay()
    for ours, theirs in zip(captured, step(), strict=True):
        assert torch.equal(ours, theirs)


@cuda
@pytest.mark.gpu
def test_kernels_compiled_ahead_are_those_that_a_network_launches(monkeypatch):
    import triton

    from voxelocity.step import triton_norm

    names = ("norm_measure", "norm_apply", "norm_measure_back", "norm_apply_back")
    for name in names:
        vars(triton_norm)[name].device_caches.clear()
    compiled = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **given: compiled.append(given["fn"].name)
    )
    config = NetworkConfig.parse({"name": "dynunet", "widths": [32, 64, 96], "strides": [[2, 2, 2], [2, 2, 2]]})
    network = build_network(config, num_channels=1, num_classes=2, seed=0).to("cuda", memory_format=CHANNELS_LAST)
    for launch in possible_launches(network, torch.bfloat16):
        compile_one(launch, torch.device("cuda", 0))
    assert len(compiled) == 8
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = network(features((1, 1, 16, 12, 8)))
    logits.float().sum().backward()
    assert len(compiled) == 8


@cuda
@pytest.mark.gpu
def test_tensors_beyond_two_to_the_31_numbers():
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("too little device memory")
    weight, bias = weights(64)
    x = torch.randn((3, 64, 256, 256, 176), device="cuda", dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    x.requires_grad_()
    found = norm_act(x, weight, bias, eps=1e-5, slope=0.01)
    dx = torch.autograd.grad(found, x, found.detach())[0]
    last = x.detach()[2:, 60:].float().contiguous().requires_grad_()
    wanted = torch.nn.functional.instance_norm(last, weight=weight[60:], bias=bias[60:])
    wanted = torch.nn.functional.leaky_relu(wanted, 0.01)
    assert error(found[2:, 60:], wanted) < 5e-3
    slopes = found[2:, 60:].detach().float()
    assert error(dx[2:, 60:], torch.autograd.grad(wanted, last, slopes)[0]) < 1e-2


def test_norm_modules_of_all_networks_have_the_names_and_weights_of_torchs():
    ours, theirs = InstanceNorm(6, affine=True), torch.nn.InstanceNorm3d(6, affine=True)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert not InstanceNorm(6).state_dict()
