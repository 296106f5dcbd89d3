"""This process: how long it has run, the name of its file, its rank."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_PACKAGES = (
    "torch",
    "monai",
    "numpy",
    "nibabel",
    "lightning",
    "pytorch_lightning",
    "ignite",
    "torchio",
    "torchvision",
    "batchgenerators",
    "batchgeneratorsv2",
    "nnunetv2",
    "SimpleITK",
    "scipy",
    "skimage",
    "voxelocity",
)


def process_age_s() -> float:
    """Seconds since this process was started, 0 if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name in the second field may hold blanks and brackets; field 22 counts ticks from boot to start.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, IndexError, ValueError):
        return 0.0


_TAKES_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def program_words(words: list[str]) -> list[str]:
    """The words of a Python command up to the program's name; what follows may hold passwords."""
    kept = words[:1]
    takes_value = False
    for word in words[1:]:
        if word == "-c":
            return [*kept, word]
        kept.append(word)
        if not takes_value and not word.startswith("-"):
            break
        # The module that follows "-m" is the first word that is not an option.
        takes_value = word in _TAKES_A_VALUE
    return kept


def file_name() -> str:
    """Name of this process's file, without its suffix; no other process has it."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def rank_and_world_size() -> tuple[int, int]:
    """Rank and world size of a distributed training, (0, 1) otherwise. `torch.distributed` is asked only if in use."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def num_local_ranks() -> int:
    """Ranks on this machine, which share its cores: from torchrun, or all of them if MASTER_ADDR is local."""
    try:
        return max(1, int(os.environ["LOCAL_WORLD_SIZE"]))
    except (KeyError, ValueError):
        is_local = os.environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1")
        return max(1, rank_and_world_size()[1]) if is_local else 1


def core_wait_s(thread: int) -> float | None:
    """Seconds so far in which a thread of this process was ready to run and had no core; None if the system does not
    report it.

    Args:
        thread: as `threading.get_native_id` names it.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    # A kernel without this accounting has zeros.
    return waited_ns / 1e9 if ran_ns > 0 else None


def describe_versions() -> dict[str, str]:
    """Versions of Python and of the relevant packages that the program has imported."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions
