"""Loops compiled by Numba: the only module that knows it. Modules that use this are imported only if Numba exists."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache
import threading
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from voxelocity.core.waiting import refuse_to_wait

_Function = TypeVar("_Function", bound=Callable[..., Any])

Engine = Literal["auto", "numba", "torch"]
"""Compiled loops, for arrays of a CPU if Numba is installed, or plain torch on any device; "auto" takes the former if
available. "torch" is the off switch."""

_FAST_MATH = {"nsz", "arcp", "contract", "afn", "reassoc"}
"""Without "nnan" and "ninf", so that a NaN in a volume stays a NaN."""

kernel_imports = threading.RLock()
"""Held while a module of kernels is imported during work. Without it, if an import fails, a thread waiting for it gets
the half-imported module, and its NameError hides the real error."""


@functools.cache
def has_numba() -> bool:
    """Whether compiled loops are available here."""
    return importlib.util.find_spec("numba") is not None


def kernel(function: _Function) -> _Function:
    """The function, compiled for each kind of argument at its first call and then kept on disk.

    It releases the GIL, follows C's rules for numbers, and does not check indices. Compiling takes seconds, once per
    machine, or once per process if Numba has no place to keep the code; a warning then says so once.

    It is compiled again when its file changes, or a file from which its module imports kernels, or this one. Constants
    that it takes from other files do not count.
    """
    return _compile_with_cache(function, fastmath=_FAST_MATH)


def exact_kernel(function: _Function) -> _Function:
    """As `kernel`, but each operation rounds separately, in the order in which it is written."""
    return _compile_with_cache(function, fastmath=False)


def python_function(value: Any) -> Any:
    """The function that this loop, ours or a user's, was compiled from by Numba; None if it is not such a loop."""
    return getattr(value, "py_func", None) if type(value).__module__.startswith("numba.") else None


def _compile_with_cache(function: _Function, *, fastmath: bool | set[str]) -> _Function:
    import numba

    def compiled(*, cache: bool) -> _Function:
        made: _Function = numba.njit(nogil=True, cache=cache, error_model="numpy", fastmath=fastmath)(function)
        return made

    try:
        made: Any = compiled(cache=True)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _warn_of_no_place()
        made = compiled(cache=False)
    else:
        # Numba's own stamp covers only the file of the function, and kernels of other files become part of its code.
        made._cache._cache_file._source_stamp = _stamp(function)
    refuse_to_wait(made)
    kept: _Function = made
    return kept


def _stamp(function: Any) -> str:
    """The same for the same sources: of the function, of what its module imports, and of this module."""
    digest = hashlib.sha256("".join(linecache.getlines(__file__)).encode())
    for _, source in sorted(_sources(function).items()):
        digest.update(source.encode())
    return digest.hexdigest()


def _sources(function: Any) -> dict[str, str]:
    """The texts of the function's file and of those of the kernels that it imports, by name."""
    from numba.core.dispatcher import Dispatcher

    file = function.__code__.co_filename
    found = {file: "".join(linecache.getlines(file, function.__globals__))}
    for value in function.__globals__.values():
        if isinstance(value, Dispatcher) and value.py_func.__code__.co_filename not in found:
            found |= _sources(value.py_func)
    return found


@functools.cache
def _warn_of_no_place() -> None:
    warnings.warn(
        "voxelocity: Numba can write neither into the folder of the package nor into the user's cache folder, so each "
        "process compiles its loops again, which takes seconds to a minute; set the variable NUMBA_CACHE_DIR to a "
        "writable folder",
        stacklevel=2,
    )


def inlined(function: _Function) -> _Function:
    """The function, inlined into each kernel that calls it."""
    import numba

    compiled: _Function = numba.njit(nogil=True, error_model="numpy", inline="always")(function)
    return compiled


@functools.cache
def fused_multiply_add() -> Any:
    """A function for kernels: `fma(a, b, c)` is `a * b + c` of three numbers of one floating dtype, rounded once."""
    from numba.extending import intrinsic

    def fused(typing_context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return a(a, a, a), generate

    made: Any = intrinsic(fused)
    return made


@functools.cache
def pair_copier() -> Any:
    """A function for kernels: `copy(source, place, target, row, k)` copies two neighbors by one load and one store.

    Elements `place` and `place + 1` of a flat `source` become elements `2 * k` and `2 * k + 1` of row `row` of
    `target`, a C-contiguous array of two axes and the same dtype. Indices are not checked and never negative. A source
    may begin at any element: the load is not aligned.
    """
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    def copy(
        typing_context: Any, source: Any, place: Any, target: Any, row: Any, k: Any
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from_type, _, to_type, _, _ = signature.args
            line = context.make_array(from_type)(context, builder, arguments[0])
            rows = context.make_array(to_type)(context, builder, arguments[2])
            size = context.get_abi_sizeof(context.get_data_type(from_type.dtype))
            pair = ir.IntType(16 * size).as_pointer()
            width = cgutils.unpack_tuple(builder, rows.shape)[1]
            to_place = builder.add(
                builder.mul(arguments[3], width), builder.shl(arguments[4], ir.Constant(arguments[4].type, 1))
            )
            value = builder.load(builder.bitcast(builder.gep(line.data, [arguments[1]]), pair), align=size)
            builder.store(value, builder.bitcast(builder.gep(rows.data, [to_place]), pair), align=size)
            return context.get_dummy_value()

        return types.void(source, types.uint64, target, types.uint64, types.uint64), generate

    made: Any = intrinsic(copy)
    return made
