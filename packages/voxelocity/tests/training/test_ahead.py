"""The kernels of a step, its loss and a validation are among those compiled while cases are cached; needs no GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton

from shared.examples import is_thorough
from voxelocity.core import kernels
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.patch import PatchConfig
from voxelocity.data.prepare import resize_record
from voxelocity.infer import ModelSpec, Predictor, arrays
from voxelocity.infer import ahead as of_windows
from voxelocity.parallel import ALONE
from voxelocity.step import (
    BackendConfig,
    LossConfig,
    NetworkConfig,
    PrecisionConfig,
    autocast,
    build_loss,
    build_network,
    fused_loss,
    fused_norm,
)
from voxelocity.training import ahead
from voxelocity.training.ahead import launches_of

HERE = Path(__file__)
CPU = torch.device("cpu")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled_only = pytest.mark.skipif(IS_INTERPRETED, reason="needs kernels that Triton would compile")
LAST = {"dynunet": 1, "unet": 1, "segresnet": 2}
PATCH, BATCH = (16, 12, 8), 2
_REGIONS = [True, False] if is_thorough else [True]


@pytest.mark.slow
def test_what_the_interpreter_launches_is_in_the_list():
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "in_the_interpreter", "-p", "no:cacheprovider", HERE],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) == len(_REGIONS)


def session(*, name="dynunet", compute="bfloat16", regions=False, mirrored=(0, 1, 2), fused_norm=True, patch=PATCH):
    """What `launches_of` reads of a session."""
    network = NetworkConfig.parse({"name": name, "widths": [4, 8, 16], "strides": [[2, 2, 2], [2, 2, LAST[name]]]})
    precision = PrecisionConfig(compute=compute, channels_last=True)
    plan = SimpleNamespace(
        network=network,
        loss=LossConfig(),
        precision=precision,
        backend=BackendConfig(fused_norm=fused_norm),
        data=SimpleNamespace(
            patch=PatchConfig(shape_voxel=patch), feed=SimpleNamespace(compiles_ahead=True), augment=None
        ),
    )
    spec = ModelSpec.parse(
        {
            "network": network.to_plain(),
            "prepare": {"spacing_mm": "keep", "intensity": {"mode": "zscore"}},
            "channels": ["ct", "pet"],
            "labels": {0: "background", 1: "left_part", 2: "right_part"},
            "window": {"shape_voxel": list(patch), "mirror_axes": list(mirrored), "batch_size": 2},
            "precision": {"compute": compute, "channels_last": True},
            **({"region_order": [1, 2], "regions": {"all": [1, 2], "right": [2]}} if regions else {}),
        }
    )
    cases = SimpleNamespace(class_names=spec.class_names)
    return SimpleNamespace(plan=plan, spec=spec, device=CPU, world=ALONE, planned=SimpleNamespace(cases=cases))


@pytest.fixture
def _on_cpu(monkeypatch):
    """Kernels are launched with tensors on the CPU, as on a CUDA device."""
    monkeypatch.setattr(fused_norm, "_DEVICES", {"cpu"})
    monkeypatch.setattr(fused_loss, "_runs_on", lambda kind: kind == "cpu")
    monkeypatch.setattr(arrays, "_KERNEL_DEVICES", frozenset({"cpu"}))
    # Formats are those of the plan, whatever is quick here.
    monkeypatch.setattr("voxelocity.infer.predictor._load_directly", _called_directly)
    monkeypatch.setattr(of_windows, "precision_on", lambda precision, device: precision)


def _called_directly(network, spec, device):
    from voxelocity.infer.runtimes.contract import NamedForward
    from voxelocity.infer.runtimes.native import eager

    return NamedForward("eager", eager(network, spec.precision, device))


def run_everything(run, windows=()):
    """One step, a validation as while training, and a scan that was resampled and one that was not."""
    plan, spec = run.plan, run.spec
    network = build_network(plan.network, num_channels=2, num_classes=spec.num_outputs, seed=0)
    network = network.to(memory_format=torch.channels_last_3d)
    # As cuDNN gives them; some convolutions on a CPU leave the memory format.
    network.register_forward_hook(lambda module, given, made: made.to(memory_format=torch.channels_last_3d))
    loss = build_loss(plan.loss, regions=[*spec.regions.values()], ignored=spec.ignored)
    shape = plan.data.patch.shape_voxel
    image = torch.randn((BATCH, 2, *shape)).to(memory_format=torch.channels_last_3d)
    label = torch.randint(3, (BATCH, *shape), dtype=torch.uint8)
    with autocast(plan.precision, CPU):
        logits = network(image)
    loss(logits, label).backward()
    small, large = volume(shape), volume((shape[0] + 4, *shape[1:]))
    for window in windows or (spec.window, spec.window.model_copy(update={"mirror_axes": ()})):
        own = spec.model_copy(update={"window": window})
        predictor = Predictor(network, own, _Resizing(), device=CPU)
        # Two volumes of one window share a pass.
        assert len([*predictor.predict_prepared([small, small, large])]) == 3
        for scan in (small, large):
            predictor.predict(scan)


class _Resizing:
    """A preparation that says that it halved the spacing along x."""

    def __call__(self, scan):
        x, y, z = scan.grid.shape
        return Volume(
            image=scan.image,
            label=None,
            grid=scan.grid,
            case_id="a",
            trace=(resize_record((x // 2, y, z), scan.grid.shape),),
        )


def volume(shape):
    image = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    return Volume(image=image, label=None, grid=Grid(shape=shape, affine=np.eye(4)), case_id="a")


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1, as the first test sets it")
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("regions", _REGIONS)
def test_a_step_and_a_validation_launch_nothing_else_in_the_interpreter(regions):
    run = session(compute="float32", regions=regions, mirrored=(0, 2), patch=(8, 8, 4))
    with kernels.record_launches(runs=True) as launches:
        run_everything(run, windows=(run.spec.window,))
    assert {launch.kernel.__name__ for launch in launches} == {
        *("norm_measure", "norm_apply", "norm_measure_back", "norm_apply_back"),
        *("loss_sums", "loss_of_sums", "loss_gradient"),
        *("add_window", "find_not_finite", "classify", "restore_classes"),
    }
    assert {launch.form for launch in launches} - {launch.form for launch in launches_of(run)} == set()


@compiled_only
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regions": True, "mirrored": (0,)},
        {"compute": "float32", "name": "unet", "mirrored": (), "patch": (8, 12, 20)},
        {"fused_norm": False, "patch": (20, 12, 18)},
    ],
    ids=lambda options: "-".join(map(str, options)) or "usual",
)
def test_triton_finds_what_was_compiled_ahead(monkeypatch, options):
    """By its own keys: argument types, which of them are multiples of 16 or 1, constants and options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    backend, keys = make_backend(GPUTarget("cuda", 90, 32)), set()

    def run(kernel, *arguments, grid, warmup, **constants):
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, settings = binder(*arguments, **constants)
        keys.add((kernel.__name__, str(specialization), str(settings)))

    monkeypatch.setattr(triton.JITFunction, "run", run)
    found = session(**options)
    monkeypatch.setattr(fused_norm, "is_fused", lambda name: found.plan.backend.fused_norm)
    for launch in launches_of(found):
        arguments = [MockTensor.wrap_dtype(argument) for argument in launch.arguments]
        launch.kernel.run(*arguments, grid=(1,), warmup=True, **dict(launch.constants))
    compiled, keys = keys, set()
    run_everything(found)
    assert len(keys) >= 8
    assert keys <= compiled
    # Nor is much compiled that nobody needs.
    assert len(compiled) <= len(keys) + 2


