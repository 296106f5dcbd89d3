"""What this machine has, without a judgment: GPUs, torch, cores, memory, limits, packages. `disk` measures the disk.

What cannot be read stays unknown. torch is queried in its own process, because a broken torch must not end the doctor.
Tests plant a file system with `proc` and `sys` as `root`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from voxelocity_observe.core.command import signal_name
from voxelocity_observe.core.environment import DISTRIBUTIONS, checkout_project, package_folders
from voxelocity_observe.core.host import (
    allowed_cpus,
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    file_system_of,
    first_field,
    is_in_memory,
    positive_variable,
    total_memory_bytes,
)
from voxelocity_observe.core.kernel_files import file_number, file_text
from voxelocity_observe.core.memory_folders import memory_folders
from voxelocity_observe.diagnose.doctor.records import Driver, Gpu, Memory, Packages, Processor, ResourceLimits, Torch
from voxelocity_observe.monitor.nvml import GpuName, Nvml, NvmlError, gpu_slices, text

_ROOT = Path("/")
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
# -P: puts no folder in front of the installed packages, so that nothing shadows them.
_CHILD = (sys.executable, "-P", str(Path(__file__).with_name("torch_child.py")))


def probe_driver(load: Callable[[], Any] | None = None, *, root: Path = _ROOT) -> Driver:
    """The driver and its GPUs. Starts no CUDA; the driver wakes a sleeping GPU, which may take a second.

    Args:
        load: returns `pynvml` or a stand-in with its functions, for tests.
        root: of the file system.
    """
    # The bus is hidden in some containers.
    num_cards = sum(
        file_text(device / "vendor") == _NVIDIA and file_text(device / "class").startswith(_DISPLAY_CLASSES)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )
    try:
        nvml = Nvml(load)
    except NvmlError as refusal:
        return Driver(silence=refusal.reason, num_cards=num_cards)
    with contextlib.closing(nvml):
        cuda = nvml.ask_or_none("nvmlSystemGetCudaDriverVersion_v2")
        gpus = tuple(_probe_gpu(nvml, index) for index in range(nvml.ask_or_none("nvmlDeviceGetCount") or 0))
        return Driver(
            version=text(nvml.ask_or_none("nvmlSystemGetDriverVersion")),
            cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=gpus,
            num_cards=max(num_cards, len(gpus)),
        )


def _probe_gpu(nvml: Nvml, index: int) -> Gpu:
    handle = nvml.ask_or_none("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index=index)

    def ask(name: str, *arguments: Any) -> Any:
        return nvml.ask_or_none(f"nvmlDeviceGet{name}", handle, *arguments)

    def is_on(name: str) -> bool | None:
        modes = ask(name)  # current and pending
        return None if modes is None else bool(modes[0])

    memory, capability, persistence = ask("MemoryInfo"), ask("CudaComputeCapability"), ask("PersistenceMode")
    has_mig, has_ecc, num_slices = is_on("MigMode"), is_on("EccMode"), None
    if has_mig:
        with contextlib.suppress(NvmlError):  # the GPU fell off the bus
            num_slices = len(gpu_slices(nvml, handle, GpuName(index=index)))
    return Gpu(
        index=index,
        name=text(ask("Name")),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        has_mig=has_mig,
        num_slices=num_slices,
        is_persistent=None if persistence is None else bool(persistence),
        has_ecc=has_ecc,
        # 1: errors that could not be corrected; 0: those since the driver was loaded.
        num_uncorrected=ask("TotalEccErrors", 1, 0) if has_ecc else None,
        pcie_width=ask("CurrPcieLinkWidth"),
        pcie_width_max=ask("MaxPcieLinkWidth"),
        pcie_generation=ask("CurrPcieLinkGeneration"),
        compute_mode=_COMPUTE_MODES.get(ask("ComputeMode"), ""),
    )


def probe_torch(command: Sequence[str] = _CHILD, *, timeout_s: float = 60.0) -> Torch:
    """Torch of this Python, imported in a fresh process that then asks it whether it can use a GPU."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Torch(error=f"`import torch` and asking for a GPU took more than {timeout_s:.0f} s")
    except OSError as error:
        return Torch(error=f"no process could be started to import it ({error.strerror})")
    found = _answers(ended.stdout)
    if not ended.returncode and found:
        return Torch(**found)
    how = f"ended by {signal_name(-ended.returncode)}"
    if ended.returncode >= 0:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        how = f"ended with status {ended.returncode}: {last}"
    return Torch(**found, gradients=how) if found else Torch(error=f"the process that imports it {how}")


def _answers(text: str) -> dict[str, Any]:
    """Fields of `Torch`, from all lines of JSON that a child has printed; libraries print lines of their own."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            found |= json.loads(line)
    return {field.name: found[field.name] for field in fields(Torch) if field.name in found}


def probe_processor(*, environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> Processor:
    """Cores of the machine and of this process; `environ` may hold SLURM's grant."""
    affine = allowed_cpus()
    cpuinfo = root / "proc/cpuinfo"
    info = file_text(cpuinfo)
    load = file_text(root / "proc/loadavg").split()
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    return Processor(
        name=first_field(info, "model name"),
        has_fast_bfloat16=cpu_has_fast_bfloat16(cpuinfo) if first_field(info, "flags") else None,
        num_cores=os.cpu_count() or len(affine),
        num_affine=len(affine),
        num_granted=positive_variable("SLURM_CPUS_PER_TASK", environ),
        num_budget=cpu_budget(num_local_ranks=1, environ=environ, root=root),
        num_nodes=sum(any((node / f"cpu{core}").exists() for core in affine) for node in nodes) or None,
        load=float(load[0]) if load else None,
    )


