from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from packaging.requirements import Requirement

from voxelocity_observe.diagnose.doctor.known_faults import INCOMPATIBLE, VARIABLES
from voxelocity_observe.diagnose.doctor.probes import probe_packages
from voxelocity_observe.diagnose.doctor.records import Torch
from voxelocity_observe.diagnose.doctor.software_checks import (
    GIVES,
    check_packages,
    check_torch,
    check_variables,
    fits,
    runs_on,
)


def faults(checks):
    return [check for check in checks if check.level != "ok"]


@pytest.fixture
def faults_of_torch(machine):
    """Items that are not ok, of the sound machine with other fields of torch, and of its driver."""

    def judge(*, driver=None, environ=None, **changes):
        torch, driver = replace(machine.torch, **changes), replace(machine.driver, **(driver or {}))
        return faults(check_torch(torch, driver, machine.processor, environ or {}))

    return judge


def test_a_sound_torch_is_described(machine):
    found = [check.found for check in check_torch(machine.torch, machine.driver, machine.processor, {})]
    assert found == [
        "2.13.0+cu130, for CUDA 13.0, cuDNN 9.20.0",
        "takes 1.6 s, 1.5 s of it computing",
        "16 threads for operations on the CPU",
        "it sees 1",
    ]


def test_gpus_that_a_scheduler_hides_are_counted(machine, gpu):
    several = replace(machine.driver, gpus=(gpu,) * 8)
    checks = check_torch(machine.torch, several, machine.processor, {})
    assert "it sees 1 of 8" in [check.found for check in checks]


def test_without_torch_nothing_can_be_trained(machine):
    missing = Torch(error="ModuleNotFoundError: No module named 'torch'")
    (check,) = check_torch(missing, machine.driver, machine.processor, {})
    assert (check.level, check.stops_training) == ("problem", True)
    assert missing.error in check.found
    assert check.cure.startswith("pip install torch")


CPU_BUILD = {"version": "2.13.0+cpu", "cuda": "", "cudnn": "", "architectures": (), "num_gpus": 0}
CUDNN = {"cudnn": "unusable: cuDNN version incompatibility"}
OLD_DRIVER = {"driver": {"version": "550.54.14", "cuda": (12, 4)}, "num_gpus": 0}
UNKNOWN_CAUSE = {"num_gpus": 0, "warning": "CUDA initialization: unknown error"}
HIDDEN = {"num_gpus": 0, "environ": {"CUDA_VISIBLE_DEVICES": "-1"}}
EMPTY = {"num_gpus": 0, "environ": {"CUDA_VISIBLE_DEVICES": ""}}


@pytest.mark.parametrize(
    ("changes", "name", "level", "facts"),
    [
        (CPU_BUILD, "GPUs", "problem", ["1 GPU here, and torch 2.13.0+cpu is a build for CPUs", "/whl/cu130"]),
        (CUDNN, "cuDNN", "problem", [CUDNN["cudnn"], "convolutions fail", "LD_LIBRARY_PATH"]),
        ({"cudnn": ""}, "cuDNN", "warning", ["none", "slower", "LD_LIBRARY_PATH"]),
        (HIDDEN, "GPUs", "problem", ["CUDA_VISIBLE_DEVICES='-1' hides 1 GPU", "unset CUDA_VISIBLE_DEVICES"]),
        (EMPTY, "GPUs", "problem", ["CUDA_VISIBLE_DEVICES='' hides 1 GPU", "unset CUDA_VISIBLE_DEVICES"]),
        (OLD_DRIVER, "GPUs", "problem", ["CUDA 13.0, which needs driver 580", "found 550.54.14", "/whl/cu126"]),
        (UNKNOWN_CAUSE, "GPUs", "problem", ["driver shows 1: CUDA initialization: unknown error", "/dev/nvidia*"]),
        ({"import_s": 42.0}, "import torch", "warning", ["takes 42 s, 1.5 s of it computing", "local disk"]),
        ({"num_threads": 64}, "threads", "warning", ["64 threads", "on 16 cores", "export OMP_NUM_THREADS=16"]),
        ({"hip": "6.4", "cuda": "", "cudnn": ""}, "GPUs", "note", ["AMD GPUs, which the doctor does not check"]),
        ({"gradients": "wrong"}, "gradients", "note", ["is wrong on this CPU with torch 2.13.0+cu130", "float32"]),
        ({"cuda": "13.2"}, "CUDA", "note", ["built for CUDA 13.2, the driver knows up to 13.0", "newer driver"]),
    ],
)
def test_a_fault_of_torch_is_found_with_its_remedy(faults_of_torch, changes, name, level, facts):
    (check,) = faults_of_torch(**changes)
    assert (check.name, check.level, check.stops_training) == (name, level, changes is CUDNN)
    words = f"{check.found}\n{check.costs}\n{check.cure}"
    assert [fact for fact in facts if fact not in words] == []


