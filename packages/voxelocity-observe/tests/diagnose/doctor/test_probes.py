from __future__ import annotations

import importlib.metadata
import os
import resource
import sys
import tomllib
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch
from packaging.requirements import Requirement

from voxelocity_observe.core.environment import CHECKOUT, DISTRIBUTIONS
from voxelocity_observe.core.memory_folders import MemoryFolder
from voxelocity_observe.diagnose.doctor import probes, torch_child
from voxelocity_observe.diagnose.doctor.probes import (
    parse_requirements,
    probe_driver,
    probe_limits,
    probe_memory,
    probe_packages,
    probe_processor,
    probe_torch,
)
from voxelocity_observe.diagnose.doctor.records import Gpu


class RefusalError(Exception):
    """What the fake raises in place of NVMLError: not supported, as a rule."""

    value = 3


class FakeNvml:
    """A driver with one GPU. Answers are by function; one that is missing is refused, as by real drivers."""

    NVMLError = RefusalError

    def __init__(self, **answers):
        self.answers = {**answers, "nvmlShutdown": None}
        self.asked = []

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments):
            self.asked.append(name)
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
    "nvmlDeviceGetComputeMode": 3,
}


def card(root, name, vendor="0x10de", kind="0x030200"):
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_each_answer_is_in_its_field(tmp_path):
    nvml = FakeNvml(**FULL)
    driver = probe_driver(lambda: nvml, root=tmp_path)
    assert (driver.version, driver.cuda, driver.silence, driver.num_cards) == ("580.65.06", (12, 8), "", 1)
    assert driver.gpus == (
        Gpu(
            index=0,
            name="NVIDIA A100",
            memory_bytes=40 * 2**30,
            memory_used_bytes=2**30,
            capability=(8, 0),
            has_mig=False,
            is_persistent=True,
            has_ecc=True,
            num_uncorrected=3,
            pcie_width=8,
            pcie_width_max=16,
            pcie_generation=1,
            compute_mode="exclusive",
        ),
    )
    assert nvml.asked.count("nvmlShutdown") == 1


@pytest.mark.parametrize("refused", sorted(set(FULL) - {"nvmlInit"}))
def test_a_refused_question_leaves_the_other_answers(tmp_path, refused):
    answers = {name: answer for name, answer in FULL.items() if name != refused}
    driver = probe_driver(lambda: FakeNvml(**answers), root=tmp_path)
    whole = probe_driver(lambda: FakeNvml(**FULL), root=tmp_path)
    assert driver != whole
    if refused.startswith("nvmlSystem"):
        assert driver.gpus == whole.gpus
    elif refused not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"):
        assert driver.gpus[0].name == "NVIDIA A100"


def slice_at(handle, index):
    if index > 1:
        raise RefusalError("Not Found")
    return f"slice {index}"


SLICED = {
    **FULL,
    "nvmlDeviceGetMigMode": (1, 1),
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": slice_at,
    "nvmlDeviceGetUUID": "MIG-1",
}


class LostError(RefusalError):
    value = 15


def lost(handle, index):
    raise LostError("GPU is lost")


@pytest.mark.parametrize(("slices", "num_slices"), [(slice_at, 2), (lost, None)])
def test_slices_of_a_gpu_are_counted(tmp_path, slices, num_slices):
    answers = {**SLICED, "nvmlDeviceGetMigDeviceHandleByIndex": slices}
    (gpu,) = probe_driver(lambda: FakeNvml(**answers), root=tmp_path).gpus
    assert (gpu.has_mig, gpu.num_slices) == (True, num_slices)


def test_answers_in_bytes_are_read_as_text(tmp_path):
    old = {**FULL, "nvmlDeviceGetName": b"Tesla V100", "nvmlSystemGetDriverVersion": b"470.10"}
    driver = probe_driver(lambda: FakeNvml(**old), root=tmp_path)
    assert (driver.version, driver.gpus[0].name) == ("470.10", "Tesla V100")


