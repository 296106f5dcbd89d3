"""What the rules ask about the machine: device, cores, memory, disk."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from voxelocity.core.requests.plan import DeviceChoice
from voxelocity.data.cache import FOLDER_TIERS, TierName, disk_bytes_in, shared_free_bytes, tiers_in
from voxelocity.parallel import read_place
from voxelocity_observe.core.device import freest_gpu
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import (
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    free_disk_bytes,
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the rules may use.

    Attributes:
        device: "cpu" or "cuda".
        num_ranks: processes that train together, each on a machine like this one.
        device_index: which CUDA device, the current one of the calling thread; None on a CPU.
        device_name: its vendor's name for it.
        capability: compute capability of a CUDA device; None on a CPU.
        device_memory_bytes: memory of the accelerator; 0 on a CPU.
        device_free_bytes: the part of it that is free.
        fast_bfloat16: whether it computes bfloat16 faster than float32.
        num_cpus: cores this process may use.
        memory_bytes: main memory that is free to use.
        shared_bytes: the part of it that files shared by processes can take (`/dev/shm`); 0 if there is no such place.
        disk_bytes: free space where the cache would be.
        cache_bytes: what entries of the tier disk already take there.
        cache_tiers: tiers in a folder that work where the cache would be.
        has_triton: whether batches can be augmented on a CUDA device: the package triton is installed.
    """

    device: str
    device_name: str
    device_memory_bytes: int
    device_free_bytes: int
    fast_bfloat16: bool
    num_cpus: int
    memory_bytes: int
    shared_bytes: int
    disk_bytes: int
    cache_tiers: tuple[TierName, ...] = FOLDER_TIERS
    cache_bytes: int = 0
    capability: tuple[int, int] | None = None
    num_ranks: int = 1
    device_index: int | None = None
    has_triton: bool = True

    @property
    def torch_device(self) -> torch.device:
        """The same device in every thread."""
        return torch.device(self.device) if self.device_index is None else torch.device(self.device, self.device_index)


def survey(device: DeviceChoice, *, cache_folder: Path) -> Machine:
    """The machine this process runs on.

    Of several GPUs it takes the one with the most free memory (`freest_gpu`) and makes it the current one.

    Raises:
        ConfigError: the device is not known, or "cuda" was asked for and torch sees no CUDA device.
    """
    if device not in get_args(DeviceChoice):
        raise ConfigError(f"plan: device {device!r} is not known; choose {', '.join(get_args(DeviceChoice))}")
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError(
            f"plan: a GPU was requested, but torch {torch.__version__} sees no CUDA device; "
            "use --device cpu, or install a CUDA build of torch and its driver"
        )
    place = read_place()
    # Ranks that train together took the GPUs of their numbers.
    index = (freest_gpu() if place.is_alone else torch.cuda.current_device()) if has_cuda and device != "cpu" else None
    if index is not None and index != torch.cuda.current_device():
        torch.cuda.set_device(index)
    properties = None if index is None else torch.cuda.get_device_properties(index)
    return Machine(
        device="cpu" if properties is None else "cuda",
        device_name="CPU" if properties is None else properties.name,
        capability=None if properties is None else (properties.major, properties.minor),
        device_memory_bytes=0 if properties is None else properties.total_memory,
        device_free_bytes=0 if index is None else torch.cuda.mem_get_info(index)[0],
        fast_bfloat16=cpu_has_fast_bfloat16() if properties is None else properties.major >= 8,
        num_cpus=cpu_budget(),
        memory_bytes=available_memory_bytes(),
        shared_bytes=shared_free_bytes(),
        disk_bytes=free_disk_bytes(cache_folder),
        cache_tiers=tiers_in(cache_folder),
        cache_bytes=disk_bytes_in(cache_folder),
        num_ranks=place.size,
        device_index=index,
        has_triton=importlib.util.find_spec("triton") is not None,
    )
