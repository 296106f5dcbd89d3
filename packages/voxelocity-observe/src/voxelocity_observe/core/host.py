"""What the machine lets this process use: cores, memory, disk; and the memory that it has used.

Limits of containers and schedulers are honored. Control groups are read from files, version 2 and version 1; a limit
that cannot be read is taken as none.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from voxelocity_observe.core.kernel_files import counters, file_number, file_text
from voxelocity_observe.core.place import INNER_FIRST, LAUNCHERS

_ROOT = Path("/")
_MOUNTS = Path("/proc/self/mounts")
_CPUINFO = Path("/proc/cpuinfo")
_STATUS = Path("/proc/self/status")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "fuse.sshfs")
_IN_MEMORY = ("tmpfs", "ramfs")
_OCTAL = re.compile(r"\\([0-7]{3})")


def allowed_cpus() -> set[int]:
    """The cores that this process may run on, by number; where the system keeps no affinity (macOS), all of them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cpu_budget(
    *, num_local_ranks: int | None = None, environ: Mapping[str, str] = os.environ, root: Path = _ROOT
) -> int:
    """Cores this process may keep busy: the least of its affinity, its control groups' quota and SLURM's grant.

    These three bind all ranks that one launcher started here together, so each rank gets an equal share of them.

    Args:
        num_local_ranks: training processes that share the cores; by default what `local_ranks` finds.
        environ: where `SLURM_CPUS_PER_TASK` is looked up.
        root: of the file system with `proc` and `sys`, for tests.

    Returns:
        At least 1; a quota or a share of part of a core is rounded down.
    """
    limits = [float(len(allowed_cpus()))]
    limits += [quota for folder in control_groups("cpu", root=root) if (quota := cpu_quota(folder)) is not None]
    granted = positive_variable("SLURM_CPUS_PER_TASK", environ)
    if granted is not None:
        limits.append(float(granted))
    num_ranks = local_ranks(environ=environ) if num_local_ranks is None else num_local_ranks
    assert num_ranks >= 1, f"num_local_ranks {num_ranks}"
    return max(1, int(min(limits) / num_ranks))


def local_ranks(*, environ: Mapping[str, str] = os.environ) -> int:
    """Training processes on this node that share one affinity, one control group and one SLURM task; 1 if unknown.

    Ranks that `srun` started are separate SLURM tasks, each with its own cores and its own `SLURM_CPUS_PER_TASK`, so
    they do not count here.
    """
    numbers = (positive_variable(launcher.local_size, environ) for launcher in LAUNCHERS if launcher.shares_cores)
    return next(filter(None, numbers), 1)


def process_rank(*, environ: Mapping[str, str] = os.environ) -> int:
    """The rank of this process among those that train together, as its launcher says; 0 if unknown."""
    ranks = (_whole_number(launcher.rank, environ) for launcher in INNER_FIRST)
    return next((rank for rank in ranks if rank is not None), 0)


def available_memory_bytes(*, root: Path = _ROOT) -> int:
    """Main memory that can still be taken without swapping or being killed: of the machine and of the control groups.

    Pages of files that the system can drop count as available.
    """
    limits = [int(psutil.virtual_memory().available)]
    for folder in control_groups("memory", root=root):
        limit = memory_limit_bytes(folder)
        current = file_number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and current is not None:
            limits.append(group_memory(limit, current, counters(file_text(folder / "memory.stat"))).available_bytes)
    return max(0, min(limits))


def total_memory_bytes(*, root: Path = _ROOT) -> int:
    """Main memory this process could ever have: of the machine, or less where a control group sets a limit."""
    limits = (memory_limit_bytes(folder) for folder in control_groups("memory", root=root))
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def free_disk_bytes(folder: Path | str) -> int:
    """Bytes that can still be written below `folder`, which need not exist yet. Ignores user quotas."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def file_system_of(folder: Path | str, *, mounts: Path = _MOUNTS) -> str:
    """The kind of file system below which `folder` lies or would lie, as Linux names it; "" if that is not known."""
    lines = [line.split() for line in file_text(mounts).splitlines()]
    resolved = Path(folder).absolute().resolve()
    # The kernel writes a space, a tab, a line break and a backslash as three octal digits.
    kinds = {Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), point)): kind for _, point, kind, *_ in lines}
    return next((kinds[place] for place in (resolved, *resolved.parents) if place in kinds), "")


def is_on_network(file_system: str) -> bool:
    """Whether files of such a file system lie on another machine; False where the name is not known."""
    return file_system in _NETWORK


def is_in_memory(file_system: str) -> bool:
    """Whether files of such a file system take main memory, and are gone with it."""
    return file_system in _IN_MEMORY


def default_cache_folder() -> Path:
    """Where prepared cases are kept between runs: the XDG cache folder of this user.

    If XDG_CACHE_HOME is not set and the home is on a network file system (common on clusters, slow and with a quota),
    the job's own disk is used: SLURM_TMPDIR, or TMPDIR, if that is a folder on a disk of this machine.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given).expanduser() / "voxelocity"
    home = Path("~/.cache").expanduser() / "voxelocity"
    if is_on_network(file_system_of(home)):
        for name in ("SLURM_TMPDIR", "TMPDIR"):
            place = Path(os.environ.get(name) or "/nowhere")
            if place.is_dir() and os.access(place, os.W_OK | os.X_OK) and _is_local_disk(place):
                return place / f"voxelocity-cache-{os.getuid()}"
    return home


