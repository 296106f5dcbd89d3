"""The machine as far as the rules ask: device, cores, memory, disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from voxelocity.core.errors import ConfigError
from voxelocity.observe import available_memory_bytes, cpu_budget, free_disk_bytes

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the rules may use.

    Attributes:
        device: "cpu" or "cuda".
        device_name: as its maker calls it.
        device_memory_bytes: memory of the accelerator; 0 on a CPU.
        fast_bfloat16: whether matrix units take bfloat16 (AVX-512 BF16, AMX, or a GPU from Ampere on).
        num_cpus: cores this process may use.
        memory_bytes: main memory that is free to use.
        disk_bytes: free space where the cache would lie.
    """

    device: str
    device_name: str
    device_memory_bytes: int
    fast_bfloat16: bool
    num_cpus: int
    memory_bytes: int
    disk_bytes: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)


def survey(device: DeviceChoice, *, cache_folder: Path) -> Machine:
    """The machine this process runs on.

    Raises:
        ConfigError: the device is not known, or "cuda" was asked for and torch sees no CUDA device.
    """
    if device not in get_args(DeviceChoice):
        raise ConfigError(f"plan: device {device!r} is not known; choose {', '.join(get_args(DeviceChoice))}")
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError(
            f"plan: --device cuda was asked for, but torch {torch.__version__} sees no CUDA device; "
            "use --device cpu, or install a CUDA build of torch and its driver"
        )
    num_cpus, memory_bytes = cpu_budget(), available_memory_bytes()
    disk_bytes = free_disk_bytes(cache_folder)
    if has_cuda and device != "cpu":
        properties = torch.cuda.get_device_properties(0)
        return Machine(
            device="cuda",
            device_name=properties.name,
            device_memory_bytes=properties.total_memory,
            fast_bfloat16=properties.major >= 8,
            num_cpus=num_cpus,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
        )
    return Machine(
        device="cpu",
        device_name="CPU",
        device_memory_bytes=0,
        fast_bfloat16=_cpu_has_bfloat16(),
        num_cpus=num_cpus,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
    )


def _cpu_has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
