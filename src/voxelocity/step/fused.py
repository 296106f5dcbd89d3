"""Which fused kernels a step may use: switches of the whole process, as cuDNN's are. `set_backend` sets them."""

from __future__ import annotations

import functools
import importlib.util
from typing import Literal

FusedName = Literal["norm", "loss", "window"]

_enabled: dict[FusedName, bool] = {"norm": True, "loss": True, "window": True}


def is_fused(name: FusedName) -> bool:
    """Whether this part of a step may use its fused kernel where it has one."""
    return _enabled[name]


def set_fused(name: FusedName, value: bool) -> None:
    """Allows or forbids the fused kernel of a part for the whole process."""
    _enabled[name] = value


@functools.cache
def has_triton() -> bool:
    """Whether Triton, which compiles the fused kernels, is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None
