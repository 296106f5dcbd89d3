"""The contract of runtimes on each of them, and what is refused by name."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shared.limits import HANGS_S
from voxelocity.infer.runtimes import contract, onnxruntime, openvino, program, tensorrt
from voxelocity.infer.runtimes.contract import Runtime, missing
from voxelocity.infer.runtimes.onnxruntime import OnnxSession
from voxelocity.infer.runtimes.program import Converted, has_dynamic_space, to_onnx
from voxelocity.infer.runtimes.table import RUNTIMES, check_runtime, load_named
from voxelocity.testing.runtime_contract import RuntimeContract, example_network, example_task, example_windows
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.host import cpu_has_fast_bfloat16

CPU = torch.device("cpu")


class TestEager(RuntimeContract):
    name = "eager"


class TestOnnxRuntime(RuntimeContract):
    name = "onnxruntime"


class TestOpenVino(RuntimeContract):
    name = "openvino"


@pytest.mark.nightly  # builds C++ code for half a minute
class TestCompile(RuntimeContract):
    name = "compile"


@pytest.mark.nightly  # builds C++ code for half a minute
class TestAotInductor(RuntimeContract):
    name = "aot-inductor"


@pytest.mark.gpu
class TestCudaGraphs(RuntimeContract):
    name, device = "cuda-graphs", "cuda"


@pytest.mark.gpu
class TestOnnxRuntimeOnCuda(RuntimeContract):
    name, device = "onnxruntime", "cuda"


@pytest.mark.gpu
class TestTensorRt(RuntimeContract):
    name, device = "tensorrt", "cuda"


pytestmark = pytest.mark.usefixtures("traces_once")


@pytest.fixture(scope="module")
def onnx_model(traces_once):
    return program.to_onnx(example_network(), example_task())


def test_an_onnx_model_names_no_file_of_the_machine_that_wrote_it(onnx_model):
    assert b".py" not in onnx_model
    assert b"stack_trace" not in onnx_model


def test_an_onnx_model_takes_windows_of_any_size_that_the_network_takes(onnx_model):
    assert has_dynamic_space(onnx_model)
    windows = torch.randn(5, 2, 8, 16, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = example_network()(windows).numpy()
    np.testing.assert_allclose(OnnxSession(onnx_model, num_threads=1)(windows.numpy()), wanted, atol=1e-5)


def test_openvino_computes_in_float32_unless_bfloat16_is_asked_for(onnx_model):
    network, task = example_network(), example_task()
    windows = example_windows(task, 1).numpy()
    sizes = {"num_threads": 1, "batch_size": 1, "shape_voxel": task.shape_voxel}
    with torch.no_grad():
        wanted = network(torch.from_numpy(windows)).numpy()
    exact = openvino.OpenVinoSession(onnx_model, **sizes)(windows)
    np.testing.assert_allclose(exact, wanted, atol=1e-5)
    if cpu_has_fast_bfloat16():
        rounded = openvino.OpenVinoSession(onnx_model, **sizes, is_bfloat16=True)(windows)
        assert np.abs(rounded - wanted).max() > 1e-4


@pytest.mark.nightly  # traces each for seconds
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dynunet", {}),
        ("dynunet", {"num_res_units": 1}),
        ("dynunet", {"stem_stride": (2, 2, 2)}),
        ("dynunet", {"norm": "batch"}),
        ("unet", {"num_res_units": 2, "norm": "batch"}),
        ("segresnet", {"widths": (8, 16, 32), "strides": ((2, 2, 2),) * 2}),
    ],
)
def test_each_of_our_networks_gives_its_logits_in_onnx_and_openvino(name, settings):
    network, task = example_network(name, **settings), replace(example_task(), shape_voxel=(16, 32, 16))
    model, windows = to_onnx(network, task), example_windows(task, 3).numpy()
    assert has_dynamic_space(model)
    with torch.no_grad():
        wanted = network(torch.from_numpy(windows)).numpy()
    sizes = {"num_threads": 1, "batch_size": 3, "shape_voxel": task.shape_voxel}
    for session in (OnnxSession(model, num_threads=1), openvino.OpenVinoSession(model, **sizes)):
        np.testing.assert_allclose(session(windows), wanted, atol=2e-5 * np.abs(wanted).max())


_LOOK = """
import sys, threading
from pathlib import Path
from voxelocity.infer.runtimes.openvino import write_model
try:
    write_model(b"no model", Path("network.xml"))
except Exception:
    pass
