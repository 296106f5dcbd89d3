from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from voxelocity.diagnosis.doctor import probes
from voxelocity.diagnosis.doctor.probes import (
    find_conflicts,
    fits,
    probe_driver,
    probe_limits,
    probe_memory,
    probe_packages,
    probe_processor,
    probe_torch,
    wanted_packages,
)
from voxelocity.diagnosis.doctor.records import Wanted


class RefusalError(Exception):
    """What the fake raises in place of NVMLError: not supported, as a rule."""

    value = 3


class FakeNvml:
    """A driver with one GPU. Answers are by function; one that is missing is refused, as by real drivers."""

    NVMLError = RefusalError

    def __init__(self, **answers):
        self.answers = answers
        self.num_shutdowns = 0
        self.asked = set()

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments):
            self.asked.add(name)
            if name == "nvmlShutdown":
                self.num_shutdowns += 1
                return None
            if name not in self.answers:
                raise RefusalError("Not Supported")
            found = self.answers[name]
            return found(*arguments) if callable(found) else found

        return answer


FULL = {
    "nvmlInit": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 12_080,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetName": "NVIDIA A100",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 * 2**30, used=2**30),
    "nvmlDeviceGetCudaComputeCapability": (8, 0),
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetTotalEccErrors": 3,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetComputeMode": 3,
}


def card(root, name, vendor="0x10de", kind="0x030200"):
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_every_answer_finds_its_place(tmp_path):
    nvml = FakeNvml(**FULL)
    driver = probe_driver(lambda: nvml, root=tmp_path)
    assert (driver.version, driver.cuda, driver.silence, driver.num_cards) == ("580.65.06", (12, 8), "", 1)
    (gpu,) = driver.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.memory_used_bytes) == ("NVIDIA A100", 40 * 2**30, 2**30)
    assert (gpu.capability, gpu.has_mig, gpu.num_slices) == ((8, 0), False, None)
    assert (gpu.is_persistent, gpu.has_ecc, gpu.num_uncorrected) == (True, True, 3)
    assert (gpu.pcie_width, gpu.pcie_width_max, gpu.pcie_generation, gpu.pcie_generation_max) == (8, 16, 1, 4)
    assert gpu.compute_mode == "exclusive"
    assert nvml.num_shutdowns == 1


@pytest.mark.parametrize("refused", sorted(set(FULL) - {"nvmlInit"}))
def test_a_question_that_is_refused_leaves_the_other_answers(tmp_path, refused):
    driver = probe_driver(
        lambda: FakeNvml(**{name: answer for name, answer in FULL.items() if name != refused}), root=tmp_path
    )
    whole = probe_driver(lambda: FakeNvml(**FULL), root=tmp_path)
    assert driver != whole
    if refused in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        assert driver.gpus == whole.gpus
    elif refused not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert driver.gpus[0].index == 0
        assert refused == "nvmlDeviceGetName" or driver.gpus[0].name == "NVIDIA A100"


def slice_at(handle, index):
    if index > 1:
        raise RefusalError("Not Found")
    return f"slice {index}"


SLICED = {
    **FULL,
    "nvmlDeviceGetMigMode": (1, 1),
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": slice_at,
}


def test_slices_of_a_gpu_are_counted(tmp_path):
    (gpu,) = probe_driver(lambda: FakeNvml(**SLICED), root=tmp_path).gpus
    assert (gpu.has_mig, gpu.num_slices) == (True, 2)


def test_answers_in_bytes_are_read_as_text(tmp_path):
    old = {**FULL, "nvmlDeviceGetName": b"Tesla V100", "nvmlSystemGetDriverVersion": b"470.10"}
    driver = probe_driver(lambda: FakeNvml(**old), root=tmp_path)
    assert (driver.version, driver.gpus[0].name) == ("470.10", "Tesla V100")


def test_a_driver_that_does_not_start_says_why_and_cards_are_counted_on_the_bus(tmp_path):
    card(tmp_path, "0000:01:00.0")
    card(tmp_path, "0000:02:00.0", kind="0x030000")
    card(tmp_path, "0000:02:00.1", kind="0x040300")  # its sound
    card(tmp_path, "0000:03:00.0", vendor="0x8086", kind="0x030000")
    (tmp_path / "sys/bus/pci/devices/0000:09:00.0").mkdir()

    def mismatch():
        raise RefusalError("Driver/library version mismatch")

    driver = probe_driver(lambda: FakeNvml(nvmlInit=mismatch), root=tmp_path)
    assert (driver.silence, driver.num_cards, driver.gpus) == ("Driver/library version mismatch", 2, ())


def test_all_that_is_asked_exists_in_the_binding_of_nvidia(tmp_path):
    pynvml = pytest.importorskip("pynvml")
    nvml = FakeNvml(**SLICED)
    probe_driver(lambda: nvml, root=tmp_path)
    assert nvml.asked == {*SLICED, "nvmlShutdown"}
    assert [name for name in sorted(nvml.asked) if not callable(getattr(pynvml, name, None))] == []
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC) == (1, 0)
    modes = (
        pynvml.NVML_COMPUTEMODE_DEFAULT,
        pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
        pynvml.NVML_COMPUTEMODE_PROHIBITED,
        pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    )
    assert modes == (0, 1, 2, 3)


def test_without_the_binding_the_driver_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py, which asks the driver, is not installed" in probe_driver(root=tmp_path).silence


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
    processor = probe_processor(environ={"SLURM_CPUS_PER_TASK": "2"}, root=root)
    assert (processor.name, processor.load) == ("Quick 9000", 3.5)
    assert processor.has_fast_bfloat16 is True
    assert (processor.num_affine, processor.num_granted, processor.num_budget) == (3, 2, 2)
    assert processor.num_nodes == 2


