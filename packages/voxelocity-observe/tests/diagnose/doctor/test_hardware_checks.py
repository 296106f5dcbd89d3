from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity_observe.core.memory_folders import MemoryFolder
from voxelocity_observe.diagnose.doctor.hardware_checks import (
    check_disk,
    check_gpus,
    check_limits,
    check_memory,
    check_processor,
)
from voxelocity_observe.diagnose.doctor.records import Driver, Gpu, ResourceLimits

GIB = 2**30


@pytest.fixture
def checks_of(machine, gpu):
    """Checks of one part of the sound machine, some fields of which are changed."""

    def checks(part, *, num_gpus=1, num_workers=8, **changes):
        if part == "gpu":
            return list(check_gpus(replace(machine.driver, gpus=(replace(gpu, **changes),))))
        if part == "processor":
            return list(check_processor(replace(machine.processor, **changes), num_gpus=num_gpus))
        if part == "memory":
            return list(check_memory(replace(machine.memory, **changes), num_workers=num_workers))
        if part == "disk":
            return list(check_disk(replace(machine.disk, **changes)))
        return list(check_limits(ResourceLimits(**changes)))

    return checks


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (
            "gpu",
            [
                "NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU",
                "NVIDIA H100, 80.0 GiB, compute capability 9.0, PCIe 5.0 x16, ECC on",
                "tensor cores take fp16, bf16, TF32, fp8",
            ],
        ),
        (
            "processor",
            ["AMD EPYC; 16 cores available", "faster than float32", "the available cores are in one node"],
        ),
        (
            "memory",
            [
                "128 GiB, 120 GiB free",
                "none; a program that takes too much memory is killed",
                "64.0 GiB of 64.0 GiB free",
            ],
        ),
        ("disk", ["500 GiB free below /scratch", "ext4", "reads 2.79 GiB/s, writes 1.86 GiB/s"]),
        ("limits", ["no limit", "no limit", "no limit"]),
    ],
)
def test_a_sound_part_is_described(checks_of, part, found):
    assert [check.found for check in checks_of(part)] == found


TWO_CORES = {"num_cores": 2, "num_affine": 2, "num_budget": 2}
SMALL_SHM = {"shm_bytes": 64 * 2**20, "shm_free_bytes": 64 * 2**20}
LEFT = MemoryFolder(path=Path("/dev/shm/voxelocity-1000"), num_bytes=30 * GIB, is_used=False)
SLICED = {"has_mig": True, "num_slices": 2}
LOW_FILES = {"open_files": 1024}
SPEEDS = "192 MiB takes {} to read and {} to write"

FAULTS = [
    ("gpu", {"capability": (6, 1)}, "GPU 0 formats", "note", ["no tensor cores"]),
    ("gpu", {"capability": (7, 0)}, "GPU 0 formats", "note", ["take fp16, and neither bf16", "torch.amp.GradScaler"]),
    ("gpu", {"capability": (7, 5)}, "GPU 0 formats", "note", ["take fp16, and neither bf16", "torch.amp.GradScaler"]),
    ("gpu", {"memory_used_bytes": 30 * GIB}, "GPU 0", "warning", ["30.0 GiB of 80.0 GiB", "nvidia-smi"]),
    ("gpu", {"pcie_width": 4}, "GPU 0 link", "warning", ["PCIe x4 of x16", "at 25%", "reseat the card"]),
    ("gpu", {"num_uncorrected": 1}, "GPU 0 memory", "warning", ["1 error that ECC", "nvidia-smi -i 0 -r"]),
    ("gpu", {"is_persistent": False}, "GPU 0", "note", ["persistence mode is off", "1 to 3 s", "nvidia-smi -pm 1"]),
    ("gpu", {"has_mig": True, "num_slices": 0}, "GPU 0", "problem", ["no slice", "CUDA sees no device", "-mig 0"]),
    ("gpu", SLICED, "GPU 0", "note", ["divided into 2 slices", "CUDA_VISIBLE_DEVICES=MIG-"]),
    ("gpu", {"has_mig": True}, "GPU 0", "note", ["an unknown number of slices", "CUDA_VISIBLE_DEVICES=MIG-"]),
    ("gpu", {"compute_mode": "prohibited"}, "GPU 0", "problem", ["'prohibited'", "nvidia-smi -i 0 -c DEFAULT"]),
    ("gpu", {"compute_mode": "exclusive"}, "GPU 0", "note", ["'exclusive'", "nvidia-smi -i 0 -c DEFAULT"]),
    (
        "processor",
        {"num_budget": 1, "num_granted": 1},
        "cores",
        "warning",
        ["1 core available of 16, limited by SLURM's grant", "#SBATCH --cpus-per-task=8"],
    ),
    ("processor", {"num_budget": 1, "num_affine": 1}, "cores", "warning", ["limited by affinity", "taskset -cp $$"]),
    ("processor", {"num_budget": 1}, "cores", "warning", ["limited by the quota", "docker run --cpus=8"]),
    ("processor", TWO_CORES, "cores", "warning", ["about 124 augmented patches", "data.augment.engine=triton"]),
    ("processor", {"num_budget": 1, "num_gpus": 0}, "cores", "warning", ["the network share one core"]),
    ("processor", {"has_fast_bfloat16": False, "num_gpus": 0}, "bfloat16", "note", ["neither AMX", "in float32"]),
    ("processor", {"num_nodes": 2}, "NUMA", "note", ["in 2 nodes", "numactl"]),
    ("processor", {"load": 40.25}, "load", "note", ["40.2 programs are ready to run, on 16 cores", "top"]),
    (
        "memory",
        {"total_bytes": 4 * GIB, "available_bytes": 3 * GIB},
        "memory",
        "warning",
        ["4.00 GiB, 3.00 GiB free; the control group allows 4.00 GiB of 128 GiB", "docker run --memory"],
    ),
    ("memory", {"available_bytes": 2 * GIB}, "memory", "warning", ["128 GiB, 2.00 GiB free", "end programs"]),
    ("memory", {"swap_bytes": 64 * GIB, "swap_used_bytes": 20 * GIB}, "swap", "warning", ["20.0 GiB of 64.0 GiB"]),
    (
        "memory",
        SMALL_SHM,
        "/dev/shm",
        "warning",
        ["64.0 MiB of 64.0 MiB free", "8 workers keeps about 480 MiB", "docker run --shm-size=8g"],
    ),
    ("memory", {"shm_free_bytes": 0}, "/dev/shm", "warning", ["0 B of 64.0 GiB free", "du -sh /dev/shm/*"]),
    ("memory", {"shm_bytes": None}, "/dev/shm", "warning", ["none, or not in memory", "--shm-size=8g"]),
    ("memory", {"shm_free_bytes": None}, "/dev/shm", "warning", ["none, or not in memory", "--shm-size=8g"]),
    ("memory", {"overcommit": 2}, "overcommit", "warning", ["vm.overcommit_memory is 2", "sysctl"]),
    (
        "memory",
        {"left_behind": (LEFT, replace(LEFT, path=Path("/tmp/other"), num_bytes=GIB))},
        "left behind",
        "warning",
        ["31.0 GiB", "/dev/shm/voxelocity-1000, /tmp/other", "voxelocity cache clear --memory"],
    ),
    ("disk", {"file_system": "nfs4"}, "kind", "warning", ["nfs4: on the network", "data.cache.folder"]),
    ("disk", {"file_system": "lustre"}, "kind", "warning", ["lustre: on the network", "data.cache.folder"]),
    ("disk", {"file_system": "tmpfs", "read_bytes_per_s": 5e7}, "kind", "note", ["tmpfs: it is memory"]),
    ("disk", {"is_rotating": True, "read_bytes_per_s": 180e6}, "kind", "note", ["ext4 on a rotating disk", "SSD"]),
    ("disk", {"read_bytes_per_s": None, "not_measured": "it is full"}, "speed", "note", ["it is full", "--folder"]),
    ("disk", {"past_page_cache": False}, "speed", "note", ["reads 2.79 GiB/s", "through the page cache"]),
    ("disk", {"read_bytes_per_s": 40e6}, "speed", "warning", [SPEEDS.format("5.0 s", "0.10 s"), "data.cache.folder"]),
    ("disk", {"write_bytes_per_s": 40e6}, "speed", "warning", [SPEEDS.format("67 ms", "5.0 s"), "data.cache.folder"]),
    ("disk", {"free_bytes": 3 * GIB}, "room", "warning", ["3.00 GiB free below", "about 16 prepared CTs"]),
    ("disk", {"free_bytes": 2**20}, "room", "warning", ["no prepared CTs", "voxelocity cache clear"]),
    ("limits", {**LOW_FILES, "open_files_hard": 524_288}, "open files", "warning", ["1,024", "ulimit -n 65536"]),
    ("limits", {**LOW_FILES, "open_files_hard": 8192}, "open files", "warning", ["1,024", "ulimit -n 8192"]),
    ("limits", LOW_FILES, "open files", "warning", ["1,024", "ulimit -n 4096"]),
    (
        "limits",
        {**LOW_FILES, "open_files_hard": 1024},
        "open files",
        "warning",
        ["1,024", "the hard limit is equally low"],
    ),
    ("limits", {"processes": 512}, "processes", "warning", ["512 processes and threads", "ulimit -u 8192"]),
    ("limits", {"processes": 9999, "group_processes": 512}, "processes", "warning", ["512", "--pids-limit=-1"]),
    ("limits", {"locked_bytes": 65_536, "has_rdma": True}, "locked memory", "warning", ["64.0 KiB", "ulimit -l"]),
]


