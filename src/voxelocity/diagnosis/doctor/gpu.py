"""The NVIDIA driver's answers about its GPUs, through NVML. A query that it refuses only leaves a gap."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxelocity.diagnosis.doctor.seen import Driver, Gpu
from voxelocity.observe.nvml import Nvml, NvmlError, text

_ROOT = Path("/")
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


def see_driver(load: Callable[[], Any] | None = None, *, root: Path = _ROOT) -> Driver:
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
        return _answers(nvml, num_cards)
    finally:
        nvml.close()


def _answers(nvml: Nvml, num_cards: int) -> Driver:
    cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    count = _ask(nvml, "nvmlDeviceGetCount") or 0
    gpus = tuple(_gpu(nvml, index) for index in range(count))
    return Driver(
        version=text(_ask(nvml, "nvmlSystemGetDriverVersion")),
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        gpus=gpus,
        num_cards=max(num_cards, len(gpus)),
    )


def _gpu(nvml: Nvml, index: int) -> Gpu:
    handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index=index)

    def ask(name: str, *arguments: Any) -> Any:
        return _ask(nvml, name, handle, *arguments)

    memory = ask("nvmlDeviceGetMemoryInfo")
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    mig, ecc = ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetEccMode")
    persistence = ask("nvmlDeviceGetPersistenceMode")
    # 1: errors that could not be corrected; 0: those since the driver was loaded.
    uncorrected = ask("nvmlDeviceGetTotalEccErrors", 1, 0) if ecc is not None and ecc[0] else None
    return Gpu(
        index=index,
        name=text(ask("nvmlDeviceGetName")),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        has_mig=None if mig is None else bool(mig[0]),
        num_slices=_num_slices(ask) if mig is not None and mig[0] else None,
        is_persistent=None if persistence is None else bool(persistence),
        has_ecc=None if ecc is None else bool(ecc[0]),
        num_uncorrected=uncorrected,
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode"), ""),
    )


def _num_slices(ask: Callable[..., Any]) -> int:
    count = ask("nvmlDeviceGetMaxMigDeviceCount") or 0
    return sum(ask("nvmlDeviceGetMigDeviceHandleByIndex", index) is not None for index in range(count))


def _ask(nvml: Nvml, name: str, *arguments: Any) -> Any:
    """The answer; None if the driver has none, or the binding is too old to know the query."""
    try:
        return nvml.ask(name, *arguments)
    except NvmlError:
        return None


def _num_cards(root: Path) -> int:
    """Number of NVIDIA graphics cards on the PCI bus; 0 if the bus is hidden, as in some containers."""
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == _NVIDIA and re.sub(r"(0x\w{4}).*", r"\1", kind) in _DISPLAY_CLASSES
    return count
