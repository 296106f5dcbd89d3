"""The program's settings, network, optimizer and compiler, as events of the recording. Reads only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from .lines import OWN_CODE, Site, shown_file
from .networks import first_parameter

_VARIABLES = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_BLOCKTIME",
    "KMP_AFFINITY", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "LD_PRELOAD", "MALLOC_CONF",
)  # fmt: skip
_MAX_CHANNELS = 64
_MAX_REASONS = 16


def describe_settings(torch: Any, device: Any) -> dict[str, Any]:
    """Fields of the event `settings`, with their current values, in the forward pass.

    Args:
        torch: the module.
        device: the `torch.device` that holds the network.
    """
    has_cuda = bool(torch.cuda.is_available())
    fields: dict[str, Any] = {
        "device": device.type,
        "has_cuda": has_cuda,
        "autocast": _autocast(torch, device.type),
        # MONAI's `set_determinism` sets cuDNN's switch, which changes nothing on a CPU.
        "deterministic": bool(torch.are_deterministic_algorithms_enabled())
        or (device.type == "cuda" and torch.backends.cudnn.deterministic),
        "detect_anomaly": bool(torch.is_anomaly_enabled()),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "allow_tf32_cudnn": _allows_tf32(torch.backends.cudnn),
        "allow_tf32_matmul": _allows_tf32(torch.backends.cuda.matmul),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    if device.type == "cuda":
        fields["device_name"] = torch.cuda.get_device_name(device)
        fields["capability"] = list(torch.cuda.get_device_capability(device))
    return fields


def describe_network(network: Any, input_dtype: str) -> dict[str, Any]:
    """Fields of the event `network`, without the shapes of its inputs."""
    inner, wrapper = _unwrapped(network)
    dtypes: dict[str, int] = {}
    for parameter in inner.parameters():
        dtypes[_name(parameter.dtype)] = dtypes.get(_name(parameter.dtype), 0) + parameter.numel()
    kernels = [module for module in inner.modules() if _is_convolution(module)]
    weights = [module.weight for module in kernels]
    largest = sorted(kernels, key=lambda module: -module.weight.numel())
    code = getattr(getattr(type(inner), "forward", None), "__code__", None)
    is_own = code is not None and OWN_CODE.holds(code, type(inner).__module__)
    return {
        "name": type(inner).__name__,
        "wrapper": wrapper,
        "num_parameters": sum(dtypes.values()),
        "parameter_dtypes": dtypes,
        "input_shapes": [],
        "channels": [[m.in_channels, m.out_channels] for m in largest[:_MAX_CHANNELS]],
        "kernel_dimensions": max((weight.dim() - 2 for weight in weights), default=0),
        "memory_format": _memory_format(weights),
        "input_dtype": input_dtype,
        "where": f"{shown_file(code.co_filename)}:{code.co_firstlineno}" if code is not None and is_own else "",
    }


def describe_optimizer(
    optimizer: Any, *, sets_to_none: bool, per_step: Mapping[str, float], sync_s: float, where: str, site: Site
) -> dict[str, Any]:
    """Fields of the event `optimizer`."""
    return {
        "name": type(optimizer).__name__,
        "implementation": _implementation(optimizer),
        "sets_to_none": sets_to_none,
        **{f"{name}_per_step": round(count, 3) for name, count in per_step.items()},
        "sync_s": round(sync_s, 7),
        "where": site.where or where,
        "call": site.call,
        "variable": site.variable,
    }


def shown_sync_s(network: Any) -> float:
    """Seconds of one backward in which ranks sum gradients and no gradient is computed; 0 where they were not counted.

    A mean over some of the steps, by DistributedDataParallel's own clock; it includes waiting for slower ranks.
    """
    ask = getattr(network, "_get_ddp_logging_data", None)
    if ask is None:
        return 0.0
    try:
        found = ask()
    except RuntimeError:
        # Nothing is known before the first backward.
        return 0.0
    summed_ns = float(found.get("avg_backward_comm_time", 0))
    return max(0.0, summed_ns - float(found.get("avg_backward_compute_comm_overlap_time", 0))) / 1e9


def compile_counts() -> dict[str, Any]:
    """What torch.compile has done so far in this process; empty where it was never used."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    counters, times = utils.counters, getattr(utils, "compilation_time_metrics", {})
    seconds = times.get("_compile.compile_inner") or times.get("entire_frame_compile") or []
    return {
        # "frames" leaves out what is compiled with fullgraph=True.
        "frames": int(counters["stats"]["unique_graphs"]),
        "breaks": dict(counters["graph_break"]),
        "recompiles": dict(counters["recompiles"]),
        "seconds": float(sum(seconds)),
    }


