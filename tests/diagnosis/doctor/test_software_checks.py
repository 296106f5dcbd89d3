from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from voxelocity.diagnosis.doctor.known_faults import PAIRS, VARIABLES
from voxelocity.diagnosis.doctor.probes import probe_packages
from voxelocity.diagnosis.doctor.records import Conflict, Driver, Torch, Wanted
from voxelocity.diagnosis.doctor.software_checks import GIVES, check_packages, check_torch, check_variables, runs_on


@pytest.fixture
def judged_torch(torch, driver, processor):
    """Lines that are not fine, of a machine of which some parts are changed."""

    def judge(*, driver=driver, processor=processor, environ=None, **changes):
        checks = check_torch(replace(torch, **changes), driver, processor, environ or {})
        return [check for check in checks if check.level != "ok"]

    return judge


def test_a_sound_torch_is_described(torch, driver, processor):
    found = [check.found for check in check_torch(torch, driver, processor, {})]
    assert found == [
        "2.13.0+cu130, for CUDA 13.0, cuDNN 9.20.0",
        "takes 1.6 s, 1.5 s of it computing",
        "16 threads for operations on the CPU",
        "it sees 1",
    ]


def test_gpus_that_a_scheduler_hides_are_counted(torch, driver, gpu, processor):
    several = replace(driver, gpus=(gpu,) * 8)
    assert "it sees 1 of 8" in [check.found for check in check_torch(torch, several, processor, {})]


def test_without_torch_nothing_can_be_trained(driver, processor):
    (check,) = check_torch(Torch(error="ModuleNotFoundError: No module named 'torch'"), driver, processor, {})
    assert (check.level, check.stops_training) == ("problem", True)
    assert check.found == "it cannot be imported: ModuleNotFoundError: No module named 'torch'"
    assert check.cure.startswith("pip install torch")


def test_a_build_for_cpus_is_fine_without_a_gpu_and_a_problem_with_one(judged_torch):
    cpu = {"version": "2.13.0+cpu", "cuda": "", "cudnn": "", "architectures": (), "sees_cuda": False}
    assert judged_torch(driver=Driver(), **cpu) == []
    (check,) = judged_torch(**cpu)
    assert check.level == "problem"
    assert check.found == "1 GPU here, and torch 2.13.0+cpu is a build for CPUs"
    assert check.cure.endswith("--index-url https://download.pytorch.org/whl/cu130")


@pytest.mark.parametrize(
    ("capability", "cuda", "build"),
    [((6, 1), (13, 0), "cu126"), ((9, 0), (12, 4), "cu126"), ((12, 0), (12, 8), "cu128"), ((12, 0), (13, 0), "cu130")],
)
def test_the_build_to_install_suits_the_gpu_and_the_driver(judged_torch, driver, gpu, capability, cuda, build):
    other = replace(driver, cuda=cuda, gpus=(replace(gpu, capability=capability),))
    (check,) = judged_torch(driver=other, cuda="", cudnn="", sees_cuda=False)
    assert check.cure.endswith(f"/whl/{build}")


def test_a_driver_that_is_too_old_for_the_build_is_named(judged_torch, driver):
    (check,) = judged_torch(driver=replace(driver, version="550.54.14", cuda=(12, 4)), sees_cuda=False)
    assert check.level == "problem"
    assert check.found == "torch was built for CUDA 13.0, which needs driver 580 or newer; found 550.54.14"
    assert check.cure.endswith("/whl/cu126")
    assert "minor-version-compatibility" in check.source


def test_a_driver_of_the_same_major_version_only_gets_a_note(judged_torch, driver):
    (check,) = judged_torch(driver=replace(driver, version="580.65.06", cuda=(13, 0)), cuda="13.2")
    assert (check.level, check.found) == ("note", "torch was built for CUDA 13.2, the driver knows up to 13.0")
    assert judged_torch(driver=replace(driver, cuda=(13, 2)), cuda="13.0") == []


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_the_gpus_is_found(judged_torch, value):
    (check,) = judged_torch(sees_cuda=False, environ={"CUDA_VISIBLE_DEVICES": value})
    assert check.found == f"CUDA_VISIBLE_DEVICES={value!r} hides 1 GPU from torch"
    assert check.cure == "unset CUDA_VISIBLE_DEVICES"


def test_where_the_cause_is_not_known_torch_has_the_word(judged_torch):
    (check,) = judged_torch(sees_cuda=False, warnings=("first", "CUDA initialization: unknown error"))
    assert check.found.endswith("though the driver shows 1: CUDA initialization: unknown error")


