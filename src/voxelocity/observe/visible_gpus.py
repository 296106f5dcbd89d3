"""Which GPUs a program may use, by `CUDA_VISIBLE_DEVICES`. Asks no driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuName:
    """A GPU, or with `slice` one part of it (MIG)."""

    index: int
    slice: int | None = None
    name: str = ""
    uuid: str = ""
    parent_uuid: str = ""


def visible_gpus(variable: str | None, gpus: Sequence[GpuName]) -> list[GpuName]:
    """The GPUs that CUDA shows a program with this `CUDA_VISIBLE_DEVICES`, in the order of `gpus`.

    Indices are assumed to follow NVML's order, by bus: CUDA uses it with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, and on
    machines whose GPUs are alike. An index of a GPU in slices, and its UUID, stand for all of its slices. As in CUDA,
    what follows the first entry that names nothing is not seen.

    Args:
        variable: comma-separated indices, beginnings of `GPU-...` or of `MIG-...`; None if it is not set.
        gpus: all of them; of a GPU in slices only the slices.
    """
    if variable is None:
        return list(gpus)
    seen: list[GpuName] = []
    for entry in variable.split(","):
        found = _named(entry.strip(), gpus)
        if not found:
            break
        seen += found
    return [gpu for gpu in gpus if gpu in seen]


def _named(entry: str, gpus: Sequence[GpuName]) -> list[GpuName]:
    if entry.isascii() and entry.isdigit():
        return [gpu for gpu in gpus if gpu.index == int(entry)]
    if entry.startswith("GPU-"):
        return [gpu for gpu in gpus if (gpu.parent_uuid or gpu.uuid).startswith(entry)]
    if entry.startswith("MIG-"):
        return [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return []
