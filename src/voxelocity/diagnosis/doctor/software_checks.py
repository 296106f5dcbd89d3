"""torch, environment variables and packages, judged from what the probes found. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from voxelocity.core.quantities import count_text, duration_text
from voxelocity.diagnosis.doctor.known_faults import PAIRS, VARIABLES, Variable
from voxelocity.diagnosis.doctor.probes import fits
from voxelocity.diagnosis.doctor.records import Check, Driver, Gpu, Packages, Processor, Torch, Wanted, item

# The oldest driver for each major version of CUDA.
_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
_MIN_DRIVER = {11: 450, 12: 525, 13: 580}
# Which builds have kernels for which GPUs: those for CUDA 12.6 from Maxwell to Hopper, those for 13.0 and (up to torch
# 2.11) for 12.8 from Turing to Blackwell.
_MATRIX = "https://github.com/pytorch/pytorch/issues/190355"
_TURING, _BLACKWELL = (7, 5), (10, 0)
_SLOW_IMPORT_S = 15.0
_REINSTALL = "pip install --force-reinstall torch"
_INDEX = "https://download.pytorch.org/whl"

# What each extra gives, in words. An extra that is not listed here is shown with its packages alone.
GIVES = {
    "lmdb": "a cache of all cases in one file (data.cache.tier=lmdb), for file systems that count files",
    "bench": "`voxelocity bench` with its peers",
    "docs": "the documentation site in a checkout (`make docs`)",
    "nvtx": "spans with colors in Nsight Systems",
    "tensorboard": "curves of a run in TensorBoard",
    "wandb": "curves of a run in Weights & Biases",
    "mlflow": "curves of a run in MLflow",
}
_MAIN = ("torch", "monai", "numpy", "numba")
# Of one library, the smaller package counts as the larger one.
_STANDS_FOR = {"mlflow-skinny": "mlflow"}


def check_torch(torch: Torch, driver: Driver, processor: Processor, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether torch can be imported, and whether it can use the GPUs that are there."""
    if torch.error:
        yield item("torch", "torch", f"it cannot be imported: {torch.error}").problem(
            "nothing can be trained",
            "pip install torch; for another CUDA than the default see https://pytorch.org/get-started/locally",
            stops_training=True,
        )
        return
    yield item("torch", "torch", f"{torch.version}, {_build_text(torch)}")
    if torch.import_s is not None:
        yield _check_import(torch, torch.import_s)
    if torch.num_threads is not None:
        found = f"{count_text(torch.num_threads, 'thread')} for operations on the CPU"
        if torch.num_threads <= processor.num_budget:
            yield item("torch", "threads", found)
        else:
            yield item("torch", "threads", f"{found}, on {count_text(processor.num_budget, 'core')}").warning(
                "threads wait for one another, and operations on the CPU take longer",
                f"export OMP_NUM_THREADS={processor.num_budget}",
            )
    if torch.hip:
        yield item("torch", "GPUs", "built for AMD GPUs, which the doctor does not check").note("")
    elif driver.gpus:
        yield from _check_access(torch, driver, environ)


def _build_text(torch: Torch) -> str:
    if torch.hip:
        return f"for ROCm {torch.hip}"
    if not torch.cuda:
        return "for CPUs"
    return f"for CUDA {torch.cuda}, " + (f"cuDNN {torch.cudnn}" if torch.cudnn else "no cuDNN")


def _check_import(torch: Torch, import_s: float) -> Check:
    computing = "" if torch.import_cpu_s is None else f", {duration_text(torch.import_cpu_s)} of it computing"
    found = item("torch", "import torch", f"takes {duration_text(import_s)}{computing}")
    if import_s < _SLOW_IMPORT_S:
        return found
    return found.warning(
        "each process waits this long, and so does each loader worker that is started by 'spawn'",
        "install the environment on a local disk, not in a home folder on the network",
    )


