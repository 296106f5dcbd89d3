"""One array as a Blosc2 array of small compressed cubes; reading a box decodes only the cubes it touches.

The C library is called directly: its Python package holds the GIL while it decodes, so threads that read patches would
wait for each other. Each call opens its own handle on the bytes, which takes 8 microseconds and makes reading safe from
any number of threads, as handles must not be shared. If the version of the library is untested, its Python package
does the same work, slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import importlib.util
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity_observe.core.errors import CacheError

# A 96^3 box of 512x512x256 int16 + uint8 took 1.1 ms with these, 2.0 with chunks of 128, and 1.3 with chunks of 32,
# whose many pieces took fifteen times as long to write (docs/log).
_CHUNK_VOXEL = 64
_BLOCK_VOXEL = 32
_LEVEL = 5
# Of the C library, from and below. Outside this range a function may have other arguments: a call would corrupt memory.
_KNOWN_VERSIONS = (2, 19), (4, 0)

_Shape = Sequence[int]
_pointer, _size, _int, _bool = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_bool
_int64_p = ctypes.POINTER(ctypes.c_int64)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "blosc2_schunk_from_buffer": (_pointer, _pointer, _size, _bool),
    "blosc2_schunk_avoid_cframe_free": (None, _pointer, _bool),
    "blosc2_schunk_open_offset": (_pointer, ctypes.c_char_p, _size),
    "b2nd_from_schunk": (_int, _pointer, ctypes.POINTER(_pointer)),
    "b2nd_to_cframe": (_int, _pointer, ctypes.POINTER(_pointer), _int64_p, ctypes.POINTER(_bool)),
    "b2nd_get_slice_cbuffer": (_int, _pointer, _int64_p, _int64_p, _pointer, _int64_p, _size),
    "b2nd_set_slice_cbuffer": (_int, _pointer, _int64_p, _size, _int64_p, _int64_p, _pointer),
    "b2nd_free": (_int, _pointer),
}
"""The functions that we call: what each returns, then its arguments."""


class UndecodableError(CacheError):
    """The bytes do not decode to the voxels asked for."""


def encode(array: Array) -> memoryview:
    """The bytes of a Blosc2 array (a contiguous frame), LZ4 after a byte shuffle, without holding the GIL.

    Reads the array in slabs along its third axis from the end, so that an array that is not in C order is never
    copied as a whole.

    Raises:
        CacheError: the Blosc2 library is missing.
    """
    library = _library()
    dtype = array.dtype.newbyteorder("=")
    if library is None:
        return memoryview(_new_array(array, np.ascontiguousarray(array, dtype)).to_cframe())
    template = _new_array(array, None).to_cframe()
    frame = np.frombuffer(template, np.uint8)
    with _open_array(library, lambda: _chunks_in(library, frame, copy=True), f"{frame.nbytes} bytes") as handle:
        for start, stop in _slabs(array.shape):
            box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
            slab = np.ascontiguousarray(array[box], dtype)
            code = library.b2nd_set_slice_cbuffer(
                slab.ctypes.data, _numbers(slab.shape), slab.nbytes, _numbers(start), _numbers(stop), handle
            )
            if code < 0:
                raise MemoryError(f"cache.chunked: Blosc2 cannot encode {slab.nbytes} bytes (code {code})")
        return _frame_of(library, handle)


def decode(content: memoryview, start: _Shape, stop: _Shape, dtype: str) -> Array:
    """The voxels from `start` to `stop` (excluded), a fresh array in C order; safe from several threads at once.

    Args:
        content: what `encode` returned.
        start: first index on each axis.
        stop: index after the last on each axis; inside the array.
        dtype: of the array that was encoded.

    Raises:
        UndecodableError: the bytes are damaged.
        CacheError: the Blosc2 library is missing.
    """
    library = _library()
    if library is None:
        return _decode_plainly(lambda blosc2: blosc2.ndarray_from_cframe(bytes(content)), start, stop, dtype)
    buffer = np.frombuffer(content, np.uint8)

    def open_bytes() -> int | None:
        return _chunks_in(library, buffer, copy=False)

    return _box_of(library, open_bytes, f"{buffer.nbytes} bytes", start, stop, dtype)


def decode_file(path: Path, offset: int, start: _Shape, stop: _Shape, dtype: str) -> Array:
    """As `decode`, of bytes that begin at this offset in a file. Only reads the chunks it needs."""
    library = _library()
    if library is None:
        return _decode_plainly(lambda blosc2: blosc2.open(str(path), mode="r", offset=offset), start, stop, dtype)

    def open_file() -> int | None:
        chunks: int | None = library.blosc2_schunk_open_offset(bytes(path), offset)
        return chunks

    return _box_of(library, open_file, f"{path} from byte {offset}", start, stop, dtype)


def _box_of(
    library: Any, open_chunks: Callable[[], int | None], name: str, start: _Shape, stop: _Shape, dtype: str
) -> Array:
    box = np.empty([b - a for a, b in zip(start, stop, strict=True)], dtype)
    if box.size == 0:
        return box
    with _open_array(library, open_chunks, name) as handle:
        code = library.b2nd_get_slice_cbuffer(
            handle, _numbers(start), _numbers(stop), box.ctypes.data, _numbers(box.shape), box.nbytes
        )
    if code < 0:
        raise _undecodable(start, stop, f"code {code}")
    return box


def _undecodable(start: _Shape, stop: _Shape, reason: str) -> UndecodableError:
    return UndecodableError(f"cache.chunked: voxels {tuple(start)} to {tuple(stop)} do not decode ({reason})")


def _decode_plainly(open_array: Callable[[Any], Any], start: _Shape, stop: _Shape, dtype: str) -> Array:
    import blosc2

    try:
        array = open_array(blosc2)
        box = np.ascontiguousarray(array[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # as damaged bytes make it raise
        raise _undecodable(start, stop, str(error)) from error
    if box.dtype != dtype:
        raise _undecodable(start, stop, f"they are {box.dtype}, not {dtype}")
    return box


def _new_array(array: Array, voxels: Array | None) -> Any:
    """A Blosc2 array with this array's shape, dtype and our compression; without voxels where there are none."""
    import blosc2  # costs 0.1 s, and readers do without

    *outer, x, y, z = array.shape
    settings: dict[str, Any] = {
        "chunks": (*[1] * len(outer), *(min(_CHUNK_VOXEL, n) for n in (x, y, z))),
        "blocks": (*[1] * len(outer), *(min(_BLOCK_VOXEL, n) for n in (x, y, z))),
        "cparams": blosc2.CParams(
            codec=blosc2.Codec.LZ4, clevel=_LEVEL, filters=[blosc2.Filter.SHUFFLE], filters_meta=[0], nthreads=1
        ),
        "dparams": blosc2.DParams(nthreads=1),
    }
    if voxels is not None:
        return blosc2.asarray(voxels, **settings)
    return blosc2.empty(array.shape, dtype=array.dtype.newbyteorder("="), **settings)


