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
from collections.abc import Mapping
from typing import Any, Protocol

_TOOL = "NVTX_INJECTION64_PATH"


class _Binding(Protocol):
    """A way into NVTX. Pushed ranges nest within a thread; started ones may end in another."""

    def push(self, name: str, color: str) -> None: ...

    def pop(self) -> None: ...

    def start(self, name: str, color: str) -> Any: ...

    def stop(self, handle: Any) -> None: ...


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
    """Spans as ranges.

    Args:
        binding: makes them.
    """

    def __init__(self, binding: _Binding) -> None:
        self._binding = binding

    def begin(self, name: str, color: str, is_phase: bool, /) -> None:
        """As `Listener`."""
        self._binding.push(name, color)

    def end(self, token: None, /) -> None:
        """As `Listener`."""
        self._binding.pop()

    def begin_range(self, name: str, color: str, /) -> Any:
        """As `Listener`."""
        return self._binding.start(name, color)

    def end_range(self, token: Any, /) -> None:
        """As `Listener`."""
        self._binding.stop(token)

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        """As `Listener`. Does nothing: a range cannot be made afterwards."""


class _TorchBinding:
    """torch's, which knows no colors."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, color: str) -> None:
        self._nvtx.rangePushA(name)

    def pop(self) -> None:
        self._nvtx.rangePop()

    def start(self, name: str, color: str) -> Any:
        return self._nvtx.rangeStartA(name)

    def stop(self, handle: Any) -> None:
        self._nvtx.rangeEnd(handle)


class _PackageBinding:
    """NVIDIA's own package."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, color: str) -> None:
        self._nvtx.push_range(name, color=_argb(color))

    def pop(self) -> None:
        self._nvtx.pop_range()

    def start(self, name: str, color: str) -> Any:
        return self._nvtx.start_range(name, color=_argb(color))

    def stop(self, handle: Any) -> None:
        self._nvtx.end_range(handle)


def _package_binding() -> _Binding | None:
    try:
        import nvtx
    except ImportError:
        return None
    return _PackageBinding(nvtx)


def _torch_binding() -> _Binding | None:
    try:
        import torch
    except ImportError:
        return None
    nvtx = getattr(torch._C, "_nvtx", None)
    return None if nvtx is None else _TorchBinding(nvtx)


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
