"""Loops compiled from C ahead of time: their library, and the checks of arrays before their memory is passed to it.

The only module that knows `ctypes`, which releases the GIL while a loop runs. `build_loops` makes the library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core import build_loops
from voxelocity.core.volume import Array

_LEVELS = ("plain", "avx2")
_POINTER = ctypes.c_void_p
_SCALARS: dict[str, Any] = {
    "int": ctypes.c_int64,
    "seed": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_STORED, _ANY = "stored", "any"
# M_MMAP_THRESHOLD, of which 32 MiB is the most, and M_TRIM_THRESHOLD.
_KEPT = ((-3, 2**25), (-1, 2**31 - 1))
_OUT_OF_MEMORY = 1


@functools.cache
def has_loops() -> bool:
    """Whether the compiled loops are available here; if not, a warning says once what that costs and how to cure it."""
    if reason := why_not():
        what, _, cure = reason.partition("; ")
        warnings.warn(
            f"voxelocity: the compiled loops are missing: {what}, so augmentation, resampling and MONAI's transforms "
            f"on a CPU use torch and NumPy, many times slower; {cure}",
            stacklevel=2,
        )
    return not reason


@functools.cache
def why_not() -> str:
    """As `build_loops.why_not`, asked once."""
    return build_loops.why_not()


@functools.cache
def stamp() -> str:
    """As `build_loops.stamp`, read once."""
    return build_loops.stamp()


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(str(build_loops.LIBRARY))


@functools.cache
def thread_pool() -> int:
    """Where `GOMP_parallel` is in the library of threads that torch loaded before, for loops that share their work.

    0 if torch uses another library: as its threads spin while they wait, a second pool would take cores from them.
    """
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if os.name == "posix" else None
    return 0 if found is None else ctypes.cast(found, _POINTER).value or 0


def keep_freed_memory() -> bool:
    """Lets the C library keep up to 2 GiB of freed memory for what is allocated next; False if it is not glibc.

    Otherwise it returns most of it to the system, which clears each page when it is used again. For good.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return set_option is not None and all(set_option(*option) == 1 for option in _KEPT)


def use_one_core() -> bool:
    """Lets the calling thread work alone where torch would share its work, for good; False if its library is another.

    Other threads are not changed, and torch settles its number once a thread: ask it for that before.
    """
    set_number = getattr(ctypes.CDLL(None), "omp_set_num_threads", None) if os.name == "posix" else None
    if set_number is not None:
        set_number(ctypes.c_int(1))
    return set_number is not None


def levels() -> tuple[str, ...]:
    """The levels of instructions that this processor can run, the fastest last."""
    return _LEVELS[: _library().loops_level()]


class NativeLoop:
    """A function of the library.

    A call raises ValueError, and runs nothing, if an array is not of its dtype, in C order, and writable where the loop
    writes. The caller has checked shapes, on which the loop relies. Arrays may be used by other threads meanwhile.

    Args:
        name: in C, without the suffixes of level and stored type.
        kinds: of its arguments: "in" or "out" and a dtype for arrays, "stored" for the dtype that selects one of
            several functions, or "any" where another argument says which it is; else a key of `_SCALARS`.
        stored: dtypes that there are functions for.
    """

    def __init__(self, name: str, *kinds: str, stored: Sequence[str] = ()) -> None:
        self.name, self.kinds = name, kinds
        self.stored = frozenset(np.dtype(dtype) for dtype in stored)
        self._arrays = [self._array_of(kind) for kind in kinds]
        self._functions: dict[tuple[str, Any], Any] = {}

    @staticmethod
    def _array_of(kind: str) -> tuple[bool, Any] | None:
        """Whether the array is written, and its dtype, None for the stored one; None for a number."""
        if kind in _SCALARS:
            return None
        use, dtype = kind.split()
        special = {_STORED: None, _ANY: _ANY}
        return use == "out", special[dtype] if dtype in special else np.dtype(dtype)

    def __call__(self, *arguments: Any, level: str = "") -> None:
        stored, passed = None, []
        for number, (wanted, argument) in enumerate(zip(self._arrays, arguments, strict=True)):
            if wanted is None:
                passed.append(argument)
                continue
            is_written, dtype = wanted
            if not isinstance(argument, np.ndarray):
                raise ValueError(f"loop {self.name}: argument {number} is a {type(argument).__name__}, not an array")
            # Of a stored type, all arguments have that of the first.
            allowed = self.stored if stored is None else (stored,)
            is_typed = dtype is _ANY or (argument.dtype in allowed if dtype is None else argument.dtype == dtype)
            flags = argument.flags
            if not (is_typed and flags.c_contiguous and (flags.writeable or not is_written)):
                raise ValueError(self._why_not(number, argument))
            if dtype is None:
                stored = argument.dtype
            passed.append(argument.__array_interface__["data"][0])
        status = self._function(level, stored)(*passed)
        if status:
            raise self._error(status, arguments)

    def _function(self, level: str, stored: Any) -> Any:
        found = self._functions.get((level, stored))
        if found is None:
            names = [self.name, *([] if stored is None else [stored.name]), level or levels()[-1]]
            found = getattr(_library(), "_".join(names))
            found.argtypes = [_SCALARS.get(kind, _POINTER) for kind in self.kinds]
            found.restype = ctypes.c_int
            self._functions[level, stored] = found
        return found

    def _why_not(self, number: int, array: Array) -> str:
        order = "in C order" if array.flags.c_contiguous else f"with steps {array.strides}"
        kept = "" if array.flags.writeable else ", read-only"
        wanted = self.kinds[number].replace(_STORED, " or ".join(sorted(dtype.name for dtype in self.stored)))
        is_now = f"{array.dtype} {array.shape} {order}{kept}"
        return f"loop {self.name}: argument {number} is {is_now}, not '{wanted}' in C order"

    def _error(self, status: int, arguments: Sequence[Any]) -> Exception:
        shapes = [getattr(argument, "shape", argument) for argument in arguments]
        if status == _OUT_OF_MEMORY:
            return MemoryError(f"loop {self.name}: no memory for its scratch; shapes {shapes}")
        return ValueError(f"loop {self.name}: an index lies beyond its array; shapes or values {shapes}")


