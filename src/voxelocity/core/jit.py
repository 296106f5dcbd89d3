"""Loops compiled by Numba: the one module that knows it. Modules that use this are imported only where Numba is."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FAST_MATH = {"nsz", "arcp", "contract", "afn", "reassoc"}
"""Without "nnan" and "ninf", so that a NaN in a volume stays one."""


@functools.cache
def has_numba() -> bool:
    """Whether compiled loops can be had here."""
    return importlib.util.find_spec("numba") is not None


def kernel(function: _Function) -> _Function:
    """The function, compiled for each kind of argument when it is first called, and then kept on disk.

    It holds no GIL, follows C's rules for numbers, and does not check indices. Compiling takes seconds, once a machine.
    What is kept on disk is told stale by the file of the function alone: a kernel calls kernels of its own module only.
    """
    import numba

    compiled: _Function = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST_MATH)(function)
    return compiled


def inlined(function: _Function) -> _Function:
    """The function as a part of each kernel that calls it."""
    import numba

    compiled: _Function = numba.njit(nogil=True, error_model="numpy", inline="always")(function)
    return compiled
