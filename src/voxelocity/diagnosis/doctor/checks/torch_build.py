"""Whether torch can be imported, and whether it can use the GPUs that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from voxelocity.core.quantities import count_text, duration_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Driver, Gpu, Processor, Torch

_check = partial(Check, section="torch")

# The oldest driver for each major version of CUDA.
_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
_MIN_DRIVER = {11: 450, 12: 525, 13: 580}
# Which builds have kernels for which GPUs: those for CUDA 12.6 from Maxwell to Hopper, those for 13.0 and (up to torch
# 2.11) for 12.8 from Turing to Blackwell.
_MATRIX = "https://github.com/pytorch/pytorch/issues/190355"
_TURING, _BLACKWELL = (7, 5), (10, 0)
_SLOW_IMPORT_S = 15.0
_INDEX = "https://download.pytorch.org/whl"
_CURE_OF_NONE = "pip install torch; for another CUDA than the default see https://pytorch.org/get-started/locally"


def judge_torch(torch: Torch, driver: Driver, processor: Processor, environ: Mapping[str, str]) -> Iterator[Check]:
    """Torch alone, then torch with the GPUs."""
    if torch.error:
        yield _check(
            name="torch",
            level="problem",
            found=f"it cannot be imported: {torch.error}",
            costs="nothing can be trained",
            cure=_CURE_OF_NONE,
            stops_training=True,
        )
        return
    yield _check(name="torch", level="ok", found=f"{torch.version}, {_build_text(torch)}")
    yield from _judge_import(torch)
    yield from _judge_threads(torch, processor)
    if torch.hip:
        yield _check(name="GPUs", level="note", found="built for AMD GPUs, which the doctor does not check")
    elif driver.gpus:
        yield from _judge_access(torch, driver, environ)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether kernels compiled for these run on a GPU of this capability.

    Kernels for "sm_86" run on 8.6 and later minor versions, those for "sm_90a" on 9.0 alone; the driver compiles
    "compute_90" for 9.0 and everything later. An empty list means unknown, and gives True.
    """
    return not architectures or any(_covers(capability, name) for name in architectures)


def _covers(capability: tuple[int, int], name: str) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    if match is None:
        return False
    kind, target, suffix = match[1], (int(match[2]), int(match[3])), match[4]
    if suffix == "a":
        return capability == target
    if kind == "compute" and not suffix:
        return capability >= target
    return capability[0] == target[0] and capability[1] >= target[1]


def _build_text(torch: Torch) -> str:
    if torch.hip:
        return f"for ROCm {torch.hip}"
    if not torch.cuda:
        return "for CPUs"
    return f"for CUDA {torch.cuda}, " + (f"cuDNN {torch.cudnn}" if torch.cudnn else "no cuDNN")


def _judge_import(torch: Torch) -> Iterator[Check]:
    if torch.import_s is None:
        return
    computing = "" if torch.import_cpu_s is None else f", {duration_text(torch.import_cpu_s)} of it computing"
    found = f"takes {duration_text(torch.import_s)}{computing}"
    if torch.import_s < _SLOW_IMPORT_S:
        yield _check(name="import torch", level="ok", found=found)
        return
    yield _check(
        name="import torch",
        level="warning",
        found=found,
        costs="each process waits this long, and so does each loader worker that is started by 'spawn'",
        cure="install the environment on a local disk, not in a home folder on the network",
    )


def _judge_threads(torch: Torch, processor: Processor) -> Iterator[Check]:
    if torch.num_threads is None:
        return
    found = f"{count_text(torch.num_threads, 'thread')} for operations on the CPU"
    if torch.num_threads <= processor.num_budget:
        yield _check(name="threads", level="ok", found=found)
        return
    yield _check(
        name="threads",
        level="warning",
        found=f"{found}, on {count_text(processor.num_budget, 'core')}",
        costs="threads wait for one another, and operations on the CPU take longer",
        cure=f"export OMP_NUM_THREADS={processor.num_budget}",
    )


