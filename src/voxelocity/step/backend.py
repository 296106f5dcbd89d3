"""Switches of CUDA's libraries, which torch keeps for the whole process. They have no effect on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from voxelocity.core.config import Config


class BackendConfig(Config):
    """How cuDNN and cuBLAS compute on a GPU."""

    tf32: bool = True
    """Whether float32 convolutions and matrix products round their factors to TF32, as torch does in convolutions."""
    cudnn_benchmark: bool = False
    """Whether cuDNN tries its algorithms at each new shape and keeps the quickest, whose roundings may differ."""


def set_backend(config: BackendConfig, device: torch.device) -> None:
    """Sets the process's switches for a CUDA device; changes nothing for a CPU."""
    if device.type != "cuda":
        return
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark


@contextmanager
def backend_as_found(device: torch.device) -> Iterator[None]:
    """Restores the process's switches for a CUDA device after the block; does nothing for a CPU.

    torch keeps TF32 in two sets of switches, older and newer ones, and refuses to read an older one that a newer one
    contradicts.
    """
    if device.type != "cuda":
        yield
        return
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
