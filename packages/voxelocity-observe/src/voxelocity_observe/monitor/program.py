"""A program and all processes it starts: CPU time, memory, reads, threads. Processes come and go while it is watched.

CPU time of a process that ended is not lost: the kernel adds it to its parent's when the parent waits for it. So growth
is counted in two places, in the living processes and in what they inherit, and what was counted of a process before it
ended is subtracted from what its parent inherits. No rate is ever negative.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.kernel_files import read_small
from voxelocity_observe.core.place import INNER_FIRST

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Any thread may start a process, but looking at every thread each time costs more than everything else.
_THREADS_EVERY_S = 2.0
_ROLLUP_KB = re.compile(rb"\nRss: +(\d+) kB\nPss: +(\d+) kB")
_RANK_NAMES = tuple(launcher.rank.encode() for launcher in INNER_FIRST)


@dataclass(frozen=True, kw_only=True)
class ProgramFigures:
    """A program at one moment; the first three count since the previous figures and are 0 in the first ones.

    Attributes:
        ranks: CPU seconds and resident bytes of each rank and the processes it has started, by its number.
        read_bytes: bytes that had to come from a disk.
        memory_bytes: resident; what its processes share counts once.
    """

    cpu_s: float
    num_major_faults: int
    read_bytes: int
    memory_bytes: int
    num_processes: int
    num_threads: int
    ranks: Mapping[int, tuple[float, int]] = field(default_factory=dict)


@dataclass
class _Process:
    """One process as last read."""

    parent: int = 0
    begun: int = -1
    is_zombie: bool = False
    own_ticks: int = 0
    inherited_ticks: int = 0
    own_faults: int = 0
    inherited_faults: int = 0
    num_threads: int = 0
    resident_bytes: int = 0
    read_bytes: int = 0
    # Of `resident_bytes`, what it had from its parent when it was first seen.
    forked_bytes: int = 0
    # By which of `_RANK_NAMES`, and its number.
    rank: tuple[int, int] | None = None
    ticks_since: int = 0


_NOTHING = _Process()


class ProgramSampler:
    """Figures of the process `pid` and its descendants. Use it from one thread at a time.

    Processes whose parent ended stay watched. CPU time comes in ticks of the kernel, usually of 10 ms.

    Args:
        pid: of the program's first process.
        root: of the file system with `proc`, for tests.
        clock: returns seconds.
        cpu_clock: returns seconds of this thread's CPU time.
        sharing_cost: share of the time that may go into reading how much of its memory a process shares, which takes
            the kernel about 10 ms a GiB. In between, pages that a fork no longer shares with its parent go unnoticed.

    Attributes:
        lists_children: whether the kernel lists the children of a process; if not, the whole machine is searched
            every 2 s.
    """

    def __init__(
        self,
        pid: int,
        *,
        root: Path = Path("/"),
        clock: Clock = system_clock,
        cpu_clock: Clock = time.thread_time,
        sharing_cost: float = 0.001,
    ) -> None:
        self.pid = pid
        self._proc = str(root / "proc")
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sharing_cost = sharing_cost
        self._known: dict[int, _Process] = {}
        self._is_first = True
        self._threads_due_s = clock()
        self._memory_due_s = clock()
        self._shared_bytes: dict[int, int] = {}
        self.lists_children = os.path.exists(f"{self._proc}/{pid}/task/{pid}/children")
        self._listed: dict[int, list[int]] = {}

    @property
    def pids(self) -> Collection[int]:
        """The program's processes when figures were last made."""
        return self._known.keys()

    def figures(self) -> ProgramFigures:
        """What the program did since the last call, and what it has now."""
        before, now = self._known, self._read_all()
        ended = [process for pid, process in before.items() if not _is_same(process, now.get(pid))]
        cpu_ticks = faults = read_bytes = 0
        for pid, process in now.items():
            earlier = before.get(pid)
            if earlier is None or not _is_same(earlier, process):
                earlier = _NOTHING
                parent = now.get(process.parent)
                process.forked_bytes = min(process.resident_bytes, parent.resident_bytes) if parent else 0
            elif process.parent in now:
                process.forked_bytes = earlier.forked_bytes
            children = [child for child in ended if child.parent == pid]
            process.ticks_since = max(0, process.own_ticks - earlier.own_ticks)
            inherited = process.inherited_ticks - earlier.inherited_ticks - sum(map(_ticks, children))
            process.ticks_since += max(0, inherited)
            cpu_ticks += process.ticks_since
            faults += max(0, process.own_faults - earlier.own_faults)
            faults += max(0, process.inherited_faults - earlier.inherited_faults - sum(map(_faults, children)))
            # The kernel keeps one sum of what a process read and inherited.
            read_bytes += max(0, process.read_bytes - earlier.read_bytes - sum(child.read_bytes for child in children))
        self._known = now
        is_first, self._is_first = self._is_first, False
        alive = [process for process in now.values() if not process.is_zombie]
        memory = self._memory_bytes()
        found = sorted({process.rank for process in alive if process.rank is not None})
        ranks = {
            rank[1]: (
                0.0
                if is_first
                else sum(process.ticks_since for process in now.values() if process.rank == rank) / _TICKS_PER_S,
                sum(memory.get(pid, 0) for pid, process in now.items() if process.rank == rank),
            )
            # A torchrun that srun has started is not a rank: the processes it starts have its own numbers.
            for rank in found
            if rank[0] == found[0][0]
        }
        return ProgramFigures(
            cpu_s=0.0 if is_first else cpu_ticks / _TICKS_PER_S,
            num_major_faults=0 if is_first else faults,
            read_bytes=0 if is_first else read_bytes,
            memory_bytes=sum(memory.values()),
            num_processes=len(alive),
            num_threads=sum(process.num_threads for process in alive),
            ranks=ranks,
        )

    def _read_all(self) -> dict[int, _Process]:
        """Every living process of the program: found through its parents, or known already."""
        now_s = self._clock()
        look_everywhere = now_s >= self._threads_due_s
        if look_everywhere:
            self._threads_due_s = now_s + _THREADS_EVERY_S
            self._listed = {} if self.lists_children else self._children_of_all()
        found: dict[int, _Process] = {}
        # The first process leads to nearly all; those whose parent ended are reached from what is known.
        for start in (self.pid, *self._known):
            waiting = [start]
            while waiting:
                pid = waiting.pop()
                process = self._read(pid) if pid not in found else None
                earlier = self._known.get(pid)
                if process is None or (pid == start and earlier is not None and not _is_same(earlier, process)):
                    # Seen already, gone, or its number was given to a stranger.
                    continue
                process.rank = earlier.rank if earlier is not None else None
                if process.rank is None and (look_everywhere or earlier is None):
                    # A process that was just forked still has the variables of its parent.
                    process.rank = self._rank(pid)
                found[pid] = process
                waiting += self._children(pid, of_every_thread=look_everywhere or earlier is None)
        return found

    def _children(self, pid: int, *, of_every_thread: bool) -> list[int]:
        if not self.lists_children:
            return self._listed.get(pid, [])
        threads = [str(pid)]
        if of_every_thread:
            try:
                threads = os.listdir(f"{self._proc}/{pid}/task")
            except OSError:
                return []
        lists = (read_small(f"{self._proc}/{pid}/task/{thread}/children") for thread in threads)
        return [int(child) for children in lists for child in children.split()]

    def _children_of_all(self) -> dict[int, list[int]]:
        """Children by parent, of the whole machine: for kernels that list no children (CONFIG_PROC_CHILDREN)."""
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdigit():
                fields = read_small(f"{self._proc}/{name}/stat").rpartition(b")")[2].split(maxsplit=2)
                if len(fields) > 1:
                    children.setdefault(int(fields[1]), []).append(int(name))
        return children

    def _read(self, pid: int) -> _Process | None:
        stat = read_small(f"{self._proc}/{pid}/stat")
        # The name in the second field may hold spaces and parentheses.
        fields = stat.rpartition(b")")[2].split()
        if len(fields) < 22:
            return None
        process = _Process(
            parent=int(fields[1]),
            begun=int(fields[19]),
            is_zombie=fields[0] in (b"Z", b"X"),
            own_ticks=int(fields[11]) + int(fields[12]),
            inherited_ticks=int(fields[13]) + int(fields[14]),
            own_faults=int(fields[9]),
            inherited_faults=int(fields[10]),
            num_threads=int(fields[17]),
            resident_bytes=int(fields[21]) * _PAGE_BYTES,
        )
        _, _, after = read_small(f"{self._proc}/{pid}/io").partition(b"\nread_bytes: ")
        number = after.split(maxsplit=1)[0] if after else b""
        earlier = self._known.get(pid)
        process.read_bytes = int(number) if number.isdigit() else earlier.read_bytes if earlier else 0
        return process

    def _rank(self, pid: int) -> tuple[int, int] | None:
        """What its launcher has put into the variables of a process, or of the one that started it."""
        try:
            variables = Path(f"{self._proc}/{pid}/environ").read_bytes()
        except OSError:
            return None
        found = dict(variable.partition(b"=")[::2] for variable in variables.split(b"\0"))
        numbers = ((place, found.get(name, b"")) for place, name in enumerate(_RANK_NAMES))
        return next(((place, int(number)) for place, number in numbers if number.isdigit()), None)

    def _memory_bytes(self) -> dict[int, int]:
        """Resident memory of each process, what several share counted once.

        The kernel is asked for all of them together, as often as the cost allows. In between, growth is added; and
        while the processes differ from those asked, a forked one counts for what it adds to its parent's memory.
        """
        alive = {pid: process for pid, process in self._known.items() if not process.is_zombie}
        if len(alive) > 1 and self._clock() >= self._memory_due_s:
            begin_s = self._cpu_clock()
            self._shared_bytes = {pid: self._ask_shared_bytes(pid, process) for pid, process in alive.items()}
            self._memory_due_s = self._clock() + (self._cpu_clock() - begin_s) / self._sharing_cost
        is_asked = self._shared_bytes.keys() == alive.keys()
        shared = self._shared_bytes if is_asked else {pid: process.forked_bytes for pid, process in alive.items()}
        return {pid: max(0, process.resident_bytes - shared[pid]) for pid, process in alive.items()}

    def _ask_shared_bytes(self, pid: int, process: _Process) -> int:
        """The part of its resident memory that counts for other processes."""
        # Pss counts a page that n processes share as the n-th part of one. `resident_bytes` was read before; a process
        # that has grown since would share less than nothing, and seem larger by that until it is asked again.
        found = _ROLLUP_KB.search(read_small(f"{self._proc}/{pid}/smaps_rollup"))
        return (int(found[1]) - int(found[2])) * 1024 if found else process.forked_bytes


def _is_same(process: _Process, other: _Process | None) -> bool:
    return other is not None and other.begun == process.begun


def _ticks(process: _Process) -> int:
    return process.own_ticks + process.inherited_ticks


def _faults(process: _Process) -> int:
    return process.own_faults + process.inherited_faults