def test_looking_for_kernels_draws_no_random_numbers():
    before = torch.random.get_rng_state()
    assert len(launches_of(session(name="segresnet"))) > 8
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_on_a_cuda_device_compiles_feed_step_and_validation(monkeypatch):
    asked = []
    monkeypatch.setattr(ahead, "compile_kernels", lambda config, **kinds: asked.append(kinds["dtypes"]))
    monkeypatch.setattr(ahead, "compile_all", lambda find, device: asked.append((find(), device)))
    monkeypatch.setattr(of_windows, "precision_on", lambda precision, device: precision)
    run = session()
    ahead.Compiling(run)
    assert asked == [["int16"]]
    run.device = torch.device("cuda", 1)
    compiling = ahead.Compiling(run)
    assert asked[1] == ["int16"]
    launches, device = asked[2]
    assert device == run.device
    names = [launch.kernel.__name__ for launch in launches]
    # The first step needs the norms first.
    assert names[0].startswith("norm")
    assert {"loss_sums", "add_window", "restore_classes"} <= set(names)
    compiling.begin(SimpleNamespace(dtype="float32", num_channels=1))
    assert asked[3:] == [["float32"]]
    run.plan.data.feed.compiles_ahead = False
    ahead.Compiling(run)
    assert len(asked) == 5
