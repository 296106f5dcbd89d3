"""What was seen of a program, as plain records. Nothing here judges; rules do, and they read nothing else.

A recorder inside the program writes one JSON object a line; each record below is the object of the event that its
docstring names, field by field. Seconds are of the host unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["wait", "copy", "forward", "backward", "optimizer", "other"]
PARTS: tuple[Part, ...] = ("wait", "copy", "forward", "backward", "optimizer", "other")

OWN_FEED = "Feed"
"""Kind of the loader of `voxelocity train`."""

Phase = Literal["warm-up", "watched", "profiled", "resident"]
"""Of a step: not counted, counted, slowed down by the profiler, or run on a batch that was there already."""


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """Event `process`: one a file, its first.

    Attributes:
        role: "main" runs the training, "worker" makes items for it.
        rank: of a distributed training, 0 otherwise.
        num_local_ranks: of it on this machine, as far as can be told.
        versions: package name to version, of what the program has imported when it ends.
    """

    pid: int
    parent_pid: int
    role: Literal["main", "worker"]
    rank: int = 0
    world_size: int = 1
    num_local_ranks: int = 1
    argv: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Event `step`: from the end of one optimiser step to the end of the next, validation and saving left out.

    Attributes:
        start_s: since the process began.
        parts: seconds by part; their sum is `seconds`. On a CUDA device they are what its stream saw: "wait" is the
            time it had nothing to do because the next batch was not there, and hidden work costs nothing.
        host_parts: the same as the host saw it; equal to `parts` without a device.
        num_images: entries of the first axis of what the network was given, over all forward passes; None if unknown.
        phase: how the step was run.
    """

    start_s: float
    seconds: float
    parts: Mapping[str, float]
    host_parts: Mapping[str, float] = field(default_factory=dict)
    num_images: int | None = None
    phase: Phase = "watched"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Event `pass`: a stretch between two steps that trains nothing.

    Attributes:
        kind: "validation" (the network ran without learning), "saving" (`torch.save`), "epoch start" (a loader was
            made ready: workers started, before its first batch).
        num_forwards: calls of the network.
        parts: seconds by part, as of a step, "other" being metrics, windows and the like.
        has_gradients: whether a network in it recorded gradients.
        batch_shapes: shapes that the network was given, each with its count, largest count first.
        where: "file:line" of the person's code that ran it.
    """

    kind: Literal["validation", "saving", "epoch start"]
    start_s: float
    seconds: float
    num_forwards: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    has_gradients: bool = False
    batch_shapes: Sequence[tuple[Sequence[int], int]] = ()
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """Event `loader`: one a loader, when it is first iterated; the last one of a key counts.

    Attributes:
        key: names the loader within its process.
        kind: class name, "DataLoader" for torch's.
        dataset: class name of the data set.
        collate: qualified name of the function that puts batches together; `collate_where` is its "file:line".
        num_batches: of an epoch; None if unknown.
        is_for_training: whether a step followed one of its batches.
        where: "file:line" of the loop that iterates it.
    """

    key: int
    kind: str
    dataset: str
    num_workers: int = 0
    batch_size: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    start_method: str = ""
    collate: str = ""
    collate_where: str = ""
    is_own_collate: bool = False
    num_batches: int | None = None
    num_epochs: int = 0
    is_for_training: bool = False
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class FetchFacts:
    """Event `fetch`: how batches of a loader were made in one process, summed; the last one of a (key, worker) counts.

    Attributes:
        key: the loader's.
        worker: number of the worker, -1 for the program itself.
        item_s: seconds in the data set, over all items; `item_cpu_s` of the thread's CPU time.
        collate_s: seconds in the collate function; `collate_cpu_s` of CPU time.
        batch_s: seconds of single batches, the last 1000 at most.
        batch_bytes: of the tensors of the last batch.
    """

    key: int
    worker: int
    num_batches: int
    num_items: int
    item_s: float
    item_cpu_s: float
    collate_s: float
    collate_cpu_s: float
    batch_s: Sequence[float] = ()
    batch_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TransformFacts:
    """Event `transform`: calls of one transform in one process, summed; the last one of a name counts.

    Attributes:
        name: class name, with the library's where two share it.
        is_random: whether it may differ from call to call; what comes before the first random one could be kept.
        self_s: seconds without those of transforms called within it.
        order: place among the transforms as they were first met.
    """

    name: str
    library: str
    num_calls: int
    self_s: float
    self_cpu_s: float
    is_random: bool
    order: int


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Event `files`: what the process opened for reading below folders that are no code; the last one counts.

    Attributes:
        kinds: suffix (".nii.gz") to number of opens.
        num_opens: of all files.
        num_files: different ones.
        read_bytes: sizes of the files, counted at each open.
        largest: up to 64 paths, for reading them again.
        unseen: libraries in use that open files by themselves, of which nothing is counted here.
        unpacked_bytes: of the different files together; of a gzip file what it says itself that it holds, of others
            their size.
        num_uses: opens of a file that was none of the last eight different ones; a reader that opens a file for its
            header and again for its voxels counts once.
    """

    kinds: Mapping[str, int]
    num_opens: int
    num_files: int
    read_bytes: int
    largest: Sequence[str] = ()
    unseen: Sequence[str] = ()
    unpacked_bytes: int = 0
    num_uses: int = 0