def _check_access(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Iterator[Check]:
    if not torch.cuda:
        found = f"{count_text(len(driver.gpus), 'GPU')} here, and torch {torch.version} is a build for CPUs"
        yield item("torch", "GPUs", found).problem(
            "training runs on the CPU, many times slower than on the GPU that is there",
            f"{_REINSTALL} --index-url {_INDEX}/{_build_for(driver)}",
            _COMPATIBILITY,
        )
        return
    cure = f"remove folders with another cuDNN from LD_LIBRARY_PATH, then: {_REINSTALL}"
    if not torch.cudnn:
        yield item("torch", "cuDNN", "none").warning("convolutions are slower and take several times the memory", cure)
    elif torch.cudnn.startswith("unusable"):
        source = "https://github.com/pytorch/pytorch/issues/80637"
        yield item("torch", "cuDNN", torch.cudnn).problem(
            "convolutions fail", cure, source, stops_training=torch.sees_cuda
        )
    if not torch.sees_cuda:
        yield _check_blindness(torch, driver, environ)
        return
    of_all = "" if torch.num_gpus >= len(driver.gpus) else f" of {len(driver.gpus)}"
    yield item("torch", "GPUs", f"it sees {torch.num_gpus}{of_all}")
    if driver.cuda is not None and _number(torch.cuda) == driver.cuda[0] and _number(torch.cuda, 1) > driver.cuda[1]:
        known = f"the driver knows up to {driver.cuda[0]}.{driver.cuda[1]}"
        yield item("torch", "CUDA", f"torch was built for CUDA {torch.cuda}, {known}").note(
            "torch runs, but kernels that the driver itself must compile, for GPUs newer than torch, do not",
            "install a newer driver when you can",
            _COMPATIBILITY,
        )
    for gpu in driver.gpus:
        if gpu.capability is not None and not runs_on(gpu.capability, torch.architectures):
            yield _check_architecture(torch, driver, gpu, gpu.capability)


def _check_blindness(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Check:
    costs = "training runs on the CPU, many times slower than on the GPU that is there"
    gpus = partial(item, "torch", "GPUs")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        found = f"CUDA_VISIBLE_DEVICES={visible!r} hides {count_text(len(driver.gpus), 'GPU')} from torch"
        return gpus(found).problem(costs, "unset CUDA_VISIBLE_DEVICES")
    needed = _MIN_DRIVER.get(_number(torch.cuda))
    if needed is not None and 0 < _number(driver.version) < needed:
        found = f"torch was built for CUDA {torch.cuda}, which needs driver {needed} or newer; found {driver.version}"
        other = f"{_REINSTALL} --index-url {_INDEX}/{_build_for(driver)}"
        return gpus(found).problem(costs, f"install a newer driver, or: {other}", _COMPATIBILITY)
    words = f": {torch.warnings[-1]}" if torch.warnings else ""
    return gpus(f"torch sees no GPU, though the driver shows {len(driver.gpus)}{words}").problem(
        costs,
        "check whether you may open /dev/nvidia*, and what nvidia-smi says; after a driver update restart the machine",
    )


def _check_architecture(torch: Torch, driver: Driver, gpu: Gpu, capability: tuple[int, int]) -> Check:
    has_other = any(other.capability and runs_on(other.capability, torch.architectures) for other in driver.gpus)
    lacking = f"torch has no kernels for {gpu.name or 'it'} (sm_{capability[0]}{capability[1]})"
    built = f"it was built for {', '.join(torch.architectures)}"
    return item("torch", f"GPU {gpu.index}", f"{lacking}; {built}").problem(
        "training on it fails at its first operation: no kernel image is available",
        f"{_REINSTALL} --index-url {_INDEX}/{_build_for(driver, capability)}",
        _MATRIX,
        stops_training=not has_other,
    )


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


def _build_for(driver: Driver, capability: tuple[int, int] | None = None) -> str:
    """The build of torch that fits the oldest GPU to be used, and the driver."""
    oldest = capability or min((gpu.capability for gpu in driver.gpus if gpu.capability), default=_TURING)
    knows_13 = driver.cuda is not None and driver.cuda[0] >= 13
    if oldest >= _TURING and knows_13:
        return "cu130"
    return "cu128" if oldest >= _BLACKWELL else "cu126"


def _number(version: str, part: int = 0) -> int:
    """The number at this place of a version; 0 if there is none."""
    parts = version.split(".")
    return int(parts[part]) if len(parts) > part and parts[part].isdigit() else 0


def check_variables(environ: Mapping[str, str], *, num_cores: int, num_gpus: int) -> Iterator[Check]:
    """A line for each variable that slows training down here; a single line that says so if none does."""
    hurting = [
        variable
        for variable in VARIABLES
        if variable.name in environ
        and num_cores >= variable.min_cores
        and num_gpus >= variable.min_gpus
        and variable.hurts(environ[variable.name].strip().lower())
        and not _is_meant(variable, environ)
    ]
    if not hurting:
        yield item("variables", "environment", "nothing set that slows training down")
    for variable in hurting:
        cure = f"export {variable.name}={variable.cure}" if variable.cure else f"unset {variable.name}"
        found = item("variables", variable.name, f"={environ[variable.name]}")
        judged = found.note if variable.level == "note" else found.warning
        yield judged(variable.costs, cure, variable.source)


def _is_meant(variable: Variable, environ: Mapping[str, str]) -> bool:
    # torchrun sets one thread for each of the ranks that share a machine.
    return variable.name == "OMP_NUM_THREADS" and environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "1")


def check_packages(packages: Packages, torch: Torch) -> Iterator[Check]:
    """Required packages, conflicts, known-bad pairs, extras, Triton."""
    yield from _check_required(packages, torch)
    required = {wanted.name for wanted in packages.wanted if not wanted.extra}
    for conflict in packages.conflicts:
        pair = f"{conflict.name} {conflict.version} requires {conflict.wants}, and {conflict.found} is installed"
        found = item("packages", conflict.name, pair)
        judged = found.warning if conflict.name in required else found.note
        yield judged(
            "its authors do not promise that it works this way; some packages refuse to be imported",
            f"pip install '{conflict.wants}', or a version of {conflict.name} that fits what is installed",
        )
    yield from _check_pairs(packages, torch)
    extras: dict[str, list[Wanted]] = defaultdict(list)
    for wanted in packages.wanted:
        if wanted.extra:
            extras[wanted.extra].append(wanted)
    for extra, members in extras.items():
        yield _check_extra(extra, members, packages.versions)
    if torch.cuda and "triton" not in packages.versions:
        yield item("packages", "triton", "not installed, although torch is a CUDA build").warning(
            "no augmentation on the GPU, and torch.compile does not work", f"it comes with torch: {_REINSTALL}"
        )


def _check_required(packages: Packages, torch: Torch) -> Iterator[Check]:
    versions, required = packages.versions, [wanted for wanted in packages.wanted if not wanted.extra]
    # torch has its own line if it cannot be imported at all.
    is_judged = {"torch"} if torch.error or torch.version else set()
    missing = [wanted for wanted in required if wanted.name not in {*versions, *is_judged}]
    there = [wanted for wanted in required if wanted.name in versions]
    unfit = [wanted for wanted in there if not fits(versions[wanted.name], wanted.versions)]
    found = partial(item, "packages", "required")
    if missing:
        yield found(f"not installed: {', '.join(wanted.name for wanted in missing)}").problem(
            "Voxelocity cannot train without them", f"pip install {_quoted(missing)}", stops_training=True
        )
    if unfit:
        named = (f"{wanted.name} {versions[wanted.name]} (required: {wanted.versions})" for wanted in unfit)
        yield found(", ".join(named)).warning(
            "Voxelocity is not tested with these; it may fail, or give different results",
            f"pip install {_quoted(unfit)}",
        )
    if not missing and not unfit:
        main = ", ".join(f"{name} {versions[name]}" for name in _MAIN if name in versions)
        yield found(f"all {len(required)} installed: Python {packages.python}, {main}")


def _check_pairs(packages: Packages, torch: Torch) -> Iterator[Check]:
    versions = dict(packages.versions)
    # torch may come without pip, and knows which cuDNN it loads.
    if torch.version:
        versions["torch"] = torch.version
    if torch.cuda and torch.cudnn:
        versions["cudnn"] = torch.cudnn
    for pair in PAIRS:
        if all(name in versions and fits(versions[name], wanted) for name, wanted in pair.versions.items()):
            yield Check(
                section="packages",
                name=" and ".join(pair.versions),
                level=pair.level,
                found=" with ".join(f"{name} {versions[name]}" for name in pair.versions),
                costs=pair.costs,
                cure=pair.cure,
                source=pair.source,
            )


def _check_extra(extra: str, members: Iterable[Wanted], versions: Mapping[str, str]) -> Check:
    gives = GIVES.get(extra, "")
    installed = {
        wanted.name: versions.get(wanted.name) or versions.get(_STANDS_FOR.get(wanted.name, ""), "")
        for wanted in members
    }
    found = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    missing = ", ".join(name for name, version in installed.items() if not version)
    if not missing:
        return item("packages", f"extra {extra}", f"{found}: {gives}" if gives else found)
    lacking = f"not installed: {missing}" + (f"; for {gives}" if gives else "")
    return Check(
        section="packages",
        name=f"extra {extra}",
        found=f"{found}; {lacking}" if found else lacking,
        cure=f"if you want it: pip install 'voxelocity[{extra}]'",
    )


def _quoted(packages: Iterable[Wanted]) -> str:
    return " ".join(f"'{wanted.name}{wanted.versions}'" for wanted in packages)
