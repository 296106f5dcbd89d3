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
def judged_gpu(driver, gpu):
    """Lines about a driver with one GPU, of which some fields are changed, without those that are fine."""

    def judge(**changes):
        return blamed(check_gpus(replace(driver, gpus=(replace(gpu, **changes),))))

    return judge


def test_a_sound_gpu_is_described_in_one_line(driver):
    found = [check.found for check in check_gpus(driver)]
    assert found == [
        "NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU",
        "NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0, PCIe 5.0 x16, ECC on",
        "tensor cores take fp16, bf16, TF32, fp8",
    ]


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
    assert checks[0].found == "NVIDIA (unknown version); 1 GPU"
    assert checks[1].found == "a GPU of unknown name"


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
def test_number_formats_follow_from_the_capability(driver, gpu, capability, level, words):
    checks = check_gpus(replace(driver, gpus=(replace(gpu, capability=capability),)))
    assert [(check.level, check.found) for check in checks if "formats" in check.name] == [(level, words)]


def test_memory_that_others_hold_is_told(judged_gpu):
    (check,) = judged_gpu(memory_used_bytes=30 * GIB)
    assert (check.level, check.found) == ("warning", "30.0 GiB of 80.0 GiB are used by other programs")


def test_a_narrow_link_is_told_and_a_resting_one_is_not(judged_gpu):
    (check,) = judged_gpu(pcie_width=4)
    assert (check.found, check.costs) == ("PCIe x4 of x16", "batches reach the GPU at 25% of the possible speed")
    assert not judged_gpu(pcie_generation=1)


def test_errors_that_ecc_could_not_correct_are_told(judged_gpu):
    (check,) = judged_gpu(num_uncorrected=1)
    assert check.level == "warning"
    assert check.found.startswith("1 error that ECC could not correct")


def test_a_gpu_that_falls_asleep_costs_each_program_its_waking(judged_gpu):
    (check,) = judged_gpu(is_persistent=False)
    assert check.level == "note"
    assert "1 to 3 s" in check.costs
    assert check.source.startswith("https://docs.nvidia.com/")


@pytest.mark.parametrize(
    ("num_slices", "level", "words"),
    [(0, "problem", "no slice exists"), (2, "note", "into 2 slices"), (None, "note", "an unknown number of slices")],
)
def test_a_sliced_gpu_says_what_a_process_sees(judged_gpu, num_slices, level, words):
    (check,) = judged_gpu(has_mig=True, num_slices=num_slices)
    assert check.level == level
    assert words in check.found


def test_a_gpu_on_which_nobody_may_compute_stops_training_where_it_is_the_only_one(judged_gpu, driver, gpu):
    (check,) = judged_gpu(compute_mode="prohibited")
    assert (check.level, check.stops_training) == ("problem", True)
    other = replace(driver, gpus=(replace(gpu, compute_mode="prohibited"), replace(gpu, index=1)))
    assert not any(check.stops_training for check in check_gpus(other))


def test_a_gpu_for_one_program_at_a_time_is_a_note(judged_gpu):
    (check,) = judged_gpu(compute_mode="exclusive")
    assert (check.level, check.stops_training) == ("note", False)


def test_a_sound_processor_is_described(processor):
    found = [check.found for check in check_processor(processor, num_gpus=1)]
    assert found == ["AMD EPYC 9454; 16 cores available", "faster than float32", "the available cores are in one node"]


@pytest.mark.parametrize(
    ("changes", "limit", "cure"),
    [
        ({"num_granted": 1}, "by SLURM's grant", "#SBATCH --cpus-per-task=8"),
        ({"num_affine": 1}, "by affinity", "taskset -cp $$"),
        ({}, "by the quota of its control group", "docker run --cpus=8"),
    ],
)
def test_what_holds_the_cores_back_is_named_with_its_cure(processor, changes, limit, cure):
    (check,) = blamed(check_processor(replace(processor, num_budget=1, **changes), num_gpus=1))
    assert check.found.endswith(f"1 core available of 16, limited {limit}")
    assert cure in check.cure


def test_few_cores_are_enough_without_a_gpu(processor):
    two = replace(processor, num_cores=2, num_affine=2, num_budget=2)
    assert blamed(check_processor(two, num_gpus=0)) == []
    (check,) = blamed(check_processor(two, num_gpus=1))
    assert check.costs.startswith("they make the batches: about 124 augmented patches")
    assert "data.augment.engine=triton" in check.cure
    (alone,) = blamed(check_processor(replace(two, num_budget=1), num_gpus=0))
    assert alone.costs == "batches and the network share one core"


