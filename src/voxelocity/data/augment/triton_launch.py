"""Launches of the augmentation's Triton kernels from several threads, and compiling them ahead of their first launch.

Triton compiles a kernel when it is first launched with arguments of a kind, and does not document that a kernel may be
launched from several threads before: each could compile its own, and one of the results would be lost
(`JITFunction.run` reads and writes its cache of compiled kernels without a lock). So each kernel has a lock here.
Different kernels compile at the same time, as in Triton's own `AsyncCompileMode`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton

from voxelocity.core.device import as_current

SIZES: Final = (
    *("nx", "ny", "nz", "points_x", "points_y", "points_z", "num_taps", "side", "inner"),
    *("tiles_y", "tiles_z"),
)
"""Arguments for whose values Triton must not compile a kernel again: it does by default where one is 1 or a multiple of
16. `num_voxels` stays out, as its being a multiple of 16 is what lets a thread load 16 bytes at once, and patches with
another number of voxels are rare; so does `num_channels`, which no run changes."""

_locks: dict[int, threading.Lock] = {}
# Triton's interpreter replaces functions of `triton.language` while a kernel runs, so only one may run at a time. The
# driver is also opened under this lock.
_shared = threading.Lock()
_recording = threading.local()


@dataclass(frozen=True)
class Launch:
    """What Triton compiles a kernel for.

    Attributes:
        kernel: the kernel.
        arguments: dtypes in place of tensors, which begin at multiples of 16 bytes; numbers otherwise.
        constants: compile-time arguments and options, by name.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]

    @property
    def form(self) -> tuple[object, ...]:
        """What tells one compiled kernel from another: equal for launches that run the same machine code."""
        names = self.kernel.arg_names
        numbers = (_kind(name, value) for name, value in zip(names, self.arguments, strict=False))
        return (self.kernel.__name__, *numbers, *self.constants)


def _kind(name: str, value: Any) -> object:
    if isinstance(value, torch.dtype):
        return value
    size = "int32" if -(2**31) <= value < 2**31 else "int64"
    if name in SIZES:
        return size
    return 1 if value == 1 else (size, value % 16 == 0)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launches a kernel on the current stream. It waits for no other kernel's compilation, only for its own."""
    launches: list[Launch] | None = getattr(_recording, "launches", None)
    if launches is not None:
        launches.append(_described(kernel, arguments, constants))
        if not _recording.runs:
            return
    with _lock_of(kernel):
        kernel[grid](*arguments, **constants)


@contextmanager
def recorded(*, runs: bool) -> Iterator[list[Launch]]:
    """Collects what this thread launches within the block.

    Args:
        runs: whether kernels are launched too; if not, tensors may be on the device "meta".
    """
    launches: list[Launch] = []
    _recording.launches, _recording.runs = launches, runs
    try:
        yield launches
    finally:
        _recording.launches = None


def compile_one(launch: Launch, device: torch.device) -> float:
    """Compiles and loads a kernel unless that is done, from Triton's cache on disk if it is there; the seconds taken.

    Launches of this kernel wait meanwhile, those of others do not. Safe to use from several threads.
    """
    begin_s = time.perf_counter()
    with as_current(device):
        with _shared:
            # Threads that open the driver at once would each compile it.
            triton.runtime.driver.active.get_current_device()
        with _lock_of(launch.kernel):
            compiled = launch.kernel.warmup(*launch.arguments, grid=(1,), **dict(launch.constants))
            # The first use loads the machine code, and some releases of Triton build a launcher in C for it.
            assert compiled is None or compiled.run is not None
    return time.perf_counter() - begin_s


def distinct(launches: Sequence[Launch]) -> list[Launch]:
    """One launch of each form, in order."""
    return list({launch.form: launch for launch in reversed(launches)}.values())[::-1]


def _described(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> Launch:
    plain = tuple(value.dtype if isinstance(value, torch.Tensor) else value for value in arguments)
    return Launch(kernel, plain, tuple(sorted(constants.items())))


def _lock_of(kernel: Any) -> threading.Lock:
    if not isinstance(kernel, triton.JITFunction):
        return _shared
    return _locks.setdefault(id(kernel), threading.Lock())