def test_a_driver_that_does_not_start_gives_its_reason_and_cards_are_counted_on_the_bus(tmp_path):
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
    assert set(nvml.asked) == {*SLICED, "nvmlShutdown"}
    assert [name for name in sorted(SLICED) if not callable(getattr(pynvml, name, None))] == []
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
    assert "nvidia-ml-py, which queries the driver, is not installed" in probe_driver(root=tmp_path).silence


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
    for core in range(12):
        (root / f"sys/devices/system/node/node{core // 4}/cpu{core}").mkdir(parents=True)
    processor = probe_processor(environ={"SLURM_CPUS_PER_TASK": "2"}, root=root)
    assert (processor.name, processor.load) == ("Quick 9000", 3.5)
    assert processor.has_fast_bfloat16 is True
    assert (processor.num_affine, processor.num_granted, processor.num_budget) == (3, 2, 2)
    assert processor.num_nodes == 2


def test_without_proc_and_sys_the_rest_is_still_reported(tmp_path):
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


def test_where_swap_cannot_be_read_it_counts_as_none(root, monkeypatch):
    def refusing():
        raise OSError("sysctl() failed")

    monkeypatch.setattr(psutil, "swap_memory", refusing)
    assert (probe_memory(root=root).swap_bytes, probe_memory(root=root).swap_used_bytes) == (0, 0)


def test_folders_that_a_process_uses_are_not_left_behind(root, monkeypatch):
    used, unused = (MemoryFolder(path=root, num_bytes=1, is_used=is_used) for is_used in (True, False))
    monkeypatch.setattr(probes, "memory_folders", lambda: [used, unused])
    assert probe_memory(root=root).left_behind == (unused,)


def test_limits_of_the_process_and_its_group_are_read(root, monkeypatch):
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
    files = [CHECKOUT / "packages" / name / "pyproject.toml" for name in DISTRIBUTIONS]
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    needed = {Requirement(text) for project in projects for text in project["dependencies"]}
    assert set(packages.wanted[""]) == {requirement for requirement in needed if requirement.name not in DISTRIBUTIONS}
    # Extras that only hand over to another distribution are that distribution's.
    assert set(packages.wanted) - {""} == {
        name for project in projects for name in project.get("optional-dependencies", {}) if name != "docs"
    } - {"dev", "lab"}
    assert any(require.name == "numpy" for require in packages.requires["scipy"])
    assert packages.without_loops == ""


def test_without_the_engine_nothing_is_said_of_its_loops(monkeypatch):
    monkeypatch.setattr(probes, "package_folders", list)
    assert probe_packages().without_loops is None


def install(folder, name, version, *lines):
    (folder / f"{name}-{version}.dist-info").mkdir()
    text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
    (folder / f"{name}-{version}.dist-info/METADATA").write_text(f"{text}\n")


def test_leftovers_of_a_broken_removal_and_second_copies_do_no_harm(tmp_path, monkeypatch):
    (tmp_path / "~umpy-2.0.dist-info").mkdir()
    install(tmp_path, "scipy", "0.1", "Requires-Dist: numpy<1")
    monkeypatch.syspath_prepend(tmp_path)
    packages = probe_packages()
    assert packages.versions["scipy"] == "0.1"
    assert packages.versions["numpy"] == numpy.__version__
    assert packages.requires["scipy"] == (Requirement("numpy<1"),)


def test_without_a_checkout_the_installed_package_lists_what_it_wants(tmp_path, monkeypatch):
    extras = ("Provides-Extra: lmdb", "Provides-Extra: dev")
    lmdb, ruff = 'Requires-Dist: lmdb>=1.6; extra == "lmdb"', "Requires-Dist: ruff; extra == 'dev'"
    install(tmp_path, "voxelocity", "0.1", "Requires-Dist: torch>=2.11", lmdb, ruff, *extras)
    install(tmp_path, "voxelocity_observe", "0.1", "Requires-Dist: rich")
    install(tmp_path, "voxelocity_lab", "0.1", "Requires-Dist: voxelocity", "Requires-Dist: torch>=2.11")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(probes, "checkout_project", lambda distribution: {})
    assert probe_packages().wanted == {
        "": (Requirement("torch>=2.11"), Requirement("rich")),
        "lmdb": (Requirement("lmdb>=1.6"),),
    }


