"""What the host is doing, and a program on it: cores, memory, disks, network. Linux's own counters, read and compared.

Disks are the physical ones (a mapped or RAID device would count their traffic twice); networks are the physical
interfaces, in a container all but the loopback.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.host import GroupMemory, control_groups, cpu_quota, group_memory, memory_limit_bytes
from voxelocity_observe.core.kernel_files import KernelFile
from voxelocity_observe.monitor.program import ProgramFigures, ProgramSampler
from voxelocity_observe.monitor.samples import HostSample, RankSample

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES = 512


class HostSampler:
    """Samples the host; rates cover the time since the previous sample and are None in the first one.

    Use it from one thread at a time. `close` closes its open files.

    Args:
        pid: of the watched program's first process; without it, or without `/proc`, nothing is reported for a program.
        root: of the file system with `proc` and `sys`, for tests.
        clock: returns seconds.
    """

    def __init__(self, pid: int | None = None, *, root: Path = Path("/"), clock: Clock = system_clock) -> None:
        self._clock = clock
        self._stat = KernelFile(root / "proc/stat")
        self._meminfo = KernelFile(root / "proc/meminfo")
        self._vmstat = KernelFile(root / "proc/vmstat")
        self._diskstats = KernelFile(root / "proc/diskstats")
        self._network = KernelFile(root / "proc/net/dev")
        self._files = (self._stat, self._meminfo, self._vmstat, self._diskstats, self._network)
        self._shm = root / "dev/shm"
        self._disks = _with_device(root / "sys/block")
        self._interfaces = _with_device(root / "sys/class/net")
        self._groups = _GroupLimits(total_bytes=self._meminfo.counters().get("MemTotal", 0) * 1024, root=root)
        # macOS has no such folder.
        self._is_unseen = pid is not None and not (root / "proc").is_dir()
        self._program = None if pid is None or self._is_unseen else ProgramSampler(pid, root=root, clock=clock)
        self._cores: dict[str, tuple[int, int]] = {}
        self._counters: dict[str, int] = {}
        self._before_s: float | None = None

    @property
    def pids(self) -> Collection[int]:
        """Processes of the program at the last sample."""
        return () if self._program is None else self._program.pids

    @property
    def missing(self) -> tuple[str, ...]:
        """What cannot be sampled here, and why."""
        lines = []
        if self._before_s is not None and not self._cores:
            lines.append(f"CPU of each core: {self._stat.path} cannot be read")
        if not self._disks:
            lines.append("disk traffic: no physical disk is listed below /sys/block")
        if self._is_unseen:
            lines.append("the program: this system has no /proc")
        if self._program is not None and not self._program.lists_children:
            lines.append("processes of the program that end within 2 s: this kernel lists no children of a process")
        return tuple(lines)

    def sample(self) -> HostSample:
        """The host now. Costs about 0.3 ms of CPU, and 0.05 ms more for each process of the program."""
        now_s = self._clock()
        period_s = None if self._before_s is None else now_s - self._before_s
        self._before_s = now_s
        core_shares, busy_cores = self._core_shares()
        throttled_share = self._groups.throttled_share()
        memory = self._meminfo.counters()
        group = self._groups.memory()
        program = None if self._program is None else self._program.figures()
        rates = self._rates(program, period_s)
        program_cores = rates.get("program_cores")
        available = memory.get("MemAvailable")
        return HostSample(
            core_shares=core_shares,
            throttled_share=None if period_s is None else throttled_share,
            memory_used_bytes=_difference(memory, "MemTotal", "MemAvailable") if group is None else group.used_bytes,
            memory_available_bytes=_least(
                None if available is None else available * 1024, None if group is None else group.available_bytes
            ),
            page_cache_bytes=_file_pages(memory) if group is None else group.page_cache_bytes,
            swap_used_bytes=_difference(memory, "SwapTotal", "SwapFree"),
            shm_used_bytes=self._shm_used_bytes(),
            program_memory_bytes=None if program is None else program.memory_bytes,
            num_processes=None if program is None else program.num_processes,
            num_threads=None if program is None else program.num_threads,
            others_cores=None if program_cores is None or not core_shares else max(0.0, busy_cores - program_cores),
            ranks=_ranks(program, period_s),
            **rates,
        )

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._groups.close()

    def _core_shares(self) -> tuple[tuple[float, ...], float]:
        """Busy share of each core since the last call, and their sum; nothing the first time."""
        now: dict[str, tuple[int, int]] = {}
        for line in self._stat.read().splitlines():
            # Lines of cores come first; what follows is long and not needed.
            if not line.startswith("cpu"):
                break
            name, *fields = line.split(maxsplit=9)
            if name == "cpu":
                continue
            # user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user.
            ticks = [int(field) for field in fields[:8]]
            now[name] = (sum(ticks), ticks[3] + ticks[4])
        before, self._cores = self._cores, now
        shares = tuple(_busy_share(before[name], ticks) for name, ticks in now.items() if name in before)
        return shares, sum(shares)

    def _rates(self, program: ProgramFigures | None, period_s: float | None) -> dict[str, float]:
        """Rates by their fields in `HostSample`, of what could be read both now and before."""
        pages = self._vmstat.counters("pswp")
        names = {"swap_in_bytes_per_s": "pswpin", "swap_out_bytes_per_s": "pswpout"}
        now = {field: pages[name] * _PAGE_BYTES for field, name in names.items() if name in pages}
        now |= _disk_bytes(self._diskstats.read(), self._disks)
        now |= _network_bytes(self._network.read(), self._interfaces)
        before, self._counters = self._counters, now
        if not period_s:
            return {}
        rates = {name: max(0, value - before[name]) / period_s for name, value in now.items() if name in before}
        if program is not None:
            rates["program_cores"] = program.cpu_s / period_s
            rates["major_faults_per_s"] = program.num_major_faults / period_s
            rates["program_read_bytes_per_s"] = program.read_bytes / period_s
        return rates

    def _shm_used_bytes(self) -> int | None:
        try:
            state = os.statvfs(self._shm)
        except OSError:
            return None
        return (state.f_blocks - state.f_bfree) * state.f_frsize


class _GroupLimits:
    """The groups with a quota or a limit, found once; their counters are read at each call. Not thread-safe.

    Args:
        total_bytes: main memory of the machine; a larger limit does not count.
        root: of the file system with `proc` and `sys`, for tests.
    """

    def __init__(self, *, total_bytes: int, root: Path) -> None:
        quotas = [folder for folder in control_groups("cpu", root=root) if cpu_quota(folder) is not None]
        self._stats = [KernelFile(folder / "cpu.stat") for folder in quotas]
        self._periods: list[tuple[int, int]] = [(0, 0)] * len(quotas)
        limits = [(memory_limit_bytes(folder), folder) for folder in control_groups("memory", root=root)]
        self._memories = [
            _LimitedMemory(limit, folder) for limit, folder in limits if limit is not None and limit < total_bytes
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


class _LimitedMemory:
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
        return group_memory(self._limit_bytes, int(current), self._stat.counters())


def _busy_share(before: tuple[int, int], now: tuple[int, int]) -> float:
    total = now[0] - before[0]
    # The idle counters may go back a little when the kernel corrects them.
    return min(1.0, max(0.0, 1.0 - (now[1] - before[1]) / total)) if total > 0 else 0.0


def _with_device(folder: Path) -> frozenset[str]:
    """Names below a folder of sysfs that stand for hardware; virtual ones have no `device`."""
    try:
        return frozenset(entry.name for entry in folder.iterdir() if (entry / "device").exists())
    except OSError:
        return frozenset()


def _disk_bytes(diskstats: str, disks: frozenset[str]) -> dict[str, int]:
    """Bytes so far, by the fields that show their growth."""
    lines = [fields for line in diskstats.splitlines() if len(fields := line.split(maxsplit=10)) > 9]
    ours = [fields for fields in lines if fields[2] in disks]
    if not ours:
        return {}
    return {
        "disk_read_bytes_per_s": sum(int(fields[5]) for fields in ours) * _SECTOR_BYTES,
        "disk_write_bytes_per_s": sum(int(fields[9]) for fields in ours) * _SECTOR_BYTES,
    }


def _network_bytes(table: str, interfaces: frozenset[str]) -> dict[str, int]:
    rows = [line.replace(":", " ").split() for line in table.splitlines()[2:]]
    ours = [row for row in rows if row[0] in interfaces] or [row for row in rows if row[0] != "lo"]
    if not ours:
        return {}
    return {
        "network_receive_bytes_per_s": sum(int(row[1]) for row in ours),
        "network_send_bytes_per_s": sum(int(row[9]) for row in ours),
    }


def _file_pages(memory: dict[str, int]) -> int | None:
    pages = [memory.get("Active(file)"), memory.get("Inactive(file)")]
    return None if None in pages else sum(page or 0 for page in pages) * 1024


def _difference(memory: dict[str, int], larger: str, smaller: str) -> int | None:
    return (memory[larger] - memory[smaller]) * 1024 if larger in memory and smaller in memory else None


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _ranks(program: ProgramFigures | None, period_s: float | None) -> tuple[RankSample, ...]:
    if program is None or not period_s or len(program.ranks) < 2:
        return ()
    return tuple(
        RankSample(rank=rank, cores=cpu_s / period_s, memory_bytes=memory_bytes)
        for rank, (cpu_s, memory_bytes) in program.ranks.items()
    )
