"""The host in made-up /proc and /sys, with control groups of both versions; and this machine."""

import os
from pathlib import Path

import pytest

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.monitor.host_sampling import HostSampler

GIB = 2**30
MEMINFO = {
    "MemTotal": 16 * 2**20,
    "MemFree": 2**20,
    "MemAvailable": 6 * 2**20,
    "Active(file)": 2**20,
    "Inactive(file)": 2 * 2**20,
    "SwapTotal": 4 * 2**20,
    "SwapFree": 3 * 2**20,
}


class Machine:
    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, FakeClock()
        self.write("proc/meminfo", "".join(f"{name}:   {value} kB\n" for name, value in MEMINFO.items()))
        self.cores([100, 900], [100, 900])
        self.counters()
        for name in ("sda", "eth0"):
            kind = "block" if name == "sda" else "class/net"
            (root / f"sys/{kind}/{name}/device").mkdir(parents=True)
        (root / "sys/block/dm-0").mkdir()
        (root / "dev/shm").mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def cores(self, *busy_and_idle) -> None:
        lines = [f"cpu{n} {busy} 0 0 {idle} 0 0 0 0 0 0" for n, (busy, idle) in enumerate(busy_and_idle)]
        self.write("proc/stat", "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 5 5", ""]))

    def counters(self, *, swapped=(0, 0), sectors=(0, 0), network=(0, 0)) -> None:
        self.write("proc/vmstat", f"nr_free 5\npswpin {swapped[0]}\npswpout {swapped[1]}\n")
        disk = f"8 0 {{}} 1 0 {sectors[0]} 0 1 0 {sectors[1]} 0 0 0 0\n"
        self.write("proc/diskstats", disk.format("sda") + disk.format("sda1") + disk.format("dm-0"))
        face = f"{{}}: {network[0]} 1 0 0 0 0 0 0 {network[1]} 1 0 0 0 0 0 0\n"
        self.write("proc/net/dev", "Inter-|\n face |\n" + face.format("lo") + face.format("eth0") + face.format("br0"))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def sampled(machine):
    """A sampler that has taken its first sample."""
    host = HostSampler(root=machine.root, clock=machine.clock)
    host.sample()
    return host


def test_each_core_has_its_busy_share_of_the_time_between(machine):
    host = HostSampler(root=machine.root, clock=machine.clock)
    assert host.sample().core_shares == ()
    machine.cores([125, 975], [200, 900])
    machine.clock.advance(1.0)
    assert host.sample().core_shares == (0.25, 1.0)


def test_idle_counters_that_run_back_and_a_standing_clock_give_shares_within_bounds(machine, sampled):
    machine.cores([110, 899], [100, 900])
    machine.clock.advance(0.1)
    assert sampled.sample().core_shares == (1.0, 0.0)


def test_the_first_sample_has_levels_and_no_rates(machine):
    sample = HostSampler(root=machine.root, clock=machine.clock).sample()
    assert sample.memory_used_bytes == 10 * GIB
    assert sample.memory_available_bytes == 6 * GIB
    assert sample.page_cache_bytes == 3 * GIB
    assert sample.swap_used_bytes == GIB
    assert sample.shm_used_bytes is not None
    assert sample.swap_in_bytes_per_s is sample.disk_read_bytes_per_s is sample.network_send_bytes_per_s is None
    assert sample.throttled_share is sample.program_cores is sample.num_processes is None


def test_rates_are_per_second_and_count_hardware_once(machine, sampled):
    machine.counters(swapped=(4, 8), sectors=(10, 20), network=(1000, 3000))
    machine.clock.advance(2.0)
    sample = sampled.sample()
    page = os.sysconf("SC_PAGE_SIZE")
    assert (sample.swap_in_bytes_per_s, sample.swap_out_bytes_per_s) == (2 * page, 4 * page)
    assert (sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s) == (5 * 512, 10 * 512)
    assert (sample.network_receive_bytes_per_s, sample.network_send_bytes_per_s) == (500, 1500)


