"""A program's processes come and go, in a made-up /proc; and some real ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.monitor.program import ProgramSampler

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Proc:
    """A made-up /proc: `set` makes or changes a process, `end` takes it away."""

    def __init__(self, root: Path, *, lists_children: bool = True) -> None:
        self.root = root
        self.folder = root / "proc"
        self.folder.mkdir()
        self._lists_children = lists_children
        self._parents: dict[int, int] = {}

    def set(
        self, pid, parent=1, *, own=0, inherited=0, faults=0, read=0, mb=0, pss_mb=None, rss_mb=None, threads=1,
        begun=5, state="S", environ="",
    ):  # fmt: skip
        folder = self.folder / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        pages = mb * 2**20 // PAGE_BYTES
        middle = f"0 0 0 0 0 0 0 {faults} 0 {own} 0 {inherited} 0 20 0 {threads} 0 {begun} 0 {pages}"
        (folder / "stat").write_text(f"{pid} (a (b) c) {state} {parent} {middle} 0 0\n")
        (folder / "io").write_text(f"rchar: 9\nread_bytes: {read}\nwrite_bytes: 0\n")
        (folder / "environ").write_bytes(environ.replace(" ", "\0").encode())
        if pss_mb is not None:
            sizes = f"Rss: {(rss_mb or mb) * 1024:>8} kB\nPss: {pss_mb * 1024:>8} kB\n"
            (folder / "smaps_rollup").write_text(f"0-1 ---p [rollup]\n{sizes}Pss_Dirty: 9 kB\n")
        self._parents[pid] = parent
        self._list()

    def end(self, pid):
        for path in sorted((self.folder / str(pid)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.folder / str(pid)).rmdir()
        self._parents = {child: 1 if parent == pid else parent for child, parent in self._parents.items()}
        del self._parents[pid]
        self._list()

    def _list(self):
        if self._lists_children:
            for pid in self._parents:
                children = [child for child, parent in self._parents.items() if parent == pid]
                (self.folder / f"{pid}/task/{pid}/children").write_text(" ".join(map(str, children)))


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def sampler(proc, clock=None, cpu_clock=None):
    program = ProgramSampler(10, root=proc.root, clock=clock or FakeClock(), cpu_clock=cpu_clock or FakeClock())
    program.figures()
    return program


def test_cpu_time_is_what_the_program_took_since_the_last_look(proc):
    proc.set(10, own=500)
    program = sampler(proc)
    proc.set(10, own=500 + TICKS_PER_S)
    assert program.figures().cpu_s == pytest.approx(1.0)
    assert program.figures().cpu_s == 0.0


def test_a_child_that_ends_is_counted_once_and_the_rate_is_never_negative(proc):
    proc.set(10)
    proc.set(11, 10, own=0)
    program = sampler(proc)
    proc.set(11, 10, own=300)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(300)
    # It takes 40 more, ends, and its parent inherits all of it.
    proc.end(11)
    proc.set(10, inherited=340)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(40)


def test_a_rank_counts_with_the_processes_it_has_started(proc):
    proc.set(10)
    for rank in (0, 1):
        proc.set(20 + rank, 10, mb=64 * (rank + 1), environ=f"HOME=/ RANK={rank} RANK_ZERO=no")
    proc.set(30, 21, mb=8, environ="RANK=1")
    program = sampler(proc)
    proc.set(21, 10, own=TICKS_PER_S, mb=128, environ="RANK=1")
    proc.set(30, 21, own=TICKS_PER_S, mb=8)
    ranks = program.figures().ranks
    assert {rank: cpu_s for rank, (cpu_s, _) in ranks.items()} == {0: 0.0, 1: pytest.approx(2.0)}
    assert ranks[0][1] == 64 * 2**20
    proc.set(20, 10, state="Z", environ="RANK=0")
    assert list(program.figures().ranks) == [1]


def test_a_torchrun_that_srun_has_started_is_no_rank(proc):
    proc.set(10)
    for node in (0, 1):
        proc.set(20 + node, 10, environ=f"SLURM_PROCID={node}")
    program = sampler(proc)
    assert list(program.figures().ranks) == [0, 1]
    for rank in range(4):
        proc.set(30 + rank, 20 + rank // 2, mb=64, environ=f"SLURM_PROCID={rank // 2} RANK={rank}")
    ranks = program.figures().ranks
    assert list(ranks) == [0, 1, 2, 3]
    assert ranks[0][1] == 64 * 2**20


def test_a_child_that_nobody_waits_for_takes_nothing_back(proc):
    proc.set(10)
    proc.set(11, 10, own=300)
    program = sampler(proc)
    proc.end(11)
    proc.set(10, own=7)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(7)


def test_children_that_begin_and_end_between_two_looks_count(proc):
    proc.set(10)
    program = sampler(proc)
    proc.set(10, inherited=25)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(25)


def test_what_a_grandchild_leaves_is_counted_once_on_its_way_up(proc):
    proc.set(10)
    proc.set(11, 10)
    proc.set(12, 11, own=100)
    program = sampler(proc)
    proc.end(12)
    proc.set(11, 10, inherited=110)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(10)
    proc.end(11)
    proc.set(10, inherited=110)
    assert program.figures().cpu_s == 0.0


def test_a_process_whose_parent_ended_stays_watched(proc):
    proc.set(10)
    proc.set(11, 10)
    proc.set(12, 11)
    program = sampler(proc)
    proc.end(11)
    proc.set(12, 1, own=50)
    figures = program.figures()
    assert (figures.cpu_s * TICKS_PER_S, figures.num_processes) == (pytest.approx(50), 2)
    assert set(program.pids) == {10, 12}


def test_a_stranger_with_the_number_of_an_ended_process_is_not_the_program(proc):
    proc.set(10)
    proc.set(11, 10, own=5)
    program = sampler(proc)
    proc.end(11)
    proc.set(11, 1, own=900, begun=77)
    assert program.figures().cpu_s == 0.0
    assert set(program.pids) == {10}


def test_a_new_child_with_an_old_number_counts_from_nothing(proc):
    proc.set(10)
    proc.set(11, 10, own=100)
    program = sampler(proc)
    proc.set(11, 10, own=30, begun=77)
    proc.set(10, inherited=100)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(30)


def test_the_end_of_the_program_is_no_error(proc):
    proc.set(10, own=5)
    program = sampler(proc)
    proc.end(10)
    figures = program.figures()
    assert (figures.cpu_s, figures.num_processes, figures.memory_bytes) == (0.0, 0, 0)


def test_a_process_that_waits_to_be_reaped_still_tells_its_time_but_counts_no_more(proc):
    proc.set(10, own=5, mb=4)
    program = sampler(proc)
    proc.set(10, own=9, mb=0, threads=1, state="Z")
    figures = program.figures()
    assert (figures.cpu_s * TICKS_PER_S, figures.num_processes, figures.num_threads) == (pytest.approx(4), 0, 0)


def test_faults_and_reads_follow_the_same_rules_as_time(proc):
    proc.set(10, faults=1, read=1000)
    proc.set(11, 10, faults=2, read=500)
    program = sampler(proc)
    proc.set(10, faults=4, read=1000 + 700)
    proc.end(11)
    figures = program.figures()
    assert (figures.num_major_faults, figures.read_bytes) == (3, 200)


def test_threads_are_summed_and_children_of_any_thread_are_found(proc):
    clock = FakeClock()
    proc.set(10, threads=3)
    program = sampler(proc, clock)
    proc.set(12, 99, threads=2)
    (proc.folder / "10/task/88").mkdir()
    (proc.folder / "10/task/88/children").write_text("12")
    assert program.figures().num_processes == 1
    clock.advance(2.0)
    figures = program.figures()
    assert (figures.num_processes, figures.num_threads) == (2, 5)


def test_a_kernel_that_lists_no_children_is_searched_every_two_seconds(tmp_path):
    clock = FakeClock()
    proc = Proc(tmp_path, lists_children=False)
    proc.set(10)
    proc.set(11, 10)
    proc.set(50, 1)
    program = sampler(proc, clock)
    assert not program.lists_children
    assert set(program.pids) == {10, 11}
    proc.set(12, 11, own=8)
    clock.advance(2.0)
    assert program.figures().cpu_s * TICKS_PER_S == pytest.approx(8)
    assert set(program.pids) == {10, 11, 12}


def test_memory_that_processes_share_counts_once(proc):
    proc.set(10, mb=100, pss_mb=60)
    program = sampler(proc)
    assert program.figures().memory_bytes == 100 * 2**20
    # A forked worker has all the memory of its parent, and 10 more.
    proc.set(11, 10, mb=110, pss_mb=50)
    assert program.figures().memory_bytes == (60 + 50) * 2**20
    proc.end(11)
    assert program.figures().memory_bytes == 100 * 2**20


def test_the_kernel_is_asked_for_shared_memory_as_seldom_as_it_costs_and_growth_is_added_between(proc):
    clock = FakeClock()
    proc.set(10, mb=100, pss_mb=60)
    proc.set(11, 10, mb=100, pss_mb=50)
    program = ProgramSampler(10, root=proc.root, clock=clock, cpu_clock=_each_call_takes_a_second())
    assert program.figures().memory_bytes == (60 + 50) * 2**20
    proc.set(11, 10, mb=120, pss_mb=55)
    clock.advance(999.0)
    assert program.figures().memory_bytes == (60 + 50 + 20) * 2**20
    clock.advance(1.0)
    assert program.figures().memory_bytes == (60 + 55) * 2**20


def test_a_process_that_grows_while_it_is_asked_does_not_seem_larger_afterwards(proc):
    proc.set(10, mb=100, pss_mb=280, rss_mb=300)
    proc.set(11, 10, mb=20, pss_mb=10)
    program = sampler(proc, cpu_clock=_each_call_takes_a_second())
    proc.set(10, mb=300)
    assert program.figures().memory_bytes == (280 + 10) * 2**20


def test_a_new_worker_counts_for_what_it_adds_to_its_parent_until_it_is_asked(proc):
    proc.set(10, mb=100, pss_mb=70)
    proc.set(12, 10, mb=100, pss_mb=70)
    program = sampler(proc, cpu_clock=_each_call_takes_a_second())
    proc.set(11, 10, mb=100)
    assert program.figures().memory_bytes == 100 * 2**20
    proc.set(11, 10, mb=130)
    assert program.figures().memory_bytes == (100 + 30) * 2**20


def test_a_process_larger_than_its_parent_is_no_copy_of_it(proc):
    proc.set(10, mb=1)
    proc.set(11, 10, mb=300)
    assert sampler(proc).figures().memory_bytes == 300 * 2**20


def test_memory_of_a_process_whose_parent_ended_is_its_own(proc):
    proc.set(10)
    proc.set(11, 10, mb=200)
    proc.set(12, 11, mb=200)
    program = sampler(proc)
    assert program.figures().memory_bytes == 200 * 2**20
    proc.end(11)
    assert program.figures().memory_bytes == 200 * 2**20


def _each_call_takes_a_second():
    clock = FakeClock()

    def tell():
        clock.advance(1.0)
        return clock()

    return tell


def test_real_processes_are_found_with_their_time():
    burn = "import time; e = time.process_time() + 0.2\nwhile time.process_time() < e: pass"
    program = ProgramSampler(os.getpid())
    program.figures()
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
    figures = program.figures()
    assert figures.cpu_s >= 0.2
    assert figures.num_processes >= 1
    assert figures.memory_bytes > 2**20
