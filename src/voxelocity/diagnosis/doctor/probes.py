"""What this machine has, without a judgment: GPUs, torch, cores, memory, limits, packages. `disk` measures the disk.

What cannot be read stays unknown. torch is queried in its own process, because a broken torch must not end the doctor.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from voxelocity.diagnosis.doctor.records import (
    Conflict,
    Driver,
    Gpu,
    Limits,
    Memory,
    Packages,
    Processor,
    Torch,
    Wanted,
)
from voxelocity.observe import (
    allowed_cpus,
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    file_system_of,
    total_memory_bytes,
)
from voxelocity.observe.command import signal_name
from voxelocity.observe.environment import checkout_project
from voxelocity.observe.host import first_field, is_in_memory, positive_variable
from voxelocity.observe.kernel_files import file_number, file_text
from voxelocity.observe.memory_folders import memory_folders
from voxelocity.observe.nvml import Nvml, NvmlError, text

_ROOT = Path("/")
_SHM = Path("/dev/shm")
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_CHILD = Path(__file__).with_name("torch_child.py")
_TIMEOUT_S = 60.0
# Extras for developing Voxelocity, not for using it.
_OF_DEVELOPERS = ("dev",)


def probe_driver(load: Callable[[], Any] | None = None, *, root: Path = _ROOT) -> Driver:
    """The driver and its GPUs. Starts no CUDA; the driver wakes a sleeping GPU, which may take a second.

    Args:
        load: returns `pynvml` or a stand-in with its functions, for tests.
        root: of the file system with `sys`, for tests.
    """
    num_cards = _num_cards(root)
    try:
        nvml = Nvml(load)
    except NvmlError as refusal:
        return Driver(silence=refusal.reason, num_cards=num_cards)
    try:
        cuda = nvml.answer("nvmlSystemGetCudaDriverVersion_v2")
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.answer("nvmlDeviceGetCount") or 0))
        return Driver(
            version=text(nvml.answer("nvmlSystemGetDriverVersion")),
            cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=gpus,
            num_cards=max(num_cards, len(gpus)),
        )
    finally:
        nvml.close()


def _gpu(nvml: Nvml, index: int) -> Gpu:
    handle = nvml.answer("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index=index)

    def ask(name: str, *arguments: Any) -> Any:
        return nvml.answer(f"nvmlDeviceGet{name}", handle, *arguments)

    memory, capability, persistence = ask("MemoryInfo"), ask("CudaComputeCapability"), ask("PersistenceMode")
    mig, ecc = ask("MigMode"), ask("EccMode")
    num_slices = None
    if mig is not None and mig[0]:
        slices = (ask("MigDeviceHandleByIndex", number) for number in range(ask("MaxMigDeviceCount") or 0))
        num_slices = sum(handle is not None for handle in slices)
    return Gpu(
        index=index,
        name=text(ask("Name")),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        has_mig=None if mig is None else bool(mig[0]),
        num_slices=num_slices,
        is_persistent=None if persistence is None else bool(persistence),
        has_ecc=None if ecc is None else bool(ecc[0]),
        # 1: errors that could not be corrected; 0: those since the driver was loaded.
        num_uncorrected=ask("TotalEccErrors", 1, 0) if ecc is not None and ecc[0] else None,
        pcie_width=ask("CurrPcieLinkWidth"),
        pcie_width_max=ask("MaxPcieLinkWidth"),
        pcie_generation=ask("CurrPcieLinkGeneration"),
        pcie_generation_max=ask("MaxPcieLinkGeneration"),
        compute_mode=_COMPUTE_MODES.get(ask("ComputeMode"), ""),
    )


def _num_cards(root: Path) -> int:
    """Number of NVIDIA graphics cards on the PCI bus; 0 if the bus is hidden, as in some containers."""
    return sum(
        file_text(device / "vendor") == _NVIDIA and file_text(device / "class").startswith(_DISPLAY_CLASSES)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def probe_torch(command: Sequence[str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> Torch:
    """Torch of this Python, imported in a fresh process that then asks it whether it can use a GPU.

    Args:
        command: that prints what `torch_child.py` prints, for tests.
        timeout_s: after which the process is ended.
    """
    # -P: puts no folder in front of the installed packages, so that nothing shadows them.
    wanted = [sys.executable, "-P", str(_CHILD)] if command is None else list(command)
    try:
        ended = subprocess.run(wanted, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Torch(error=f"`import torch` and asking for a GPU took more than {timeout_s:.0f} s")
    except OSError as error:
        return Torch(error=f"no process could be started to import it ({error.strerror})")
    if ended.returncode < 0:
        return Torch(error=f"the process that imports it ended by {signal_name(-ended.returncode)}")
    try:
        values = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return Torch(error=f"the process that imports it ended with status {ended.returncode}: {last}")
    known = {field.name for field in dataclasses.fields(Torch)}
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Torch(**{key: value for key, value in plain.items() if key in known})


def probe_processor(*, environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> Processor:
    """Cores of the machine and of this process.

    Args:
        environ: variables that may hold SLURM's grant.
        root: of the file system with `proc` and `sys`, for tests.
    """
    affine = allowed_cpus()
    cpuinfo = root / "proc/cpuinfo"
    info = file_text(cpuinfo)
    load = file_text(root / "proc/loadavg").split()
    nodes = [_cores(file_text(node / "cpulist")) for node in (root / "sys/devices/system/node").glob("node[0-9]*")]
    return Processor(
        name=first_field(info, "model name"),
        has_fast_bfloat16=cpu_has_fast_bfloat16(cpuinfo) if first_field(info, "flags") else None,
        num_cores=os.cpu_count() or len(affine),
        num_affine=len(affine),
        num_granted=positive_variable("SLURM_CPUS_PER_TASK", environ),
        num_budget=cpu_budget(num_local_ranks=1, environ=environ, root=root),
        num_nodes=sum(bool(cores & affine) for cores in nodes) or None,
        load=float(load[0]) if load else None,
    )


def _cores(ranges: str) -> set[int]:
    """The cores in one of Linux's lists: "0-3,8" is 0, 1, 2, 3 and 8."""
    cores: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def probe_memory(*, root: Path = _ROOT, shm: Path = _SHM) -> Memory:
    """Main memory, swap and /dev/shm."""
    try:
        swap = psutil.swap_memory()
        swap_bytes, swap_used_bytes = int(swap.total), int(swap.used)
    except (OSError, ValueError, RuntimeError):  # without /proc/vmstat
        swap_bytes = swap_used_bytes = 0
    shm_bytes = shm_free_bytes = None
    if shm.is_dir() and is_in_memory(file_system_of(shm)):
        room = os.statvfs(shm)
        shm_bytes, shm_free_bytes = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    left = [folder for folder in memory_folders() if not folder.is_used]
    return Memory(
        machine_bytes=int(psutil.virtual_memory().total),
        total_bytes=total_memory_bytes(root=root),
        available_bytes=available_memory_bytes(root=root),
        swap_bytes=swap_bytes,
        swap_used_bytes=swap_used_bytes,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        left_folders=tuple(str(folder.path) for folder in left),
        left_bytes=sum(folder.num_bytes for folder in left),
        overcommit=file_number(root / "proc/sys/vm/overcommit_memory"),
    )