def test_a_cpu_without_bfloat16_is_a_note_where_it_trains(processor):
    plain = replace(processor, has_fast_bfloat16=False)
    assert blamed(check_processor(plain, num_gpus=1)) == []
    (check,) = blamed(check_processor(plain, num_gpus=0))
    assert (check.level, check.costs) == ("note", "networks compute in float32 on this CPU")
    assert check.found == "not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core"
    assert blamed(check_processor(replace(processor, has_fast_bfloat16=None), num_gpus=0)) == []


def test_cores_in_several_nodes_are_told(processor):
    (check,) = blamed(check_processor(replace(processor, num_nodes=2), num_gpus=1))
    assert check.found == "the available cores are in 2 nodes, each with its own memory"
    assert "numactl" in check.cure


def test_a_busy_machine_is_told(processor):
    (check,) = blamed(check_processor(replace(processor, load=40.25), num_gpus=1))
    assert check.found == "40.2 programs are ready to run, on 16 cores"


def test_a_sound_memory_is_described(memory):
    found = [check.found for check in check_memory(memory, num_workers=8)]
    assert found == [
        "128 GiB, 120 GiB free",
        "none; a program that takes too much memory is killed",
        "64.0 GiB of 64.0 GiB free",
    ]


def test_a_limit_of_the_control_group_is_named_with_its_cure(memory):
    (check,) = blamed(check_memory(replace(memory, total_bytes=4 * GIB, available_bytes=3 * GIB), num_workers=8))
    assert check.found == "4.00 GiB, 3.00 GiB free; the control group allows 4.00 GiB of 128 GiB"
    assert "docker run --memory" in check.cure


def test_memory_that_others_took_is_to_be_freed(memory):
    (check,) = blamed(check_memory(replace(memory, available_bytes=2 * GIB), num_workers=8))
    assert "end programs that use it" in check.cure


def test_swap_counts_only_where_much_of_it_is_used(memory):
    assert blamed(check_memory(replace(memory, swap_bytes=64 * GIB, swap_used_bytes=GIB), num_workers=8)) == []
    (check,) = blamed(check_memory(replace(memory, swap_bytes=64 * GIB, swap_used_bytes=20 * GIB), num_workers=8))
    assert (check.level, check.found) == ("warning", "20.0 GiB of 64.0 GiB used")


def test_the_64_mib_of_docker_are_less_than_its_loaders_need(memory):
    (check,) = blamed(check_memory(replace(memory, shm_bytes=64 * 2**20, shm_free_bytes=64 * 2**20), num_workers=8))
    assert (check.name, check.level, check.found) == ("/dev/shm", "warning", "64.0 MiB of 64.0 MiB free")
    assert "with 8 workers keeps about 480 MiB" in check.costs
    assert "docker run --shm-size=8g" in check.cure


def test_what_loaders_need_grows_with_their_workers(memory):
    little = replace(memory, shm_bytes=64 * 2**20, shm_free_bytes=64 * 2**20)
    assert blamed(check_memory(little, num_workers=1)) == []


def test_a_shared_memory_that_is_full_is_to_be_looked_into(memory):
    (check,) = blamed(check_memory(replace(memory, shm_free_bytes=0), num_workers=8))
    assert check.cure == "see what is there: du -sh /dev/shm/*"


@pytest.mark.parametrize("missing", ["shm_bytes", "shm_free_bytes"])
def test_without_shared_memory_that_is_told(memory, missing):
    (check,) = blamed(check_memory(replace(memory, **{missing: None}), num_workers=8))
    assert check.found == "none, or it is not in memory"


def test_a_kernel_that_counts_reserved_memory_as_taken_is_told(memory):
    assert blamed(check_memory(replace(memory, overcommit=1), num_workers=8)) == []
    (check,) = blamed(check_memory(replace(memory, overcommit=2), num_workers=8))
    assert check.cure == "as administrator: sysctl vm.overcommit_memory=0"