def test_a_build_for_cpus_is_fine_without_a_gpu_and_an_older_cuda_with_a_newer_driver(faults_of_torch):
    assert faults_of_torch(driver={"gpus": ()}, **CPU_BUILD) == []
    assert faults_of_torch(driver={"cuda": (13, 2)}, cuda="13.0") == []


def test_wrong_gradients_are_a_warning_where_the_cpu_trains(faults_of_torch):
    on_cpu = partial(faults_of_torch, driver={"gpus": ()}, **CPU_BUILD)
    assert on_cpu(gradients="right") == []
    (wrong,) = on_cpu(gradients="wrong")
    assert (wrong.level, wrong.name, wrong.stops_training) == ("warning", "gradients", False)
    assert "deep layers get wrong weights, or NaN" in wrong.costs
    assert "`voxelocity train` computes such convolutions in float32" in wrong.costs
    assert "train in float32 on this CPU" in wrong.cure
    (ended,) = on_cpu(gradients="ended by SIGILL")
    assert ended.found.endswith("could not be computed: the process ended by SIGILL")
    assert "such a training ends in the same way" in ended.costs


@pytest.mark.parametrize(
    ("capability", "cuda", "build"),
    [((6, 1), (13, 0), "cu126"), ((9, 0), (12, 4), "cu126"), ((12, 0), (12, 8), "cu128"), ((12, 0), (13, 0), "cu130")],
)
def test_the_build_to_install_suits_the_gpu_and_the_driver(faults_of_torch, gpu, capability, cuda, build):
    (check,) = faults_of_torch(driver={"cuda": cuda, "gpus": (replace(gpu, capability=capability),)}, **CPU_BUILD)
    assert check.cure.endswith(f"/whl/{build}")
    assert "minor-version-compatibility" in check.source


def test_a_gpu_without_kernels_stops_training_if_it_is_the_only_one(faults_of_torch, gpu):
    old = replace(gpu, name="Tesla V100", capability=(7, 0))
    (check,) = faults_of_torch(driver={"gpus": (old,)})
    assert (check.level, check.stops_training) == ("problem", True)
    assert "no kernels for Tesla V100 (sm_70); it was built for sm_75, sm_80" in check.found
    assert check.cure.endswith("/whl/cu126")
    (one_of_two,) = faults_of_torch(driver={"gpus": (gpu, replace(old, index=1))})
    assert (one_of_two.name, one_of_two.stops_training) == ("GPU 1", False)


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


@pytest.fixture
def checks_of_packages(machine):
    """Checks of the sound installation with these versions; None stands for not installed."""

    def judge(*, torch=machine.torch, versions=None, **changes):
        versions = {**machine.packages.versions, **(versions or {})}
        kept = {name: version for name, version in versions.items() if version}
        return list(check_packages(replace(machine.packages, versions=kept, **changes), torch))

    return judge


def test_a_whole_installation_is_described(checks_of_packages):
    required, lmdb = checks_of_packages()
    assert required.found == "all 2 installed: Python 3.11.7, torch 2.13.0+cu130, numpy 2.4.6"
    assert lmdb.found.startswith("lmdb 3.0.0: a cache of all cases in one file")
    assert required.level == lmdb.level == "ok"


