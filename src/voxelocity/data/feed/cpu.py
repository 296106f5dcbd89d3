"""How many CPU cores this process may use, which on clusters and in containers is fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath


def cpu_budget(
    *,
    num_affinity: int | None = None,
    environment: Mapping[str, str] | None = None,
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    own_cgroups: Path = Path("/proc/self/cgroup"),
) -> int:
    """Cores this process may keep busy, at least 1: the least of CPU affinity, cgroup quota and SLURM's allotment.

    A quota of a part of a core is rounded down: threads beyond the quota make the kernel pause the whole process.

    Args:
        num_affinity: cores in the affinity mask; asked of the kernel by default.
        environment: read for SLURM_CPUS_PER_TASK; the process's own by default.
        cgroup_root: where the cgroup file system is mounted.
        own_cgroups: the kernel's list of the cgroups this process is in.
    """
    if num_affinity is None:
        num_affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slurm = (os.environ if environment is None else environment).get("SLURM_CPUS_PER_TASK", "")
    budgets = [float(num_affinity), *_cgroup_quotas(cgroup_root, own_cgroups)]
    if slurm.isdecimal():
        budgets.append(float(slurm))
    return max(int(min(budgets)), 1)


def _cgroup_quotas(root: Path, own_cgroups: Path) -> Iterator[float]:
    for line in (_read(own_cgroups) or "").splitlines():
        _, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        # Limits of every group above hold as well; inside a container only some of these folders can be seen.
        below_root = PurePosixPath(path.lstrip("/"))
        for folder in (below_root, *below_root.parents):
            if controllers == "":
                quota = _quota_v2(root / folder)
            elif "cpu" in controllers.split(","):
                quota = _quota_v1(root / "cpu" / folder) or _quota_v1(root / controllers / folder)
            else:
                quota = None
            if quota is not None:
                yield quota


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota_us, period_us = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota_us is None or period_us is None or int(quota_us) <= 0:
        return None
    return int(quota_us) / int(period_us)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