def test_what_a_killed_run_left_in_memory_is_named_with_its_cure(memory):
    (check,) = blamed(
        check_memory(replace(memory, left_folders=("/dev/shm/voxelocity-1000",), left_bytes=30 * GIB), num_workers=8)
    )
    assert check.level == "warning"
    assert "30.0 GiB of prepared cases in /dev/shm/voxelocity-1000" in check.found
    assert check.cure == "voxelocity cache clear --memory"


def test_a_sound_disk_is_described(disk):
    found = [check.found for check in check_disk(disk)]
    assert found == ["500 GiB free below /scratch", "ext4", "reads 2.79 GiB/s, writes 1.86 GiB/s"]


def test_little_room_is_told_in_cases(disk):
    (check,) = blamed(check_disk(replace(disk, free_bytes=3 * GIB)))
    assert check.costs.startswith("about 16 prepared CTs")
    (check,) = blamed(check_disk(replace(disk, free_bytes=2**20)))
    assert check.costs.startswith("no prepared CTs")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "cifs"])
def test_a_disk_on_the_network_is_told(disk, kind):
    (check,) = blamed(check_disk(replace(disk, file_system=kind)))
    assert (check.level, check.found) == ("warning", f"{kind}: on the network")
    assert "data.cache.folder" in check.cure


def test_memory_in_the_place_of_a_disk_is_told_and_its_speed_is_not_judged(disk):
    (check,) = blamed(check_disk(replace(disk, file_system="tmpfs", read_bytes_per_s=5e7)))
    assert (check.level, check.name) == ("note", "kind")


def test_a_disk_that_turns_is_told_where_it_is_as_slow_as_one(disk):
    (check,) = blamed(check_disk(replace(disk, device="rotating", read_bytes_per_s=180e6)))
    assert check.found == "ext4 on a rotating disk"
    assert blamed(check_disk(replace(disk, device="rotating", read_bytes_per_s=830e6))) == []


@pytest.mark.parametrize(("read", "write"), [(40e6, 400e6), (400e6, 40e6)])
def test_a_slow_disk_is_told_in_seconds_a_case(disk, read, write):
    (check,) = blamed(check_disk(replace(disk, read_bytes_per_s=read, write_bytes_per_s=write)))
    assert (check.name, check.level) == ("speed", "warning")
    assert "of 192 MiB takes" in check.costs
    assert "5.0 s to" in check.costs


def test_a_speed_that_was_not_measured_says_why(disk):
    (check,) = blamed(
        check_disk(replace(disk, read_bytes_per_s=None, write_bytes_per_s=None, not_measured="it is full"))
    )
    assert (check.level, check.found) == ("note", "not measured: it is full")
    assert "--folder" in check.cure


def test_a_speed_of_the_page_cache_is_not_sold_as_that_of_the_disk(disk):
    (check,) = blamed(check_disk(replace(disk, past_page_cache=False)))
    assert check.found.endswith("through the page cache")


def test_no_limits_are_fine():
    assert [check.found for check in check_limits(Limits())] == ["no limit", "no limit", "no limit"]


@pytest.mark.parametrize(
    ("hard", "cure"),
    [
        (524_288, "ulimit -n 65536"),
        (8192, "ulimit -n 8192"),
        (None, "ulimit -n 4096"),
        (1024, "the hard limit is as low"),
    ],
)
def test_few_open_files_are_told_with_what_a_person_may_do(hard, cure):
    (check,) = blamed(check_limits(Limits(open_files=1024, open_files_hard=hard)))
    assert (check.level, check.found) == ("warning", "1,024 at a time")
    assert check.cure.startswith(cure)


@pytest.mark.parametrize(
    ("fields", "cure"),
    [
        ({"processes": 100_000, "group_processes": 512}, "docker run --pids-limit=-1"),
        ({"processes": 512}, "ulimit -u 8192"),
    ],
)
def test_few_processes_are_told_with_who_sets_the_limit(fields, cure):
    (check,) = blamed(check_limits(Limits(**fields)))
    assert check.found == "512 processes and threads"
    assert check.cure.startswith(cure)


def test_locked_memory_matters_only_beside_an_adapter_that_needs_it():
    assert blamed(check_limits(Limits(locked_bytes=65_536))) == []
    assert blamed(check_limits(Limits(locked_bytes=None, has_rdma=True))) == []
    (check,) = blamed(check_limits(Limits(locked_bytes=65_536, has_rdma=True)))
    assert check.found.startswith("64.0 KiB, with an InfiniBand")