def _slabs(shape: _Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Boxes of whole chunks that cover an array of this shape, each at most one chunk wide on (x, y, z)'s x."""
    *outer, x, y, z = shape
    for index in np.ndindex(*outer):
        for start in range(0, x, _CHUNK_VOXEL):
            yield [*index, start, 0, 0], [*(i + 1 for i in index), min(start + _CHUNK_VOXEL, x), y, z]


def _chunks_in(library: Any, content: Array, *, copy: bool) -> int | None:
    chunks: int | None = library.blosc2_schunk_from_buffer(content.ctypes.data, content.nbytes, copy)
    if chunks is not None:
        library.blosc2_schunk_avoid_cframe_free(chunks, not copy)
    return chunks


@contextlib.contextmanager
def _open_array(library: Any, open_chunks: Callable[[], int | None], name: str) -> Iterator[ctypes.c_void_p]:
    chunks = open_chunks()
    if chunks is None:
        raise UndecodableError(f"cache.chunked: {name} are not a Blosc2 array")
    handle = ctypes.c_void_p()
    code = library.b2nd_from_schunk(chunks, ctypes.byref(handle))
    if code < 0:
        raise UndecodableError(f"cache.chunked: {name} are not a Blosc2 array (code {code})")
    try:
        yield handle
    finally:
        library.b2nd_free(handle)


def _frame_of(library: Any, handle: ctypes.c_void_p) -> memoryview:
    start, num_bytes, is_ours = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_bool()
    code = library.b2nd_to_cframe(handle, ctypes.byref(start), ctypes.byref(num_bytes), ctypes.byref(is_ours))
    if code < 0 or start.value is None:
        raise MemoryError(f"cache.chunked: Blosc2 cannot put its chunks together (code {code})")
    if not is_ours.value:
        return memoryview(ctypes.string_at(start, num_bytes.value))
    memory = (ctypes.c_ubyte * num_bytes.value).from_address(start.value)
    weakref.finalize(memory, library.free, start).atexit = False
    return memoryview(memory).cast("B").toreadonly()


def _numbers(values: _Shape) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def _library() -> Any | None:
    """The C library with the functions we call declared; None, and a warning, if its version is untested."""
    library: Any = ctypes.CDLL(_library_path())
    library.blosc2_get_version_string.restype = ctypes.c_char_p
    version = library.blosc2_get_version_string().decode()
    if not _is_known(version):
        (low, high), text = _KNOWN_VERSIONS, "{}.{}".format
        warnings.warn(
            f"cache.chunked: the C library of Blosc2 is {version}, and Voxelocity is tested with {text(*low)} and "
            f"later, below {text(*high)}; its Python package decodes the patches instead, which blocks other threads; "
            'install "blosc2>=4.0,<5", or set data.cache.format to raw',
            stacklevel=2,
        )
        return None
    for function, (result, *arguments) in _SIGNATURES.items():
        found = getattr(library, function)
        found.restype, found.argtypes = result, arguments
    library.free = ctypes.CDLL(None).free
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.blosc2_init()
    return library


def _is_known(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    low, high = _KNOWN_VERSIONS
    return numbers is not None and low <= (int(numbers[1]), int(numbers[2])) < high


def _library_path() -> str:
    """The C library in the wheel of `blosc2`, which others may use too (PyTables does), or the system's."""
    package = importlib.util.find_spec("blosc2")
    for folder in (package.submodule_search_locations if package else None) or []:
        for path in (Path(folder) / "lib" / "libblosc2.so", Path(folder) / "lib64" / "libblosc2.so"):
            if path.is_file():
                return str(path)
    found = ctypes.util.find_library("blosc2")
    if package is None or found is None:
        raise CacheError(
            "cache.chunked: the Blosc2 library is not installed; pip install blosc2 (its wheel holds it), or set "
            "data.cache.format to raw"
        )
    return found
