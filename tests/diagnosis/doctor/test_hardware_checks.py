from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.hardware_checks import (
    check_disk,
    check_gpus,
    check_limits,
    check_memory,
    check_processor,
)
from voxelocity.diagnosis.doctor.records import Driver, Gpu, Limits

GIB = 2**30


def blamed(checks):
    """Those that are not fine."""
    return [check for check in checks if check.level != "ok"]


@pytest.fixture
def checks_of_gpu(driver, gpu):
    """Checks of a driver with one GPU, of which some fields are changed."""
    return lambda **changes: list(check_gpus(replace(driver, gpus=(replace(gpu, **changes),))))


@pytest.fixture
def checks_of_processor(processor):
    return lambda num_gpus=1, **changes: list(check_processor(replace(processor, **changes), num_gpus=num_gpus))


@pytest.fixture
def checks_of_memory(memory):
    return lambda num_workers=8, **changes: list(check_memory(replace(memory, **changes), num_workers=num_workers))


@pytest.fixture
def checks_of_disk(disk):
    return lambda **changes: list(check_disk(replace(disk, **changes)))


def test_a_sound_machine_is_described(checks_of_gpu, checks_of_processor, checks_of_memory, checks_of_disk):
    assert [check.found for check in checks_of_gpu()] == [
        "NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU",
        "NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0, PCIe 5.0 x16, ECC on",
        "tensor cores take fp16, bf16, TF32, fp8",
    ]
    assert [check.found for check in checks_of_processor()] == [
        "AMD EPYC 9454; 16 cores available",
        "faster than float32",
        "the available cores are in one node",
    ]
    assert [check.found for check in checks_of_memory()] == [
        "128 GiB, 120 GiB free",
        "none; a program that takes too much memory is killed",
        "64.0 GiB of 64.0 GiB free",
    ]
    assert [check.found for check in checks_of_disk()] == [
        "500 GiB free below /scratch",
        "ext4",
        "reads 2.79 GiB/s, writes 1.86 GiB/s",
    ]
    assert [check.found for check in check_limits(Limits())] == ["no limit", "no limit", "no limit"]


def test_without_a_gpu_that_is_a_note_with_the_words_of_the_library():
    (check,) = check_gpus(Driver(silence="NVML Shared Library Not Found"))
    assert (check.level, check.found) == ("note", "no NVIDIA GPU (NVML Shared Library Not Found)")
    assert not check.stops_training


def test_a_card_whose_driver_is_silent_is_a_problem():
    (check,) = check_gpus(Driver(silence="Driver/library version mismatch", num_cards=2))
    assert check.level == "problem"
    assert check.found == "2 NVIDIA cards on the bus, but no driver for it: Driver/library version mismatch"
    assert "restart the machine" in check.cure


def test_a_driver_that_answers_nothing_about_its_gpu_is_no_fault():
    checks = list(check_gpus(Driver(gpus=(Gpu(index=0),))))
    assert [check.level for check in checks] == ["ok", "ok"]
    assert [check.found for check in checks] == ["NVIDIA (unknown version); 1 GPU", "a GPU of unknown name"]


@pytest.mark.parametrize(
    ("capability", "level", "words"),
    [
        ((6, 1), "note", "no tensor cores"),
        ((7, 0), "note", "tensor cores take fp16, and neither bf16 nor TF32"),
        ((7, 5), "note", "tensor cores take fp16, and neither bf16 nor TF32"),
        ((8, 0), "ok", "tensor cores take fp16, bf16, TF32"),
        ((8, 9), "ok", "tensor cores take fp16, bf16, TF32, fp8"),
    ],
)
def test_number_formats_follow_from_the_capability(checks_of_gpu, capability, level, words):
    checks = checks_of_gpu(capability=capability)
    assert [(check.level, check.found) for check in checks if "formats" in check.name] == [(level, words)]


@pytest.mark.parametrize(
    ("changes", "level", "found", "costs"),
    [
        ({"memory_used_bytes": 30 * GIB}, "warning", "30.0 GiB of 80.0 GiB are used by other programs", "smaller"),
        ({"pcie_width": 4}, "warning", "PCIe x4 of x16", "at 25% of the possible speed"),
        ({"num_uncorrected": 1}, "warning", "1 error that ECC could not correct", "ended programs"),
        ({"is_persistent": False}, "note", "persistence mode is off", "1 to 3 s"),
        ({"has_mig": True, "num_slices": 0}, "problem", "MIG is on, and no slice exists", "CUDA sees no device"),
        ({"has_mig": True, "num_slices": 2}, "note", "it is divided into 2 slices", "one slice"),
        ({"has_mig": True}, "note", "it is divided into an unknown number of slices", "one slice"),
        ({"compute_mode": "prohibited"}, "problem", "compute mode is 'prohibited'", "fails at its first operation"),
        ({"compute_mode": "exclusive"}, "note", "compute mode is 'exclusive'", "a second CUDA program on it fails"),
    ],
)
def test_a_fault_of_a_gpu_is_found_with_its_cost(checks_of_gpu, changes, level, found, costs):
    (check,) = blamed(checks_of_gpu(**changes))
    assert check.level == level
    assert check.found.startswith(found)
    assert costs in check.costs
    assert check.stops_training == (changes.get("compute_mode") == "prohibited")