def test_without_proc_and_sys_the_rest_is_still_told(tmp_path):
    processor = probe_processor(environ={}, root=tmp_path)
    assert (processor.name, processor.has_fast_bfloat16, processor.num_nodes, processor.load) == ("", None, None, None)
    assert processor.num_budget >= 1
    memory = probe_memory(root=tmp_path, shm=tmp_path / "none")
    assert (memory.shm_bytes, memory.shm_free_bytes, memory.overcommit) == (None, None, None)
    assert memory.total_bytes > 0
    limits = probe_limits(root=tmp_path)
    assert (limits.group_processes, limits.has_rdma) == (None, False)


def test_a_folder_on_a_disk_is_no_shared_memory(root):
    memory = probe_memory(root=root, shm=root)
    assert (memory.shm_bytes, memory.overcommit) == (None, 2)


def test_memory_that_processes_share_is_measured():
    memory = probe_memory()
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
    limits = probe_limits(root=root)
    assert (limits.open_files, limits.open_files_hard) == (1024, 4096)
    assert (limits.processes, limits.group_processes) == (None, 512)
    assert (limits.locked_bytes, limits.has_rdma) == (65_536, True)


def test_installed_and_wanted_packages_are_found():
    packages = probe_packages()
    assert packages.versions["numpy"] == numpy.__version__
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    required = [wanted for wanted in packages.wanted if not wanted.extra]
    assert len(required) == len(project["dependencies"])
    assert {wanted.extra for wanted in packages.wanted} - {""} == set(project["optional-dependencies"]) - {"dev"}


def test_leftovers_of_a_broken_removal_and_second_copies_do_no_harm(tmp_path, monkeypatch):
    (tmp_path / "~umpy-2.0.dist-info").mkdir()
    copy = tmp_path / "numba-0.1.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 0.1\nRequires-Dist: numpy<1\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = probe_packages()
    assert packages.versions["numba"] == "0.1"
    assert packages.versions["numpy"] == numpy.__version__
    assert ("numba", "numpy<1") in [(conflict.name, conflict.wants) for conflict in packages.conflicts]


def test_without_a_checkout_the_installed_package_tells_what_it_wants(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11", 'lmdb>=1.6; extra == "lmdb"'])
    monkeypatch.setattr(probes, "checkout_project", dict)
    assert probe_packages().wanted == (
        Wanted(name="torch", versions=">=2.11"),
        Wanted(name="lmdb", versions=">=1.6", extra="lmdb"),
    )


def test_a_package_that_is_neither_installed_nor_in_a_checkout_wants_nothing(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(probes, "checkout_project", dict)
    assert probe_packages().wanted == ()


def test_only_requirements_of_this_machine_and_of_users_count():
    asked = [
        "PyYAML>=6.0",
        "winloop; platform_system == 'Windows'",
        "ruff>=0.15; extra == 'dev'",
        "voxelocity[lmdb]; extra == 'dev'",
        "nvtx>=0.2; (platform_system == 'Linux') and extra == \"nvtx\"",
    ]
    assert list(wanted_packages(asked)) == [
        Wanted(name="pyyaml", versions=">=6.0"),
        Wanted(name="nvtx", versions=">=0.2", extra="nvtx"),
    ]


def test_a_package_that_asks_for_another_neighbor_is_found():
    versions = {"torch": "2.12.0", "triton": "3.5.0", "numba": "0.61.0", "numpy": "2.1.0"}
    asks = {
        "torch": ["triton==3.7.0; platform_system == 'Linux'", "optree>=0.9; extra == 'optree'", "not installed>=1"],
        "numba": ["numpy<2.2,>=1.24"],
    }
    (conflict,) = find_conflicts(versions, asks)
    assert (conflict.name, conflict.version) == ("torch", "2.12.0")
    assert (conflict.wants, conflict.found) == ("triton==3.7.0", "triton 3.5.0")


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


def child(script):
    return [sys.executable, "-I", "-S", "-c", script]


def test_a_fresh_process_tells_what_torch_is():
    seen = probe_torch()
    assert (seen.version, seen.error) == (str(torch.__version__), "")
    assert (seen.cuda, seen.sees_cuda) == (torch.version.cuda or "", torch.cuda.is_available())
    assert seen.num_gpus == torch.cuda.device_count()
    assert seen.num_threads > 0
    assert seen.import_s > 0
    assert seen.import_cpu_s > 0


def test_a_torch_that_cannot_be_imported_is_told_with_its_own_words(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    import voxelocity.diagnosis.doctor.torch_child as child_module

    run = f"runpy.run_path({child_module.__file__!r}, {{}}, '__main__')"
    script = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); {run}"
    assert probe_torch(child(script)).error == "OSError: libcudart.so.12: cannot open shared object file"


def test_words_that_libraries_print_before_the_answer_do_no_harm():
    assert probe_torch(child("""print('hello'); print('{"version": "2.99", "warnings": ["old"]}')""")).version == "2.99"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("raise SystemExit('no torch today')", "ended with status 1: no torch today"),
        ("print('no json')", "ended with status 0: no message"),
        ("", "ended with status 0: no message"),
    ],
)
def test_a_process_that_breaks_off_is_told_and_ends_nothing(script, words):
    assert words in probe_torch(child(script)).error


def test_a_process_that_hangs_is_ended():
    assert probe_torch(child("import time; time.sleep(60)"), timeout_s=0.2).error.endswith("took more than 0 s")


def test_a_python_that_cannot_be_started_is_told(tmp_path):
    assert "no process could be started" in probe_torch([str(tmp_path / "missing")]).error
