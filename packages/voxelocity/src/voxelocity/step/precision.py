"""How a step computes: number formats, compiled code, and the switches of CUDA's libraries. Weights stay float32."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from voxelocity.core.native import keep_freed_memory
from voxelocity.step.fused import is_fused, set_fused
from voxelocity.step.precision_config import BackendConfig, CompileMode, PrecisionConfig
from voxelocity_observe.core.errors import ConfigError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context in which forward passes run; does nothing for float32."""
    if config.compute == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[config.compute])


def loss_scaler(config: PrecisionConfig, device: torch.device) -> torch.amp.GradScaler:
    """What scales the loss in float16; does nothing in other formats."""
    scale = config.loss_scale
    return torch.amp.GradScaler(
        device.type,
        init_scale=scale.initial,
        growth_interval=scale.growth_interval,
        enabled=config.compute == "float16",
    )


def compute_dtype(config: PrecisionConfig) -> torch.dtype:
    """What convolutions return within `autocast`."""
    return _DTYPES.get(config.compute, torch.float32)


def compiled(
    network: torch.nn.Module, mode: CompileMode, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The network's forward pass compiled by `torch.compile` at its first call; the network itself for the mode "none".

    The weights stay in the network, so saving, averaging and validation still use the network itself. The first call
    takes half a minute to a minute and a half on two cores, and so does the first call with another shape.

    Raises:
        ConfigError: this machine lacks the compiler that the device's code needs.
    """
    if mode == "none":
        return network
    check_compiler(mode, device)
    forward: Callable[[torch.Tensor], torch.Tensor] = torch.compile(network, mode=mode, dynamic=False)
    return forward


def check_compiler(mode: CompileMode, device: torch.device) -> None:
    """Returns if `torch.compile` can generate code for the device.

    Raises:
        ConfigError: a C++ compiler (CPU) or Triton (CUDA) is missing.
    """
    if device.type == "cpu":
        name = os.environ.get("CXX", "g++")
        if shutil.which(name) is None:
            raise ConfigError(
                f"step: precision.compile={mode} generates C++ code, but there is no compiler '{name}' here; "
                "install g++, name another in the variable CXX, or leave precision.compile=none"
            )
    elif importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"step: precision.compile={mode} needs Triton on a CUDA device, which is not installed; install the "
            "package triton that belongs to this torch, or leave precision.compile=none"
        )


def set_backend(config: BackendConfig, device: torch.device) -> None:
    """Sets the process's switches for a device; on a CPU those of our own norm and loss, and of freed memory."""
    set_fused("loss", config.fused_loss)
    set_fused("norm", config.fused_norm)
    if device.type != "cuda":
        if device.type == "cpu" and config.keep_freed_memory:
            keep_freed_memory()
        return
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    if config.expandable_segments:
        # Otherwise the variable PYTORCH_ALLOC_CONF decides. torch has no public name for it.
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


@contextmanager
def backend_as_found(device: torch.device) -> Iterator[None]:
    """Restores the process's switches for a device after the block; does nothing for the allocator.

    torch keeps TF32 in two sets of switches, older and newer ones, and refuses to read an older one that a newer one
    contradicts.
    """
    fuses_norm, fuses_loss = is_fused("norm"), is_fused("loss")
    try:
        with _cuda_as_found() if device.type == "cuda" else nullcontext():
            yield
    finally:
        set_fused("loss", fuses_loss)
        set_fused("norm", fuses_norm)


@contextmanager
def _cuda_as_found() -> Iterator[None]:
    newer, cudnn = _newer_switches(), torch.backends.cudnn
    older = [(write, read()) for read, write in _older_switches() if _is_readable(read)]
    found, benchmark = [switch.fp32_precision for switch in newer], cudnn.benchmark
    try:
        yield
    finally:
        # The older ones set newer ones too.
        for write, value in older:
            write(value)
        for switch, precision in zip(newer, found, strict=True):
            switch.fp32_precision = precision
        cudnn.benchmark = benchmark


def _newer_switches() -> list[Any]:
    backends: Any = torch.backends
    return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]


def _older_switches() -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """How to read and write each switch. The last one sets what the one before it sets, and more."""
    backends: Any = torch.backends
    allowed = [
        (partial(getattr, owner, "allow_tf32"), partial(setattr, owner, "allow_tf32"))
        for owner in (backends.cudnn, backends.cuda.matmul)
    ]
    return [*allowed, (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)]


def _is_readable(read: Callable[[], Any]) -> bool:
    try:
        read()
    except RuntimeError as error:
        if "mix of the legacy and new APIs" not in str(error):
            raise
        return False
    return True
