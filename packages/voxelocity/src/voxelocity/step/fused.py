"""Which fused kernels a step may use: switches of the whole process, as cuDNN's are. `set_backend` sets them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

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


def differentiable_once(name: FusedName) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of the backward pass of a kernel, which autograd cannot look into.

    torch's `once_differentiable` takes a gradient for a constant where the one that arrives is constant: a penalty on
    gradients would silently have none itself. Here `create_graph=True` raises a RuntimeError.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def checked(context: Any, *slopes: Any) -> Any:
            # Prediction without torch asks this module for switches.
            import torch

            # With a graph of the backward pass, and only then, it runs with gradients enabled.
            if torch.is_grad_enabled():
                raise RuntimeError(
                    f"step: the fused {name} has no second derivative, which create_graph=True requires; turn it off "
                    f"with backend.fused_{name}=false, or voxelocity.step.fused.set_fused({name!r}, False)"
                )
            return backward(context, *slopes)

        return checked

    return decorate
