"""What the program is and does: its settings, network, loaders, files, calls and places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from voxelocity_observe.diagnose.facts.events import event

OWN_FEED = "Feed"
"""Kind of the loader of `voxelocity train`."""
_MAX_LARGEST = 64
_SUMMED = (
    "num_batches", "num_items", "item_s", "item_cpu_s", "collate_s", "collate_cpu_s", "counted_items", "counted_s"
)  # fmt: skip
_MAX_BATCHES = 1000


@event("settings")
@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """Event `settings`: the program's settings, read in a counted step; the last one counts.

    Attributes:
        device: type of the device that holds the network ("cuda", "cpu").
        device_name: as the driver names it.
        has_cuda: whether torch sees a CUDA device at all.
        autocast: dtype in use around the forward pass, "" for none.
        environment: variables that affect speed (OMP_NUM_THREADS, OMP_WAIT_POLICY, CUDA_LAUNCH_BLOCKING,
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


@event("network")
@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """Event `network`: the network of the counted steps; the last one counts.

    Attributes:
        wrapper: "DataParallel", "DistributedDataParallel", "OptimizedModule" or "".
        parameter_dtypes: dtype to number of parameters.
        input_shapes: shapes of its inputs in training, each with its count, largest count first, at most 64.
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


@event("optimizer")
@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """Event `optimizer`: the optimizer of the counted steps; the last one counts.

    Attributes:
        implementation: "for-loop", "foreach" or "fused".
        sets_to_none: whether gradients are dropped rather than filled with zeros.
        forwards_per_step: more than 1 where gradients are accumulated; `backwards_per_step` and `batches_per_step`
            likewise, the latter 0 where no loader is known.
        synced_per_step: forwards whose backward sums gradients over all ranks; `sync_s` are the seconds of one sum in
            which nothing else was done, 0 where unknown.
        where: "file:line" of the user's line that made it, else of the one that steps it; `call` is the source of the
            former and `variable` the name given there.
    """

    name: str
    implementation: str = ""
    sets_to_none: bool = True
    forwards_per_step: float = 1.0
    backwards_per_step: float = 1.0
    batches_per_step: float = 0.0
    synced_per_step: float = 0.0
    sync_s: float = 0.0
    where: str = ""
    call: str = ""
    variable: str = ""


@event("compile")
@dataclass(frozen=True, kw_only=True)
class CompileFacts:
    """Event `compile`: what torch.compile did after the first steps; the last one counts."""

    num_frames: int = 0
    num_recompiles: int = 0
    num_graph_breaks: int = 0
    seconds: float = 0.0
    reasons: Sequence[str] = ()


@event("stacks", last_of=("part", "where", "kind", "function"), order=lambda stack: -stack.num_samples)
@dataclass(frozen=True, kw_only=True)
class StackFacts:
    """Event `stacks`: where a thread was found, sampled many times a second; the last one of a place counts.

    Attributes:
        part: part of the step ("wait", ..., "validation", "saving", "epoch start"); "worker" in a worker.
        where: "file:line" of the innermost frame of the user's own code.
        line: its source text.
        kind: what was being done: "gunzip", "read", "decode", "resample", "transform", "collate", "sync", "log",
            "sleep", "other".
        function: qualified name of the innermost named function of a library, "" where none.
        num_samples: times it was found there, `period_s` apart.
        within: qualified name of the user's function, "" where unknown; `draws` says whether its code draws random
            numbers, as far as its names show.
    """

    part: str
    where: str
    line: str
    kind: str
    function: str
    num_samples: int
    period_s: float
    within: str = ""
    draws: bool = True

    @staticmethod
    def join(found: Sequence[StackFacts]) -> StackFacts:
        """Those of one place: samples are summed."""
        return replace(found[-1], **_sums(found, "num_samples"))


@event("call", last_of=("call", "where"))
@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """Event `call`: costly calls that belong outside steps: "gc.collect", "torch.cuda.empty_cache", "torch.save", ...

    The last one of a (call, where) counts.

    Attributes:
        where: "file:line" of the user's code; `line` is its source text.
        count: calls in the `num_steps` counted steps.
        seconds: spent in them.
    """

    call: str
    where: str
    line: str
    count: int
    num_steps: int
    seconds: float


@event("sync", last_of=("call", "where"))
@dataclass(frozen=True, kw_only=True)
class SyncFacts(CallFacts):
    """Event `sync`: calls that wait for the device (or would, were there one): "Tensor.item", "Tensor.cpu", ...

    Attributes:
        on_device: whether the tensor lay on a CUDA device.
    """

    on_device: bool


@event("memory")
@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Event `memory`: what the process held after counted steps; the last one counts.

    Attributes:
        samples: (number of the counted step, bytes in main memory, bytes of tensors on the CUDA device), in order.
    """

    samples: Sequence[tuple[int, int, int]] = ()


@event("held", last_of=("name", "where"))
@dataclass(frozen=True, kw_only=True)
class HeldFacts:
    """Event `held`: a variable of the program that got longer with the steps; the last one of a (name, where) counts.

    Attributes:
        where: "file:line" of the line that adds to it; `line` is its source text.
        count: items added in `num_steps` steps.
        item_bytes: bytes of the tensor or array that was added last.
        holds_graph: whether it has a graph, which keeps what its backward needs.
    """

    name: str
    where: str
    line: str
    count: int
    num_steps: int
    item_bytes: int
    holds_graph: bool


@event("loader", last_of=("key",))
@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """Event `loader`: one per loader, when it is first iterated; the last one of a key counts.

    Attributes:
        key: identifies the loader within its process.
        kind: class name, "DataLoader" for torch's.
        dataset: class name of the data set.
        collate: qualified name of the function that puts batches together; `collate_where` is its "file:line".
        num_batches: of an epoch; None if unknown.
        is_for_training: whether a step followed one of its batches.
        where: "file:line" of the loop that iterates it; "" if the loop is a framework's.
        built: "file:line" of the user's line that made it; `call` is its source and `variable` the name given there.
            `dataset_built`, `dataset_call` and `dataset_variable` are those of a data set from MONAI or TorchIO.
        queue_workers: workers of the TorchIO queue that is its data set; None for other data sets.
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
    num_batches: int | None = None
    num_epochs: int = 0
    is_for_training: bool = False
    where: str = ""
    built: str = ""
    call: str = ""
    variable: str = ""
    dataset_built: str = ""
    dataset_call: str = ""
    dataset_variable: str = ""
    queue_workers: int | None = None

    @property
    def place(self) -> str:
        """The user's line to change: where the loader is made, else where it is iterated."""
        return self.built or self.where


@event("fetch", last_of=("key", "worker"))
@dataclass(frozen=True, kw_only=True)
class FetchFacts:
    """Event `fetch`: how batches of a loader were made in one process, summed; the last one of a (key, worker) counts.

    Attributes:
        key: the loader's.
        worker: number of the worker, -1 for the program itself.
        item_s: seconds in the data set, over all items; `item_cpu_s` is the thread's CPU time.
        collate_s: seconds in the collate function; `collate_cpu_s` is CPU time.
        batch_s: seconds of single batches, at most the last 1000.
        batch_bytes: bytes of the tensors of the last batch.
        starts_s: seconds from requesting workers until this one began its first batch, one per process.
        counted_items: of `num_items`, those made while steps were counted, in `counted_s` seconds with their collating;
            transforms are counted then. Both are 0 in older recordings.
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
    starts_s: Sequence[float] = ()
    counted_items: int = 0
    counted_s: float = 0.0

    @staticmethod
    def join(found: Sequence[FetchFacts]) -> FetchFacts:
        """Those of one worker: others of its number follow it where each epoch starts new ones."""
        return replace(
            found[-1],
            **_sums(found, *_SUMMED),
            batch_s=tuple(seconds for fetch in found for seconds in fetch.batch_s)[-_MAX_BATCHES:],
            starts_s=tuple(seconds for fetch in found for seconds in fetch.starts_s),
        )


@event("transform", last_of=("name", "library", "loader"), order=lambda transform: transform.order)
@dataclass(frozen=True, kw_only=True)
class TransformFacts:
    """Event `transform`: calls of one transform for one loader in one process, summed; the last one of a name counts.

    Attributes:
        name: class name, with the library's where two share it.
        is_random: whether it may differ from call to call; what comes before the first random one could be cached.
        self_s: seconds without those of transforms called within it.
        order: place among the transforms as they were first met.
        loader: key of the loader whose items were being made, -1 for none; None where unknown.
        where: "file:line" of the user's chain in which it is written; `line` is its source text.
    """

    name: str
    library: str
    num_calls: int
    self_s: float
    self_cpu_s: float
    is_random: bool
    order: int
    loader: int | None = None
    where: str = ""
    line: str = ""

    @staticmethod
    def join(found: Sequence[TransformFacts]) -> TransformFacts:
        """Those of one transform."""
        return replace(
            found[0],
            **_sums(found, "num_calls", "self_s", "self_cpu_s"),
            is_random=any(transform.is_random for transform in found),
            order=min(transform.order for transform in found),
        )


@event("files")
@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Event `files`: what the process opened for reading outside code folders; the last one counts.

    Attributes:
        kinds: suffix (".nii.gz") to number of opens.
        num_opens: of all files.
        num_files: number of different files.
        read_bytes: sizes of the files, counted at each open.
        largest: up to 64 paths, for reading them again.
        unseen: libraries in use that open files by themselves, which are not counted here.
        unpacked_bytes: of the different files together: the unpacked size that a gzip file states, otherwise the size.
        num_uses: opens of a file that was not among the last eight different ones; a reader that opens a file for its
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

    @staticmethod
    def join(found: Sequence[FileFacts]) -> FileFacts:
        """A file that several processes have read counts once for each: they do not know of each other."""
        kinds: Counter[str] = Counter()
        for files in found:
            kinds.update(files.kinds)
        largest = dict.fromkeys(path for files in found for path in files.largest)
        # Workers share the files of a data set: at least as many as the one that saw most.
        num_files = max(*(files.num_files for files in found), len(largest))
        num_counted = max(1, sum(files.num_files for files in found))
        return FileFacts(
            kinds=dict(kinds),
            num_files=num_files,
            largest=tuple(largest)[:_MAX_LARGEST],
            unseen=tuple(dict.fromkeys(name for files in found for name in files.unseen)),
            unpacked_bytes=round(sum(files.unpacked_bytes for files in found) * num_files / num_counted),
            **_sums(found, "num_opens", "read_bytes", "num_uses"),
        )


def _sums(found: Sequence[Any], *names: str) -> dict[str, Any]:
    """The sum of each of these fields over all records."""
    return {name: sum(getattr(record, name) for record in found) for name in names}
