"""What a run or a benchmark ran on: versions and machine, as plain data to be stored with its results."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from voxelocity_observe.core.host import cpu_budget, cpu_has_fast_bfloat16, cpu_name, total_memory_bytes

DISTRIBUTIONS = {
    "voxelocity": "voxelocity",
    "voxelocity-observe": "voxelocity_observe",
    "voxelocity-lab": "voxelocity_lab",
}
"""The package of each distribution of ours."""
CHECKOUT = Path(__file__).resolve().parents[5]
_PACKAGES = ("torch", "monai", "numpy")


def environment() -> dict[str, Any]:
    """Versions and machine. Names no host, user or folder; imports no package and starts no accelerator.

    Returns:
        python, torch, monai, numpy, voxelocity: versions; None for what is not installed.
        platform, cpu: as the system names them.
        cpu_has_fast_bfloat16: whether the CPU computes it in less time than float32.
        num_cpus: cores this process may use, by its affinity, control groups and scheduler.
        memory_bytes: main memory this process could have.
        gpu: name of the first NVIDIA GPU, or None.
        commit: of the checkout this package runs from, ending in "-dirty" where tracked files differ from it; None
            elsewhere.
    """
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "voxelocity": _version("voxelocity") or checkout_project("voxelocity").get("version"),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_has_fast_bfloat16": cpu_has_fast_bfloat16(),
        "num_cpus": cpu_budget(),
        "memory_bytes": total_memory_bytes(),
        "gpu": _gpu_name(Path("/proc/driver/nvidia/gpus")),
        "commit": _commit(CHECKOUT),
    }


def python_path() -> str:
    """The `PYTHONPATH` with which a fresh Python finds our packages, and what this one finds there."""
    folders = dict.fromkeys(str(folder.parent) for folder in package_folders())
    return os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH", "")]))


def package_folders() -> list[Path]:
    """Where those of our packages are that Python finds here."""
    found = [importlib.util.find_spec(package) for package in DISTRIBUTIONS.values()]
    return [Path(spec.origin).resolve().parent for spec in found if spec is not None and spec.origin is not None]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def checkout_project(distribution: str, checkout: Path = CHECKOUT) -> dict[str, Any]:
    """The table `project` of one of `DISTRIBUTIONS` in the checkout that this package runs from; empty elsewhere.

    Run from `PYTHONPATH`, the package is not installed, and only its source knows what it is.
    """
    try:
        project: dict[str, Any] = tomllib.loads((checkout / "packages" / distribution / "pyproject.toml").read_text())[
            "project"
        ]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return {}
    return project if project.get("name") == distribution else {}


def _gpu_name(driver_folder: Path) -> str | None:
    # Asking torch starts its CUDA runtime, which must not happen in a process that may still fork; the driver's files
    # are read unless torch has already started it.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name(0))
    for information in sorted(driver_folder.glob("*/information")):
        for line in information.read_text().splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def _commit(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", os.fspath(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
