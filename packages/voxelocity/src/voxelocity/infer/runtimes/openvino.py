"""OpenVINO on CPUs. Its only user; `OpenVinoSession` works on arrays and needs no torch.

Importing OpenVINO normally sends its makers a record of use and leaves files in the user's home, by the package
openvino_telemetry. Here OpenVINO is imported as if that package were not installed, which it supports.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity.core.region import Index3
from voxelocity.infer.runtimes.contract import ExportFormat, Forward, HostTask, Runtime, RuntimeTask, missing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from voxelocity_observe.core.device import Device

_TELEMETRY = "openvino_telemetry"


class OpenVinoSession:
    """A model in OpenVINO on the CPU, as a function of arrays.

    Args:
        model: a file (`.xml` or `.onnx`), or the content of an ONNX model.
        num_threads: of the CPU.
        batch_size: windows in a call, at most.
        shape_voxel: of a window.
        is_bfloat16: whether the CPU may compute in bfloat16. OpenVINO would do so on its own where that is fast, which
            changes logits in the third digit, so it is always set.
    """

    def __init__(
        self, model: Path | bytes, *, num_threads: int, batch_size: int, shape_voxel: Index3, is_bfloat16: bool = False
    ) -> None:
        openvino, core = _without_telemetry(), _core()
        network = core.read_model(model)
        batch = batch_size if batch_size == 1 else openvino.Dimension(1, batch_size)
        channels = network.input(0).partial_shape[1]
        network.reshape(openvino.PartialShape([batch, channels, *shape_voxel]))
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if is_bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": num_threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._request: Any = core.compile_model(network, "CPU", options).create_infer_request()

    def __call__(self, windows_bcxyz: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits (b, k, x, y, z) of windows (b, c, x, y, z), in a buffer that the next call overwrites."""
        import numpy as np

        results = self._request.infer([np.ascontiguousarray(windows_bcxyz)], share_inputs=True, share_outputs=True)
        logits: npt.NDArray[np.float32] = results[0]
        return logits


def why_not(device: Device) -> str:
    """Why a session cannot run on the device; "" if it can."""
    if device.type != "cpu":
        return f"OpenVINO computes on CPUs here, not on {device.type}; add --device cpu"
    return missing(("openvino",), extra="runtimes")


def why_not_loaded(device: torch.device) -> str:
    """Why a network cannot be brought into a session on the device; "" if it can."""
    from voxelocity.infer.runtimes.program import why_not_onnx

    return why_not(device) or why_not_onnx(device)


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The network in OpenVINO, in bfloat16 if the task computes in it, which it does only where the CPU has it."""
    from voxelocity.infer.runtimes.program import to_onnx

    return open_model(to_onnx(network, task), task)


def open_model(model: Path | bytes, task: RuntimeTask) -> Forward:
    """A model in OpenVINO, on tensors of the CPU."""
    import torch

    session = _session(model, task, num_threads=torch.get_num_threads())

    def forward(windows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session(windows.numpy()))

    return forward


def open_on_host(path: Path, task: HostTask) -> OpenVinoSession:
    """A model in OpenVINO, on arrays."""
    from voxelocity_observe.core.host import cpu_budget

    return _session(path, task, num_threads=cpu_budget())


def _session(model: Path | bytes, task: HostTask, *, num_threads: int) -> OpenVinoSession:
    return OpenVinoSession(
        model,
        num_threads=num_threads,
        batch_size=task.batch_size,
        shape_voxel=task.shape_voxel,
        is_bfloat16=task.precision.compute == "bfloat16",
    )


def write_network(network: torch.nn.Module, task: RuntimeTask, path: Path) -> bool:
    """Writes the network as `write_model` does; whether it takes windows of any size."""
    from voxelocity.infer.runtimes import program

    content = program.to_onnx(network, task)
    write_model(content, path)
    return program.has_dynamic_space(content)


def write_model(onnx_model: bytes, path: Path) -> None:
    """Writes an ONNX model in OpenVINO's format: `path`, which ends in ".xml", and the weights next to it in ".bin"."""
    openvino = _without_telemetry()
    openvino.save_model(_core().read_model(onnx_model), path, compress_to_fp16=False)


@functools.cache
def _core() -> Any:
    """The only one, and never released.

    A core gives the thread that makes it a stack for signals. Released by another thread, or not in reverse order, it
    frees the memory of a stack still in use: the next signal, Ctrl-C or the end of a child, would kill the process.
    """
    return _without_telemetry().Core()


def _without_telemetry() -> Any:
    """OpenVINO, which sends nothing unless the user's program imported it before us."""
    if "openvino" not in sys.modules:
        hidden: dict[str, Any] = {_TELEMETRY: None}
        found = sys.modules.pop(_TELEMETRY, None)
        sys.modules.update(hidden)
        try:
            importlib.import_module("openvino")
        finally:
            del sys.modules[_TELEMETRY]
            if found is not None:
                sys.modules[_TELEMETRY] = found
    return sys.modules["openvino"]


RUNTIME = Runtime(
    name="openvino",
    why_not=why_not_loaded,
    load=load,
    build_s=10.0,
    packages=("openvino",),
    export=ExportFormat(
        name="openvino",
        files=("network.xml", "network.bin"),
        write=write_network,
        open=open_model,
        why_not=why_not,
        open_on_host=open_on_host,
        why_not_on_gpu=lambda: "OpenVINO computes on CPUs here",
    ),
)
