"""TensorRT through torch-tensorrt, on CUDA devices. Its only user.

Written after its documentation; the tests of it run only where torch-tensorrt and a CUDA device are.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity.infer.runtimes.contract import ExportFormat, Forward, Runtime, RuntimeTask, in_one_line, missing
from voxelocity.infer.runtimes.native import allows_tf32
from voxelocity_observe.core.device import Device, as_current

if TYPE_CHECKING:
    import torch


def why_not(device: Device) -> str:
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


def write_engine(network: torch.nn.Module, task: RuntimeTask, path: Path) -> bool:
    """Writes the engine as a program of torch.export. It runs on this kind of GPU only, on windows of one shape."""
    import torch
    import torch_tensorrt

    engine = _engine(network, task)
    # Saving traces the program once more.
    with torch.no_grad(), as_current(task.device):
        torch_tensorrt.save(engine, str(path), output_format="exported_program", arg_inputs=[_example(task)])
    return False


def open_engine(path: Path, task: RuntimeTask) -> Forward:
    """The network that `write_engine` wrote. Runs the machine code in it: open only what you trust."""
    import torch_tensorrt

    with as_current(task.device):
        return padded(torch_tensorrt.load(str(path)).module(), task)


def _for_any_batch(run: Any, task: RuntimeTask) -> Forward:
    """`run`, called once with a single window and once with a full batch, so that what it cannot do shows now."""
    import torch

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
    import torch

    def forward(windows: torch.Tensor) -> torch.Tensor:
        num_missing = task.batch_size - len(windows)
        # Repeated, not zero: a window of zeros could take a slower way, or warn, in a normalization.
        fill = [windows[-1:].expand(num_missing, *windows.shape[1:])] if num_missing else []
        logits: torch.Tensor = run(torch.cat([windows, *fill]).contiguous())
        return logits[: len(windows)]

    return forward


def _engine(network: torch.nn.Module, task: RuntimeTask, *, is_dynamic: bool = False) -> Any:
    import torch
    import torch_tensorrt

    from voxelocity.infer.runtimes.program import Converted

    # Formats are those of the weights, so that the engine computes in what the task asks for and in nothing less.
    converted = Converted(network, getattr(torch, task.precision.compute)).eval()
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
    import torch

    return torch.zeros(task.batch_shape, device=task.device)


RUNTIME = Runtime(
    name="tensorrt",
    why_not=why_not,
    load=load,
    build_s=60.0,
    packages=("torch-tensorrt",),
    export=ExportFormat(
        name="tensorrt",
        files=("network.ep",),
        write=write_engine,
        open=open_engine,
        why_not=why_not,
        is_machine_code=True,
    ),
)
