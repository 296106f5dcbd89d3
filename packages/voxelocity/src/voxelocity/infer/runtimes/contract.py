"""What every runtime guarantees, and what it is loaded for. Importing it imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from voxelocity.core.region import Index3
from voxelocity_observe.core.device import Device

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from voxelocity.step import PrecisionConfig


EAGER = "eager"
"""The runtime that is always there."""


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """What a runtime has to compute on the CPU where windows and logits are NumPy arrays, without torch.

    Attributes:
        num_channels: of a window.
        shape_voxel: of a window.
        batch_size: windows in a call, at most.
        precision: number formats as used on the device (`step.precision_on`).
    """

    num_channels: int
    shape_voxel: Index3
    batch_size: int
    precision: PrecisionConfig

    @property
    def batch_shape(self) -> tuple[int, int, int, int, int]:
        """(b, c, x, y, z) of a full batch."""
        return (self.batch_size, self.num_channels, *self.shape_voxel)


@dataclass(frozen=True, kw_only=True)
class RuntimeTask(HostTask):
    """What a runtime has to compute.

    Attributes:
        device: where windows and logits are, which are torch's.
    """

    device: torch.device


Forward = Callable[["torch.Tensor"], "torch.Tensor"]
"""A loaded network: windows (b, c, x, y, z) float32, in any memory order, to logits (b, k, x, y, z) of any floating
point type, both on the device of the task. `b` is 1 to the task's batch size.

Obligations: the windows are not changed; the logits may be a buffer that the next call overwrites; equal windows give
equal logits. Called without gradients, from one thread at a time."""


HostForward = Callable[["npt.NDArray[np.float32]"], "npt.NDArray[np.float32]"]
"""The same on NumPy arrays."""


class NamedForward(NamedTuple):
    """A loaded network, and the name of the runtime that runs it."""

    runtime: str
    forward: Forward


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """The files in which a runtime keeps a network.

    Attributes:
        name: as users name it.
        files: their names, that of the file to open first.
        write: writes the network, with the path of that file, and returns whether windows may have another shape than
            the task's. What the exporter raises is passed on.
        open: what `write` wrote, ready to run.
        why_not: why it cannot be opened for a device, with the cure; "" if it can. Imports no torch.
        open_on_host: as `open`, without torch; None if the runtime needs torch.
        why_not_on_gpu: why no GPU can be used here; "" if one may be. Counts only where torch is not needed otherwise.
        is_machine_code: whether the files may do anything, and run on the kind of device that they were built on.
        compute: the number format in which it always computes; "" for that of the model.
    """

    name: str
    files: tuple[str, ...]
    write: Callable[[torch.nn.Module, RuntimeTask, Path], bool]
    open: Callable[[Path, RuntimeTask], Forward]
    why_not: Callable[[Device], str]
    open_on_host: Callable[[Path, HostTask], HostForward] | None = None
    why_not_on_gpu: Callable[[], str] = lambda: ""
    is_machine_code: bool = False
    compute: Literal["", "float32"] = ""

    @property
    def main_file(self) -> str:
        """The name of the file to open."""
        return self.files[0]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One way to run a network.

    Attributes:
        name: as users name it.
        why_not: why it cannot run on a device, with the cure; "" if it can. Imports nothing.
        load: makes a network, in evaluation mode and on the device of the task, ready to run, building code where
            needed, so that calls are quick from the first. The network stays usable and must outlive the result. What
            the third-party builder raises is passed on.
        build_s: what building takes on two cores for DynUNet, in seconds; keeps `auto` from trying what cannot pay.
        packages: as pip names them, besides torch: another version of one of them is measured again.
        export: files that it can be given in place of a network; None if there are none.
    """

    name: str
    why_not: Callable[[torch.device], str]
    load: Callable[[torch.nn.Module, RuntimeTask], Forward]
    build_s: float
    packages: tuple[str, ...] = ()
    export: ExportFormat | None = None


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