def test_missing_loops_are_a_warning_with_the_command_that_builds_them(checks_of_packages):
    (check,) = faults(checks_of_packages(without_loops="loops.so does not exist; build it: COMMAND"))
    assert (check.name, check.level, check.found) == ("compiled loops", "warning", "loops.so does not exist")
    assert check.cure == "build it: COMMAND"
    (check,) = [check for check in checks_of_packages(without_loops="") if check.name == "compiled loops"]
    assert check.level == "ok"


@pytest.mark.parametrize(
    ("versions", "name", "level", "found"),
    [
        ({"numpy": None}, "required", "problem", "not installed: numpy"),
        ({"numpy": "1.26.4"}, "required", "warning", "numpy 1.26.4 (required: >=2.0)"),
        ({"triton": None}, "triton", "warning", "not installed, although torch is a CUDA build"),
    ],
)
def test_a_fault_of_the_installation_is_found_with_its_remedy(checks_of_packages, versions, name, level, found):
    (check,) = faults(checks_of_packages(versions=versions))
    assert (check.name, check.level, check.found) == (name, level, found)
    assert check.stops_training == (level == "problem")
    assert check.cure.endswith("torch" if name == "triton" else "pip install 'numpy>=2.0'")


def test_a_torch_that_is_missing_or_came_without_pip_is_judged_elsewhere(checks_of_packages):
    assert faults(checks_of_packages(versions={"torch": None})) == []
    assert faults(checks_of_packages(versions={"torch": None}, torch=Torch(error="No module named 'torch'"))) == []


def test_a_build_for_cpus_needs_neither_triton_nor_a_new_cudnn(checks_of_packages, machine):
    cpu_build = replace(machine.torch, cuda="", cudnn="9.10.2")
    assert faults(checks_of_packages(torch=cpu_build, versions={"triton": None})) == []


def test_a_requirement_that_another_package_does_not_meet_is_found(checks_of_packages):
    requires = {
        "torch": [Requirement("triton==3.7.0"), Requirement("not-installed>=1"), Requirement("numpy>=2")],
        "lmdb": [Requirement("patch-ng<2"), Requirement("odd>=1")],
    }
    checks = checks_of_packages(requires=requires, versions={"patch-ng": "2.1", "odd": "local build"})
    triton, patch = faults(checks)
    assert (triton.name, triton.level, patch.name, patch.level) == ("torch", "warning", "lmdb", "note")
    assert triton.found == "torch 2.13.0+cu130 requires triton==3.7.0, and triton 3.7.1 is installed"
    assert triton.cure.startswith("pip install 'triton==3.7.0'")


PLANTED = [
    ({"cudnn": "9.10.2"}, {"cudnn": "9.15.0"}),
    ({"nvidia-cudnn-cu13": "9.20.0.48"}, {"nvidia-cudnn-cu13": "9.23.0.1"}),
    ({"nibabel": "5.1.0"}, {"nibabel": "5.2.0"}),
    ({"pandas": "2.2.1"}, {"pandas": "2.2.2"}),
    ({"tensorboard": "2.20.0", "setuptools": "82.0.1"}, {"tensorboard": "2.21.0", "setuptools": "84.2.1"}),
]


@pytest.mark.parametrize(
    ("known", "bad", "good"), [(known, *pair) for known, pair in zip(INCOMPATIBLE, PLANTED, strict=True)]
)
def test_incompatible_versions_are_found_and_those_that_fixed_it_are_fine(
    checks_of_packages, machine, known, bad, good
):
    def found(versions):
        cudnn = versions.get("cudnn", machine.torch.cudnn)
        pip = {name: version for name, version in versions.items() if name != "cudnn"}
        return faults(checks_of_packages(torch=replace(machine.torch, cudnn=cudnn), versions=pip))

    (check,) = found(bad)
    assert (check.level, check.costs, check.cure, check.source) == (known.level, known.costs, known.cure, known.source)
    assert check.costs
    assert check.cure
    assert check.source.startswith("https://")
    assert all(version in check.found for version in bad.values())
    assert found(good) == []


