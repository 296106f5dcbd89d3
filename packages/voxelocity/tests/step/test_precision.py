import importlib.util

import pytest
import torch

from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity.step import (
    BackendConfig,
    NetworkConfig,
    PrecisionConfig,
    autocast,
    backend_as_found,
    build_network,
    check_compiler,
    guard_gradients,
    image_format,
    keep_float32,
    set_backend,
)
from voxelocity.step.fused import is_fused
from voxelocity.step.precision import compiled
from voxelocity_observe.core.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_mode_none_leaves_the_network_as_it_is():
    network = torch.nn.Linear(2, 2)
    assert compiled(network, "none", CPU) is network


def test_compiling_is_left_to_torch_with_the_mode_that_was_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda network, **options: asked.append((network, options)) or network)
    network = torch.nn.Linear(2, 2)
    compiled(network, "max-autotune", CPU)
    assert asked == [(network, {"mode": "max-autotune", "dynamic": False})]


def test_a_missing_compiler_is_named_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("CXX", "clang++-99")
    with pytest.raises(ConfigError) as error:
        check_compiler("default", CPU)
    assert str(error.value) == (
        "step: precision.compile=default generates C++ code, but there is no compiler 'clang++-99' here; install "
        "g++, name another in the variable CXX, or leave precision.compile=none"
    )
    monkeypatch.delenv("CXX")
    with pytest.raises(ConfigError, match=r"no compiler 'g\+\+' here"):
        compiled(torch.nn.Linear(2, 2), "default", CPU)


def test_a_cuda_device_needs_triton_and_no_compiler_of_ours(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "triton" else None)
    check_compiler("default", CUDA)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"precision\.compile=default needs Triton on a CUDA device, which is not"):
        check_compiler("default", CUDA)


NEWER = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,
    torch.backends.cudnn.rnn,
    torch.backends.mkldnn.matmul,
)


def switches():
    backends = torch.backends
    return backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.benchmark


@pytest.fixture(autouse=True)
def _switches_are_put_back():
    before, newer = switches(), precisions()
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = before
    for switch, precision in zip(NEWER, newer, strict=True):
        switch.fp32_precision = precision


def precisions():
    return [switch.fp32_precision for switch in NEWER]


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("cudnn_benchmark", [True, False])
def test_a_cuda_device_gets_the_switches_that_were_asked_for(tf32, cudnn_benchmark):
    set_backend(BackendConfig(tf32=tf32, cudnn_benchmark=cudnn_benchmark), torch.device("cuda"))
    assert switches() == (tf32, tf32, cudnn_benchmark)


def test_a_cpu_leaves_the_process_as_it_is():
    before = switches()
    set_backend(BackendConfig(tf32=not before[0], cudnn_benchmark=not before[2]), torch.device("cpu"))
    assert switches() == before


def test_without_a_word_convolutions_are_as_torch_has_them():
    assert BackendConfig().tf32 == torch.backends.cudnn.allow_tf32
    assert BackendConfig().cudnn_benchmark == torch.backends.cudnn.benchmark


def test_switches_are_put_back_as_they_were_found_also_after_an_error():
    before = switches()
    device = torch.device("cuda")
    seen = []

    def change():
        with backend_as_found(device):
            set_backend(BackendConfig(tf32=not before[0], cudnn_benchmark=not before[2]), device)
            seen.append(switches())
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        change()
    assert seen != [before]
    assert switches() == before


def set_newer():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


@pytest.mark.parametrize("set_before", [set_newer, lambda: torch.set_float32_matmul_precision("medium"), lambda: None])
def test_switches_that_the_program_set_in_another_way_are_put_back_too(set_before):
    """torch refuses to read `allow_tf32` where the newer `fp32_precision` says otherwise."""
    set_before()
    before = precisions()
    for tf32 in (True, False):
        with backend_as_found(torch.device("cuda")):
            set_backend(BackendConfig(tf32=tf32), torch.device("cuda"))
            assert switches()[:2] == (tf32, tf32)
        assert precisions() == before
    if set_before is not set_newer:
        assert torch.get_float32_matmul_precision() == ("highest" if before[0] == "none" else "medium")
        assert torch.backends.cuda.matmul.allow_tf32 is (before[0] != "none")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tf32_rounds_products_on_a_gpu_and_ieee_does_not():
    device, rng = torch.device("cuda"), torch.Generator().manual_seed(0)
    matrix, image = torch.randn(512, 512, generator=rng), torch.randn(1, 32, 12, 12, 12, generator=rng)
    weight = torch.randn(32, 32, 3, 3, 3, generator=rng)
    makers = (lambda to: to(matrix) @ to(matrix), lambda to: torch.conv3d(to(image), to(weight)))
    has_tf32 = torch.cuda.get_device_capability() >= (8, 0)
    for make in makers:
        exact = make(torch.Tensor.double)
        errors = {}
        for tf32 in (False, True):
            with backend_as_found(device):
                set_backend(BackendConfig(tf32=tf32), device)
                made = make(lambda tensor: tensor.to(device)).cpu()
            errors[tf32] = float((made - exact).abs().max() / exact.abs().max())
        assert errors[False] < 1e-5
        assert (errors[True] > 5 * errors[False]) == has_tf32


def test_the_fused_loss_is_switched_for_the_process_and_switched_back():
    with backend_as_found(CUDA):
        set_backend(BackendConfig(fused_loss=False), CUDA)
        assert not is_fused("loss")
    assert is_fused("loss")


def test_a_cpu_has_our_norm_and_loss_and_no_switch_of_cuda():
    before = switches()
    with backend_as_found(CPU):
        set_backend(BackendConfig(fused_loss=False, fused_norm=False, tf32=not before[0]), CPU)
        assert (is_fused("loss"), is_fused("norm")) == (False, False)
        assert switches() == before
    assert (is_fused("loss"), is_fused("norm")) == (True, True)


def test_nothing_is_put_back_on_a_cpu():
    with backend_as_found(torch.device("cpu")):
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        changed = switches()
    assert switches() == changed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_segments_of_the_allocator_grow_where_that_is_set():
    set_backend(BackendConfig(expandable_segments=True), torch.device("cuda"))
    held = torch.empty(2**24, device="cuda")
    assert any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    del held


NETWORKS = [
    {"name": "dynunet"},
    {"name": "dynunet", "num_res_units": 2},
    {"name": "dynunet", "stem_stride": [2, 2, 2]},
    {"name": "unet", "num_res_units": 2},
    {"name": "segresnet"},
]


@pytest.mark.parametrize("num_channels", [1, 4])
@pytest.mark.parametrize("kind", NETWORKS, ids=str)
def test_images_in_the_networks_format_train_the_same_weights_bit_for_bit(kind, num_channels):
    config = NetworkConfig.parse({"widths": [4, 8, 16], "strides": [[2, 2, 2]] * 2, **kind})
    precision = PrecisionConfig(compute="bfloat16", channels_last=True)
    wanted = image_format(config, precision, num_channels=num_channels)
    # With as many features as channels, a residual unit may add the image itself.
    assert wanted.dtype == ("float32" if num_channels == 4 else "bfloat16")
    assert wanted.channels_last
    network = build_network(config, num_channels=num_channels, num_classes=3, seed=0)
    guard_gradients(network, precision, CPU)
    image = torch.randn((2, num_channels, 16, 16, 16), generator=torch.Generator().manual_seed(0))
    results = []
    for form in (ImageFormat(channels_last=True), wanted):
        given = form.empty(tuple(image.shape), CPU).copy_(image)
        assert given.to(memory_format=precision.memory_format) is given
        with autocast(precision, CPU):
            logits = network(given)
        network.zero_grad()
        logits.float().square().mean().backward()
        results.append([logits, *(weight.grad for weight in network.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def test_images_are_not_rounded_for_a_first_layer_that_stays_in_float32():
    config = NetworkConfig.parse({"name": "dynunet", "widths": [4, 8, 16], "strides": [[2, 2, 2]] * 2})
    network = build_network(config, num_channels=1, num_classes=2, seed=0)
    keep_float32(network, ["input_block.conv1"])
    precision = PrecisionConfig(compute="bfloat16", float32_layers=("input_block.conv1",))
    assert image_format(config, precision, num_channels=1).dtype == "float32"
    seen = []
    network.input_block.conv1.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    image = torch.rand(1, 1, 8, 8, 8)
    with autocast(precision, CPU):
        network(image_format(config, precision, num_channels=1).empty(tuple(image.shape), CPU).copy_(image))
    assert torch.equal(seen[0], image)


@pytest.mark.parametrize("name", ["swinunetr", "dints", "custom"])
def test_networks_whose_first_operation_is_not_known_get_float32(name):
    config, precision = NetworkConfig.model_construct(name=name, widths=(8,)), PrecisionConfig(compute="float16")
    assert image_format(config, precision, num_channels=1) == PLAIN
