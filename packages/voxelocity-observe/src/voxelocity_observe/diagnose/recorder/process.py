"""This process: the settings of its recording, how long it has run, the name of its file, its rank."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

VARIABLE = "VOXELOCITY_RECORD"
"""Environment variable that carries the settings, as JSON, to the watched program and its children. Without it the
recorder does not run; no other configures it."""
_PACKAGES = (
    "torch", "monai", "numpy", "nibabel", "lightning", "pytorch_lightning", "ignite", "torchio", "torchvision",
    "batchgenerators", "batchgeneratorsv2", "nnunetv2", "SimpleITK", "scipy", "skimage", "voxelocity",
)  # fmt: skip
"""Whose versions are written if the program has imported them."""
# "-c" with other options in the same word, or with the code in it.
_CODE = re.compile("-[bBdEiIOPqsSuvx]*c")
_TAKES_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Settings(NamedTuple):
    """Limits and switches of a recording.

    Attributes:
        folder: gets the files; every process writes its own.
        seconds: counted time after which recording ends in any case.
        min_steps: counted steps that recording always needs.
        min_seconds: counted time that recording always needs, unless the program is short.
        warmup_steps: steps that are not counted in any case.
        warmup_seconds: time after which steps count even if their times have not settled.
        max_steps: counted steps after which a program that runs to its end is no longer watched.
        whole: lets the program run to its end, without experiments.
        experiments: runs steps on resident batches, then the loader alone, before the program is ended.
        experiment_seconds: approximate time of one experiment.
        profile: profiles three steps.
        nsys: the program runs under Nsight Systems, which captures the profiled steps instead of torch.profiler.
        kept_bytes: maximum size of the batches kept for the experiment.
        keeps_saves: lets the program write its files while it is being ended; no steps run on resident batches then.
        launchers: variables with the rank and the number of ranks; the first launcher that has set one of them counts.
    """

    folder: str
    seconds: float = 120.0
    min_steps: int = 20
    min_seconds: float = 5.0
    warmup_steps: int = 3
    warmup_seconds: float = 10.0
    max_steps: int = 50_000
    whole: bool = False
    experiments: bool = True
    experiment_seconds: float = 3.0
    profile: bool = True
    nsys: bool = False
    kept_bytes: int = 1 << 30
    keeps_saves: bool = False
    launchers: Sequence[Sequence[str]] = (("RANK", "WORLD_SIZE"),)

    def to_json(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings; keys of another version are left out.

        Raises:
            ValueError: the text is not a JSON object, or names no folder.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("folder"), str):
            raise ValueError(
                f"recorder: {VARIABLE}={text!r} names no folder; start the program by `voxelocity diagnose`"
            )
        return cls(**{name: value for name, value in found.items() if name in cls._fields})


def absolute(path: str) -> str:
    """As `os.path.abspath`; the path unchanged if the working folder was deleted."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def process_age_s() -> float:
    """Seconds since this process was started, 0 if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name in the second field may hold blanks and brackets; field 22 counts ticks from boot to start.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, IndexError, ValueError):
        return 0.0


def program_words(words: list[str]) -> list[str]:
    """The words of a Python command up to the program's name; what follows may hold passwords."""
    kept = words[:1]
    takes_value = False
    for word in words[1:]:
        code = None if takes_value else _CODE.match(word)
        if code:
            return [*kept, code.group()]
        kept.append(word)
        if not takes_value and not word.startswith("-"):
            break
        # The module that follows "-m" is the first word that is not an option.
        takes_value = word in _TAKES_A_VALUE
    return kept


def file_name() -> str:
    """Name of this process's file, without its suffix; no other process has it."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def rank_and_world_size(launchers: Sequence[Sequence[str]] = (("RANK", "WORLD_SIZE"),)) -> tuple[int, int]:
    """Rank and world size of a distributed training, (0, 1) otherwise. `torch.distributed` is asked only if in use.

    Args:
        launchers: as in `Settings`. Without it only torchrun's ranks count: tasks that `srun` has started need not
            train together, and would wait for each other.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, size = next((names for names in launchers if any(name in os.environ for name in names)), ("", ""))
    try:
        return int(os.environ.get(rank, "0")), int(os.environ.get(size, "1"))
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


def describe_process(began_s: float, role: str, launchers: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Fields of the event `process`."""
    rank, world_size = rank_and_world_size(launchers)
    return {
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "began_s": round(began_s, 6),
        "role": role,
        "rank": rank,
        "world_size": world_size,
        "num_local_ranks": num_local_ranks(),
        "argv": program_words(list(getattr(sys, "orig_argv", [])) or ["python", *sys.argv]),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions
