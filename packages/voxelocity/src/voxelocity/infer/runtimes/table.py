"""All runtimes by name, and the one that a user names. Importing it, and so each of them, imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from voxelocity.infer.runtimes import aot_inductor, native, onnxruntime, openvino, tensorrt
from voxelocity.infer.runtimes.contract import (
    EAGER,
    ExportFormat,
    NamedForward,
    Runtime,
    RuntimeTask,
    in_one_line,
)
from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        native.EAGER_RUNTIME,
        openvino.RUNTIME,
        onnxruntime.RUNTIME,
        native.CUDA_GRAPHS_RUNTIME,
        native.COMPILE_RUNTIME,
        aot_inductor.RUNTIME,
        tensorrt.RUNTIME,
    )
}
"""Eager first. `auto` builds them in this order."""

EXPORT_FORMATS: Mapping[str, ExportFormat] = {
    runtime.export.name: runtime.export
    for runtime in sorted(RUNTIMES.values(), key=lambda runtime: runtime.export.name if runtime.export else "")
    if runtime.export is not None
}


def runtime_of(form: str) -> Runtime:
    """The runtime that opens exports of a format."""
    return next(runtime for runtime in RUNTIMES.values() if runtime.export is EXPORT_FORMATS[form])


def check_runtime(name: str, device: torch.device) -> None:
    """Returns if a runtime of this name can be used on the device.

    Raises:
        ConfigError: there is none of this name, or something that it needs is missing.
    """
    if name not in RUNTIMES:
        raise ConfigError(f"config: --runtime {name!r} is not known; choose auto, {', '.join(RUNTIMES)}")
    if why_not := RUNTIMES[name].why_not(device):
        raise ConfigError(f"config: --runtime {name} cannot be used here: {why_not}; or choose --runtime eager")


def load_named(name: str, network: torch.nn.Module, task: RuntimeTask, *, warn: Callable[[str], None]) -> NamedForward:
    """The network in the runtime of this name; in eager mode, with a warning, if that cannot be built.

    Raises:
        ConfigError: as `check_runtime`.
    """
    check_runtime(name, task.device)
    try:
        return NamedForward(name, RUNTIMES[name].load(network, task))
    # What compilers and third-party builders raise is not theirs alone: RuntimeError, ValueError and many more.
    except Exception as error:
        warn(f"predict: the runtime {name} could not be built ({in_one_line(error)}); eager is used")
        return NamedForward(EAGER, RUNTIMES[EAGER].load(network, task))
