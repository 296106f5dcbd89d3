"""Pressure of the control groups this process is in: held back by a quota, near a limit of memory. Versions 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from voxelocity.observe.host import control_groups, cpu_quota, memory_limit_bytes
from voxelocity.observe.kernel_files import KernelFile


@dataclass(frozen=True, kw_only=True)
class GroupMemory:
    """Memory of a control group.

    Attributes:
        used_bytes: without pages of files that can be dropped.
        available_bytes: that can still be taken.
        page_cache_bytes: pages of files.
    """

    used_bytes: int
    available_bytes: int
    page_cache_bytes: int


class GroupLimits:
    """The groups with a quota or a limit, found once; their counters are read at each call. Not thread-safe.

    Args:
        total_bytes: main memory of the machine; a larger limit does not count.
        root: of the file system with `proc` and `sys`, for tests.
    """

    def __init__(self, *, total_bytes: int, root: Path = Path("/")) -> None:
        quotas = [folder for folder in control_groups("cpu", root=root) if cpu_quota(folder) is not None]
        self._stats = [KernelFile(folder / "cpu.stat") for folder in quotas]
        self._periods: list[tuple[int, int]] = [(0, 0)] * len(quotas)
        limits = [(memory_limit_bytes(folder), folder) for folder in control_groups("memory", root=root)]
        self._memories = [
            _Memory(limit, folder) for limit, folder in limits if limit is not None and limit < total_bytes
        ]

    def throttled_share(self) -> float:
        """Share of the scheduler's periods since the last call in which a group was held back; 0 without a quota."""
        shares = [0.0]
        for number, stat in enumerate(self._stats):
            counters = stat.counters()
            periods, throttled = counters.get("nr_periods", 0), counters.get("nr_throttled", 0)
            before_periods, before_throttled = self._periods[number]
            self._periods[number] = (periods, throttled)
            if periods > before_periods:
                shares.append(min(1.0, (throttled - before_throttled) / (periods - before_periods)))
        return max(shares)

    def memory(self) -> GroupMemory | None:
        """Memory of the group that has the least left; None without a limit."""
        found = [figures for memory in self._memories if (figures := memory.figures()) is not None]
        return min(found, key=lambda figures: figures.available_bytes, default=None)

    def close(self) -> None:
        for file in (*self._stats, *(file for memory in self._memories for file in memory.files)):
            file.close()


class _Memory:
    def __init__(self, limit_bytes: int, folder: Path) -> None:
        self._limit_bytes = limit_bytes
        names = ("memory.current", "memory.usage_in_bytes")
        self._current = KernelFile(folder / next((name for name in names if (folder / name).exists()), names[0]))
        self._stat = KernelFile(folder / "memory.stat")
        self.files = (self._current, self._stat)

    def figures(self) -> GroupMemory | None:
        current = self._current.read().strip()
        if not current.isdigit():
            return None
        stat = self._stat.counters()
        # Version 1 has sums over the groups below under names of their own.
        inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0))
        active = stat.get("total_active_file", stat.get("active_file", 0))
        used_bytes = max(0, int(current) - inactive)
        return GroupMemory(
            used_bytes=used_bytes,
            available_bytes=max(0, self._limit_bytes - used_bytes),
            page_cache_bytes=inactive + active,
        )
