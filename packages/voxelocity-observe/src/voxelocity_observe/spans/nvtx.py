"""Spans as NVTX ranges, which NVIDIA's profilers show. The only place that knows NVTX.

A tool is attached when a program starts, by naming its library in `NVTX_INJECTION64_PATH`; where that is not set, every
call of NVTX is empty, and none is made. Colors need NVIDIA's package `nvtx` (the extra of that name), because torch's
own binding passes only names.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_TOOL = "NVTX_INJECTION64_PATH"


class _Binding(NamedTuple):
    """A way into NVTX. Pushed ranges nest within a thread; started ones may end in another."""

    push: Callable[[str, str], object]
    pop: Callable[[], object]
    start: Callable[[str, str], Any]
    stop: Callable[[Any], object]


def has_nvtx() -> bool:
    """Whether ranges could be made here at all: by torch, which in builds for CPUs cannot, or by the package `nvtx`."""
    import torch

    return hasattr(torch._C, "_nvtx") or importlib.util.find_spec("nvtx") is not None


def open_nvtx(*, environ: Mapping[str, str] = os.environ) -> NvtxListener | None:
    """A listener that hands spans to the attached tool; None if none is attached or NVTX is not available."""
    if not environ.get(_TOOL):
        return None
    binding = _package_binding() or _torch_binding()
    return None if binding is None else NvtxListener(binding)


class NvtxListener:
    """Spans as ranges of a binding."""

    def __init__(self, binding: _Binding) -> None:
        self._binding = binding

    def begin(self, name: str, color: str, is_phase: bool, /) -> None:
        self._binding.push(name, color)

    def end(self, token: None, /) -> None:
        self._binding.pop()

    def begin_range(self, name: str, color: str, /) -> Any:
        return self._binding.start(name, color)

    def end_range(self, token: Any, /) -> None:
        self._binding.stop(token)

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        """Does nothing: a range cannot be made afterwards."""


def _package_binding() -> _Binding | None:
    """NVIDIA's own package."""
    try:
        import nvtx
    except ImportError:
        return None
    return _Binding(
        push=lambda name, color: nvtx.push_range(name, color=_argb(color)),
        pop=nvtx.pop_range,
        start=lambda name, color: nvtx.start_range(name, color=_argb(color)),
        stop=nvtx.end_range,
    )


def _torch_binding() -> _Binding | None:
    """torch's, which knows no colors."""
    try:
        import torch
    except ImportError:
        return None
    nvtx: Any = getattr(torch._C, "_nvtx", None)
    if nvtx is None:
        return None
    return _Binding(
        push=lambda name, color: nvtx.rangePushA(name),
        pop=lambda: nvtx.rangePop(),
        start=lambda name, color: nvtx.rangeStartA(name),
        stop=lambda handle: nvtx.rangeEnd(handle),
    )


@functools.lru_cache(maxsize=256)
def _argb(color: str) -> int | None:
    """The color as NVTX has it, opaque; None, the tool's choice, for "" and for an unknown color, with one warning."""
    if not color:
        return None
    from matplotlib.colors import to_rgb

    try:
        red, green, blue = (round(255.0 * value) for value in to_rgb(color))
    except ValueError:
        warnings.warn(
            f"span: {color!r} is not a color, so the profiler chooses one; write a name ('green') or '#2ca02c'",
            stacklevel=2,
        )
        return None
    return 0xFF000000 | red << 16 | green << 8 | blue
