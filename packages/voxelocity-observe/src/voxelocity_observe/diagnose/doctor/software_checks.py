"""torch, environment variables and packages, judged from what the probes found. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from voxelocity_observe.core.quantities import count_text, duration_text, joined
from voxelocity_observe.diagnose.doctor.hardware_checks import COSTS_OF_IDLE_GPU
from voxelocity_observe.diagnose.doctor.known_faults import INCOMPATIBLE, VARIABLES
from voxelocity_observe.diagnose.doctor.records import Check, Driver, Level, Packages, Processor, Torch
from voxelocity_observe.sinks import TRACKERS

# The oldest driver for each major version of CUDA.
_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
_MIN_DRIVER = {11: 450, 12: 525, 13: 580}
# Which builds have kernels for which GPUs: those for CUDA 12.6 from Maxwell to Hopper, those for 13.0 and (up to torch
# 2.11) for 12.8 from Turing to Blackwell.
_MATRIX = "https://github.com/pytorch/pytorch/issues/190355"
_TURING, _BLACKWELL = (7, 5), (10, 0)
_SLOW_IMPORT_S = 15.0
_REINSTALL = "pip install --force-reinstall torch"

# What each extra gives, in words. An extra that is not listed here is shown with its packages alone.
GIVES = {
    "formats": "scans as NRRD, MHA and DICOM series; predictions as DICOM SEG",
    "lmdb": "a cache of all cases in one file (data.cache.tier=lmdb), for file systems that count files",
    "bench": "comparisons with other toolkits (`voxelocity bench`)",
    "runtimes": "`predict --runtime` and `export` with ONNX Runtime and OpenVINO",
    "tensorrt": "`predict --runtime tensorrt` and `export --to tensorrt`",
    "ray": "training and caching on a Ray cluster",
    "remote": "data sets on web servers and object stores (https://, s3://)",
    "nvtx": "spans with colors in Nsight Systems",
    "slides": "whole-slide images (recipe pathology)",
    "tune": "search for the best settings (voxelocity tune)",
    **{name: f"curves of a run in {tracker.title}" for name, tracker in TRACKERS.items() if tracker.package},
}
_MAIN = ("torch", "monai", "numpy")
# Of one library, the smaller package counts as the larger one.
_STANDS_FOR = {"mlflow-skinny": "mlflow"}


def check_torch(torch: Torch, driver: Driver, processor: Processor, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether torch can be imported, and whether it can use the GPUs that are there."""
    if torch.error:
        yield Check("torch", "torch", f"it cannot be imported: {torch.error}").problem(
            "training is not possible",
            "pip install torch; for another CUDA than the default see https://pytorch.org/get-started/locally",
            stops_training=True,
        )
        return
    cuda = f"for CUDA {torch.cuda}, " + (f"cuDNN {torch.cudnn}" if torch.cudnn else "no cuDNN")
    build = f"for ROCm {torch.hip}" if torch.hip else cuda if torch.cuda else "for CPUs"
    yield Check("torch", "torch", f"{torch.version}, {build}")
    if torch.import_s is not None:
        computing = "" if torch.import_cpu_s is None else f", {duration_text(torch.import_cpu_s)} of it computing"
        yield Check("torch", "import torch", f"takes {duration_text(torch.import_s)}{computing}").warning(
            "each process waits this long, and so does each loader worker that is started by 'spawn'",
            "install the environment on a local disk, not in a home folder on the network",
            when=torch.import_s >= _SLOW_IMPORT_S,
        )
    if torch.num_threads is not None:
        too_many = torch.num_threads > processor.num_budget
        on_cores = f", on {count_text(processor.num_budget, 'core')}" if too_many else ""
        threads = f"{count_text(torch.num_threads, 'thread')} for operations on the CPU{on_cores}"
        yield Check("torch", "threads", threads).warning(
            "threads wait for one another, and operations on the CPU take longer",
            f"export OMP_NUM_THREADS={processor.num_budget}",
            when=too_many,
        )
    if torch.gradients:
        yield _check_gradients(torch, has_gpu=torch.num_gpus > 0)
    if torch.hip:
        yield Check("torch", "GPUs", "built for AMD GPUs, which the doctor does not check").note("")
    elif driver.gpus:
        yield from _check_access(torch, driver, environ)