def test_a_link_that_rests_is_no_fault(checks_of_gpu):
    assert not blamed(checks_of_gpu(pcie_generation=1))


def test_a_gpu_on_which_nobody_may_compute_does_not_stop_training_next_to_another(driver, gpu):
    other = replace(driver, gpus=(replace(gpu, compute_mode="prohibited"), replace(gpu, index=1)))
    assert not any(check.stops_training for check in check_gpus(other))


@pytest.mark.parametrize(
    ("changes", "limit", "cure"),
    [
        ({"num_granted": 1}, "by SLURM's grant", "#SBATCH --cpus-per-task=8"),
        ({"num_affine": 1}, "by affinity", "taskset -cp $$"),
        ({}, "by the quota of its control group", "docker run --cpus=8"),
    ],
)
def test_what_holds_the_cores_back_is_named_with_its_cure(checks_of_processor, changes, limit, cure):
    (check,) = blamed(checks_of_processor(num_budget=1, **changes))
    assert check.found.endswith(f"1 core available of 16, limited {limit}")
    assert cure in check.cure


def test_few_cores_are_enough_without_a_gpu(checks_of_processor):
    two = {"num_cores": 2, "num_affine": 2, "num_budget": 2}
    assert blamed(checks_of_processor(0, **two)) == []
    (check,) = blamed(checks_of_processor(**two))
    assert check.costs.startswith("they make the batches: about 124 augmented patches")
    assert "data.augment.engine=triton" in check.cure
    (alone,) = blamed(checks_of_processor(0, **{**two, "num_budget": 1}))
    assert alone.costs == "batches and the network share one core"


def test_a_cpu_without_bfloat16_is_a_note_where_it_trains(checks_of_processor):
    assert blamed(checks_of_processor(1, has_fast_bfloat16=False)) == []
    (check,) = blamed(checks_of_processor(0, has_fast_bfloat16=False))
    assert (check.level, check.costs) == ("note", "networks compute in float32 on this CPU")
    assert check.found == "not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core"
    assert blamed(checks_of_processor(0, has_fast_bfloat16=None)) == []


def test_cores_in_several_nodes_and_a_busy_machine_are_reported(checks_of_processor):
    nodes, load = blamed(checks_of_processor(num_nodes=2, load=40.25))
    assert nodes.found == "the available cores are in 2 nodes, each with its own memory"
    assert "numactl" in nodes.cure
    assert load.found == "40.2 programs are ready to run, on 16 cores"


SMALL_SHM = {"shm_bytes": 64 * 2**20, "shm_free_bytes": 64 * 2**20}


@pytest.mark.parametrize(
    ("changes", "name", "found", "cure"),
    [
        (
            {"total_bytes": 4 * GIB, "available_bytes": 3 * GIB},
            "memory",
            "4.00 GiB, 3.00 GiB free; the control group allows 4.00 GiB of 128 GiB",
            "docker run --memory",
        ),
        ({"available_bytes": 2 * GIB}, "memory", "128 GiB, 2.00 GiB free", "end programs that use it"),
        ({"swap_bytes": 64 * GIB, "swap_used_bytes": 20 * GIB}, "swap", "20.0 GiB of 64.0 GiB used", "end programs"),
        (SMALL_SHM, "/dev/shm", "64.0 MiB of 64.0 MiB free", "docker run --shm-size=8g"),
        ({"shm_free_bytes": 0}, "/dev/shm", "0 B of 64.0 GiB free", "see what is there: du -sh /dev/shm/*"),
        ({"shm_bytes": None}, "/dev/shm", "none, or it is not in memory", "docker run --shm-size=8g"),
        ({"shm_free_bytes": None}, "/dev/shm", "none, or it is not in memory", "docker run --shm-size=8g"),
        ({"overcommit": 2}, "overcommit", "vm.overcommit_memory is 2", "as administrator: sysctl"),
        (
            {"left_folders": ("/dev/shm/voxelocity-1000",), "left_bytes": 30 * GIB},
            "left behind",
            "30.0 GiB of prepared cases in /dev/shm/voxelocity-1000",
            "voxelocity cache clear --memory",
        ),
    ],
)
def test_a_fault_of_the_memory_is_found_with_its_cure(checks_of_memory, changes, name, found, cure):
    (check,) = blamed(checks_of_memory(**changes))
    assert (check.name, check.level) == (name, "warning")
    assert check.found.startswith(found)
    assert check.cure.startswith((cure, f"allow the container more: {cure}"))


