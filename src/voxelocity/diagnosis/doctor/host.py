"""The host: cores, memory and limits of a process, read from Linux's own files. What cannot be read stays unknown."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from voxelocity.diagnosis.doctor.seen import Limits, Memory, Processor
from voxelocity.observe import (
    allowed_cpus,
    available_memory_bytes,
    cpu_budget,
    file_system_of,
    total_memory_bytes,
)
from voxelocity.observe.file_systems import is_in_memory
from voxelocity.observe.kernel_files import file_text
from voxelocity.observe.memory_folders import memory_folders
from voxelocity.observe.processor import cpu_field, cpu_has_fast_bfloat16

_ROOT = Path("/")
_SHM = Path("/dev/shm")


def see_processor(*, environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> Processor:
    """Cores of the machine and of this process.

    Args:
        environ: variables that may hold SLURM's grant.
        root: of the file system with `proc` and `sys`, for tests.
    """
    affine = allowed_cpus()
    cpuinfo = root / "proc/cpuinfo"
    info = file_text(cpuinfo)
    load = file_text(root / "proc/loadavg").split()
    return Processor(
        name=cpu_field(info, "model name"),
        has_fast_bfloat16=cpu_has_fast_bfloat16(cpuinfo) if cpu_field(info, "flags") else None,
        num_cores=os.cpu_count() or len(affine),
        num_affine=len(affine),
        num_granted=_number(environ.get("SLURM_CPUS_PER_TASK", "")),
        num_budget=cpu_budget(num_local_ranks=1, environ=environ, root=root),
        num_nodes=_num_nodes(root / "sys/devices/system/node", affine),
        load=float(load[0]) if load else None,
    )


def see_memory(*, root: Path = _ROOT, shm: Path = _SHM) -> Memory:
    """Main memory, swap and /dev/shm."""
    try:
        swap = psutil.swap_memory()
        swap_bytes, swap_used_bytes = int(swap.total), int(swap.used)
    except (OSError, ValueError, RuntimeError):  # without /proc/vmstat
        swap_bytes = swap_used_bytes = 0
    shm_bytes = shm_free_bytes = None
    if shm.is_dir() and is_in_memory(file_system_of(shm)):
        room = os.statvfs(shm)
        shm_bytes, shm_free_bytes = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    left = [folder for folder in memory_folders() if not folder.is_used]
    return Memory(
        machine_bytes=int(psutil.virtual_memory().total),
        total_bytes=total_memory_bytes(root=root),
        available_bytes=available_memory_bytes(root=root),
        swap_bytes=swap_bytes,
        swap_used_bytes=swap_used_bytes,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        left_folders=tuple(str(folder.path) for folder in left),
        left_bytes=sum(folder.num_bytes for folder in left),
        overcommit=_number(file_text(root / "proc/sys/vm/overcommit_memory")),
    )


def see_limits(*, root: Path = _ROOT) -> Limits:
    """Limits of this process, which its child processes inherit."""
    files, files_hard = (_limit(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    groups = (root / "sys/fs/cgroup/pids.max", root / "sys/fs/cgroup/pids/pids.max")
    return Limits(
        open_files=files,
        open_files_hard=files_hard,
        processes=_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        group_processes=next((count for file in groups if (count := _number(file_text(file))) is not None), None),
        locked_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        has_rdma=any((root / "sys/class/infiniband").glob("*")),
    )


def _num_nodes(folder: Path, affine: set[int]) -> int | None:
    nodes = [_cores(file_text(node / "cpulist")) for node in folder.glob("node[0-9]*")]
    return sum(bool(cores & affine) for cores in nodes) or None


def _cores(text: str) -> set[int]:
    """The cores in one of Linux's lists: "0-3,8" is 0, 1, 2, 3 and 8."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _number(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() else None
