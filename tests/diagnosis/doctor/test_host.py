from __future__ import annotations

import os

import pytest

from voxelocity.diagnosis.doctor.host import see_limits, see_memory, see_processor


@pytest.fixture
def root(tmp_path):
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Quick 9000\nflags\t\t: sse amx_bf16\n\nmodel name: other\n",
        "proc/loadavg": "3.50 1.00 0.50 1/100 42\n",
        "proc/sys/vm/overcommit_memory": "2\n",
        "sys/fs/cgroup/pids.max": "512\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_processor_is_read_from_linux_own_files(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 8})
    for node, cores in enumerate(("0-3", "4-7", "8-11")):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        (root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{cores}\n")
    processor = see_processor(environ={"SLURM_CPUS_PER_TASK": "2"}, root=root)
    assert (processor.name, processor.load) == ("Quick 9000", 3.5)
    assert processor.has_fast_bfloat16 is True
    assert (processor.num_affine, processor.num_granted, processor.num_budget) == (3, 2, 2)
    assert processor.num_nodes == 2


def test_without_proc_and_sys_the_rest_is_still_told(tmp_path):
    processor = see_processor(environ={}, root=tmp_path)
    assert (processor.name, processor.has_fast_bfloat16, processor.num_nodes, processor.load) == ("", None, None, None)
    assert processor.num_budget >= 1
    memory = see_memory(root=tmp_path, shm=tmp_path / "none")
    assert (memory.shm_bytes, memory.shm_free_bytes, memory.overcommit) == (None, None, None)
    assert memory.total_bytes > 0
    limits = see_limits(root=tmp_path)
    assert (limits.group_processes, limits.has_rdma) == (None, False)


def test_a_folder_on_a_disk_is_no_shared_memory(root):
    memory = see_memory(root=root, shm=root)
    assert (memory.shm_bytes, memory.overcommit) == (None, 2)


def test_memory_that_processes_share_is_measured():
    memory = see_memory()
    if memory.shm_bytes is None:
        pytest.skip("no /dev/shm here")
    assert 0 <= memory.shm_free_bytes <= memory.shm_bytes


def test_limits_of_the_process_and_its_group_are_read(root, monkeypatch):
    import resource

    planted = {
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_NPROC: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        resource.RLIMIT_MEMLOCK: (65_536, 65_536),
    }
    monkeypatch.setattr(resource, "getrlimit", planted.__getitem__)
    (root / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    limits = see_limits(root=root)
    assert (limits.open_files, limits.open_files_hard) == (1024, 4096)
    assert (limits.processes, limits.group_processes) == (None, 512)
    assert (limits.locked_bytes, limits.has_rdma) == (65_536, True)