def test_little_use_of_swap_and_the_other_ways_to_reserve_memory_are_no_fault(checks_of_memory):
    assert blamed(checks_of_memory(swap_bytes=64 * GIB, swap_used_bytes=GIB, overcommit=1)) == []


def test_what_loaders_need_grows_with_their_workers(checks_of_memory):
    (check,) = blamed(checks_of_memory(8, **SMALL_SHM))
    assert "with 8 workers keeps about 480 MiB" in check.costs
    assert blamed(checks_of_memory(1, **SMALL_SHM)) == []


@pytest.mark.parametrize(
    ("changes", "name", "level", "found"),
    [
        ({"file_system": "nfs4"}, "kind", "warning", "nfs4: on the network"),
        ({"file_system": "lustre"}, "kind", "warning", "lustre: on the network"),
        ({"file_system": "tmpfs", "read_bytes_per_s": 5e7}, "kind", "note", "tmpfs: it is memory, not a disk"),
        ({"device": "rotating", "read_bytes_per_s": 180e6}, "kind", "note", "ext4 on a rotating disk"),
        ({"read_bytes_per_s": None, "not_measured": "it is full"}, "speed", "note", "not measured: it is full"),
        ({"past_page_cache": False}, "speed", "note", "reads 2.79 GiB/s, writes 1.86 GiB/s, through the page cache"),
    ],
)
def test_a_fault_of_the_disk_is_found(checks_of_disk, changes, name, level, found):
    (check,) = blamed(checks_of_disk(**changes))
    assert (check.name, check.level, check.found) == (name, level, found)
    assert name != "kind" or "data.cache.folder" in check.cure


def test_a_fast_disk_that_calls_itself_rotating_is_no_fault(checks_of_disk):
    assert blamed(checks_of_disk(device="rotating", read_bytes_per_s=830e6)) == []


@pytest.mark.parametrize(("free_bytes", "costs"), [(3 * GIB, "about 16 prepared CTs"), (2**20, "no prepared CTs")])
def test_little_room_is_given_in_cases(checks_of_disk, free_bytes, costs):
    (check,) = blamed(checks_of_disk(free_bytes=free_bytes))
    assert check.costs.startswith(costs)


@pytest.mark.parametrize(("read", "write"), [(40e6, 400e6), (400e6, 40e6)])
def test_a_slow_disk_is_given_in_seconds_a_case(checks_of_disk, read, write):
    (check,) = blamed(checks_of_disk(read_bytes_per_s=read, write_bytes_per_s=write))
    assert (check.name, check.level) == ("speed", "warning")
    assert "of 192 MiB takes" in check.costs
    assert "5.0 s to" in check.costs


@pytest.mark.parametrize(
    ("fields", "found", "cure"),
    [
        ({"open_files": 1024, "open_files_hard": 524_288}, "1,024 at a time", "ulimit -n 65536"),
        ({"open_files": 1024, "open_files_hard": 8192}, "1,024 at a time", "ulimit -n 8192"),
        ({"open_files": 1024}, "1,024 at a time", "ulimit -n 4096"),
        ({"open_files": 1024, "open_files_hard": 1024}, "1,024 at a time", "the hard limit is as low"),
        ({"processes": 512}, "512 processes and threads", "ulimit -u 8192"),
        ({"processes": 9999, "group_processes": 512}, "512 processes and threads", "docker run --pids-limit=-1"),
        ({"locked_bytes": 65_536, "has_rdma": True}, "64.0 KiB, with an InfiniBand", "ulimit -l unlimited"),
    ],
)
def test_a_low_limit_is_found_with_what_you_may_do(fields, found, cure):
    (check,) = blamed(check_limits(Limits(**fields)))
    assert check.level == "warning"
    assert check.found.startswith(found)
    assert check.cure.startswith(cure)


@pytest.mark.parametrize("fields", [{"locked_bytes": 65_536}, {"locked_bytes": None, "has_rdma": True}])
def test_locked_memory_matters_only_with_an_adapter_that_needs_it(fields):
    assert blamed(check_limits(Limits(**fields))) == []