def test_a_package_that_is_neither_installed_nor_in_a_checkout_wants_nothing(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    monkeypatch.setattr(probes, "checkout_project", lambda distribution: {})
    assert probe_packages().wanted == {}


LISTED = [
    "Patch_NG>=1.0",
    "winloop; platform_system == 'Windows'",
    "optree>=0.9; extra == 'optree'",
    "voxelocity[lmdb]",
    "not a requirement!!",
    "nvtx>=0.2; (platform_system == 'Linux') and extra == \"nvtx\"",
]


@pytest.mark.parametrize(("extra", "names"), [("", ["patch-ng"]), ("nvtx", ["patch-ng", "nvtx"])])
def test_only_requirements_that_hold_on_this_machine_count(extra, names):
    assert [requirement.name for requirement in parse_requirements(LISTED, extra)] == names


def child(script):
    return [sys.executable, "-I", "-S", "-c", script]


def test_a_fresh_process_reports_what_torch_is():
    seen = probe_torch()
    assert (seen.version, seen.error) == (str(torch.__version__), "")
    assert (seen.cuda, seen.num_gpus) == (torch.version.cuda or "", torch.cuda.device_count())
    assert seen.num_threads > 0
    assert seen.import_s > 0
    assert seen.import_cpu_s > 0
    assert seen.gradients in ("right", "wrong")


def test_a_torch_that_cannot_be_imported_is_reported_in_its_own_words(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    run = f"runpy.run_path({torch_child.__file__!r}, {{}}, '__main__')"
    script = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); {run}"
    assert probe_torch(child(script)).error == "OSError: libcudart.so.12: cannot open shared object file"


@pytest.mark.parametrize(
    ("error", "found"), [(0.0, "right"), (1e-3, "right"), (0.5, "wrong"), (1e37, "wrong"), (float("nan"), "wrong")]
)
def test_gradients_in_bfloat16_are_compared_with_those_in_float32(monkeypatch, error, found):
    backward = torch.ops.aten.convolution_backward

    def erring(output, image, weight, *geometry):
        gradients = backward(output.float(), image.float(), weight.float(), *geometry)
        wrong_by = error * gradients[1].abs().max() if weight.dtype == torch.bfloat16 else 0.0
        return None, (gradients[1] + wrong_by).to(weight.dtype), None

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", erring)
    assert torch_child._compare_gradients() == {"gradients": found}


def test_gradients_that_a_build_of_torch_cannot_compute_are_not_judged(monkeypatch):
    def refusing(*_):
        raise RuntimeError("not implemented for 'BFloat16'")

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", refusing)
    assert torch_child._compare_gradients() == {}


def test_gradients_that_end_their_process_leave_what_was_found_of_torch():
    first = """import os; print('{"version": "2.99", "later": 1}', flush=True); """
    seen = probe_torch(child(first + "os.kill(os.getpid(), 4)"))
    assert (seen.version, seen.error, seen.gradients) == ("2.99", "", "ended by SIGILL")


def test_words_that_libraries_print_before_the_answer_do_no_harm():
    assert probe_torch(child("""print('hello'); print('{"version": "2.99"}')""")).version == "2.99"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (child("import os; os.kill(os.getpid(), 11)"), "ended by SIGSEGV"),
        (child("raise SystemExit('no torch today')"), "ended with status 1: no torch today"),
        (child("print('no json')"), "ended with status 0: no message"),
        (child(""), "ended with status 0: no message"),
        (["/nowhere/python"], "no process could be started"),
    ],
)
def test_a_process_that_breaks_off_is_reported(command, words):
    assert words in probe_torch(command).error


def test_a_process_that_hangs_is_ended():
    assert probe_torch(child("import time; time.sleep(60)"), timeout_s=0.2).error.endswith("took more than 0 s")
