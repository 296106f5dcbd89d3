"""ONNX Runtime: on CPUs, and on CUDA devices by its CUDA provider. Its only user.

`OnnxSession` works on arrays and needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity.infer.runtimes.contract import ExportFormat, Forward, HostTask, Runtime, RuntimeTask, missing
from voxelocity_observe.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from voxelocity_observe.core.device import Device

_Provider = str | tuple[str, dict[str, str]]
_ONLY_ERRORS = 3
_CUDA = "CUDAExecutionProvider"


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
        import numpy as np

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

    if _CUDA in onnxruntime.get_available_providers():
        return ""
    return (
        "the onnxruntime that is installed computes on CPUs only; add --device cpu, or replace onnxruntime with "
        "onnxruntime-gpu"
    )


def why_not_loaded(device: torch.device) -> str:
    """Why a network cannot be brought into a session on the device; "" if it can."""
    from voxelocity.infer.runtimes.program import why_not_onnx

    return why_not_onnx(device) or why_not(device)


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The network in ONNX Runtime: in float32, or on a CUDA device in float16 if asked for.

    Its convolutions have no bfloat16. On a CUDA device, factors are in TF32 where torch allows that.
    """
    from voxelocity.infer.runtimes.program import to_onnx

    is_half = task.device.type == "cuda" and task.precision.compute == "float16"
    return open_model(to_onnx(network, task, is_half=is_half), task)


def open_model(model: Path | bytes, task: RuntimeTask) -> Forward:
    """An ONNX model in ONNX Runtime, on tensors of the task's device.

    Raises:
        InputError: ONNX Runtime cannot load what it needs to compute on that device.
    """
    import torch

    if task.device.type == "cuda":
        return _on_cuda(_cuda_session(model, task.device), task.device)
    session = OnnxSession(model, num_threads=torch.get_num_threads())

    def forward(windows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session(windows.numpy()))

    return forward


def open_on_host(path: Path, task: HostTask) -> OnnxSession:
    """An ONNX model in ONNX Runtime, on arrays."""
    from voxelocity_observe.core.host import cpu_budget

    return OnnxSession(path, num_threads=cpu_budget())


def write_model(network: torch.nn.Module, task: RuntimeTask, path: Path) -> bool:
    """Writes the network as an ONNX model; whether it takes windows of any size."""
    from voxelocity.infer.runtimes import program

    content = program.to_onnx(network, task)
    path.write_bytes(content)
    return program.has_dynamic_space(content)


def _cuda_session(model: Path | bytes, device: torch.device) -> OnnxSession:
    import onnxruntime
    import torch

    from voxelocity.infer.runtimes.native import allows_tf32

    # Finds CUDA and cuDNN where pip puts them; torch's own are loaded already if they are of the same version.
    onnxruntime.preload_dlls()
    options = {
        "device_id": str(device.index or 0),
        # An exhaustive search would take seconds for each size of a batch, and memory for every algorithm.
        "cudnn_conv_algo_search": "HEURISTIC",
        # Torch shares the device.
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": str(int(allows_tf32())),
    }
    # Without TensorRT's provider: it is listed even if TensorRT is not installed, and no other is then used; and it
    # builds an engine for each size of a batch.
    providers = ((_CUDA, options), "CPUExecutionProvider")
    session = OnnxSession(model, num_threads=torch.get_num_threads(), providers=providers)
    used = session.session.get_providers()
    if _CUDA not in used:
        raise InputError(
            f"predict: onnxruntime {onnxruntime.__version__} cannot load its CUDA provider ({', '.join(used)} would "
            f"compute); install the libraries of the CUDA version that it was built for (torch {torch.__version__} has "
            f"CUDA {torch.version.cuda}), or choose another --runtime"
        )
    return session


def _on_cuda(session: OnnxSession, device: torch.device) -> Forward:
    """Binds tensors of the device, so that neither windows nor logits pass through main memory."""
    import numpy as np
    import torch

    num_classes, index = session.session.get_outputs()[0].shape[1], device.index or 0

    def forward(windows: torch.Tensor) -> torch.Tensor:
        windows = windows.float().contiguous()
        logits = torch.empty((len(windows), num_classes, *windows.shape[2:]), device=device)
        binding = session.session.io_binding()
        for bind, name, tensor in (
            (binding.bind_input, session.input, windows),
            (binding.bind_output, session.output, logits),
        ):
            bind(name, "cuda", index, np.float32, tuple(tensor.shape), tensor.data_ptr())
        # ONNX Runtime has a stream of its own.
        torch.cuda.current_stream(device).synchronize()
        try:
            session.session.run_with_iobinding(binding)
        # Its errors are its own, and those of an allocation have no type.
        except Exception as error:
            if _is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from None
            raise
        binding.synchronize_outputs()
        return logits

    return forward


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return any(words in text for words in ("failed to allocate memory", "out of memory", "cudnn_status_alloc_failed"))


RUNTIME = Runtime(
    name="onnxruntime",
    why_not=why_not_loaded,
    load=load,
    build_s=10.0,
    packages=("onnxruntime", "onnxruntime-gpu"),
    export=ExportFormat(
        name="onnx",
        files=("network.onnx",),
        write=write_model,
        open=open_model,
        why_not=why_not,
        open_on_host=open_on_host,
        why_not_on_gpu=why_not_on_gpu,
        # That of the weights in the file.
        compute="float32",
    ),
)