def _judge_access(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Iterator[Check]:
    if not torch.cuda:
        yield _check(
            name="GPUs",
            level="problem",
            found=f"{count_text(len(driver.gpus), 'GPU')} here, and torch {torch.version} is a build for CPUs",
            costs="training runs on the CPU, many times slower than on the GPU that is there",
            cure=f"pip install --force-reinstall torch --index-url {_INDEX}/{_build_for(driver)}",
            source=_COMPATIBILITY,
        )
        return
    yield from _judge_cudnn(torch)
    if not torch.sees_cuda:
        yield _judge_blindness(torch, driver, environ)
        return
    of_all = "" if torch.num_gpus >= len(driver.gpus) else f" of {len(driver.gpus)}"
    yield _check(name="GPUs", level="ok", found=f"it sees {torch.num_gpus}{of_all}")
    if driver.cuda is not None and _major(torch.cuda) == driver.cuda[0] and _minor(torch.cuda) > driver.cuda[1]:
        yield _check(
            name="CUDA",
            level="note",
            found=f"torch was built for CUDA {torch.cuda}, the driver knows up to {driver.cuda[0]}.{driver.cuda[1]}",
            costs="torch runs, but kernels that the driver itself must compile, for GPUs newer than torch, do not",
            cure="install a newer driver when you can",
            source=_COMPATIBILITY,
        )
    for gpu in driver.gpus:
        if gpu.capability is not None and not runs_on(gpu.capability, torch.architectures):
            yield _judge_architecture(torch, driver, gpu, gpu.capability)


def _judge_cudnn(torch: Torch) -> Iterator[Check]:
    if torch.cudnn and not torch.cudnn.startswith("unusable"):
        return
    yield _check(
        name="cuDNN",
        level="problem" if torch.cudnn else "warning",
        found=torch.cudnn or "none",
        costs="convolutions fail" if torch.cudnn else "convolutions are slower and take several times the memory",
        cure="remove folders with another cuDNN from LD_LIBRARY_PATH, then: pip install --force-reinstall torch",
        source="https://github.com/pytorch/pytorch/issues/80637" if torch.cudnn else "",
        stops_training=bool(torch.cudnn) and torch.sees_cuda,
    )


def _judge_blindness(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Check:
    costs = "training runs on the CPU, many times slower than on the GPU that is there"
    blind = partial(_check, name="GPUs", level="problem", costs=costs)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return blind(
            found=f"CUDA_VISIBLE_DEVICES={visible!r} hides {count_text(len(driver.gpus), 'GPU')} from torch",
            cure="unset CUDA_VISIBLE_DEVICES",
        )
    needed = _MIN_DRIVER.get(_major(torch.cuda))
    version = _major(driver.version)
    if needed is not None and 0 < version < needed:
        return blind(
            found=f"torch was built for CUDA {torch.cuda}, which needs driver {needed} or newer; found "
            f"{driver.version}",
            cure="install a newer driver, or: pip install --force-reinstall torch --index-url "
            f"{_INDEX}/{_build_for(driver)}",
            source=_COMPATIBILITY,
        )
    words = f": {torch.warnings[-1]}" if torch.warnings else ""
    return blind(
        found=f"torch sees no GPU, though the driver shows {len(driver.gpus)}{words}",
        cure="check whether you may open /dev/nvidia*, and what nvidia-smi says; after a driver update restart the "
        "machine",
    )


def _judge_architecture(torch: Torch, driver: Driver, gpu: Gpu, capability: tuple[int, int]) -> Check:
    has_other = any(other.capability and runs_on(other.capability, torch.architectures) for other in driver.gpus)
    return _check(
        name=f"GPU {gpu.index}",
        level="problem",
        found=f"torch has no kernels for {gpu.name or 'it'} (sm_{capability[0]}{capability[1]}); it was built for "
        f"{', '.join(torch.architectures)}",
        costs="training on it fails at its first operation: no kernel image is available",
        cure=f"pip install --force-reinstall torch --index-url {_INDEX}/{_build_for(driver, capability)}",
        source=_MATRIX,
        stops_training=not has_other,
    )


def _build_for(driver: Driver, capability: tuple[int, int] | None = None) -> str:
    """The build of torch that fits the oldest GPU to be used, and the driver."""
    oldest = capability or min((gpu.capability for gpu in driver.gpus if gpu.capability), default=_TURING)
    knows_13 = driver.cuda is not None and driver.cuda[0] >= 13
    if oldest >= _TURING and knows_13:
        return "cu130"
    return "cu128" if oldest >= _BLACKWELL else "cu126"


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _minor(version: str) -> int:
    second = version.partition(".")[2].partition(".")[0]
    return int(second) if second.isdigit() else 0
