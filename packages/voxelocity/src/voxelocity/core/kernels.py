"""Launches of Triton kernels from several threads, and compiling them ahead of their first launch.

Triton compiles a kernel when it is first launched with arguments of a kind, and does not document that a kernel may be
launched from several threads before: each could compile its own, and one of the results would be lost
(`JITFunction.run` reads and writes its cache of compiled kernels without a lock). So each kernel has a lock here.
Different kernels compile at the same time, as in Triton's own `AsyncCompileMode`.

All kernels are launched by `launch`: those of the augmentation, the norms, the losses and the window engine. Importing
this module does not import Triton.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from voxelocity_observe.core.device import as_current

kernel_imports = threading.RLock()
"""Held while a module of kernels is imported during work. Without it, if an import fails, a thread waiting for it gets
the half-imported module, and its NameError hides the real error."""
_locks: dict[int, threading.Lock] = {}
# Triton's interpreter replaces functions of `triton.language` while a kernel runs, so only one may run at a time. The
# driver is also opened under this lock.
_shared = threading.Lock()
_thread = threading.local()


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None


class NotCompiledError(RuntimeError):
    """A kernel would have to be compiled where that is not possible."""


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
        any_value, any_multiple = _unspecialized(self.kernel)
        names = self.kernel.arg_names
        kinds = (
            _kind(value, any_value=name in any_value, any_multiple=name in any_multiple)
            for name, value in zip(names, self.arguments, strict=False)
        )
        return (self.kernel.__name__, *kinds, *self.constants)


def _kind(value: Any, *, any_value: bool, any_multiple: bool) -> object:
    if isinstance(value, torch.dtype):
        return value
    if isinstance(value, (bool, float)):
        return type(value).__name__
    size = "int32" if -(2**31) <= value < 2**31 else "int64"
    if any_value:
        return size
    return 1 if value == 1 else (size, not any_multiple and value % 16 == 0)


def _unspecialized(kernel: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Arguments of a kernel for whose values it is not compiled again, and those of which only 1 is a separate case."""
    parameters = getattr(kernel, "params", None)
    if parameters is None:
        # Of the interpreter, which keeps what the decorator was given.
        given = [kernel.kwargs.get(f"do_not_specialize{which}") or () for which in ("", "_on_alignment")]
        return given[0], given[1]
    return (
        [parameter.name for parameter in parameters if parameter.do_not_specialize],
        [parameter.name for parameter in parameters if parameter.do_not_specialize_on_alignment],
    )


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launches a kernel on the current stream. It waits for no other kernel's compilation, only for its own."""
    launches: list[Launch] | None = getattr(_thread, "launches", None)
    if launches is not None:
        launches.append(describe_launch(kernel, arguments, constants))
        if not _thread.runs:
            return
    with _locks.get(id(kernel)) or _lock_of(kernel):
        kernel[grid](*arguments, **constants)


@contextmanager
def record_launches(*, runs: bool) -> Iterator[list[Launch]]:
    """Collects what this thread launches within the block.

    Args:
        runs: whether kernels are launched too; if not, tensors may be on the device "meta".
    """
    launches: list[Launch] = []
    _thread.launches, _thread.runs = launches, runs
    try:
        yield launches
    finally:
        _thread.launches = None


def only_records() -> bool:
    """Whether launches of this thread are collected and do nothing, so that tensors may be on the device "meta"."""
    return getattr(_thread, "launches", None) is not None and not _thread.runs


def refuse_compiling_in_captures() -> None:
    """From now on, a launch in a CUDA graph that is being recorded raises if its kernel was not compiled before.

    Loading machine code may wait for the device or take memory of it, which a recording does not allow. Threads that
    record nothing may compile meanwhile. The error is a `NotCompiledError`.
    """
    triton: Any = sys.modules.get("triton")
    # Without Triton, only the recorded work could import it, and the steps before have launched all.
    if triton is None:
        return
    knobs = triton.knobs.runtime
    with _shared:
        if not isinstance(knobs.jit_cache_hook, _Refusal):
            knobs.jit_cache_hook = _Refusal(knobs.jit_cache_hook)


class _Refusal:
    """What Triton calls before it compiles.

    Args:
        before: what was called so far.
    """

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, **given: Any) -> Any:
        # A backward pass launches from a thread of its own, on the stream of the forward pass.
        if torch.cuda.is_current_stream_capturing():
            raise NotCompiledError(f"the kernel {given['fn'].name} was not compiled before the recording")
        return None if self._before is None else self._before(**given)


def compile_one(launch: Launch, device: torch.device) -> float:
    """Compiles and loads a kernel unless that is done, from Triton's cache on disk if it is there; the seconds taken.

    Launches of this kernel wait meanwhile, those of others do not. Safe to use from several threads.
    """
    import triton

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


def describe_launch(kernel: Any, arguments: Sequence[Any], constants: dict[str, Any]) -> Launch:
    """The launch of a kernel with these arguments; dtypes may stand for tensors."""
    plain = tuple(value.dtype if isinstance(value, torch.Tensor) else value for value in arguments)
    return Launch(kernel, plain, tuple(sorted(constants.items())))


def _lock_of(kernel: Any) -> threading.Lock:
    import triton

    own = threading.Lock() if isinstance(kernel, triton.JITFunction) else _shared
    return _locks.setdefault(id(kernel), own)
