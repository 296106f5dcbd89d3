"""All that is known of one watched program: its recording, its steps, its machine, in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from voxelocity_observe.diagnose.facts.events import event
from voxelocity_observe.diagnose.facts.program import (
    CallFacts,
    CompileFacts,
    FetchFacts,
    FileFacts,
    HeldFacts,
    LoaderFacts,
    MemoryFacts,
    NetworkFacts,
    OptimizerFacts,
    SettingFacts,
    StackFacts,
    SyncFacts,
    TransformFacts,
)

Part = Literal["wait", "copy", "forward", "backward", "optimizer", "other"]
PARTS: tuple[Part, ...] = ("wait", "copy", "forward", "backward", "optimizer", "other")
Phase = Literal["warm-up", "watched", "profiled", "resident", "refilled", "unchanged"]
"""Of a step: not counted, counted, slowed down by the profiler, or one of the experiments' rounds: run on a batch that
was there already, on one that was made ahead meanwhile, or unchanged."""


@event("process")
@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """Event `process`: one per file, its first.

    Attributes:
        role: "main" runs the training, "worker" makes items for it.
        rank: rank in a distributed training, 0 otherwise.
        num_local_ranks: ranks on this machine, as far as known.
        began_s: when it was started, on the machine's monotonic clock; None where unknown.
        versions: package name to version, of what the program has imported when it ends.
    """

    pid: int
    parent_pid: int
    role: Literal["main", "worker"]
    rank: int = 0
    world_size: int = 1
    num_local_ranks: int = 1
    began_s: float | None = None
    argv: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@event("experiment", last_of=("name",))
@dataclass(frozen=True, kw_only=True)
class ExperimentFacts:
    """Event `experiment`: one thing alone, in the program itself after the counted steps.

    Attributes:
        name: "resident batch" (the step without data), "loader" (batches without the step), "items" (the data set in
            one thread), "item, first use" and "item, used again" (the same item twice, where workers make them),
            "collate", "network, one sample" and "network, a batch", "network, float32" and "network, 16 bits" (forward
            and backward of the network alone), "storage" (the files read again, not from the page cache, and nothing
            done with them), "storage, page cache", "copy".
        unit: "step", "batch", "item", "byte".
        seconds: each repeat's seconds for one unit.
        note: what the reader must know, or why it could not be done (then `seconds` is empty).
    """

    name: str
    unit: str
    seconds: Sequence[float]
    note: str = ""


@event("cost")
@dataclass(frozen=True, kw_only=True)
class OwnCost:
    """Event `cost`: what watching took: seconds in the recorder's own code while steps were counted, and their span.

    In a loader's worker: CPU seconds, and the worker's lifetime.
    """

    seconds: float
    of_s: float


@event("core wait")
@dataclass(frozen=True, kw_only=True)
class CoreWait:
    """Event `core wait`: seconds in which the thread that trains was ready to run and had no core, as the system counts
    them, while steps were counted, and their span. Other programs, workers and other threads used the cores."""

    seconds: float
    of_s: float


@event("refused")
@dataclass(frozen=True, kw_only=True)
class RefusedWrite:
    """Event `refused`: a file that the program would have written on resident batches or while it was being ended.

    Attributes:
        path: of the file; often a temporary one, to be renamed later.
        where: "file:line" of the program that asked for it, "" where none is known.
    """

    path: str
    where: str = ""


@event("end")
@dataclass(frozen=True, kw_only=True)
class Ending:
    """Event `end`: why recording ended: "limit" (enough was seen), "program" (it ended by itself), "error".

    A file without it belongs to a program that was killed.
    """

    reason: Literal["limit", "program", "error"]
    time_s: float
    note: str = ""


@event("step")
@dataclass(frozen=True, kw_only=True)
class Step:
    """Event `step`: from the end of one optimizer step to the end of the next, validation and saving left out.

    Attributes:
        start_s: since the process began.
        parts: seconds by part; their sum is `seconds`. On a CUDA device they are what its stream saw: "wait" is the
            time in which it was idle because the next batch was not there, and hidden work costs nothing.
        host_parts: the same, as the host saw it; equal to `parts` without a device.
        num_images: entries of the first axis of the network's inputs, over all forward passes; None if unknown.
        phase: how the step was run.
    """

    start_s: float
    seconds: float
    parts: Mapping[str, float]
    host_parts: Mapping[str, float] = field(default_factory=dict)
    num_images: int | None = None
    phase: Phase = "watched"

    @property
    def is_experiment(self) -> bool:
        """Whether it is undone at the end: the training keeps the state of the last step before."""
        return self.phase in ("resident", "refilled", "unchanged")


@event("pass", "open pass")
@dataclass(frozen=True, kw_only=True)
class Pass:
    """Event `pass`: a stretch between two steps without training.

    Attributes:
        kind: "validation" (the network ran without learning), "saving" (`torch.save`), "epoch start" (a loader was
            made ready: workers started, before its first batch).
        num_forwards: calls of the network.
        parts: seconds by part, as in a step; "other" covers metrics, windows and the like.
        has_gradients: whether a network in it recorded gradients.
        batch_shapes: shapes of the network's inputs, each with its count, largest count first.
        where: "file:line" of the user's code that ran it.
        overlap: share of a window's length that the next one covers again, 0 where unknown. `windows_where` and
            `windows_line` are the user's line that asked for these windows, `windows_call` is its source and
            `windows_variable` what it is assigned to; `volume` is the shape (voxels) that the windows are cut from.
    """

    kind: Literal["validation", "saving", "epoch start"]
    start_s: float
    seconds: float
    num_forwards: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    has_gradients: bool = False
    batch_shapes: Sequence[tuple[Sequence[int], int]] = ()
    where: str = ""
    overlap: float = 0.0
    windows_where: str = ""
    windows_line: str = ""
    windows_call: str = ""
    windows_variable: str = ""
    volume: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class KernelGroup:
    """One line of the profile: calls, and their nanoseconds on the CPU (launching) and the GPU (running)."""

    number: int
    cpu_ns: int
    gpu_ns: int


@dataclass(frozen=True, kw_only=True)
class OperatorTime:
    """One operator of the profile, without what it calls."""

    name: str
    number: int
    cpu_ns: int
    gpu_ns: int
    shape: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileFacts:
    """What torch.profiler saw in the profiled steps, from its trace.

    Attributes:
        groups: "All kernels", "Tensor-core kernels", "Memory copies", "All other kernels".
        operators: costliest first.
        num_steps: profiled.
        wall_ns: wall time of these steps.
        gpu_busy_ns: part of it with a kernel or a copy running.
        launch_bound_ns: part of it in which the device was idle while the host was in a step and not waiting for data.
        tensor_core_share: share of the kernels' GPU time on tensor cores; None without a GPU.
        syncs: waits of the host for the device, with the user's line where stacks were recorded.
        trace: file for Perfetto.
    """

    groups: Mapping[str, KernelGroup]
    operators: Sequence[OperatorTime]
    num_steps: int
    wall_ns: int
    gpu_busy_ns: int = 0
    launch_bound_ns: int = 0
    tensor_core_share: float | None = None
    syncs: Sequence[SyncFacts] = ()
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine as the command line saw it while the program ran; not an event of the recorder.

    Attributes:
        num_cpus: cores the program may use; `num_machine_cpus` of the machine.
        cpu_share: mean share of `num_cpus` that the program and its children used (1.0: all busy).
        others_share: cores that all other programs on the machine used.
        throttled_share: share of the time in which its control group was held back.
        num_processes, num_threads: highest number of the program with its children.
        memory_bytes, memory_limit_bytes: highest use of the program with its children, and what it could have.
        swap_in_bytes, swap_out_bytes: of the machine in that time.
        major_faults_per_s: pages that had to be read from disk.
        shm_used_bytes, shm_size_bytes: highest use of /dev/shm, and its size.
        disk_read_bytes_per_s: mean.
        gpu_busy: per device, the mean of what NVML calls utilization, for the reader; no rule uses it.
        gpu_memory_bytes, gpu_memory_total_bytes: highest use per device, and its size.
        gpu_throttle_reasons: as NVML names them, with the share of samples.
        gpu_other_processes: other programs seen on the device.
        file_system: kind of the one that holds most of the files the program read ("nfs", "ext4", ...).
    """

    num_cpus: int
    num_machine_cpus: int = 0
    cpu_share: float = 0.0
    others_share: float = 0.0
    throttled_share: float = 0.0
    num_processes: int = 1
    num_threads: int = 1
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    swap_in_bytes: int = 0
    swap_out_bytes: int = 0
    major_faults_per_s: float = 0.0
    shm_used_bytes: int = 0
    shm_size_bytes: int = 0
    disk_read_bytes_per_s: float = 0.0
    gpu_busy: Sequence[float] = ()
    gpu_memory_bytes: Sequence[int] = ()
    gpu_memory_total_bytes: Sequence[int] = ()
    gpu_throttle_reasons: Mapping[str, float] = field(default_factory=dict)
    gpu_other_processes: int = 0
    file_system: str = ""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """One of several ranks of a training that were recorded: seconds of all its counted steps, by part."""

    rank: int
    num_steps: int
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is known of one watched program.

    Attributes:
        main: the process that trains; of several ranks, the one with the lowest number.
        steps: all of them, of every phase, in order.
        ranks: every recorded one, that of this report included; empty if there is only one.
        seconds: from the start of the process to the end of recording.
        workers_cost_s: CPU seconds that watching took in the loaders' workers, over the whole recording.
        not_measured: what could not be seen, and why, in words.
        refused_writes: files that the program did not get to write because it was being ended.
        settings ... : None where the program never got that far.
    """

    command: Sequence[str]
    main: ProcessFacts
    seconds: float
    ended: Ending | None = None
    status: int | None = None
    steps: Sequence[Step] = ()
    ranks: Sequence[RankFacts] = ()
    passes: Sequence[Pass] = ()
    loaders: Sequence[LoaderFacts] = ()
    fetches: Sequence[FetchFacts] = ()
    transforms: Sequence[TransformFacts] = ()
    files: FileFacts | None = None
    stacks: Sequence[StackFacts] = ()
    syncs: Sequence[SyncFacts] = ()
    calls: Sequence[CallFacts] = ()
    settings: SettingFacts | None = None
    network: NetworkFacts | None = None
    optimizer: OptimizerFacts | None = None
    compiled: CompileFacts | None = None
    memory: MemoryFacts | None = None
    held: Sequence[HeldFacts] = ()
    experiments: Sequence[ExperimentFacts] = ()
    profile: ProfileFacts | None = None
    host: HostFacts | None = None
    cost: OwnCost | None = None
    workers_cost_s: float = 0.0
    core_wait: CoreWait | None = None
    not_measured: Sequence[str] = ()
    refused_writes: Sequence[RefusedWrite] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_own_steps(self) -> int:
        """Steps that the training keeps; the experiments' are undone."""
        return sum(not step.is_experiment for step in self.steps)

    @property
    def counted(self) -> Sequence[Step]:
        """The steps that make up the split."""
        return [step for step in self.steps if step.phase == "watched"]