@dataclass(frozen=True, kw_only=True)
class StackFacts:
    """Event `stacks`: where a thread was found, looked at many times a second; the last one of a place counts.

    Attributes:
        part: of the step it was in ("wait", ..., "validation", "saving", "epoch start"); "worker" in a worker.
        where: "file:line" of the person's own code, the innermost frame that is theirs.
        line: its source text.
        kind: what was being done: "gunzip", "read", "decode", "resample", "transform", "collate", "sync", "log",
            "sleep", "other".
        function: qualified name of the innermost named function of a library, "" where none.
        num_samples: times it was found there; `period_s` apart.
    """

    part: str
    where: str
    line: str
    kind: str
    function: str
    num_samples: int
    period_s: float


@dataclass(frozen=True, kw_only=True)
class SyncFacts:
    """Event `sync`: a call that waits for the device (or would, were there one); the last one of a place counts.

    Attributes:
        call: "Tensor.item", "Tensor.cpu", "torch.cuda.synchronize", ...
        where: "file:line" of the person's code; `line` its source text.
        count: calls in counted steps; `steps` of them all the counted steps.
        seconds: spent in them.
        on_device: whether the tensor lay on a CUDA device.
    """

    call: str
    where: str
    line: str
    count: int
    num_steps: int
    seconds: float
    on_device: bool


@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """Event `settings`: the program's settings, read in a counted step; the last one counts.

    Attributes:
        device: type of the device that holds the network ("cuda", "cpu").
        device_name: as the driver names it.
        has_cuda: whether torch sees a CUDA device at all.
        autocast: dtype in use around the forward pass, "" for none.
        environment: variables that bear on speed (OMP_NUM_THREADS, OMP_WAIT_POLICY, CUDA_LAUNCH_BLOCKING,
            PYTORCH_CUDA_ALLOC_CONF, ...), as far as set.
    """

    device: str = "cpu"
    device_name: str = ""
    capability: Sequence[int] = ()
    has_cuda: bool = False
    autocast: str = ""
    allow_tf32_matmul: bool | None = None
    allow_tf32_cudnn: bool | None = None
    cudnn_benchmark: bool | None = None
    deterministic: bool = False
    detect_anomaly: bool = False
    num_threads: int = 0
    num_interop_threads: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """Event `network`: the network of the counted steps; the last one counts.

    Attributes:
        wrapper: "DataParallel", "DistributedDataParallel", "OptimizedModule" or "".
        parameter_dtypes: dtype to number of parameters.
        input_shapes: shapes it was given in training, each with its count, largest count first, at most 64.
        channels: of its convolutions: (in, out), largest weights first.
        memory_format: "channels_last_3d", "channels_last" or "contiguous", of its first convolution's weight.
        input_dtype, loss_dtype: as torch names them.
    """

    name: str
    wrapper: str = ""
    num_parameters: int = 0
    parameter_dtypes: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Sequence[tuple[Sequence[int], int]] = ()
    channels: Sequence[tuple[int, int]] = ()
    kernel_dimensions: int = 0
    memory_format: str = ""
    input_dtype: str = ""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """Event `optimizer`: the optimiser of the counted steps; the last one counts.

    Attributes:
        implementation: "for-loop", "foreach" or "fused".
        sets_to_none: whether gradients are dropped rather than filled with zeros.
        forwards_per_step: more than 1 where gradients are accumulated.
    """

    name: str
    implementation: str = ""
    sets_to_none: bool = True
    forwards_per_step: float = 1.0
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class CompileFacts:
    """Event `compile`: what torch.compile did after the first steps; the last one counts."""

    num_frames: int = 0
    num_recompiles: int = 0
    num_graph_breaks: int = 0
    seconds: float = 0.0
    reasons: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """Event `call`: costly calls that belong in no step: "gc.collect", "torch.cuda.empty_cache", "torch.save", ...

    The last one of a (call, where) counts; `num_steps` are the counted steps.
    """

    call: str
    where: str
    line: str
    count: int
    num_steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ExperimentFacts:
    """Event `experiment`: one thing alone, in the program itself after the counted steps.

    Attributes:
        name: "resident batch" (the step without data), "loader" (batches without the step), "items" (the data set in
            one thread), "collate", "storage" (the files read again, not from the page cache, and nothing done with
            them), "storage, page cache", "copy".
        unit: "step", "batch", "item", "byte".
        seconds: each repeat's seconds for one unit.
        note: what a reader must know, or why it could not be done (then `seconds` is empty).
    """

    name: str
    unit: str
    seconds: Sequence[float]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnCost:
    """Event `cost`: what watching took: seconds in the recorder's own code while steps were counted, and their span."""

    seconds: float
    of_s: float


@dataclass(frozen=True, kw_only=True)
class CoreWait:
    """Event `core wait`: seconds in which the thread that trains was ready to run and had no core, as the system counts
    them, while steps were counted, and their span. Other programs, workers and other threads had the cores."""

    seconds: float
    of_s: float


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Event `end`: why recording ended: "limit" (enough was seen), "program" (it ended by itself), "error".

    A file without it is of a program that was killed.
    """

    reason: Literal["limit", "program", "error"]
    time_s: float
    note: str = ""
