"""What the doctor's probes saw, as plain records. None and "" stand for unknown values. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it.

    Attributes:
        capability: compute capability, (9, 0) for Hopper.
        has_mig: whether it is divided into slices (MIG).
        num_slices: the number of slices.
        is_persistent: whether the driver keeps it awake between programs.
        num_uncorrected: memory errors that ECC could not correct since the driver was loaded.
        pcie_width, pcie_generation: of its link now; `_max`: the most that GPU and slot support together.
        compute_mode: "default", "exclusive" (one program at a time) or "prohibited" (none).
    """

    index: int
    name: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    capability: tuple[int, int] | None = None
    has_mig: bool | None = None
    num_slices: int | None = None
    is_persistent: bool | None = None
    has_ecc: bool | None = None
    num_uncorrected: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    compute_mode: str = ""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver.

    Attributes:
        version: "580.65.06"; "" if it does not answer.
        cuda: the newest CUDA it supports, (13, 0).
        silence: why it does not answer; "" if it does.
        num_cards: NVIDIA graphics cards on the PCI bus, whether the driver answers or not.
    """

    version: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    silence: str = ""
    num_cards: int = 0


@dataclass(frozen=True, kw_only=True)
class Torch:
    """torch as a fresh process finds it.

    Attributes:
        error: why it cannot be imported; "" if it can.
        cuda: CUDA it was built with, "12.8"; "" for a CPU build.
        hip: ROCm it was built with; "" otherwise.
        architectures: what its kernels were compiled for: "sm_90", "compute_120".
        cudnn: version of cuDNN that it loads, "9.10.2".
        sees_cuda: whether it can use a GPU.
        num_gpus: GPUs that it may use; fewer than there are if CUDA_VISIBLE_DEVICES or a scheduler hides some.
        warnings: what it printed while it looked for GPUs.
        num_threads: threads of its operations on the CPU.
        import_s, import_cpu_s: seconds of `import torch`, by the clock and in CPU time.
    """

    version: str = ""
    error: str = ""
    cuda: str = ""
    hip: str = ""
    architectures: tuple[str, ...] = ()
    cudnn: str = ""
    sees_cuda: bool = False
    num_gpus: int = 0
    warnings: tuple[str, ...] = ()
    num_threads: int | None = None
    import_s: float | None = None
    import_cpu_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The cores, and how many of them this process may use.

    Attributes:
        has_fast_bfloat16: whether it computes bfloat16 in less time than float32; None if Linux does not say.
        num_cores: cores of the machine.
        num_affine: cores that this process may run on.
        num_granted: cores that SLURM granted to this task; None outside SLURM.
        num_budget: cores that may be kept busy: the least of affinity, quota of the control groups, and SLURM's grant.
        num_nodes: NUMA nodes that hold the affine cores.
        load: programs ready to run, mean of the last minute.
    """

    name: str = ""
    has_fast_bfloat16: bool | None = None
    num_cores: int = 1
    num_affine: int = 1
    num_granted: int | None = None
    num_budget: int = 1
    num_nodes: int | None = None
    load: float | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Main memory.

    Attributes:
        machine_bytes: of the machine; `total_bytes` is less if a control group sets a limit.
        shm_bytes, shm_free_bytes: of /dev/shm; None if there is none or it is not in memory.
        left_folders, left_bytes: of prepared cases in memory that no process uses any more.
        overcommit: vm.overcommit_memory: 0 (the default), 1 (always), 2 (never more than there is).
    """

    machine_bytes: int
    total_bytes: int
    available_bytes: int
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    left_folders: tuple[str, ...] = ()
    left_bytes: int = 0
    overcommit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk below the cache.

    Attributes:
        folder: where it was measured.
        file_system: as Linux names it.
        device: "solid state", "rotating" or "".
        write_bytes_per_s, read_bytes_per_s: None if they were not measured.
        past_page_cache: whether the speeds are those of the disk itself.
        not_measured: why they were not measured, in words.
    """

    folder: str
    free_bytes: int
    file_system: str = ""
    device: str = ""
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    past_page_cache: bool = True
    not_measured: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take. None means no limit.

    Attributes:
        open_files, open_files_hard: soft limit, and the hard limit up to which the user may raise it.
        processes: processes and threads of this user.
        group_processes: processes and threads of the control group (docker run --pids-limit).
        locked_bytes: memory that may be pinned by mlock.
        has_rdma: whether there is an InfiniBand or RoCE adapter.
    """

    open_files: int | None = None
    open_files_hard: int | None = None
    processes: int | None = None
    group_processes: int | None = None
    locked_bytes: int | None = None
    has_rdma: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One package that Voxelocity requires.

    Attributes:
        name: of the package, as pip knows it.
        versions: those that fit, ">=2.11"; "" is any.
        extra: the extra that requires it; "" if it is always required.
    """

    name: str
    versions: str = ""
    extra: str = ""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """An installed package that requires a version of another package that is not installed."""

    name: str
    version: str
    wants: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Packages:
    """What is installed besides torch.

    Attributes:
        python: version of Python.
        versions: of installed packages by their normalized names.
        wanted: packages that Voxelocity requires.
        conflicts: among the packages that it uses.
    """

    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[Wanted, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that the probes saw."""

    driver: Driver
    torch: Torch
    processor: Processor
    memory: Memory
    disk: Disk
    limits: Limits
    packages: Packages
    environ: Mapping[str, str] = field(default_factory=dict)