@pytest.mark.parametrize(("part", "changes", "name", "level", "facts"), FAULTS)
def test_a_fault_is_found_with_its_cost_and_remedy(checks_of, part, changes, name, level, facts):
    (check,) = [check for check in checks_of(part, **changes) if check.level != "ok"]
    assert (check.name, check.level) == (name, level)
    assert check.costs
    words = f"{check.found}\n{check.costs}\n{check.cure}"
    assert [fact for fact in facts if fact not in words] == []
    assert check.stops_training == (changes.get("compute_mode") == "prohibited")


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("gpu", {"capability": (8, 0)}),
        ("gpu", {"pcie_generation": 1}),  # a link at rest
        ("processor", {"num_gpus": 0, **TWO_CORES}),
        ("processor", {"num_gpus": 1, "has_fast_bfloat16": False}),
        ("processor", {"num_gpus": 0, "has_fast_bfloat16": None}),
        ("memory", {"swap_bytes": 64 * GIB, "swap_used_bytes": GIB, "overcommit": 1}),
        ("memory", {"num_workers": 1, **SMALL_SHM}),
        ("disk", {"is_rotating": True, "read_bytes_per_s": 830e6}),  # a disk of a virtual machine
        ("limits", {"locked_bytes": 65_536}),
        ("limits", {"locked_bytes": None, "has_rdma": True}),
    ],
)
def test_what_costs_nothing_is_ok(checks_of, part, changes):
    assert {check.level for check in checks_of(part, **changes)} == {"ok"}


@pytest.mark.parametrize(("capability", "formats"), [((8, 0), "fp16, bf16, TF32"), ((8, 9), "fp16, bf16, TF32, fp8")])
def test_number_formats_follow_from_the_capability(checks_of, capability, formats):
    assert checks_of("gpu", capability=capability)[-1].found == f"tensor cores take {formats}"


@pytest.mark.parametrize(("num_cards", "level", "cure"), [(0, "note", "--gpus all"), (2, "problem", "restart")])
def test_without_a_gpu_the_words_of_the_library_say_why(num_cards, level, cure):
    (check,) = check_gpus(Driver(silence="Driver/library version mismatch", num_cards=num_cards))
    assert (check.level, check.stops_training) == (level, False)
    assert "Driver/library version mismatch" in check.found
    assert ("2 NVIDIA cards on the bus" in check.found) == (num_cards == 2)
    assert cure in check.cure


def test_a_driver_that_answers_nothing_about_its_gpu_has_no_fault():
    checks = list(check_gpus(Driver(gpus=(Gpu(index=0),))))
    assert [check.level for check in checks] == ["ok", "ok"]
    assert [check.found for check in checks] == ["NVIDIA (unknown version); 1 GPU", "a GPU of unknown name"]


def test_a_prohibited_gpu_does_not_stop_training_on_another_one(machine, gpu):
    two = replace(machine.driver, gpus=(replace(gpu, compute_mode="prohibited"), replace(gpu, index=1)))
    assert not any(check.stops_training for check in check_gpus(two))
