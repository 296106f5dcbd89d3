"""What the doctor's probes found, and what it reports: plain records. None and "" stand for unknown values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from packaging.requirements import Requirement

from voxelocity_observe.core.memory_folders import MemoryFolder

Level = Literal["ok", "missing", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    index: int
    name: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    capability: tuple[int, int] | None = None  # (9, 0) for Hopper
    has_mig: bool | None = None  # divided into slices
    num_slices: int | None = None
    is_persistent: bool | None = None  # the driver keeps it awake between programs
    has_ecc: bool | None = None
    num_uncorrected: int | None = None  # errors that ECC could not correct since the driver was loaded
    pcie_width: int | None = None  # of its link now; `_max`: the most that GPU and slot support together
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    compute_mode: str = ""  # "default", "exclusive" (one program at a time) or "prohibited" (none)


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver."""

    version: str = ""  # "580.65.06"
    cuda: tuple[int, int] | None = None  # the newest that it supports, (13, 0)
    gpus: tuple[Gpu, ...] = ()
    silence: str = ""  # why it does not answer
    num_cards: int = 0  # NVIDIA graphics cards on the PCI bus, whether the driver answers or not


@dataclass(frozen=True, kw_only=True)
class Torch:
    """torch as a fresh process finds it; the fields are what `torch_child.py` prints."""

    version: str = ""
    error: str = ""  # why it cannot be imported
    cuda: str = ""  # that it was built with, "12.8"; a build for CPUs has neither `cuda` nor `hip` (ROCm)
    hip: str = ""
    architectures: Sequence[str] = ()  # of its kernels: "sm_90", "compute_120"
    cudnn: str = ""  # that it loads, "9.10.2"
    num_gpus: int = 0  # that it may use; fewer than there are if CUDA_VISIBLE_DEVICES or a scheduler hides some
    warning: str = ""  # the last that it printed while it looked for GPUs
    num_threads: int | None = None
    import_s: float | None = None
    import_cpu_s: float | None = None
    gradients: str = ""  # of a 3-D convolution in bfloat16 on the CPU: "right", "wrong", or how their process ended


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The cores, and how many of them this process may use."""

    name: str = ""
    has_fast_bfloat16: bool | None = None
    num_cores: int = 1
    num_affine: int = 1
    num_granted: int | None = None  # by SLURM to this task
    num_budget: int = 1  # that may be kept busy: the least of affinity, control groups' quota, and SLURM's grant
    num_nodes: int | None = None  # NUMA nodes that hold the affine cores
    load: float | None = None  # programs ready to run, mean of the last minute


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Main memory."""

    machine_bytes: int
    total_bytes: int  # less than the machine's if a control group sets a limit
    available_bytes: int
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    shm_bytes: int | None = None  # of /dev/shm; None if there is none or it is not in memory
    shm_free_bytes: int | None = None
    left_behind: tuple[MemoryFolder, ...] = ()  # prepared cases in memory that no process uses any more
    overcommit: int | None = None  # vm.overcommit_memory: 0 (default), 1 (always), 2 (never more than there is)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk below the cache."""

    folder: str
    free_bytes: int
    file_system: str = ""
    is_rotating: bool = False  # as it reports itself
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    past_page_cache: bool = True  # the speeds are those of the disk itself
    not_measured: str = ""  # why


@dataclass(frozen=True, kw_only=True)
class ResourceLimits:
    """What a process may take. None means no limit."""

    open_files: int | None = None
    open_files_hard: int | None = None  # up to which the user may raise it
    processes: int | None = None  # and threads, of this user
    group_processes: int | None = None  # and threads, of the control group (docker run --pids-limit)
    locked_bytes: int | None = None  # that may be pinned by mlock
    has_rdma: bool = False  # there is an InfiniBand or RoCE adapter


@dataclass(frozen=True, kw_only=True)
class Packages:
    """Installed packages by their normalized names, and what is required of them on this machine.

    Requirements have normalized names, and neither markers nor extras.
    """

    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, Sequence[Requirement]] = field(default_factory=dict)  # by Voxelocity: by extra; "" for always
    requires: Mapping[str, Sequence[Requirement]] = field(default_factory=dict)  # by each installed one of `wanted`
    without_loops: str | None = None  # why the engine's compiled loops are not available, and the cure; None without it


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Everything that the probes found."""

    driver: Driver
    torch: Torch
    processor: Processor
    memory: Memory
    disk: Disk
    limits: ResourceLimits
    packages: Packages
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One judged item, at first ok. `note`, `warning` and `problem` return it with that level and what it costs.

    Attributes:
        section: the group it belongs to: "GPU", "torch", "CPU", "memory", "disk", "limits", "variables", "packages".
        name: of the item, in a word or two.
        level: "ok"; "missing" for what is not installed and needed only for some purpose; "note" for what is worth
            knowing; "warning" for what costs speed or may fail; "problem" for what keeps training from running as this
            machine could.
        found: what is there.
        costs: what it costs, in plain words; "" if it costs nothing.
        cure: what to do, with the command; "" if there is nothing to do.
        source: the address of a claim that we did not measure ourselves.
        stops_training: whether no training can run here until it is fixed.
    """

    section: str
    name: str
    level: Level = field(default="ok", kw_only=True)
    found: str
    costs: str = ""
    cure: str = ""
    source: str = ""
    stops_training: bool = False

    def note(self, costs: str, cure: str = "", source: str = "", *, when: bool = True) -> Check:
        """The item as a note; unchanged if not `when`."""
        return replace(self, level="note", costs=costs, cure=cure, source=source) if when else self

    def warning(self, costs: str, cure: str = "", source: str = "", *, when: bool = True) -> Check:
        """The item as a warning; unchanged if not `when`."""
        return replace(self.note(costs, cure, source), level="warning") if when else self

    def problem(self, costs: str, cure: str = "", source: str = "", *, stops_training: bool = False) -> Check:
        """The item as a problem."""
        return replace(self.note(costs, cure, source), level="problem", stops_training=stops_training)


@dataclass(frozen=True, kw_only=True)
class CheckUp:
    """All that the doctor found: one or two plain sentences, and the checks in reading order, grouped by section."""

    verdict: str
    checks: Sequence[Check]

    @property
    def can_train(self) -> bool:
        return not any(check.stops_training for check in self.checks)

    @property
    def in_short(self) -> tuple[str, str, str]:
        """Three lines: the verdict, the first thing to do, and what is missing."""
        worst = max(self.checks, key=lambda check: (check.stops_training, LEVELS.index(check.level)), default=None)
        first = "no action needed"
        if worst is not None and worst.level not in ("ok", "missing"):
            then = f": {worst.cure or worst.costs}" if worst.cure or worst.costs else ""
            first = f"{worst.section}, {worst.name}{then}"
        extras = [check.name.removeprefix("extra ") for check in self.checks if check.level == "missing"]
        missing = f"{', '.join(extras)}: pip install 'voxelocity[{','.join(extras)}]'" if extras else "nothing"
        return self.verdict, f"First: {first}", f"Missing: {missing}"

    def to_plain(self) -> dict[str, Any]:
        """As types that JSON knows: verdict, can_train, counts by level, checks."""
        counts = {level: sum(check.level == level for check in self.checks) for level in LEVELS}
        return {
            "verdict": self.verdict,
            "can_train": self.can_train,
            "counts": counts,
            "checks": [asdict(check) for check in self.checks],
        }
