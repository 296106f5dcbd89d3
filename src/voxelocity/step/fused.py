"""Which fused kernels run in place of torch's operations on a CUDA device: process-wide switches, all on by default.

They guard speed alone: each kernel agrees with the operations it replaces within rounding. Imports no torch.
"""

from __future__ import annotations

from typing import Literal

FusedName = Literal["norm", "loss", "window"]

_enabled: dict[str, bool] = {"norm": True, "loss": True, "window": True}


def is_fused(name: FusedName) -> bool:
    """Whether the kernels of this name are used where they can be."""
    return _enabled[name]


def set_fused(name: FusedName, value: bool) -> None:
    """Switches the kernels of this name on or off, for the whole process."""
    _enabled[name] = value