def test_a_gpu_without_kernels_stops_training_where_it_is_the_only_one(judged_torch, driver, gpu):
    old = replace(gpu, name="Tesla V100", capability=(7, 0))
    (check,) = judged_torch(driver=replace(driver, gpus=(old,)))
    assert (check.level, check.stops_training) == ("problem", True)
    assert check.found.startswith("torch has no kernels for Tesla V100 (sm_70); it was built for sm_75, sm_80")
    assert check.cure.endswith("/whl/cu126")
    (beside,) = judged_torch(driver=replace(driver, gpus=(gpu, replace(old, index=1))))
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


def test_a_cudnn_that_does_not_fit_stops_training(judged_torch):
    (check,) = judged_torch(cudnn="unusable: cuDNN version incompatibility")
    assert (check.level, check.stops_training) == ("problem", True)
    assert "LD_LIBRARY_PATH" in check.cure


def test_without_cudnn_convolutions_take_a_slower_way(judged_torch):
    (check,) = judged_torch(cudnn="")
    assert (check.name, check.level, check.stops_training) == ("cuDNN", "warning", False)


def test_a_slow_import_points_to_the_network(judged_torch):
    (check,) = judged_torch(import_s=42.0)
    assert (check.level, check.found) == ("warning", "takes 42 s, 1.5 s of it computing")
    assert "local disk" in check.cure


def test_more_threads_than_cores_are_told(judged_torch, processor):
    (check,) = judged_torch(processor=replace(processor, num_budget=4), num_threads=64)
    assert check.found == "64 threads for operations on the CPU, on 4 cores"
    assert check.cure == "export OMP_NUM_THREADS=4"


def test_amd_gpus_are_not_judged(judged_torch):
    (check,) = judged_torch(hip="6.4", cuda="", cudnn="", driver=Driver())
    assert "which the doctor does not check" in check.found


@pytest.fixture
def judged_packages(packages, torch):
    """Lines that are not fine where these packages are (None: not) installed."""

    def judge(*, seen_torch=torch, conflicts=(), **versions):
        named = {name.replace("_", "-"): version for name, version in versions.items()}
        kept = {name: version for name, version in {**packages.versions, **named}.items() if version}
        checks = check_packages(replace(packages, versions=kept, conflicts=conflicts), seen_torch)
        return [check for check in checks if check.level != "ok"]

    return judge


def test_a_whole_installation_is_described(packages, torch):
    found = [check.found for check in check_packages(packages, torch)]
    assert found[0] == "all 2 installed: Python 3.11.7, torch 2.13.0+cu130, numpy 2.4.6"
    assert found[1].startswith("lmdb 3.0.0: a cache of all cases in one file")


def test_a_required_package_that_is_missing_stops_training(judged_packages):
    (check,) = judged_packages(numpy=None)
    assert (check.level, check.stops_training) == ("problem", True)
    assert (check.found, check.cure) == ("not installed: numpy", "pip install 'numpy>=2.0'")


def test_a_torch_that_is_missing_or_came_without_pip_is_judged_elsewhere(judged_packages, torch):
    assert judged_packages(torch=None) == []
    assert judged_packages(torch=None, seen_torch=Torch(error="No module named 'torch'")) == []


def test_a_required_package_that_is_too_old_is_a_warning(judged_packages):
    (check,) = judged_packages(numpy="1.26.4")
    assert (check.level, check.stops_training) == ("warning", False)
    assert check.found == "numpy 1.26.4 (required: >=2.0)"


def test_a_package_that_asks_for_another_neighbor_is_told(judged_packages):
    torch_asks = Conflict(name="torch", version="2.13.0", wants="triton==3.7.1", found="triton 3.5.0")
    lmdb_asks = Conflict(name="lmdb", version="3.0.0", wants="patch-ng<2", found="patch-ng 2.1")
    checks = judged_packages(conflicts=(torch_asks, lmdb_asks))
    assert [check.level for check in checks] == ["warning", "note"]
    assert checks[0].found == "torch 2.13.0 requires triton==3.7.1, and triton 3.5.0 is installed"
    assert checks[0].cure.startswith("pip install 'triton==3.7.1'")


PLANTED = [
    {"cudnn": "9.10.2"},
    {"nvidia-cudnn-cu13": "9.20.0.48"},
    {"numba": "0.61.0"},
    {"nibabel": "5.1.0"},
    {"pandas": "2.2.1"},
    {"tensorboard": "2.20.0", "setuptools": "82.0.1"},
]
MENDED = [
    {"cudnn": "9.15.0"},
    {"nvidia-cudnn-cu13": "9.23.0.1"},
    {"numba": "0.61.2"},
    {"nibabel": "5.2.0"},
    {"pandas": "2.2.2"},
    {"tensorboard": "2.21.0", "setuptools": "84.2.1"},
]


