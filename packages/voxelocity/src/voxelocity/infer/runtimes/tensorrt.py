"""TensorRT through torch-tensorrt, on CUDA devices. Its only user.

Written after its documentation; the tests of it run only where torch-tensorrt and a CUDA device are.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from voxelocity.infer.runtimes.contract import Forward, RuntimeTask, in_one_line, missing
from voxelocity.infer.runtimes.native import allows_tf32
from voxelocity.infer.runtimes.program import Converted
from voxelocity_observe.core.device import as_current

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def why_not(device: torch.device) -> str:
    """Why it cannot be used on the device; "" if it can."""
    if device.type != "cuda":
        return f"TensorRT needs a CUDA device, not {device.type}"
    return missing(("torch_tensorrt",), extra="tensorrt")


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The network as a TensorRT engine, in the number format of the task, for batches of any size.

    If TensorRT cannot build it for more than one size, batches that are not full are padded, and a warning says so.
    """
    if task.batch_size == 1:
        return padded(_engine(network, task), task)
    try:
        return _for_any_batch(_engine(network, task, is_dynamic=True), task)
    # What builders raise is not theirs alone; if the other way fails too, its error is passed on.
    except Exception as error:
        forward = padded(_engine(network, task), task)
        warnings.warn(
            f"infer: TensorRT cannot build the network for batches of any size ({in_one_line(error)}); batches of "
            f"fewer than {task.batch_size} windows take as long as full ones",
            stacklevel=2,
        )
        return forward


def write_engine(network: torch.nn.Module, task: RuntimeTask, path: Path) -> None:
    """Writes the engine as a program of torch.export. It runs on this kind of GPU only."""
    import torch_tensorrt

    engine = _engine(network, task)
    # Saving traces the program once more.
    with torch.no_grad(), as_current(task.device):
        torch_tensorrt.save(engine, str(path), output_format="exported_program", arg_inputs=[_example(task)])


def open_engine(path: Path, task: RuntimeTask) -> Forward:
    """The network that `write_engine` wrote. Runs the machine code in it: open only what you trust."""
    import torch_tensorrt

    with as_current(task.device):
        return padded(torch_tensorrt.load(str(path)).module(), task)


def _for_any_batch(run: Any, task: RuntimeTask) -> Forward:
    """`run`, called once with a single window and once with a full batch, so that what it cannot do shows now."""

    def forward(windows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = run(windows.contiguous())
        return logits

    with torch.no_grad():
        for num in (1, task.batch_size):
            found = forward(_example(task)[:num])
            assert len(found) == num, f"{len(found)} answers for {num} windows"
    return forward


def padded(run: Any, task: RuntimeTask) -> Forward:
    """`run`, which takes full batches only, for batches of any size: missing windows repeat the last one."""

    def forward(windows: torch.Tensor) -> torch.Tensor:
        num_missing = task.batch_size - len(windows)
        # Repeated, not zero: a window of zeros could take a slower way, or warn, in a normalization.
        fill = [windows[-1:].expand(num_missing, *windows.shape[1:])] if num_missing else []
        logits: torch.Tensor = run(torch.cat([windows, *fill]).contiguous())
        return logits[: len(windows)]

    return forward


def _engine(network: torch.nn.Module, task: RuntimeTask, *, is_dynamic: bool = False) -> Any:
    import torch_tensorrt

    # Formats are those of the weights, so that the engine computes in what the task asks for and in nothing less.
    converted = Converted(network, _DTYPES[task.precision.compute]).eval()
    example: Any = _example(task)
    if is_dynamic:
        _, *shape = task.batch_shape
        example = torch_tensorrt.Input(
            min_shape=(1, *shape), opt_shape=task.batch_shape, max_shape=task.batch_shape, dtype=torch.float32
        )
    with torch.no_grad(), as_current(task.device):
        return torch_tensorrt.compile(
            converted,
            ir="dynamo",
            arg_inputs=[example],
            use_explicit_typing=True,
            disable_tf32=not allows_tf32(),
        )


def _example(task: RuntimeTask) -> torch.Tensor:
    return torch.zeros(task.batch_shape, device=task.device)
