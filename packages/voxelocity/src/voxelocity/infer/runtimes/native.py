"""torch itself as a runtime: eager, `torch.compile` and CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from voxelocity.infer.runtimes.contract import EAGER, Forward, Runtime, RuntimeTask
from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from voxelocity.step import PrecisionConfig

# As torch's documentation asks for before a capture: libraries choose their algorithms in the first calls.
_WARM_UP_CALLS = 3


def eager(run: Forward, precision: PrecisionConfig, device: torch.device) -> Forward:
    """The network called directly, under autocast and with windows in its memory format."""
    import torch

    from voxelocity.step import autocast

    def forward(windows: torch.Tensor) -> torch.Tensor:
        with autocast(precision, device):
            logits = run(windows.to(memory_format=precision.memory_format))
        assert isinstance(logits, torch.Tensor)
        return logits

    return forward


def allows_tf32() -> bool:
    """Whether torch may round the factors of convolutions to TF32; on its devices, other runtimes do the same."""
    import torch

    # The older setting cannot be read where a program has changed this newer one.
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision) == "tf32"


def load_eager(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """`eager` for a task."""
    return eager(network, task.precision, task.device)


def load_compiled(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """`torch.compile` for the shape of a full batch; smaller batches, rare and last, run eagerly.

    Raises:
        ConfigError: this machine lacks the compiler that the device's code needs.
    """
    import torch

    from voxelocity.step.precision import compiled

    run = compiled(network, "default", task.device)
    forward = _of_full_batches(eager(run, task.precision, task.device), task, otherwise=load_eager(network, task))
    with torch.no_grad():
        forward(torch.zeros(task.batch_shape, device=task.device))
    return forward


def why_not_compiled(device: torch.device) -> str:
    """Why code cannot be generated for the device; "" if it can."""
    from voxelocity.step import check_compiler

    try:
        check_compiler("default", device)
    except ConfigError as error:
        return str(error)
    return ""


def load_cuda_graphs(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """A full batch recorded once as a CUDA graph, which is then replayed without the host's work for each kernel.

    Smaller batches run eagerly. The logits of a full batch are in a buffer that the next call overwrites.
    """
    import torch

    from voxelocity.core.kernels import refuse_compiling_in_captures

    direct = load_eager(network, task)
    with torch.no_grad(), torch.cuda.device(task.device):
        windows = torch.zeros(task.batch_shape, device=task.device)
        # Not on the default stream, on which a capture is not allowed and whose work it would wait for.
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                direct(windows)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Memory of the warm-up returns to the device as the capture begins: a graph has a pool of its own, so that two
        # models in a process do not share theirs. Other threads may take page-locked memory meanwhile.
        refuse_compiling_in_captures()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = direct(windows)

    def replay(batch: torch.Tensor) -> torch.Tensor:
        windows.copy_(batch)
        graph.replay()
        return logits

    return _of_full_batches(replay, task, otherwise=direct)


def _of_full_batches(run: Forward, task: RuntimeTask, *, otherwise: Forward) -> Forward:
    def forward(windows: torch.Tensor) -> torch.Tensor:
        return run(windows) if windows.shape == task.batch_shape else otherwise(windows)

    return forward


EAGER_RUNTIME = Runtime(name=EAGER, why_not=lambda device: "", load=load_eager, build_s=0.0)
CUDA_GRAPHS_RUNTIME = Runtime(
    name="cuda-graphs",
    why_not=lambda device: "" if device.type == "cuda" else f"CUDA graphs need a CUDA device, not {device.type}",
    load=load_cuda_graphs,
    build_s=2.0,
)
COMPILE_RUNTIME = Runtime(name="compile", why_not=why_not_compiled, load=load_compiled, build_s=60.0)
