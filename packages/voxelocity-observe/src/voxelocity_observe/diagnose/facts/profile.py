"""What torch.profiler saw of the program, from its trace; not an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxelocity_observe.diagnose.facts.program import SyncFacts


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
