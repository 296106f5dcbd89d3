"""All runtimes by name, and the one that a user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from voxelocity.infer.runtimes import native, onnxruntime, openvino, program, tensorrt
from voxelocity.infer.runtimes.contract import EAGER, NamedForward, Runtime, RuntimeTask, in_one_line
from voxelocity_observe.core.errors import ConfigError

RUNTIMES: Mapping[str, Runtime] = {
    EAGER: Runtime(why_not=lambda device: "", load=native.load_eager, build_s=0.0),
    "openvino": Runtime(why_not=openvino.why_not_loaded, load=openvino.load, build_s=10.0),
    "onnxruntime": Runtime(why_not=onnxruntime.why_not_loaded, load=onnxruntime.load, build_s=10.0),
    "cuda-graphs": Runtime(why_not=native.why_not_cuda_graphs, load=native.load_cuda_graphs, build_s=2.0),
    "compile": Runtime(why_not=native.why_not_compiled, load=native.load_compiled, build_s=60.0),
    "aot-inductor": Runtime(why_not=native.why_not_compiled, load=program.load_package, build_s=60.0),
    "tensorrt": Runtime(why_not=tensorrt.why_not, load=tensorrt.load, build_s=60.0),
}
"""Those that are built sooner come first."""


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
