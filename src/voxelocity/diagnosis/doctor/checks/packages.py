"""Packages: which are required, which are optional, and which versions conflict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.pairs import PAIRS
from voxelocity.diagnosis.doctor.seen import Conflict, Packages, Torch, Wanted

_check = partial(Check, section="packages")

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


def judge_packages(packages: Packages, torch: Torch) -> Iterator[Check]:
    """Required packages, conflicts, known-bad pairs, extras, Triton."""
    yield from _judge_required(packages, torch)
    for conflict in packages.conflicts:
        yield _judge_conflict(conflict, packages)
    yield from _judge_pairs(packages, torch)
    extras: dict[str, list[Wanted]] = defaultdict(list)
    for wanted in packages.wanted:
        if wanted.extra:
            extras[wanted.extra].append(wanted)
    for extra, members in extras.items():
        yield _judge_extra(extra, members, packages)
    if torch.cuda and "triton" not in packages.versions:
        yield _check(
            name="triton",
            level="warning",
            found="not installed, although torch is a CUDA build",
            costs="no augmentation on the GPU, and torch.compile does not work",
            cure="it comes with torch: pip install --force-reinstall torch",
        )


def _judge_required(packages: Packages, torch: Torch) -> Iterator[Check]:
    # torch has its own line if it cannot be imported at all.
    required = [wanted for wanted in packages.wanted if not wanted.extra]
    missing = [wanted for wanted in required if wanted.name not in packages.versions]
    if torch.error or torch.version:
        missing = [wanted for wanted in missing if wanted.name != "torch"]
    unfit = [
        wanted
        for wanted in required
        if wanted.name in packages.versions and not _matches(packages.versions[wanted.name], wanted.versions)
    ]
    if missing:
        yield _check(
            name="required",
            level="problem",
            found=f"not installed: {', '.join(wanted.name for wanted in missing)}",
            costs="Voxelocity cannot train without them",
            cure=f"pip install {_quoted(missing)}",
            stops_training=True,
        )
    if unfit:
        found = ", ".join(
            f"{wanted.name} {packages.versions[wanted.name]} (required: {wanted.versions})" for wanted in unfit
        )
        yield _check(
            name="required",
            level="warning",
            found=found,
            costs="Voxelocity is not tested with these; it may fail, or give different results",
            cure=f"pip install {_quoted(unfit)}",
        )
    if not missing and not unfit:
        versions = ", ".join(f"{name} {packages.versions[name]}" for name in _MAIN if name in packages.versions)
        yield _check(
            name="required", level="ok", found=f"all {len(required)} installed: Python {packages.python}, {versions}"
        )


def _judge_conflict(conflict: Conflict, packages: Packages) -> Check:
    is_ours = any(wanted.name == conflict.name and not wanted.extra for wanted in packages.wanted)
    return _check(
        name=conflict.name,
        level="warning" if is_ours else "note",
        found=f"{conflict.name} {conflict.version} requires {conflict.wants}, and {conflict.found} is installed",
        costs="its authors do not promise that it works this way; some packages refuse to be imported",
        cure=f"pip install '{conflict.wants}', or a version of {conflict.name} that fits what is installed",
    )


def _judge_pairs(packages: Packages, torch: Torch) -> Iterator[Check]:
    versions = dict(packages.versions)
    # torch may come without pip, and knows which cuDNN it loads.
    if torch.version:
        versions["torch"] = torch.version
    if torch.cuda and torch.cudnn:
        versions["cudnn"] = torch.cudnn
    for pair in PAIRS:
        if all(name in versions and _matches(versions[name], wanted) for name, wanted in pair.versions.items()):
            yield _check(
                name=" and ".join(pair.versions),
                level=pair.level,
                found=" with ".join(f"{name} {versions[name]}" for name in pair.versions),
                costs=pair.costs,
                cure=pair.cure,
                source=pair.source,
            )


def _judge_extra(extra: str, members: list[Wanted], packages: Packages) -> Check:
    gives = GIVES.get(extra, "")
    there = [(wanted.name, version) for wanted in members if (version := _version_of(wanted.name, packages.versions))]
    missing = [wanted.name for wanted in members if not _version_of(wanted.name, packages.versions)]
    found = ", ".join(f"{name} {version}" for name, version in there)
    if not missing:
        return _check(name=f"extra {extra}", level="ok", found=f"{found}: {gives}" if gives else found)
    lacking = f"not installed: {', '.join(missing)}" + (f"; for {gives}" if gives else "")
    return _check(
        name=f"extra {extra}",
        level="ok",
        found=f"{found}; {lacking}" if found else lacking,
        cure=f"if you want it: pip install 'voxelocity[{extra}]'",
    )


def _version_of(name: str, versions: Mapping[str, str]) -> str:
    return versions.get(name) or versions.get(_STANDS_FOR.get(name, ""), "")


def _matches(version: str, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        # Nothing is known about a version that cannot be parsed.
        return not wanted


def _quoted(packages: list[Wanted]) -> str:
    return " ".join(f"'{wanted.name}{wanted.versions}'" for wanted in packages)
