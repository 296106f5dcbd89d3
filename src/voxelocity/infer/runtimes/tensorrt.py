"""TensorRT through torch-tensorrt, on CUDA devices. Its only user.

Written after its documentation; the tests of it run only where torch-tensorrt and a CUDA device are.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from voxelocity.infer.runtimes.contract import Forward, RuntimeTask, missing

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def why_not(device: torch.device) -> str:
    """Why it cannot be used on the device; "" if it can."""
    if device.type != "cuda":
        return f"TensorRT needs a CUDA device, not {device.type}"
    return missing(("torch_tensorrt",), extra="tensorrt")


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The network as a TensorRT engine for full batches, in the number format of the task; others are padded."""
    return padded(_engine(network, task), task)


def write_engine(network: torch.nn.Module, task: RuntimeTask, path: Path) -> None:
    """Writes the engine as a program of torch.export. It runs on this kind of GPU only."""
    import torch_tensorrt

    torch_tensorrt.save(
        _engine(network, task), str(path), output_format="exported_program", arg_inputs=[_example(task)]
    )


def open_engine(path: Path, task: RuntimeTask) -> Forward:
    """The network that `write_engine` wrote. Runs the machine code in it: open only what you trust."""
    import torch_tensorrt

    return padded(torch_tensorrt.load(str(path)).module(), task)


def padded(run: Any, task: RuntimeTask) -> Forward:
    """`run`, which takes full batches only, for batches of any size: missing windows repeat the last one."""

    def forward(windows: torch.Tensor) -> torch.Tensor:
        num_missing = task.batch_size - len(windows)
        # Repeated, not zero: a window of zeros could take a slower way, or warn, in a normalization.
        fill = [windows[-1:].expand(num_missing, *windows.shape[1:])] if num_missing else []
        logits: torch.Tensor = run(torch.cat([windows, *fill]).contiguous())
        return logits[: len(windows)]

    return forward


class _Converted(torch.nn.Module):
    """A copy of a network with its weights in another number format; takes and returns float32."""

    def __init__(self, network: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._network, self._dtype = copy.deepcopy(network).to(dtype), dtype

    def forward(self, windows_bcxyz: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._network(windows_bcxyz.to(self._dtype))
        return logits.float()


def _engine(network: torch.nn.Module, task: RuntimeTask) -> Any:
    import torch_tensorrt

    # Formats are those of the weights, so that the engine computes in what the task asks for and in nothing less.
    converted = _Converted(network, _DTYPES[task.precision.compute]).eval()
    with torch.no_grad():
        return torch_tensorrt.compile(converted, ir="dynamo", arg_inputs=[_example(task)], use_explicit_typing=True)


def _example(task: RuntimeTask) -> torch.Tensor:
    return torch.zeros(task.batch_shape, device=task.device)
