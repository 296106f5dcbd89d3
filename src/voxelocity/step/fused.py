"""Whether norms and losses are computed by our own fused kernels on a GPU: switches of the whole process."""

from __future__ import annotations

from typing import Literal

Part = Literal["norm", "loss"]
_enabled: dict[Part, bool] = {"norm": True, "loss": True}


def is_fused(name: Part) -> bool:
    """Whether this part uses our kernels where they can run; if not, torch's operations, their reference."""
    return _enabled[name]


def set_fused(name: Part, value: bool) -> None:
    """Sets the switch of a part for the whole process."""
    _enabled[name] = value
