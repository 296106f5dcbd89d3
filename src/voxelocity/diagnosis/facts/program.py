"""What the program is and what it does besides making batches: settings, network, calls, places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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


@dataclass(frozen=True, kw_only=True)
class CompileFacts:
    """Event `compile`: what torch.compile did after the first steps; the last one counts."""

    num_frames: int = 0
    num_recompiles: int = 0
    num_graph_breaks: int = 0
    seconds: float = 0.0
    reasons: Sequence[str] = ()


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
        where: "file:line" of the user's code; `line` is its source text.
        count: calls in the `num_steps` counted steps.
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
class CallFacts:
    """Event `call`: costly calls that belong outside steps: "gc.collect", "torch.cuda.empty_cache", "torch.save", ...

    The last one of a (call, where) counts; `num_steps` are the counted steps.
    """

    call: str
    where: str
    line: str
    count: int
    num_steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Event `memory`: what the process held after counted steps; the last one counts.

    Attributes:
        samples: (number of the counted step, bytes in main memory, bytes of tensors on the CUDA device), in order.
    """

    samples: Sequence[tuple[int, int, int]] = ()


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
