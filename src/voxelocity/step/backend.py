"""Switches of CUDA's libraries, which torch keeps for the whole process. They mean nothing on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from voxelocity.core.config import Config


class BackendConfig(Config):
    """How cuDNN and cuBLAS compute on a GPU."""

    tf32: bool = True
    """Whether float32 convolutions and matrix products round their factors to TF32, as torch does in convolutions."""
    cudnn_benchmark: bool = False
    """Whether cuDNN tries its algorithms at each new shape and keeps the quickest, whose roundings may be others."""


def set_backend(config: BackendConfig, device: torch.device) -> None:
    """Sets the process's switches for a CUDA device; leaves everything as it is for a CPU."""
    if device.type != "cuda":
        return
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark


@contextmanager
def backend_as_found(device: torch.device) -> Iterator[None]:
    """Puts the process's switches for a CUDA device back as they were; does nothing for a CPU."""
    if device.type != "cuda":
        yield
        return
    found = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = found