def need_shapes(loop: str, **arrays: tuple[Array, Sequence[int]]) -> None:
    """Raises ValueError unless each array has its shape."""
    for name, (array, shape) in arrays.items():
        if array.shape != tuple(shape):
            raise ValueError(f"loop {loop}: {name} has shape {array.shape}, not {tuple(shape)}")


def rows_of(array: Array, dtypes: frozenset[np.dtype[Any]]) -> tuple[Array, list[int]]:
    """The array's memory as a read-only line of its own dtype, and the steps of all axes except the last, which is 1.

    A view if the last axis is contiguous and the dtype one of these, else of a copy, as float32 if it is none of them.
    """
    if array.dtype not in dtypes:
        array = np.ascontiguousarray(array, dtype=np.float32)
    if not _is_in_rows(array):
        array = np.ascontiguousarray(array)
    line, steps = _line_of(array, is_written=False)
    return line, steps[:-1]


def writable_rows(array: Array) -> tuple[Array, list[int]]:
    """As `rows_of`, for a loop to write to; raises ValueError if that would be a copy."""
    if not (array.flags.writeable and _is_in_rows(array)):
        raise ValueError(f"no loop can write to an array with steps {array.strides}, or to one that is read-only")
    line, steps = _line_of(array, is_written=True)
    return line, steps[:-1]


def flatten(array: Array) -> tuple[Array, list[int]]:
    """The array's memory as a read-only line of its dtype, a view, and in it the first element and all axes' steps."""
    back = [step < 0 for step in array.strides]
    line, steps = _line_of(array[tuple(slice(None, None, -1 if turns else 1) for turns in back)], is_written=False)
    first = sum((side - 1) * step for side, step, turns in zip(array.shape, steps, back, strict=True) if turns)
    return line, [first, *(-step if turns else step for step, turns in zip(steps, back, strict=True))]


def _is_in_rows(array: Array) -> bool:
    """Whether the last axis is dense and the others go forward by whole numbers."""
    size = array.itemsize
    return array.strides[-1] == size and all(step >= 0 and step % size == 0 for step in array.strides)


def _line_of(array: Array, *, is_written: bool) -> tuple[Array, list[int]]:
    steps = [step // array.itemsize for step in array.strides]
    extent = 1 + sum((side - 1) * step for side, step in zip(array.shape, steps, strict=True)) if array.size > 0 else 0
    line = np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,), writeable=is_written)
    return line, steps


Along = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]], Array]
"""Of an axis of a new grid: the two voxels of the source around each place, and the float32 weight of the second."""

ALONG = ("in int64", "in int64", "in float32") * 3
_interpolate = NativeLoop(
    "interpolate",
    "in stored",
    "in int64",
    *ALONG,
    "out float32",
    stored=("uint8", "int16", "uint16", "int32", "float32", "float64"),
)


def interpolate(source: Array, out: npt.NDArray[np.float32], along: Sequence[Along]) -> None:
    """Fills `out` (x, y, z), in C order, from `source` (x, y, z) of any number type.

    Quickest for a source of a dtype of the loop whose last axis is dense; others are copied.
    """
    line, steps = rows_of(source, _interpolate.stored)
    sizes = np.array([*source.shape, *steps, *out.shape], dtype=np.int64)
    _interpolate(line, sizes, *flat_along("interpolate", along, out.shape), out)


def flat_along(loop: str, along: Sequence[Along], shape: Sequence[int]) -> list[Array]:
    """The arrays of each axis of a grid of this shape one after the other, as loops take them.

    Raises:
        ValueError: one has another length than its axis.
    """
    flat: list[Array] = []
    for (below, above, weight), length in zip(along, shape, strict=True):
        need_shapes(loop, below=(below, (length,)), above=(above, (length,)), weight=(weight, (length,)))
        flat += [np.ascontiguousarray(below, dtype=np.int64), np.ascontiguousarray(above, dtype=np.int64), weight]
    return flat