@pytest.mark.parametrize(("pair", "bad", "good"), list(zip(PAIRS, PLANTED, MENDED, strict=True)))
def test_versions_that_do_not_get_along_are_found_and_their_neighbors_are_not(judged_packages, torch, pair, bad, good):
    def checks(versions):
        around = replace(torch, cudnn=versions.get("cudnn", torch.cudnn))
        return judged_packages(seen_torch=around, **{name: text for name, text in versions.items() if name != "cudnn"})

    (check,) = checks(bad)
    assert (check.level, check.costs, check.source) == (pair.level, pair.costs, pair.source)
    assert all(version in check.found for version in bad.values())
    assert checks(good) == []


def test_cudnn_is_nothing_to_a_build_for_cpus(judged_packages, torch):
    assert judged_packages(seen_torch=replace(torch, cuda="", cudnn="9.10.2")) == []


def test_a_missing_extra_says_what_it_gives_and_how_to_get_it(packages, torch):
    without = replace(packages, versions={**packages.versions, "lmdb": ""})
    line = next(check for check in check_packages(without, torch) if check.name == "extra lmdb")
    assert line.level == "ok"
    assert line.found.startswith("not installed: lmdb; for a cache of all cases in one file")
    assert line.cure == "if you want it: pip install 'voxelocity[lmdb]'"


def test_an_extra_of_which_part_is_there_names_both_parts(packages, torch):
    wanted = tuple(Wanted(name=name, extra="bench") for name in ("lmdb", "pandas"))
    checks = check_packages(replace(packages, wanted=wanted), torch)
    (found,) = [check.found for check in checks if check.name == "extra bench"]
    assert found == "lmdb 3.0.0; not installed: pandas; for `voxelocity bench` with its peers"


def test_the_larger_package_stands_for_its_client(packages, torch):
    wanted = (Wanted(name="mlflow-skinny", extra="mlflow"),)
    versions = {**packages.versions, "mlflow": "3.17.2"}
    checks = check_packages(replace(packages, wanted=wanted, versions=versions), torch)
    assert "mlflow-skinny 3.17.2: curves of a run in MLflow" in [check.found for check in checks]


def test_every_extra_of_this_package_is_explained():
    assert {wanted.extra for wanted in probe_packages().wanted} - {""} <= set(GIVES)


def test_a_cuda_build_without_triton_is_told(judged_packages, torch):
    (check,) = judged_packages(triton=None)
    assert (check.name, check.level) == ("triton", "warning")
    assert judged_packages(triton=None, seen_torch=replace(torch, cuda="", cudnn="")) == []


def test_a_version_that_nobody_can_read_is_blamed_for_nothing_known(judged_packages):
    assert judged_packages(pandas="local build") == []


def names(environ, *, num_cores=8, num_gpus=2):
    checks = check_variables(environ, num_cores=num_cores, num_gpus=num_gpus)
    return [check.name for check in checks if check.level != "ok"]


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
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_NUM_THREADS": "1",
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
    "NUMBA_DISABLE_JIT": "0",
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


def test_values_that_do_no_harm_are_passed_over():
    (check,) = check_variables(HARMLESS, num_cores=8, num_gpus=2)
    assert (check.level, check.found) == ("ok", "nothing set that slows training down")


def test_a_variable_about_gpus_is_nothing_without_them():
    assert names({"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}, num_gpus=0) == []
    assert names({"NCCL_P2P_DISABLE": "1"}, num_gpus=1) == []


def test_one_thread_is_right_on_one_core_and_for_ranks_that_share_the_cores():
    assert names({"OMP_NUM_THREADS": "1"}, num_cores=1) == []
    assert names({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}) == []
    assert names({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1"}) == ["OMP_NUM_THREADS"]


def test_a_variable_is_changed_where_removing_it_would_not_do():
    (check,) = check_variables({"OMP_WAIT_POLICY": "ACTIVE"}, num_cores=8, num_gpus=0)
    assert check.cure == "export OMP_WAIT_POLICY=PASSIVE"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(pair.versions))
def test_each_entry_names_versions_costs_cure_and_an_address(pair):
    assert all(len(SpecifierSet(versions)) > 0 for versions in pair.versions.values())
    assert pair.level != "ok"
    assert pair.costs
    assert pair.cure
    assert pair.source.startswith("https://")
