"""What the machine lets this process use, with made-up control groups."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from voxelocity_observe.core.host import (
    anonymous_bytes,
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    cpu_name,
    default_cache_folder,
    file_system_of,
    free_disk_bytes,
    is_in_memory,
    is_on_network,
    local_ranks,
    peak_device_bytes,
    peak_host_bytes,
    process_rank,
    total_memory_bytes,
)

GIB = 2**30


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.fixture
def much_memory(monkeypatch):
    class Memory:
        total = 512 * GIB
        available = 400 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", Memory)


def host(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A file system whose control groups hold these files."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_this_machine_gives_at_least_one_core_and_no_more_than_it_has():
    assert 1 <= cpu_budget() <= len(os.sched_getaffinity(0))


VERSION_1 = ("4:cpu,cpuacct:/job\n0::/", "cpu/job/cpu.cfs_quota_us")


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/job", {"job/cpu.max": "max 100000"}, 64),
        ("0::/job", {"job/cpu.max": "800000 100000"}, 8),
        ("0::/job", {"job/cpu.max": "150000 100000"}, 1),
        ("0::/job", {"job/cpu.max": "50000 100000"}, 1),
        ("0::/pod/box", {"pod/cpu.max": "400000 100000", "pod/box/cpu.max": "max 100000"}, 4),
        ("0::/name/that/only/the/host/knows", {"cpu.max": "500000 100000"}, 5),
        (VERSION_1[0], {VERSION_1[1]: "-1"}, 64),
        (VERSION_1[0], {VERSION_1[1]: "300000"}, 3),
    ],
)
def test_quota_of_a_control_group_is_rounded_down_to_at_least_one(tmp_path, many_cores, groups, files, expected):
    root = host(tmp_path, groups, {"cpu/job/cpu.cfs_period_us": "100000", **files})
    assert cpu_budget(environ={}, root=root) == expected
    assert cpu_budget(environ={"LOCAL_WORLD_SIZE": "4"}, root=root) == max(1, expected // 4), "ranks share it"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 64),
        ({"SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"SLURM_CPUS_PER_TASK": "128"}, 64),
        ({"SLURM_CPUS_PER_TASK": ""}, 64),
        ({"SLURM_CPUS_PER_TASK": "many"}, 64),
        ({"SLURM_CPUS_PER_TASK": "6", "SLURM_NTASKS_PER_NODE": "8"}, 6),  # each rank is a task
        ({"SLURM_CPUS_PER_TASK": "12", "LOCAL_WORLD_SIZE": "3"}, 4),  # ranks within one task
        ({"LOCAL_WORLD_SIZE": "5"}, 12),
        ({"LOCAL_WORLD_SIZE": "100"}, 1),
    ],
)
def test_what_slurm_granted_is_shared_by_the_ranks_of_one_task(tmp_path, many_cores, environ, expected):
    assert cpu_budget(environ=environ, root=tmp_path) == expected


def test_number_of_ranks_can_be_said_and_is_then_not_looked_up(tmp_path, many_cores):
    assert cpu_budget(num_local_ranks=2, environ={"LOCAL_WORLD_SIZE": "8"}, root=tmp_path) == 32


@pytest.mark.parametrize(("text", "expected"), [("", 1), ("0", 1), ("two", 1), ("-3", 1), ("8", 8)])
def test_a_launcher_that_says_nothing_sensible_counts_as_one_rank(text, expected):
    assert local_ranks(environ={"LOCAL_WORLD_SIZE": text}) == expected


@pytest.mark.parametrize(
    ("groups", "files", "available", "total"),
    [
        ("0::/", {}, 400 * GIB, 512 * GIB),
        ("0::/job", {"job/memory.max": "max", "job/memory.current": str(10 * GIB)}, 400 * GIB, 512 * GIB),
        (
            "0::/job",
            {
                "job/memory.max": str(16 * GIB),
                "job/memory.current": str(10 * GIB),
                "job/memory.stat": f"anon 5\ninactive_file {3 * GIB}",
            },
            9 * GIB,
            16 * GIB,
        ),
        ("0::/", {"memory.max": str(GIB), "memory.current": str(2 * GIB)}, 0, GIB),  # overdrawn
        (
            "4:memory:/job\n1:cpu:/",
            {
                "memory/job/memory.limit_in_bytes": str(8 * GIB),
                "memory/job/memory.usage_in_bytes": str(6 * GIB),
                "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": str(100 * GIB),
            },
            3 * GIB,
            8 * GIB,
        ),
    ],
)
def test_a_memory_limit_counts_less_use_plus_droppable_pages(tmp_path, much_memory, groups, files, available, total):
    root = host(tmp_path, groups, files)
    assert (available_memory_bytes(root=root), total_memory_bytes(root=root)) == (available, total)


def test_free_disk_of_a_folder_that_does_not_exist_yet_is_that_of_its_parent(tmp_path, monkeypatch):
    asked: list[Path] = []

    class Usage:
        free = 123

    def usage(place: Path) -> Usage:
        asked.append(place)
        return Usage()

    monkeypatch.setattr("voxelocity_observe.core.host.shutil.disk_usage", usage)
    assert free_disk_bytes(tmp_path / "not" / "yet") == 123
    assert asked == [tmp_path]


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount(tmp_path):
    (tmp_path / "net" / "deep").mkdir(parents=True)
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path / 'net'} nfs4 rw 0 0\n")
    assert file_system_of(tmp_path / "net" / "deep" / "not yet", mounts=table) == "nfs4"
    assert file_system_of(tmp_path / "other", mounts=table) == "ext4"
    assert file_system_of(tmp_path, mounts=tmp_path / "missing") == ""


def test_a_mount_may_have_a_name_with_spaces(tmp_path):
    (tmp_path / "My Disk").mkdir()
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path}/My\\040Disk nfs4 rw 0 0\n")
    assert file_system_of(tmp_path / "My Disk" / "cache", mounts=table) == "nfs4"


def test_the_rank_is_what_the_launcher_says_and_0_without_one():
    assert process_rank(environ={}) == 0
    assert process_rank(environ={"SLURM_PROCID": "3"}) == 3
    assert process_rank(environ={"RANK": "2", "SLURM_PROCID": "3"}) == 2
    assert process_rank(environ={"RANK": "x"}) == 0


def test_the_name_is_the_first_model_or_the_architecture(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU: 3 GHz\nmodel name\t: Other\n")
    assert cpu_name(cpuinfo) == "Fast CPU: 3 GHz"
    cpuinfo.write_text("processor\t: 0\n")
    assert cpu_name(cpuinfo) == platform.machine()
    assert cpu_name(tmp_path / "absent")


@pytest.mark.parametrize(
    ("vendor", "flags", "is_fast"),
    [
        ("AuthenticAMD", "avx512f avx512_bf16", True),
        ("GenuineIntel", "avx512f avx512_bf16", False),
        ("GenuineIntel", "avx512_bf16 amx_bf16", True),
        ("AuthenticAMD", "avx512f", False),
    ],
)
def test_avx512_alone_makes_bfloat16_fast_on_amd_only(tmp_path, vendor, flags, is_fast):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\nflags\t\t: {flags}\n\nvendor_id\t: Other\n")
    assert cpu_has_fast_bfloat16(cpuinfo) is is_fast
    assert not cpu_has_fast_bfloat16(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "on_network", "in_memory"),
    [
        ("nfs4", True, False),
        ("fuse.sshfs", True, False),
        ("tmpfs", False, True),
        ("ext4", False, False),
        ("", False, False),
    ],
)
def test_where_files_of_a_file_system_lie_follows_from_its_name(name, on_network, in_memory):
    assert (is_on_network(name), is_in_memory(name)) == (on_network, in_memory)


MIB = 2**20


def test_the_peak_grows_with_what_is_held_and_stays_when_it_is_let_go():
    # In a program of its own: in this one, whatever other tests let go, or the system pages out, hides what is held.
    program = """