assert "openvino" in sys.modules
assert not [name for name in sys.modules if "openvino_telemetry" in name], "telemetry is loaded"
assert threading.active_count() == 1, threading.enumerate()
"""


def test_openvino_reports_nothing_to_its_makers(tmp_path):
    ended = _python(_LOOK, home=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert not list(tmp_path.iterdir()), "a client id was left in the user's home"


# Python handles signals on the stack that a thread has for them.
_RELEASE = """
import os, signal, sys, threading
from pathlib import Path
from voxelocity.infer.runtimes.openvino import OpenVinoSession
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
sizes = {"num_threads": 1, "batch_size": 1, "shape_voxel": SHAPE}
def signal_after(release):
    held = [OpenVinoSession(Path(sys.argv[1]), **sizes) for _ in range(2)]
    release(held)
    os.kill(os.getpid(), signal.SIGUSR1)
def in_another_thread(held):
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
def oldest_first(held):
    del held[0]
    del held[0]
signal_after(RELEASE)
"""


@pytest.mark.parametrize("release", ["in_another_thread", "oldest_first"])
def test_a_signal_after_openvino_was_used_does_not_kill_the_process(onnx_model, tmp_path, release):
    (tmp_path / "network.onnx").write_bytes(onnx_model)
    script = _RELEASE.replace("SHAPE", str(example_task().shape_voxel)).replace("RELEASE", release)
    ended = _python(script, tmp_path / "network.onnx", home=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "handled\n"), ended.stderr


def _python(script: str, *arguments: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


def test_a_batch_padded_for_a_runtime_of_full_batches_loses_its_padding():
    task, seen = example_task(), []

    def run(windows):
        seen.append(windows.shape)
        return windows * 2

    forward = tensorrt.padded(run, task)
    windows = example_windows(task, 2)
    assert torch.equal(forward(windows), windows * 2)
    assert torch.equal(forward(example_windows(task, 3)), example_windows(task, 3) * 2)
    assert seen == [task.batch_shape] * 2


def test_half_precision_keeps_norms_in_float32_and_gives_nearly_the_same_logits():
    network, task = example_network(), example_task()
    windows = example_windows(task, 3)
    with torch.no_grad():
        wanted = network(windows)
    session = OnnxSession(to_onnx(network, task, is_half=True), num_threads=1)
    found = torch.from_numpy(session(windows.numpy()))
    assert found.dtype == torch.float32
    assert 0.0 < (found - wanted).abs().max() < 0.02 * wanted.abs().max()
    converted = Converted(network, torch.float16)
    assert {weights.dtype for weights in network.parameters()} == {torch.float32}, "the network itself stays"
    dtypes = {name: weights.dtype for name, weights in converted.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if ".norm." not in name} == {torch.float16}


@pytest.mark.parametrize("variance", [1e6, 1e-9])
def test_the_statistics_of_a_norm_never_pass_through_half_precision(variance):
    norm = torch.nn.BatchNorm3d(2, eps=0.0)
    norm.running_var.fill_(variance)
    network = torch.nn.Sequential(torch.nn.Sequential(norm), torch.nn.Conv3d(2, 2, 1)).eval()
    windows = torch.rand(1, 2, 4, 4, 4) * variance**0.5
    with torch.no_grad():
        torch.testing.assert_close(Converted(network, torch.float16)(windows), network(windows), rtol=0, atol=0.01)
    assert norm.running_var.tolist() == [pytest.approx(variance)] * 2, "the network itself stays"


@pytest.mark.parametrize("is_allowed", [True, False])
def test_other_runtimes_use_tf32_where_torch_does(monkeypatch, is_allowed):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", is_allowed)
    fake_onnxruntime(monkeypatch, FakeSession)
    (_, options), _ = onnxruntime._cuda_session(b"model", torch.device("cuda", 0)).session.providers
    asked = {}
    fake = SimpleNamespace(compile=lambda network, **options: asked.update(options) or network)
    monkeypatch.setitem(sys.modules, "torch_tensorrt", fake)
    tensorrt.load(example_network(), replace(example_task(), batch_size=1))
    assert (options["use_tf32"], asked["disable_tf32"]) == (str(int(is_allowed)), not is_allowed)


class FakeSession:
    """Of ONNX Runtime on a CUDA device, which doubles what it is bound to."""

    def __init__(self, model, options, *, providers):
        self.providers, self.error, self.bound = providers, None, {}

    def get_inputs(self):
        return [SimpleNamespace(name="image")]

    def get_outputs(self):
        return [SimpleNamespace(name="logits", shape=["batch", 2, 4, 4, 4])]

    def get_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def io_binding(self):
        def bind(name, *where):
            self.bound[name] = where

        return SimpleNamespace(bind_input=bind, bind_output=bind, synchronize_outputs=lambda: None)

    def run_with_iobinding(self, binding):
        if self.error is not None:
            raise self.error


def fake_onnxruntime(monkeypatch, session):
    fake = SimpleNamespace(
        SessionOptions=SimpleNamespace, InferenceSession=session, __version__="9.9", preload_dlls=lambda: None
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)


def test_a_session_on_a_device_binds_its_memory_and_reports_a_full_one(monkeypatch):
    fake_onnxruntime(monkeypatch, FakeSession)
    session = onnxruntime._cuda_session(b"model", torch.device("cuda", 1))
    (name, options), last = session.session.providers
    assert (name, options["device_id"], last) == ("CUDAExecutionProvider", "1", "CPUExecutionProvider")
    forward = onnxruntime._on_cuda(session, CPU)
    windows = torch.zeros((3, 1, 4, 4, 4)).contiguous(memory_format=torch.channels_last_3d)
    logits = forward(windows)
    assert logits.shape == (3, 2, 4, 4, 4)
    assert session.session.bound["image"][:4] == ("cuda", 0, np.float32, (3, 1, 4, 4, 4))
    assert session.session.bound["logits"][2:] == (np.float32, (3, 2, 4, 4, 4), logits.data_ptr())
    session.session.error = Exception(
        "[ONNXRuntimeError] : 6 : BFCArena: Failed to allocate memory for requested buffer"
    )
    with pytest.raises(torch.OutOfMemoryError, match="BFCArena"):
        forward(windows)
    session.session.error = Exception("no kernel")
    with pytest.raises(Exception, match=r"^no kernel$"):
        forward(windows)


def test_a_session_that_would_compute_on_the_cpu_is_an_error_with_the_cure(monkeypatch):
    class OnCpu(FakeSession):
        def get_providers(self):
            return ["CPUExecutionProvider"]

    fake_onnxruntime(monkeypatch, OnCpu)
    with pytest.raises(InputError, match=r"onnxruntime 9\.9 cannot load its CUDA provider .* another --runtime"):
        onnxruntime._cuda_session(b"model", torch.device("cuda", 0))


@pytest.mark.parametrize("takes_any_batch", [True, False])
def test_an_engine_takes_any_batch_or_full_ones_only(monkeypatch, takes_any_batch):
    compiled = []

    def compile_engine(network, *, ir, arg_inputs, use_explicit_typing, disable_tf32):
        assert (ir, use_explicit_typing, disable_tf32) == ("dynamo", True, False)
        compiled.append(arg_inputs[0])
        if not isinstance(arg_inputs[0], torch.Tensor) and not takes_any_batch:
            raise RuntimeError("no converter for a dynamic reshape")
        return network

    fake = SimpleNamespace(compile=compile_engine, Input=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "torch_tensorrt", fake)
    network, task = example_network(), example_task()
    with contextlib.nullcontext() if takes_any_batch else pytest.warns(UserWarning, match="any size .*dynamic reshape"):
        forward = tensorrt.load(network, task)
    assert compiled[0].min_shape == (1, *task.batch_shape[1:])
    assert compiled[0].opt_shape == compiled[0].max_shape == task.batch_shape
    assert len(compiled) == (1 if takes_any_batch else 2)
    windows = example_windows(task, 2)
    with torch.no_grad():
        torch.testing.assert_close(forward(windows), network(windows))


def test_an_unknown_runtime_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"--runtime 'tpu' is not known; choose auto, eager, openvino, onnxruntime"):
        check_runtime("tpu", CPU)


@pytest.mark.parametrize("name", ["tensorrt", "cuda-graphs"])
def test_a_runtime_of_gpus_is_refused_on_a_cpu_with_the_cure(name):
    with pytest.raises(
        ConfigError, match=rf"--runtime {name} cannot be used here: .* need.? a CUDA device, not cpu.*--runtime eager"
    ):
        check_runtime(name, CPU)


def test_a_missing_package_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setattr(contract.importlib.util, "find_spec", lambda name: None if name == "openvino" else object())
    assert missing(("openvino",), extra="runtimes") == "openvino is not installed; pip install 'voxelocity[runtimes]'"
    with pytest.raises(ConfigError, match=r"openvino is not installed; pip install 'voxelocity\[runtimes\]'"):
        check_runtime("openvino", CPU)


def test_a_runtime_that_cannot_be_built_is_a_warning_and_eager_is_used(monkeypatch):
    def load(network, task):
        raise RuntimeError("no kernel for InstanceNormalization\nat line 3")

    broken = Runtime(name="openvino", why_not=lambda device: "", load=load, build_s=1.0)
    monkeypatch.setattr("voxelocity.infer.runtimes.table.RUNTIMES", {**RUNTIMES, "openvino": broken})
    network, task, warnings = example_network(), example_task(), []
    runtime, forward = load_named("openvino", network, task, warn=warnings.append)
    assert runtime == "eager"
    assert warnings == [
        "predict: the runtime openvino could not be built (RuntimeError: no kernel for InstanceNormalization); "
        "eager is used"
    ]
    windows = example_windows(task, 3)
    with torch.no_grad():
        assert torch.equal(forward(windows), network(windows))