def probe_limits(*, root: Path = _ROOT) -> Limits:
    """Limits of this process, which its child processes inherit."""
    files, files_hard = (_limit(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Limits(
        open_files=files,
        open_files_hard=files_hard,
        processes=_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        group_processes=file_number(root / "sys/fs/cgroup/pids.max", root / "sys/fs/cgroup/pids/pids.max"),
        locked_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        has_rdma=any((root / "sys/class/infiniband").glob("*")),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def probe_packages() -> Packages:
    """Packages of this Python, from their metadata alone."""
    distributions = list(importlib.metadata.distributions())
    versions: dict[str, str] = {}
    for distribution in distributions:
        # Python imports the first one on the path. Leftovers of a broken removal have no name.
        if name := _name(distribution):
            versions.setdefault(name, distribution.version)
    wanted = tuple(wanted_packages(_own_requirements()))
    ours = {package.name for package in wanted}
    asks: dict[str, Iterable[str]] = {
        name: distribution.requires or ()
        for distribution in reversed(distributions)
        if (name := _name(distribution)) in ours
    }
    return Packages(
        python=platform.python_version(),
        versions=versions,
        wanted=wanted,
        conflicts=tuple(find_conflicts(versions, asks)),
    )


def _name(distribution: importlib.metadata.Distribution) -> str:
    try:
        metadata = distribution.metadata
    except FileNotFoundError:
        # A removal that did not finish; `importlib_metadata`, if a program has imported it, raises this.
        return ""
    return canonicalize_name(metadata["Name"]) if "Name" in metadata else ""


def _own_requirements() -> list[str]:
    """Requirements of the checkout this runs from, since the installed version may differ; else the package's."""
    if project := checkout_project():
        extras = project["optional-dependencies"].items()
        return [*project["dependencies"], *(_with_extra(text, extra) for extra, texts in extras for text in texts)]
    try:
        return importlib.metadata.requires("voxelocity") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _with_extra(requirement: str, extra: str) -> str:
    plain, _, marker = requirement.partition(";")
    condition = f"({marker.strip()}) and " if marker else ""
    return f'{plain.strip()}; {condition}extra == "{extra}"'


def wanted_packages(requirements: Iterable[str]) -> Iterable[Wanted]:
    """The packages that a list of requirements, as in a package's metadata, asks for on this machine."""
    for requirement in map(Requirement, requirements):
        extra = _extra(requirement)
        if extra not in _OF_DEVELOPERS and requirement.name != "voxelocity" and _applies(requirement, extra):
            yield Wanted(name=canonicalize_name(requirement.name), versions=str(requirement.specifier), extra=extra)


def find_conflicts(versions: Mapping[str, str], asks: Mapping[str, Iterable[str]]) -> Iterable[Conflict]:
    """Installed packages whose own requirements another installed package does not meet.

    Args:
        versions: of installed packages.
        asks: requirements by the package that declares them; those of extras are skipped.
    """
    for name, wanted in [(name, wanted) for name, texts in asks.items() for wanted in texts]:
        try:
            requirement = Requirement(wanted)
        except InvalidRequirement:
            continue
        neighbor = canonicalize_name(requirement.name)
        found = versions.get(neighbor)
        if found is None or _extra(requirement) or not _applies(requirement, ""):
            continue
        if fits(found, str(requirement.specifier)) is False:
            wants = f"{neighbor}{requirement.specifier}"
            yield Conflict(name=name, version=versions[name], wants=wants, found=f"{neighbor} {found}")


def fits(version: str, specifier: str) -> bool | None:
    """Whether a version is among those specified; None for a version that cannot be parsed."""
    try:
        return not specifier or SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def _extra(requirement: Requirement) -> str:
    """The extra of a requirement, as metadata writes it: `...; extra == "lmdb"`."""
    _, has_extra, rest = str(requirement.marker or "").partition("extra ==")
    return rest.strip().strip("\"')").split('"')[0] if has_extra else ""


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
