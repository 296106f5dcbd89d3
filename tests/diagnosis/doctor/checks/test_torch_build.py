from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.torch_build import judge_torch, runs_on
from voxelocity.diagnosis.doctor.seen import Driver, Torch


@pytest.fixture
def judged(torch, driver, processor):
    """Lines that are not fine, of a machine of which some parts are changed."""

    def judge(*, driver=driver, processor=processor, environ=None, **changes):
        checks = judge_torch(replace(torch, **changes), driver, processor, environ or {})
        return [check for check in checks if check.level != "ok"]

    return judge


def test_a_sound_torch_is_described(torch, driver, processor):
    found = [check.found for check in judge_torch(torch, driver, processor, {})]
    assert found == [
        "2.13.0+cu130, for CUDA 13.0, cuDNN 9.20.0",
        "takes 1.6 s, 1.5 s of it computing",
        "16 threads for operations on the CPU",
        "it sees 1",
    ]


def test_gpus_that_a_scheduler_hides_are_counted(torch, driver, gpu, processor):
    several = replace(driver, gpus=(gpu,) * 8)
    assert "it sees 1 of 8" in [check.found for check in judge_torch(torch, several, processor, {})]


def test_without_torch_nothing_can_be_trained(driver, processor):
    (check,) = judge_torch(Torch(error="ModuleNotFoundError: No module named 'torch'"), driver, processor, {})
    assert (check.level, check.stops_training) == ("problem", True)
    assert check.found == "it cannot be imported: ModuleNotFoundError: No module named 'torch'"
    assert check.cure.startswith("pip install torch")


def test_a_build_for_cpus_is_fine_without_a_gpu_and_a_problem_with_one(judged):
    cpu = {"version": "2.13.0+cpu", "cuda": "", "cudnn": "", "architectures": (), "sees_cuda": False}
    assert judged(driver=Driver(), **cpu) == []
    (check,) = judged(**cpu)
    assert check.level == "problem"
    assert check.found == "1 GPU here, and torch 2.13.0+cpu is a build for CPUs"
    assert check.cure.endswith("--index-url https://download.pytorch.org/whl/cu130")


@pytest.mark.parametrize(
    ("capability", "cuda", "build"),
    [((6, 1), (13, 0), "cu126"), ((9, 0), (12, 4), "cu126"), ((12, 0), (12, 8), "cu128"), ((12, 0), (13, 0), "cu130")],
)
def test_the_build_to_install_suits_the_gpu_and_the_driver(judged, driver, gpu, capability, cuda, build):
    other = replace(driver, cuda=cuda, gpus=(replace(gpu, capability=capability),))
    (check,) = judged(driver=other, cuda="", cudnn="", sees_cuda=False)
    assert check.cure.endswith(f"/whl/{build}")


def test_a_driver_that_is_too_old_for_the_build_is_named(judged, driver):
    (check,) = judged(driver=replace(driver, version="550.54.14", cuda=(12, 4)), sees_cuda=False)
    assert check.level == "problem"
    assert check.found == "torch was built for CUDA 13.0, which needs driver 580 or newer; found 550.54.14"
    assert check.cure.endswith("/whl/cu126")
    assert "minor-version-compatibility" in check.source


def test_a_driver_of_the_same_major_version_only_gets_a_note(judged, driver):
    (check,) = judged(driver=replace(driver, version="580.65.06", cuda=(13, 0)), cuda="13.2")
    assert (check.level, check.found) == ("note", "torch was built for CUDA 13.2, the driver knows up to 13.0")
    assert judged(driver=replace(driver, cuda=(13, 2)), cuda="13.0") == []


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_the_gpus_is_found(judged, value):
    (check,) = judged(sees_cuda=False, environ={"CUDA_VISIBLE_DEVICES": value})
    assert check.found == f"CUDA_VISIBLE_DEVICES={value!r} hides 1 GPU from torch"
    assert check.cure == "unset CUDA_VISIBLE_DEVICES"


def test_where_the_cause_is_not_known_torch_has_the_word(judged):
    (check,) = judged(sees_cuda=False, warnings=("first", "CUDA initialization: unknown error"))
    assert check.found.endswith("though the driver shows 1: CUDA initialization: unknown error")


def test_a_gpu_without_kernels_stops_training_where_it_is_the_only_one(judged, driver, gpu):
    old = replace(gpu, name="Tesla V100", capability=(7, 0))
    (check,) = judged(driver=replace(driver, gpus=(old,)))
    assert (check.level, check.stops_training) == ("problem", True)
    assert check.found.startswith("torch has no kernels for Tesla V100 (sm_70); it was built for sm_75, sm_80")
    assert check.cure.endswith("/whl/cu126")
    (beside,) = judged(driver=replace(driver, gpus=(gpu, replace(old, index=1))))
    assert (beside.name, beside.stops_training) == ("GPU 1", False)


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100"], True),
        ((10, 3), ["sm_100f"], True),
        ((10, 3), ["sm_100a"], False),
        ((12, 1), ["compute_90"], True),
        ((7, 0), ["compute_75"], False),
        ((7, 0), [], True),
        ((7, 0), ["gfx90a"], False),
    ],
)
def test_kernels_run_on_later_minor_versions_and_compiled_ones_on_later_gpus(capability, architectures, expected):
    assert runs_on(capability, architectures) is expected


def test_a_cudnn_that_does_not_fit_stops_training(judged):
    (check,) = judged(cudnn="unusable: cuDNN version incompatibility")
    assert (check.level, check.stops_training) == ("problem", True)
    assert "LD_LIBRARY_PATH" in check.cure


def test_without_cudnn_convolutions_take_a_slower_way(judged):
    (check,) = judged(cudnn="")
    assert (check.name, check.level, check.stops_training) == ("cuDNN", "warning", False)


def test_a_slow_import_points_to_the_network(judged):
    (check,) = judged(import_s=42.0)
    assert (check.level, check.found) == ("warning", "takes 42 s, 1.5 s of it computing")
    assert "local disk" in check.cure


def test_more_threads_than_cores_are_told(judged, processor):
    (check,) = judged(processor=replace(processor, num_budget=4), num_threads=64)
    assert check.found == "64 threads for operations on the CPU, on 4 cores"
    assert check.cure == "export OMP_NUM_THREADS=4"


def test_amd_gpus_are_not_judged(judged):
    (check,) = judged(hip="6.4", cuda="", cudnn="", driver=Driver())
    assert "which the doctor does not check" in check.found