def _is_local_disk(place: Path) -> bool:
    kind = file_system_of(place)
    return not is_on_network(kind) and not is_in_memory(kind)


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """The model of the CPU as its maker calls it, or its architecture where the system does not say."""
    text = file_text(cpuinfo)
    if not text:
        return platform.processor() or platform.machine()
    return first_field(text, "model name") or platform.machine()


def cpu_has_fast_bfloat16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether convolutions take less time in bfloat16 than in float32.

    With AMX, or with AVX-512 BF16 on AMD's cores: 0.57 to 0.71 of the time of float32 on Zen 4. With AVX-512 BF16 alone
    Intel's cores (Emerald Rapids, AMX hidden by the hypervisor) took 1.15 to 1.4 times as long (docs/log).
    """
    text = file_text(cpuinfo)
    flags = first_field(text, "flags").split()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and first_field(text, "vendor_id") == "AuthenticAMD")


def first_field(text: str, name: str) -> str:
    """The first field of this name in a text of lines "name: value"; "" if there is none."""
    for line in text.splitlines():
        field, separator, value = line.partition(":")
        if separator and field.strip() == name:
            return value.strip()
    return ""


def peak_host_bytes(*, status: Path = _STATUS) -> int:
    """Main memory at its highest, files that were mapped and memory that is shared with others included.

    Linux restarts the count for each program; elsewhere it is what `getrusage` reports, which may include the peak of
    the program that started this one.
    """
    if (marked := high_water_bytes(status)) is not None:
        return marked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, on macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def high_water_bytes(status: Path) -> int | None:
    """The most resident bytes in the file `status` of a process, None if it does not say."""
    return _status_bytes(status, "VmHWM")


def anonymous_bytes(*, status: Path = _STATUS) -> int:
    """Resident memory that no file backs, which a fork has a copy of once either side writes to it; 0 if not known."""
    return _status_bytes(status, "RssAnon") or 0


def _status_bytes(status: Path, name: str) -> int | None:
    kilobytes = first_field(file_text(status), name).removesuffix(" kB")
    return int(kilobytes) * 1024 if kilobytes.isdigit() else None


def peak_device_bytes() -> int | None:
    """Memory of all CUDA devices that tensors of this process took at its highest, the sum of each device's peak.

    None if torch has not used a CUDA device. Waits for nothing, imports nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))


def positive_variable(name: str, environ: Mapping[str, str]) -> int | None:
    """The whole number above 0 that this variable holds, or None."""
    return _whole_number(name, environ) or None


def _whole_number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def control_groups(controller: str, *, root: Path = _ROOT) -> Iterator[Path]:
    """Folders of the control groups this process is in, innermost first, up to the root of each hierarchy.

    Args:
        controller: "cpu" or "memory".
        root: of the file system with `proc` and `sys`, for tests.
    """
    mount = root / "sys/fs/cgroup"
    for line in file_text(root / "proc/self/cgroup").splitlines():
        _, controllers, inside = line.split(":", 2)
        if not controllers:
            top = mount
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        # A container may see only its own part of the tree; what does not exist there sets no limit.
        place = top / inside.lstrip("/")
        yield from (folder for folder in (place, *place.parents) if folder == top or top in folder.parents)


def cpu_quota(folder: Path) -> float | None:
    """Cores that a control group may keep busy, None without a quota."""
    text = file_text(folder / "cpu.max")
    if text:
        quota, _, period = text.partition(" ")
        return float(quota) / float(period) if quota != "max" else None
    quota_us, period_us = file_number(folder / "cpu.cfs_quota_us"), file_number(folder / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us is not None and period_us and quota_us > 0 else None


def memory_limit_bytes(folder: Path) -> int | None:
    """Memory that a control group may take, None without a limit. Version 1 has a huge number where there is none."""
    return file_number(folder / "memory.max", folder / "memory.limit_in_bytes")


class GroupMemory(NamedTuple):
    """Memory of a control group: in use without pages of files that can be dropped, still available, pages of files."""

    used_bytes: int
    available_bytes: int
    page_cache_bytes: int


def group_memory(limit_bytes: int, current_bytes: int, stat: Mapping[str, int]) -> GroupMemory:
    """What a control group has, from its limit, what it is charged for, and the counters in its `memory.stat`."""
    # Version 1 has sums over the groups below under names of their own.
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    active = stat.get("total_active_file", stat.get("active_file", 0))
    used_bytes = max(0, current_bytes - inactive)
    return GroupMemory(used_bytes, max(0, limit_bytes - used_bytes), inactive + active)
