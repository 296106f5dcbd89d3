"""What the machine lets this process use: cores, memory, disk. Limits of containers and schedulers are honored.

Control groups are read from files, version 2 and version 1; a limit that cannot be read is taken as none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from voxelocity.observe.kernel_files import file_text

_ROOT = Path("/")
_MOUNTS = Path("/proc/self/mounts")


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
    granted = _count(environ, "SLURM_CPUS_PER_TASK")
    if granted is not None:
        limits.append(float(granted))
    num_ranks = local_ranks(environ=environ) if num_local_ranks is None else num_local_ranks
    assert num_ranks >= 1, f"num_local_ranks {num_ranks}"
    return max(1, int(min(limits) / num_ranks))


def local_ranks(*, environ: Mapping[str, str] = os.environ) -> int:
    """Training processes on this node that share one affinity, one control group and one SLURM task; 1 if unknown.

    torchrun sets it as `LOCAL_WORLD_SIZE`. Ranks that `srun` started are separate SLURM tasks, each with its own cores
    and its own `SLURM_CPUS_PER_TASK`, so they do not count here.
    """
    return _count(environ, "LOCAL_WORLD_SIZE") or 1


def process_rank(*, environ: Mapping[str, str] = os.environ) -> int:
    """The rank of this process among those that train together: torchrun's `RANK`, or srun's task; 0 if unknown."""
    for name in ("RANK", "SLURM_PROCID"):
        text = environ.get(name, "").strip()
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def available_memory_bytes(*, root: Path = _ROOT) -> int:
    """Main memory that can still be taken without swapping or being killed: of the machine and of the control groups.

    Pages of files that the system can drop count as available.
    """
    limits = [int(psutil.virtual_memory().available)]
    for folder in control_groups("memory", root=root):
        limit = memory_limit_bytes(folder)
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            limits.append(limit - used + _droppable_bytes(folder / "memory.stat"))
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
    kinds = {Path(point): kind for _, point, kind, *_ in lines}
    return next((kinds[place] for place in (resolved, *resolved.parents) if place in kinds), "")


def _count(environ: Mapping[str, str], name: str) -> int | None:
    """The whole number above 0 that this variable holds, or None."""
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


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
    quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us is not None and period_us and quota_us > 0 else None


def memory_limit_bytes(folder: Path) -> int | None:
    """Memory that a control group may take, None without a limit. Version 1 has a huge number where there is none."""
    return _number(folder / "memory.max", folder / "memory.limit_in_bytes")


def _droppable_bytes(stat: Path) -> int:
    """Inactive file pages, of the group and those below it (version 1 names these sums `total_...`)."""
    pairs = dict(line.split(" ", 1) for line in file_text(stat).splitlines())
    return int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))


def _number(*files: Path) -> int | None:
    """The number in the first of the files that exists; None if it holds "max" or none exists."""
    text = next((text for file in files if (text := file_text(file))), "")
    return int(text) if text.lstrip("-").isdigit() else None