def describe_compile(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Fields of the event `compile`: what it did since `before`, and in total.

    A graph made after the warm-up counts as recompiled: what the steps need was compiled by then.
    """
    num_frames, earlier = now.get("frames", 0), before.get("frames", 0)
    breaks = now.get("breaks", {})
    reasons = [str(reason).strip()[:300] for reason in [*now.get("recompiles", {}), *breaks]]
    return {
        "num_frames": num_frames,
        "num_recompiles": num_frames - earlier,
        "num_graph_breaks": sum(breaks.values()),
        "seconds": round(now.get("seconds", 0.0) - before.get("seconds", 0.0), 6),
        "reasons": reasons[:_MAX_REASONS],
    }


def has_fast_half(torch: Any, device: Any) -> bool:
    """Whether the device has units that multiply matrices of 16-bit numbers: tensor cores, or a CPU's."""
    if device.type == "cuda":
        return bool(torch.cuda.get_device_capability(device) >= (7, 0))
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return device.type == "cpu" and "bf16" in file.read()
    except OSError:
        return False


def device_of(network: Any) -> Any:
    """The `torch.device` of the network's first parameter, None where it has none."""
    parameter = first_parameter(network)
    return None if parameter is None else parameter.device


def _unwrapped(network: Any) -> tuple[Any, str]:
    inner, wrapper = network, ""
    for _ in range(4):
        name = type(inner).__name__
        following = inner.__dict__.get("_modules", {}).get("_orig_mod" if name == "OptimizedModule" else "module")
        if name not in ("DataParallel", "DistributedDataParallel", "OptimizedModule") or following is None:
            break
        inner, wrapper = following, wrapper or name
    return inner, wrapper


def _is_convolution(module: Any) -> bool:
    """Not a block of the user's, which may have some attributes of such a name."""
    sizes = [getattr(module, name, None) for name in ("in_channels", "out_channels")]
    is_sized = hasattr(module, "kernel_size") and all(isinstance(size, int) for size in sizes)
    return is_sized and hasattr(getattr(module, "weight", None), "movedim")


def _autocast(torch: Any, device: str) -> str:
    try:
        if torch.is_autocast_enabled(device):
            return _name(torch.get_autocast_dtype(device))
    except (TypeError, AttributeError):
        # torch before 2.4 has one function per device.
        if device == "cuda" and torch.is_autocast_enabled():
            return _name(torch.get_autocast_gpu_dtype())
        if device == "cpu" and torch.is_autocast_cpu_enabled():
            return _name(torch.get_autocast_cpu_dtype())
    return ""


def _allows_tf32(backend: Any) -> bool | None:
    try:
        return bool(backend.allow_tf32)
    except (AttributeError, RuntimeError):
        # If the program uses the newer settings, the older ones cannot be read.
        precision = getattr(backend, "fp32_precision", None)
        return None if precision is None else precision == "tf32"


def _implementation(optimizer: Any) -> str:
    settings = optimizer.param_groups[0] if optimizer.param_groups else {}
    if settings.get("fused"):
        return "fused"
    if "foreach" not in settings:
        return ""
    if settings["foreach"] is not None:
        return "foreach" if settings["foreach"] else "for-loop"
    parameters = settings.get("params") or []
    return "foreach" if parameters and parameters[0].device.type == "cuda" else "for-loop"


def _memory_format(weights: list[Any]) -> str:
    """The format of the first convolution that shows it: with one channel, or a kernel of one voxel, both are one."""
    for weight in weights:
        is_last = weight.dim() >= 4 and weight.movedim(1, -1).is_contiguous()
        if is_last and not weight.is_contiguous():
            return "channels_last_3d" if weight.dim() == 5 else "channels_last"
        if not is_last:
            return "contiguous"
    return "contiguous" if weights else ""


def _name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")