from voxelocity_observe.core.host import peak_host_bytes
before = peak_host_bytes()
held = b"x" * (256 << 20)
grown = peak_host_bytes()
del held
print(before, grown, peak_host_bytes())
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, grown, after = map(int, answer.stdout.split())
    assert grown > before + 128 * MIB
    # The kernel counts pages in lots, so that two readings may differ by a few.
    assert after > grown - MIB


def test_linux_is_asked_for_the_peak_of_this_program_alone(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9999 kB\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\nRssAnon:\t 1024 kB\n")
    assert peak_host_bytes(status=status) == 2 * MIB
    assert anonymous_bytes(status=status) == MIB


def test_where_there_is_no_proc_the_system_is_asked(tmp_path):
    assert peak_host_bytes(status=tmp_path / "none") > MIB
    assert anonymous_bytes(status=tmp_path / "none") == 0


def test_devices_that_nobody_uses_have_no_peak(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert peak_device_bytes() is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    assert peak_device_bytes() is None


def test_the_peaks_of_all_devices_are_summed(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 2, max_memory_allocated=lambda index: (index + 1) * MIB
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert peak_device_bytes() == 3 * MIB


def test_default_folder_is_in_the_cache_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_folder() == Path("/somewhere/voxelocity")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_folder() == Path("/home/somebody/.cache/voxelocity")


@pytest.mark.parametrize(
    ("kinds", "environ", "chosen"),
    [
        ({"home": "ext4"}, {"SLURM_TMPDIR": "job"}, "home/.cache/voxelocity"),
        ({"home": "nfs4", "job": "xfs"}, {"SLURM_TMPDIR": "job", "TMPDIR": "other"}, "job/voxelocity-cache-UID"),
        ({"home": "nfs4", "job": "tmpfs", "other": "xfs"}, {"SLURM_TMPDIR": "job", "TMPDIR": "other"},
         "other/voxelocity-cache-UID"),
        ({"home": "nfs4", "job": "lustre"}, {"SLURM_TMPDIR": "job", "TMPDIR": "gone"}, "home/.cache/voxelocity"),
        ({"home": "nfs4", "job": "xfs"}, {"SLURM_TMPDIR": "job", "XDG_CACHE_HOME": "mine"}, "mine/voxelocity"),
    ],
)  # fmt: skip
def test_the_disk_of_a_job_is_taken_where_the_home_is_on_a_network(tmp_path, monkeypatch, kinds, environ, chosen):
    for name in ("home", "job", "other"):
        (tmp_path / name).mkdir()
    for name in ("XDG_CACHE_HOME", "SLURM_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in environ.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(
        "voxelocity_observe.core.host.file_system_of",
        lambda folder: kinds.get(Path(folder).relative_to(tmp_path).parts[0], "ext4"),
    )
    assert default_cache_folder() == tmp_path / chosen.replace("UID", str(os.getuid()))
