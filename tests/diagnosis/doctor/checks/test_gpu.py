from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.gpu import judge_gpus
from voxelocity.diagnosis.doctor.seen import Driver, Gpu

GIB = 2**30


@pytest.fixture
def judged(driver, gpu):
    """Lines about a driver with one GPU, of which some fields are changed, without those that are fine."""

    def judge(**changes):
        checks = judge_gpus(replace(driver, gpus=(replace(gpu, **changes),)))
        return [check for check in checks if check.level != "ok"]

    return judge


def test_a_sound_gpu_is_described_in_one_line(driver):
    found = [check.found for check in judge_gpus(driver)]
    assert found == [
        "NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU",
        "NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0, PCIe 5.0 x16, ECC on",
        "tensor cores take fp16, bf16, TF32, fp8",
    ]


def test_without_a_gpu_that_is_a_note_with_the_words_of_the_library():
    (check,) = judge_gpus(Driver(silence="NVML Shared Library Not Found"))
    assert (check.level, check.found) == ("note", "no NVIDIA GPU (NVML Shared Library Not Found)")
    assert not check.stops_training


def test_a_card_whose_driver_is_silent_is_a_problem():
    (check,) = judge_gpus(Driver(silence="Driver/library version mismatch", num_cards=2))
    assert check.level == "problem"
    assert check.found == "2 NVIDIA cards on the bus, but no driver for it: Driver/library version mismatch"
    assert "restart the machine" in check.cure


def test_a_driver_that_answers_nothing_about_its_gpu_is_no_fault():
    checks = list(judge_gpus(Driver(gpus=(Gpu(index=0),))))
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
    checks = judge_gpus(replace(driver, gpus=(replace(gpu, capability=capability),)))
    assert [(check.level, check.found) for check in checks if "formats" in check.name] == [(level, words)]


def test_memory_that_others_hold_is_told(judged):
    (check,) = judged(memory_used_bytes=30 * GIB)
    assert (check.level, check.found) == ("warning", "30.0 GiB of 80.0 GiB are used by other programs")


def test_a_narrow_link_is_told_and_a_resting_one_is_not(judged):
    (check,) = judged(pcie_width=4)
    assert (check.found, check.costs) == ("PCIe x4 of x16", "batches reach the GPU at 25% of the possible speed")
    assert not judged(pcie_generation=1)


def test_errors_that_ecc_could_not_correct_are_told(judged):
    (check,) = judged(num_uncorrected=1)
    assert check.level == "warning"
    assert check.found.startswith("1 error that ECC could not correct")


def test_a_gpu_that_falls_asleep_costs_each_program_its_waking(judged):
    (check,) = judged(is_persistent=False)
    assert check.level == "note"
    assert "1 to 3 s" in check.costs
    assert check.source.startswith("https://docs.nvidia.com/")


@pytest.mark.parametrize(
    ("num_slices", "level", "words"),
    [(0, "problem", "no slice exists"), (2, "note", "into 2 slices"), (None, "note", "an unknown number of slices")],
)
def test_a_sliced_gpu_says_what_a_process_sees(judged, num_slices, level, words):
    (check,) = judged(has_mig=True, num_slices=num_slices)
    assert check.level == level
    assert words in check.found


def test_a_gpu_on_which_nobody_may_compute_stops_training_where_it_is_the_only_one(judged, driver, gpu):
    (check,) = judged(compute_mode="prohibited")
    assert (check.level, check.stops_training) == ("problem", True)
    other = replace(driver, gpus=(replace(gpu, compute_mode="prohibited"), replace(gpu, index=1)))
    assert not any(check.stops_training for check in judge_gpus(other))


def test_a_gpu_for_one_program_at_a_time_is_a_note(judged):
    (check,) = judged(compute_mode="exclusive")
    assert (check.level, check.stops_training) == ("note", False)