def _check_gradients(torch: Torch, *, has_gpu: bool) -> Check:
    what = "the weight gradient of a 3-D convolution in bfloat16 over an input shorter than its kernel"
    answers = {
        "right": ("is right on this CPU", ""),
        "wrong": (f"is wrong on this CPU with torch {torch.version}", "deep layers get wrong weights, or NaN"),
    }
    failed = f"could not be computed: the process {torch.gradients}", "such a training ends in the same way"
    is_so, costs = answers.get(torch.gradients, failed)
    check = Check("torch", "gradients", f"{what} {is_so}").warning(
        f"in your own scripts, {costs}; `voxelocity train` computes such convolutions in float32",
        "train in float32 on this CPU, or with patches so large that no input of a convolution is that short",
        when=bool(costs),
    )
    # A GPU computes its own.
    return replace(check, level="note") if costs and has_gpu else check


def _check_access(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Iterator[Check]:
    cure = f"remove folders with another cuDNN from LD_LIBRARY_PATH, then: {_REINSTALL}"
    if torch.cuda and not torch.cudnn:
        costs = "convolutions are slower and take several times the memory"
        yield Check("torch", "cuDNN", "none").warning(costs, cure)
    elif torch.cuda and torch.cudnn.startswith("unusable"):
        source = "https://github.com/pytorch/pytorch/issues/80637"
        found = Check("torch", "cuDNN", torch.cudnn)
        yield found.problem("convolutions fail", cure, source, stops_training=torch.num_gpus > 0)
    if not torch.cuda or not torch.num_gpus:
        yield _check_blindness(torch, driver, environ)
        return
    of_all = "" if torch.num_gpus >= len(driver.gpus) else f" of {len(driver.gpus)}"
    yield Check("torch", "GPUs", f"it sees {torch.num_gpus}{of_all}")
    if driver.cuda is not None and _number(torch.cuda) == driver.cuda[0] and _number(torch.cuda, 1) > driver.cuda[1]:
        known = f"the driver knows up to {driver.cuda[0]}.{driver.cuda[1]}"
        yield Check("torch", "CUDA", f"torch was built for CUDA {torch.cuda}, {known}").note(
            "torch runs, but not with GPUs newer than torch, whose kernels the driver must compile",
            "install a newer driver if possible",
            _COMPATIBILITY,
        )
    capable = [(gpu, gpu.capability) for gpu in driver.gpus if gpu.capability is not None]
    unfit = [(gpu, capability) for gpu, capability in capable if not runs_on(capability, torch.architectures)]
    for gpu, capability in unfit:
        lacking = f"torch has no kernels for {gpu.name or 'it'} (sm_{capability[0]}{capability[1]})"
        built = f"it was built for {', '.join(torch.architectures)}"
        yield Check("torch", f"GPU {gpu.index}", f"{lacking}; {built}").problem(
            "training on it fails at its first operation: no kernel image is available",
            _reinstall(driver, capability),
            _MATRIX,
            stops_training=len(unfit) == len(capable),
        )


def _check_blindness(torch: Torch, driver: Driver, environ: Mapping[str, str]) -> Check:
    gpus, count = partial(Check, "torch", "GPUs"), count_text(len(driver.gpus), "GPU")
    visible, needed = environ.get("CUDA_VISIBLE_DEVICES"), _MIN_DRIVER.get(_number(torch.cuda))
    if not torch.cuda:
        found, cure = f"{count} here, and torch {torch.version} is a build for CPUs", _reinstall(driver)
        return gpus(found).problem(COSTS_OF_IDLE_GPU, cure, _COMPATIBILITY)
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        found = f"CUDA_VISIBLE_DEVICES={visible!r} hides {count} from torch"
        return gpus(found).problem(COSTS_OF_IDLE_GPU, "unset CUDA_VISIBLE_DEVICES")
    if needed is not None and 0 < _number(driver.version) < needed:
        found = f"torch was built for CUDA {torch.cuda}, which needs driver {needed} or newer; found {driver.version}"
        cure = f"install a newer driver, or: {_reinstall(driver)}"
        return gpus(found).problem(COSTS_OF_IDLE_GPU, cure, _COMPATIBILITY)
    found = joined([f"torch sees no GPU, though the driver shows {len(driver.gpus)}", torch.warning], ": ")
    return gpus(found).problem(
        COSTS_OF_IDLE_GPU,
        "check whether you may open /dev/nvidia*, and what nvidia-smi says; after a driver update restart the machine",
    )


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether kernels compiled for these run on a GPU of this capability.

    Kernels for "sm_86" run on 8.6 and later minor versions, those for "sm_90a" on 9.0 alone; the driver compiles
    "compute_90" for 9.0 and everything later. An empty list means unknown, and gives True.
    """
    for match in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in architectures)):
        target = (int(match[2]), int(match[3]))
        is_later = capability >= target
        if match[4] == "a":
            is_later = capability == target
        elif match[1] == "sm" or match[4]:
            is_later = is_later and capability[0] == target[0]
        if is_later:
            return True
    return not architectures


def _reinstall(driver: Driver, capability: tuple[int, int] | None = None) -> str:
    """The command for the build of torch that fits the oldest GPU to be used, and the driver."""
    oldest = capability or min((gpu.capability for gpu in driver.gpus if gpu.capability), default=_TURING)
    build = "cu128" if oldest >= _BLACKWELL else "cu126"
    if oldest >= _TURING and driver.cuda is not None and driver.cuda[0] >= 13:
        build = "cu130"
    return f"{_REINSTALL} --index-url https://download.pytorch.org/whl/{build}"


def _number(version: str, part: int = 0) -> int:
    """The number at this place of a version; 0 if there is none."""
    parts = version.split(".")
    return int(parts[part]) if len(parts) > part and parts[part].isdigit() else 0


def check_variables(environ: Mapping[str, str], *, num_cores: int, num_gpus: int) -> Iterator[Check]:
    """A line for each variable that slows training down here; a single line that says so if none does."""
    # torchrun sets one thread for each of the ranks that share a machine.
    meant = () if environ.get("LOCAL_WORLD_SIZE", "1") in ("", "1") else ("OMP_NUM_THREADS",)
    hurting = [
        variable
        for variable in VARIABLES
        if re.fullmatch(variable.hurts, environ.get(variable.name, "").strip().lower())
        and num_cores >= variable.min_cores
        and num_gpus >= variable.min_gpus
        and variable.name not in meant
    ]
    if not hurting:
        yield Check("variables", "environment", "no variable slows training down")
    for variable in hurting:
        cure = f"export {variable.name}={variable.cure}" if variable.cure else f"unset {variable.name}"
        found = f"={environ[variable.name]}"
        yield Check("variables", variable.name, found, variable.costs, cure, variable.source, level=variable.level)


def check_packages(packages: Packages, torch: Torch) -> Iterator[Check]:
    """Required packages, conflicts among installed ones, versions known to be incompatible, extras, Triton."""
    versions, required = packages.versions, packages.wanted.get("", ())
    yield from _check_required(packages, torch)
    for name, requirement in [
        (name, entry) for name, requirements in packages.requires.items() for entry in requirements
    ]:
        version = versions.get(requirement.name)
        if version is not None and fits(version, requirement.specifier) is False:
            pair = f"{name} {versions[name]} requires {requirement}, and {requirement.name} {version} is installed"
            level: Level = (
                "warning" if any(name == requirement_of_ours.name for requirement_of_ours in required) else "note"
            )
            yield Check(
                "packages",
                name,
                pair,
                "this combination is not supported by its authors; some packages cannot be imported",
                f"pip install '{requirement}', or a version of {name} that fits what is installed",
                level=level,
            )
    yield from _check_loops(packages)
    yield from _check_known(packages, torch)
    for extra, members in packages.wanted.items():
        if extra:
            yield _check_extra(extra, members, versions)
    if torch.cuda and "triton" not in versions:
        yield Check("packages", "triton", "not installed, although torch is a CUDA build").warning(
            "no augmentation on the GPU, and torch.compile does not work", f"it comes with torch: {_REINSTALL}"
        )


def _check_required(packages: Packages, torch: Torch) -> Iterator[Check]:
    versions, required = packages.versions, packages.wanted.get("", ())
    # torch has its own line if it cannot be imported at all.
    is_judged = {"torch"} if torch.error or torch.version else set()
    missing = [requirement for requirement in required if requirement.name not in {*versions, *is_judged}]
    unfit = [
        requirement
        for requirement in required
        if requirement.name in versions and not fits(versions[requirement.name], requirement.specifier)
    ]
    found = partial(Check, "packages", "required")
    if missing:
        yield found(f"not installed: {', '.join(requirement.name for requirement in missing)}").problem(
            "Voxelocity cannot train without them", _install(missing), stops_training=True
        )
    if unfit:
        named = (
            f"{requirement.name} {versions[requirement.name]} (required: {requirement.specifier})"
            for requirement in unfit
        )
        yield found(", ".join(named)).warning(
            "Voxelocity is not tested with these; it may fail, or give different results", _install(unfit)
        )
    if not missing and not unfit:
        main = ", ".join(f"{name} {versions[name]}" for name in _MAIN if name in versions)
        yield found(f"all {len(required)} installed: Python {packages.python}, {main}")


def _check_loops(packages: Packages) -> Iterator[Check]:
    if packages.without_loops is None:
        return
    reason, _, cure = packages.without_loops.partition("; ")
    yield Check("packages", "compiled loops", reason or "there").warning(
        "augmentation, resampling and MONAI's transforms on a CPU take many times as long", cure, when=bool(reason)
    )


def _check_known(packages: Packages, torch: Torch) -> Iterator[Check]:
    versions = dict(packages.versions)
    # torch may come without pip, and knows which cuDNN it loads.
    if torch.version:
        versions["torch"] = torch.version
    if torch.cuda and torch.cudnn:
        versions["cudnn"] = torch.cudnn
    for known in INCOMPATIBLE:
        if all(name in versions and fits(versions[name], wanted) for name, wanted in known.versions.items()):
            found = " with ".join(f"{name} {versions[name]}" for name in known.versions)
            name = " and ".join(known.versions)
            yield Check("packages", name, found, known.costs, known.cure, known.source, level=known.level)


def _check_extra(extra: str, members: Iterable[Requirement], versions: Mapping[str, str]) -> Check:
    installed = {
        member.name: versions.get(member.name) or versions.get(_STANDS_FOR.get(member.name, "")) for member in members
    }
    found = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    missing = ", ".join(name for name, version in installed.items() if not version)
    gives = GIVES.get(extra, "")
    if not missing:
        return Check("packages", f"extra {extra}", joined([found, gives], ": "))
    text = joined([found, f"not installed: {missing}", gives and f"for {gives}"], "; ")
    cure = f"if you want it: pip install 'voxelocity[{extra}]'"
    return Check("packages", f"extra {extra}", text, cure=cure, level="missing")


def fits(version: str, specifier: str | SpecifierSet) -> bool | None:
    """Whether a version is among those specified; None for a version that cannot be parsed."""
    try:
        return not specifier or SpecifierSet(str(specifier)).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def _install(packages: Iterable[Requirement]) -> str:
    return "pip install " + " ".join(f"'{package}'" for package in packages)
