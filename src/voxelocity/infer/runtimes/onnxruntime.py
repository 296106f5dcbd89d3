"""ONNX Runtime: on CPUs, and on CUDA devices by its CUDA or TensorRT provider. Its only user.

`OnnxSession` works on arrays and needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voxelocity.infer.runtimes.contract import Forward, RuntimeTask, missing

if TYPE_CHECKING:
    import torch

    from voxelocity.core.device import Device

_Provider = str | tuple[str, dict[str, str]]
_ONLY_ERRORS = 3


class OnnxSession:
    """A model in ONNX Runtime, as a function of arrays.

    Args:
        model: a file, or its content.
        num_threads: of a CPU.
        providers: ONNX Runtime's names of what computes, the preferred first.
    """

    def __init__(
        self, model: Path | bytes, *, num_threads: int, providers: tuple[_Provider, ...] = ("CPUExecutionProvider",)
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.log_severity_level = _ONLY_ERRORS
        source = model if isinstance(model, bytes) else str(model)
        self.session: Any = onnxruntime.InferenceSession(source, options, providers=list(providers))
        self.input, self.output = self.session.get_inputs()[0].name, self.session.get_outputs()[0].name

    def __call__(self, windows_bcxyz: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits (b, k, x, y, z) of windows (b, c, x, y, z), in a new array."""
        logits: npt.NDArray[np.float32] = self.session.run(None, {self.input: np.ascontiguousarray(windows_bcxyz)})[0]
        return logits


def why_not(device: Device) -> str:
    """Why a session cannot run on the device; "" if it can."""
    if device.type == "cpu":
        return missing(("onnxruntime",), extra="runtimes")
    return why_not_on_gpu()


def why_not_on_gpu() -> str:
    """Why a session cannot run on any GPU; "" if there may be one."""
    if gone := missing(("onnxruntime",), extra="runtimes"):
        return gone
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return ""
    return (
        "the onnxruntime that is installed computes on CPUs only; add --device cpu, or pip install onnxruntime-gpu in "
        "place of onnxruntime"
    )


def why_not_loaded(device: torch.device) -> str:
    """Why a network cannot be brought into a session on the device; "" if it can."""
    from voxelocity.infer.runtimes.program import why_not_onnx

    return why_not_onnx(device) or why_not(device)


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The network in ONNX Runtime: float32 on a CPU; on a CUDA device by TensorRT if its provider is there."""
    from voxelocity.infer.runtimes.program import to_onnx

    return open_model(to_onnx(network, task), task)


def open_model(model: Path | bytes, task: RuntimeTask) -> Forward:
    """An ONNX model in ONNX Runtime, on tensors of the task's device."""
    import torch

    session = OnnxSession(model, num_threads=torch.get_num_threads(), providers=_providers(task))
    if task.device.type == "cuda":
        return _on_cuda(session, task.device)

    def forward(windows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session(windows.numpy()))

    return forward


def _providers(task: RuntimeTask) -> tuple[_Provider, ...]:
    if task.device.type == "cpu":
        return ("CPUExecutionProvider",)
    import onnxruntime

    index = str(task.device.index or 0)
    half = {"float16": {"trt_fp16_enable": "1"}, "bfloat16": {"trt_bf16_enable": "1"}}.get(task.precision.compute, {})
    known: list[_Provider] = [
        ("TensorrtExecutionProvider", {"device_id": index, **half}),
        ("CUDAExecutionProvider", {"device_id": index}),
    ]
    available = onnxruntime.get_available_providers()
    return tuple(one for one in known if one[0] in available)


def _on_cuda(session: OnnxSession, device: torch.device) -> Forward:
    """Binds tensors of the device, so that neither windows nor logits pass through main memory."""
    import torch

    num_classes, index = session.session.get_outputs()[0].shape[1], device.index or 0

    def forward(windows: torch.Tensor) -> torch.Tensor:
        windows = windows.contiguous()
        logits = torch.empty((len(windows), num_classes, *windows.shape[2:]), device=device)
        binding = session.session.io_binding()
        for bind, name, tensor in (
            (binding.bind_input, session.input, windows),
            (binding.bind_output, session.output, logits),
        ):
            bind(name, "cuda", index, np.float32, tuple(tensor.shape), tensor.data_ptr())
        # ONNX Runtime has a stream of its own.
        torch.cuda.current_stream(device).synchronize()
        session.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return logits

    return forward