def test_a_version_that_cannot_be_parsed_matches_no_known_fault(checks_of_packages):
    assert faults(checks_of_packages(versions={"pandas": "local build"})) == []


@pytest.mark.parametrize(
    ("extra", "wanted", "versions", "found"),
    [
        ("lmdb", ["lmdb>=1.6"], {"lmdb": None}, "not installed: lmdb; for a cache of all cases in one file"),
        (
            "bench",
            ["lmdb", "pandas"],
            {},
            "lmdb 3.0.0; not installed: pandas; for comparisons with other toolkits (`voxelocity bench`)",
        ),
        ("mlflow", ["mlflow-skinny"], {"mlflow": "3.17.2"}, "mlflow-skinny 3.17.2: curves of a run in MLflow"),
        ("unlisted", ["lmdb"], {}, "lmdb 3.0.0"),
    ],
)
def test_an_extra_says_what_it_gives_and_how_to_get_it(checks_of_packages, extra, wanted, versions, found):
    checks = checks_of_packages(wanted={extra: [Requirement(text) for text in wanted]}, versions=versions)
    (check,) = [check for check in checks if check.name == f"extra {extra}"]
    assert check.found.startswith(found)
    is_missing = "not installed" in found
    assert check.level == ("missing" if is_missing else "ok")
    assert check.cure == (f"if you want it: pip install 'voxelocity[{extra}]'" if is_missing else "")


def test_every_extra_of_this_package_is_explained():
    assert set(probe_packages().wanted) - {""} <= set(GIVES)


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("2.13.0+cu130", ">=2.11", True),
        ("2.10.0", ">=2.11", False),
        ("2.0.0a2", ">=2.0.0a1", True),
        ("unknown", ">=2.11", None),
        ("unknown", "", True),
    ],
)
def test_versions_are_compared_as_pip_does(version, specifier, expected):
    assert fits(version, specifier) is expected


HURTING = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
    "CUDA_CACHE_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "ACTIVE",
    "KMP_BLOCKTIME": "infinite",
    "PYTHONDEVMODE": "1",
    "PYTHONTRACEMALLOC": "25",
}
HARMLESS = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "",
    "NVIDIA_TF32_OVERRIDE": "1",
    "NCCL_P2P_DISABLE": "0",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "OMP_NUM_THREADS": "8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "200",
}


def test_every_variable_of_the_table_is_planted_here():
    assert {variable.name for variable in VARIABLES} == set(HURTING)


@pytest.mark.parametrize("name", HURTING)
def test_a_variable_that_hurts_is_found_with_its_cost(name):
    (check,) = check_variables({name: HURTING[name]}, num_cores=8, num_gpus=2)
    assert (check.name, check.found) == (name, f"={HURTING[name]}")
    assert check.level in ("note", "warning")
    assert check.costs
    assert name in check.cure


@pytest.mark.parametrize(
    ("environ", "num_cores", "num_gpus"),
    [
        (HARMLESS, 8, 2),
        ({"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}, 8, 0),
        ({"NCCL_P2P_DISABLE": "1"}, 8, 1),
        ({"OMP_NUM_THREADS": "1"}, 1, 2),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}, 8, 2),
    ],
)
def test_a_variable_that_does_no_harm_on_this_machine_is_not_shown(environ, num_cores, num_gpus):
    (check,) = check_variables(environ, num_cores=num_cores, num_gpus=num_gpus)
    assert (check.name, check.level) == ("environment", "ok")


def test_one_thread_for_the_only_rank_is_found():
    (check,) = check_variables({"OMP_NUM_THREADS": " 1 ", "LOCAL_WORLD_SIZE": "1"}, num_cores=8, num_gpus=0)
    assert check.name == "OMP_NUM_THREADS"


def test_a_variable_is_changed_where_removing_it_would_not_help():
    (check,) = check_variables({"OMP_WAIT_POLICY": "ACTIVE"}, num_cores=8, num_gpus=0)
    assert check.cure == "export OMP_WAIT_POLICY=PASSIVE"