def test_in_a_container_without_hardware_all_but_the_loopback_counts(machine):
    (machine.root / "sys/class/net/eth0/device").rmdir()
    host = HostSampler(root=machine.root, clock=machine.clock)
    host.sample()
    machine.counters(network=(1000, 0))
    machine.clock.advance(1.0)
    assert host.sample().network_receive_bytes_per_s == 2000


def test_others_have_what_the_program_leaves(machine):
    (machine.root / "proc/10/task/10").mkdir(parents=True)
    machine.write("proc/10/task/10/children", "")
    tick = os.sysconf("SC_CLK_TCK")

    def program(ticks):
        machine.write("proc/10/stat", f"10 (x) S 1 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0 3 0 5 0 256 0\n")

    program(0)
    host = HostSampler(10, root=machine.root, clock=machine.clock)
    host.sample()
    program(tick // 2)
    machine.cores([200, 900], [200, 900])
    machine.clock.advance(1.0)
    sample = host.sample()
    assert sample.program_cores == pytest.approx(0.5)
    assert sample.others_cores == pytest.approx(1.5)
    assert (sample.num_processes, sample.num_threads) == (1, 3)
    assert list(host.pids) == [10]


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_with_a_quota_and_a_limit_decides(machine, version):
    top = "sys/fs/cgroup/" if version == 2 else "sys/fs/cgroup/{}/"
    cpu, memory = f"{top.format('cpu')}job/", f"{top.format('memory')}job/"
    machine.write("proc/self/cgroup", "0::/job\n" if version == 2 else "2:cpu:/job\n1:memory:/job\n")
    if version == 2:
        machine.write(f"{cpu}cpu.max", "100000 100000")
        machine.write(f"{memory}memory.max", str(4 * GIB))
        machine.write(f"{memory}memory.current", str(3 * GIB))
        machine.write(f"{memory}memory.stat", f"inactive_file {GIB}\nactive_file {GIB // 2}\n")
    else:
        machine.write(f"{cpu}cpu.cfs_quota_us", "100000")
        machine.write(f"{cpu}cpu.cfs_period_us", "100000")
        machine.write(f"{memory}memory.limit_in_bytes", str(4 * GIB))
        machine.write(f"{memory}memory.usage_in_bytes", str(3 * GIB))
        machine.write(f"{memory}memory.stat", f"total_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n")
    machine.write(f"{cpu}cpu.stat", "nr_periods 100\nnr_throttled 50\n")
    host = HostSampler(root=machine.root, clock=machine.clock)
    host.sample()
    machine.write(f"{cpu}cpu.stat", "nr_periods 120\nnr_throttled 55\n")
    machine.clock.advance(1.0)
    sample = host.sample()
    assert sample.throttled_share == pytest.approx(0.25)
    assert sample.memory_used_bytes == 2 * GIB
    assert sample.memory_available_bytes == 2 * GIB
    assert sample.page_cache_bytes == 1.5 * GIB


def test_a_machine_that_tells_nothing_gives_an_empty_sample_and_says_so(tmp_path):
    host = HostSampler(os.getpid(), root=tmp_path, clock=FakeClock())
    host.sample()
    sample = host.sample()
    assert (sample.core_shares, sample.memory_used_bytes, sample.shm_used_bytes) == ((), None, None)
    assert (sample.num_processes, sample.program_memory_bytes, list(host.pids)) == (None, None, [])
    assert host.missing == (
        f"CPU of each core: {tmp_path / 'proc/stat'} cannot be read",
        "disk traffic: no physical disk is listed below /sys/block",
        "the program: this system has no /proc",
    )


def test_this_machine_can_be_sampled_and_leaves_no_file_open():
    before = len(os.listdir("/proc/self/fd"))
    host = HostSampler(os.getpid())
    host.sample()
    sample = host.sample()
    assert len(sample.core_shares) == os.cpu_count()
    assert sample.memory_used_bytes > 0
    assert sample.num_processes >= 1
    host.close()
    assert len(os.listdir("/proc/self/fd")) == before