def probe_memory(*, root: Path = _ROOT, shm: Path = Path("/dev/shm")) -> Memory:
    """Main memory, swap and /dev/shm."""
    swap_bytes = swap_used_bytes = 0
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # where the system does not report swap
        swap = psutil.swap_memory()
        swap_bytes, swap_used_bytes = int(swap.total), int(swap.used)
    room = shutil.disk_usage(shm) if shm.is_dir() and is_in_memory(file_system_of(shm)) else None
    return Memory(
        machine_bytes=int(psutil.virtual_memory().total),
        total_bytes=total_memory_bytes(root=root),
        available_bytes=available_memory_bytes(root=root),
        swap_bytes=swap_bytes,
        swap_used_bytes=swap_used_bytes,
        shm_bytes=room and room.total,
        shm_free_bytes=room and room.free,
        left_behind=tuple(folder for folder in memory_folders() if not folder.is_used),
        overcommit=file_number(root / "proc/sys/vm/overcommit_memory"),
    )


def probe_limits(*, root: Path = _ROOT) -> ResourceLimits:
    """Limits of this process, which its child processes inherit."""

    def limits(kind: int) -> tuple[int | None, ...]:
        return tuple(None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind))

    files, files_hard = limits(resource.RLIMIT_NOFILE)
    return ResourceLimits(
        open_files=files,
        open_files_hard=files_hard,
        processes=limits(resource.RLIMIT_NPROC)[0],
        group_processes=file_number(root / "sys/fs/cgroup/pids.max", root / "sys/fs/cgroup/pids/pids.max"),
        locked_bytes=limits(resource.RLIMIT_MEMLOCK)[0],
        has_rdma=any((root / "sys/class/infiniband").glob("*")),
    )


def probe_packages() -> Packages:
    """Packages of this Python, from their metadata alone."""
    # Python imports the first one on the path. Leftovers of a broken removal have no name.
    found = reversed(list(importlib.metadata.distributions()))
    installed = {name: distribution for distribution in found if (name := _normalized_name(distribution))}
    wanted = _own_requirements()
    ours = {requirement.name for requirements in wanted.values() for requirement in requirements}
    return Packages(
        python=platform.python_version(),
        versions={name: distribution.version for name, distribution in installed.items()},
        wanted=wanted,
        requires={
            name: parse_requirements(distribution.requires or ())
            for name, distribution in installed.items()
            if name in ours
        },
        without_loops=_why_without_loops(),
    )


def _why_without_loops() -> str | None:
    """As `Packages.without_loops`. Asks the module that builds them, which imports the standard library alone."""
    for folder in package_folders():
        if folder.name == DISTRIBUTIONS["voxelocity"]:
            why_not: Callable[[], str] = runpy.run_path(str(folder / "core" / "build_loops.py"))["why_not"]
            return why_not()
    return None


def _normalized_name(distribution: importlib.metadata.Distribution) -> str:
    try:
        metadata = distribution.metadata
    except FileNotFoundError:
        # A removal that did not finish; `importlib_metadata`, if a program has imported it, raises this.
        return ""
    return canonicalize_name(metadata["Name"]) if "Name" in metadata else ""


def _own_requirements() -> dict[str, tuple[Requirement, ...]]:
    """Those of the checkout this runs from, since the installed version may differ; else the package's."""
    wanted: dict[str, dict[Requirement, None]] = {}
    for distribution in DISTRIBUTIONS:
        for extra, requirements in _requirements_of(distribution).items():
            wanted.setdefault(extra, {}).update(dict.fromkeys(requirements))
    # Extras for developing Voxelocity are not for using it; `voxelocity[docs]` does not exist.
    return {extra: tuple(found) for extra, found in wanted.items() if found and extra not in {"dev", "docs"}}


def _requirements_of(distribution: str) -> dict[str, tuple[Requirement, ...]]:
    """By extra, "" for what it needs in any case; empty if the distribution is not installed."""
    if project := checkout_project(distribution):
        texts = {"": project["dependencies"], **project.get("optional-dependencies", {})}
        return {extra: parse_requirements(texts[extra]) for extra in texts}
    try:
        metadata = importlib.metadata.metadata(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {}
    lines = metadata.get_all("Requires-Dist", [])
    wanted = {"": parse_requirements(lines)}
    for extra in metadata.get_all("Provides-Extra", []):
        # Those without a marker hold for each extra too.
        wanted[extra] = tuple(
            requirement for requirement in parse_requirements(lines, extra) if requirement not in wanted[""]
        )
    return wanted


def parse_requirements(texts: Iterable[str], extra: str = "") -> tuple[Requirement, ...]:
    """The requirements, as metadata writes them, that hold on this machine; what cannot be parsed is left out."""
    found = []
    for line in texts:
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found.append(Requirement(f"{canonicalize_name(requirement.name)}{requirement.specifier}"))
    return tuple(requirement for requirement in found if requirement.name not in DISTRIBUTIONS)
