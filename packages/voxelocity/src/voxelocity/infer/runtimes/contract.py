"""What every runtime guarantees, and what it is loaded for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from voxelocity.core.region import Index3

if TYPE_CHECKING:
    import torch

    from voxelocity.step import PrecisionConfig


EAGER = "eager"
"""The runtime that is always there."""


@dataclass(frozen=True, kw_only=True)
class RuntimeTask:
    """What a runtime has to compute.

    Attributes:
        num_channels: of a window.
        shape_voxel: of a window.
        batch_size: windows in a call, at most.
        device: where windows and logits are.
        precision: number formats as used on the device (`step.precision_on`).
    """

    num_channels: int
    shape_voxel: Index3
    batch_size: int
    device: torch.device
    precision: PrecisionConfig

    @property
    def batch_shape(self) -> tuple[int, int, int, int, int]:
        """(b, c, x, y, z) of a full batch."""
        return (self.batch_size, self.num_channels, *self.shape_voxel)


Forward = Callable[["torch.Tensor"], "torch.Tensor"]
"""A loaded network: windows (b, c, x, y, z) float32, in any memory order, to logits (b, k, x, y, z) of any floating
point type, both on the device of the task. `b` is 1 to the task's batch size.

Obligations: the windows are not changed; the logits may be a buffer that the next call overwrites; equal windows give
equal logits. Called without gradients, from one thread at a time."""


class NamedForward(NamedTuple):
    """A loaded network, and the name of the runtime that runs it."""

    runtime: str
    forward: Forward


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One way to run a network.

    Attributes:
        why_not: why it cannot run on a device, with the cure; "" if it can. Imports nothing.
        load: makes a network, in evaluation mode and on the device of the task, ready to run, building code where
            needed, so that calls are quick from the first. The network stays usable and must outlive the result. What
            the third-party builder raises is passed on.
        build_s: what building takes on two cores for DynUNet, in seconds; keeps `auto` from trying what cannot pay.
    """

    why_not: Callable[[torch.device], str]
    load: Callable[[torch.nn.Module, RuntimeTask], Forward]
    build_s: float


def missing(modules: Sequence[str], *, extra: str) -> str:
    """What to install if one of these modules cannot be found; "" if all can."""
    gone = [name for name in modules if importlib.util.find_spec(name) is None]
    if not gone:
        return ""
    return f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} not installed; pip install 'voxelocity[{extra}]'"


def in_one_line(error: Exception) -> str:
    """The kind of an error and the first line of its text, shortened."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
