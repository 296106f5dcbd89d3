"""The bytes of a file, unpacked if gzip or bzip2 packed them, and verified. Knows nothing about what the bytes mean.

ISA-L (`isal`) unpacks, without holding the GIL, straight into one NumPy array, whose memory the kernel gives in huge
pages. 67 MB of CT-like voxels take 98 to 115 ms of one core; as a bytes object, in small pages that are faulted in one
by one, 122 to 144 ms (docs/log).
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from isal import igzip_lib, isal_zlib

from voxelocity.data.decode.header import check_memory
from voxelocity.data.decode.notes import warn_once
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt

_GZIP_MAGIC, _BZIP2_MAGIC = b"\x1f\x8b", b"BZh"
_GZIP_WINDOW_BITS = 31
# isal's stubs give its error as an instance, not as a class.
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]
_STREAMS: dict[bytes, tuple[Callable[[], Any], str]] = {
    _GZIP_MAGIC: (lambda: isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS), "gzip"),
    _BZIP2_MAGIC: (bz2.BZ2Decompressor, "bzip2"),
    b"": (lambda: isal_zlib.decompressobj(wbits=zlib.MAX_WBITS), "zlib"),
}
_DRAIN_BYTES = 1 << 20
# Of a packed file: more than enough to hold a header, even after a gzip header with a long name.
_START_BYTES = 1 << 16
# Nothing of a file of bzip2 can be unpacked before its first block is whole.
_BZIP2_BLOCK_BYTES = 1 << 20
# Bytes of a packed file per read. Each read acquires the GIL, so a few large ones are better than many.
_READ_BYTES = 1 << 22
# ISA-L counts its output space in 32 bits.
_MAX_FILL_BYTES = 1 << 30
# Most bytes that deflate and bzip2 can make of one byte, and a plain file holds.
_LARGEST_RATIOS = {_GZIP_MAGIC: 1032, _BZIP2_MAGIC: 1 << 21, b"": 1}
# Beyond the bytes that the header announces, this much, or the same amount again, is still unpacked for its checksum.
_MOST_BEHIND_BYTES = 64 << 20
_PADDING_BYTES = 1 << 12
_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "named pipe"), (stat.S_ISSOCK, "socket"))

Bytes = npt.NDArray[np.uint8]


def read_start(path: Path, num_bytes: int) -> bytes:
    """The first `num_bytes` unpacked bytes of a file, or all of them where it has fewer. Reads little of the file.

    Raises:
        ScanError: the file is missing, cannot be opened, is not a regular file, or its packed stream is not valid.
    """
    with reading(path):
        # Before opening it: opening a pipe waits for its other end.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "device")
            raise ScanError(f"decode: {path} is a {kind}, not a file; name the file of a scan")
        with path.open("rb") as file:
            data = file.read(num_bytes + _START_BYTES)
            data += file.read(_BZIP2_BLOCK_BYTES) if data.startswith(_BZIP2_MAGIC) else b""
    if _packing_of(data) == b"":
        return data[:num_bytes]
    start = b""
    try:
        for part in _unpacked_pieces(path, io.BytesIO(data), num_bytes):
            start += part
            if len(start) >= num_bytes:
                break
    except EOFError:
        raise ScanError(
            f"decode: {path}: the file is truncated: it ends within its first {num_bytes} unpacked bytes; "
            "copy or download it again"
        ) from None
    return start[:num_bytes]


def read_unpacked(
    path: Path,
    *,
    num_expected: int,
    part: range | None = None,
    warns_of_rest: bool = True,
    is_plain: bool = False,
) -> Bytes:
    """The first `num_expected` unpacked bytes of a file, read-only; checksums are verified. Releases the GIL.

    A packed file is read in pieces: memory holds the unpacked bytes and one piece. A file that is damaged, or has other
    data after its gzip members, is read a second time, to report the damage or to skip that data.

    Args:
        path: a file of gzip or bzip2 (also of several members) or a plain one, distinguished by content.
        num_expected: bytes that it must hold; what follows them is left out, but verified in a packed file.
        part: which of these bytes are returned; only they are kept in memory, and read from a plain file. All if None.
        warns_of_rest: whether nothing should follow, so that a warning says so if something does.
        is_plain: whether the file is known not to be packed, whatever it begins with.

    Raises:
        ScanError: the file is missing, ends too early (bytes expected and found are named), is much longer than
            expected, does not fit into memory, or its checksum is wrong.
    """
    part = range(num_expected) if part is None else part
    with reading(path), path.open("rb", buffering=0) as file:
        packing = b"" if is_plain else _packing_of(file.read(len(_BZIP2_MAGIC)))
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        num_possible = min(num_expected, num_bytes * _LARGEST_RATIOS[packing])
        num_kept = max(0, min(part.stop, num_possible) - part.start)
        check_memory(path, num_kept)
        num_found = num_possible
        if packing:
            # A header may claim any size, so the file itself must show whether it is possible.
            is_quick = packing == _GZIP_MAGIC and num_possible == num_expected
            unpacked = _unpack_in_one_go(path, file, num_expected, part, warns_of_rest) if is_quick else None
            if unpacked is None:
                file.seek(0)
                unpacked, num_found = _unpack_again(path, file, num_expected, part)
        else:
            unpacked = np.empty(num_kept, dtype=np.uint8)
            file.seek(part.start)
            if (num_filled := _fill(unpacked, file)) < num_kept:
                # It was cut off meanwhile.
                num_found = part.start + num_filled
            if warns_of_rest:
                warn_of_rest(path, start=0, num_expected=num_expected)
    if num_found < num_expected:
        raise ScanError(
            f"decode: {path}: the file is truncated: {num_expected:,} bytes expected by its header, "
            f"{num_found:,} found; copy or download it again"
        )
    unpacked.flags.writeable = False
    return unpacked


def read_packed_voxels(path: Path, *, start: int, num_expected: int) -> Bytes:
    """Exactly `num_expected` unpacked bytes of the gzip, bzip2 or zlib stream in a file; checksums are verified.

    Args:
        path: of the file.
        start: of the stream in it. Of gzip and bzip2 there may be several members; what follows a zlib stream is left
            out.
        num_expected: bytes that it must hold.

    Raises:
        ScanError: the file cannot be read, the stream is damaged, or holds another number of bytes, or these do not
            fit into memory.
    """
    try:
        with reading(path), path.open("rb", buffering=0) as file:
            num_packed = max(0, file.seek(0, os.SEEK_END) - start)
            file.seek(start)
            ratio = _LARGEST_RATIOS[_packing_of(file.read(len(_BZIP2_MAGIC))) or _GZIP_MAGIC]
            file.seek(start)
            # A header may claim any size, so the file itself must show whether it is possible.
            num_possible = min(num_expected, num_packed * ratio)
            check_memory(path, num_possible)
            unpacked, num_found = np.empty(num_possible, dtype=np.uint8), 0
            for part in _unpacked_pieces(path, file):
                if num_found + len(part) > num_possible:
                    num_found = num_possible + 1
                    break
                unpacked[num_found : num_found + len(part)] = np.frombuffer(part, dtype=np.uint8)
                num_found += len(part)
    except EOFError:
        raise ScanError(
            f"decode: {path}: the file is truncated: the packed voxels end after {num_found:,} of "
            f"{num_possible:,} bytes, without their checksum; copy or export it again"
        ) from None
    if num_found != num_expected:
        more = "more than " if num_found > num_possible else ""
        raise ScanError(
            f"decode: {path}: the packed voxels are {more}{min(num_found, num_possible):,} bytes, and the header "
            f"expects {num_expected:,}; the file is truncated, or header and voxels do not belong together: copy or "
            "export it again"
        )
    return unpacked


def read_all_unpacked(path: Path) -> bytes:
    """All bytes of a file, unpacked if gzip or bzip2 packed it; for formats that do not say how much they hold.

    Raises:
        ScanError: the file cannot be read, is damaged or truncated, or does not fit into memory twice.
    """
    parts: list[bytes] = []
    num_found = 0
    try:
        with reading(path), path.open("rb", buffering=0) as file:
            packing, num_bytes = _packing_of(file.read(len(_BZIP2_MAGIC))), file.seek(0, os.SEEK_END)
            file.seek(0)
            if not packing:
                check_memory(path, num_bytes)
                return file.read()
            for part in _unpacked_pieces(path, file):
                parts.append(part)
                num_found += len(part)
                check_memory(path, 2 * num_found)
    except EOFError:
        raise ScanError(
            f"decode: {path}: the file is truncated: its packed content ends after {num_found:,} bytes, without its "
            "checksum; copy or download it again"
        ) from None
    return b"".join(parts)


def _unpacked_pieces(path: Path, file: BinaryIO, most_bytes: int = _READ_BYTES) -> Iterator[bytes]:
    """The content of a gzip, bzip2 or zlib stream in pieces of at most this size; verified where a member ends.

    Raises:
        EOFError: the file ends before the stream does.
        ScanError: the stream is damaged.
    """
    piece = file.read(_READ_BYTES)
    magic = _packing_of(piece)
    new_stream, name = _STREAMS[magic]
    stream = new_stream()
    while True:
        try:
            part = stream.decompress(piece, most_bytes)
        except (_IsalError, OSError) as error:
            raise ScanError(
                f"decode: {path}: the {name} data is damaged ({excerpt(error)}); copy or download the file again"
            ) from None
        yield part
        if not stream.eof:
            piece = _next_piece(stream, file)
            if not piece and not part:
                raise EOFError
            continue
        if not magic:
            return
        # As gzip does: zeros after a member are padding.
        piece = stream.unused_data.lstrip(b"\0")
        while not piece and (more := file.read(_READ_BYTES)):
            piece = more.lstrip(b"\0")
        # A read may end within the bytes that begin a member.
        piece += file.read(_READ_BYTES) if len(piece) < len(magic) else b""
        if not piece.startswith(magic):
            return
        stream = new_stream()


def _next_piece(stream: Any, file: BinaryIO) -> bytes:
    """What a stream takes next; nothing if it holds more than it has given, as those of bzip2 keep what they took."""
    if isinstance(stream, bz2.BZ2Decompressor):
        return file.read(_READ_BYTES) if stream.needs_input else b""
    return stream.unconsumed_tail or file.read(_READ_BYTES)


def _packing_of(start: bytes) -> bytes:
    """The bytes that files packed like this one begin with; none of a plain file, or of a zlib stream."""
    return next((magic for magic in (_GZIP_MAGIC, _BZIP2_MAGIC) if start.startswith(magic)), b"")


def warn_of_rest(path: Path, *, start: int, num_expected: int) -> None:
    """Warns, once for each folder, of bytes behind voxels that are not packed.

    Up to 4 KiB of zeros are not mentioned: some programs fill the last block of a file.

    Args:
        path: of the file with the voxels.
        start: of the voxels in it.
        num_expected: bytes of the voxels.

    Raises:
        ScanError: the file cannot be read.
    """
    with reading(path), path.open("rb") as file:
        num_behind = file.seek(0, os.SEEK_END) - start - num_expected
        file.seek(start + num_expected)
        _warn_of_rest(path, num_behind, num_expected, file.read(_PADDING_BYTES))


def _warn_of_rest(path: Path, num_behind: int, num_expected: int, content: bytes) -> None:
    if num_behind > _PADDING_BYTES or content.strip(b"\0"):
        warn_once(
            f"bytes behind voxels {path.parent}",
            f"decode: {path}: {num_behind:,} bytes follow the {num_expected:,} that its header describes, and are not "
            "read; if the image looks wrong, the header has a wrong shape or voxel type: export the file again "
            "(reported once per folder)",
        )


def _check_behind(path: Path, num_behind: int, num_expected: int) -> None:
    if num_behind > max(num_expected, _MOST_BEHIND_BYTES):
        raise ScanError(
            f"decode: {path}: {num_expected:,} bytes are expected by its header, but more than {num_behind:,} follow "
            "them; the header and the voxels do not belong together: export the file again"
        )


def _unpack_in_one_go(path: Path, file: BinaryIO, num_expected: int, part: range, warns_of_rest: bool) -> Bytes | None:
    """A part of the expected bytes if the whole file is intact and holds that many; else None."""
    try:
        unpacked = np.empty(len(part), dtype=np.uint8)
    except MemoryError:
        return None
    # The reader that `isal.igzip` uses, which itself would copy all bytes once more. Private name, public in its stubs.
    members = isal_zlib._GzipReader(file, _READ_BYTES)
    try:
        is_whole = (
            _skip(members, part.start)
            and _fill(unpacked, members) == len(part)
            and _skip(members, num_expected - part.stop)
        )
        if not is_whole:
            return None
        # To the end of the last member, so that every checksum is compared.
        rest = bytearray(_DRAIN_BYTES)
        num_behind = 0
        while num_found := members.readinto(rest):
            num_behind += num_found
            _check_behind(path, num_behind, num_expected)
        if warns_of_rest:
            _warn_of_rest(path, num_behind, num_expected, bytes(rest[: min(num_behind, _PADDING_BYTES)]))
    except (EOFError, gzip.BadGzipFile, _IsalError):
        return None
    return unpacked


def _fill(target: Bytes, source: Any) -> int:
    """Reads until the target is full or the source ends; returns the number of bytes."""
    view = target.data
    num_filled = 0
    # isal's reader hangs when asked for zero bytes.
    while num_filled < len(view):
        num_found = source.readinto(view[num_filled : num_filled + _MAX_FILL_BYTES])
        if num_found == 0:
            break
        num_filled += num_found
    return num_filled


def _skip(source: Any, num_bytes: int) -> bool:
    """Reads bytes and drops them; returns whether there were as many."""
    scrap = memoryview(bytearray(min(num_bytes, _DRAIN_BYTES)))
    while num_bytes > 0:
        num_found = source.readinto(scrap[:num_bytes])
        if num_found == 0:
            return False
        num_bytes -= num_found
    return True


def _unpack_again(path: Path, file: BinaryIO, num_expected: int, part: range) -> tuple[Bytes, int]:
    """A part of the bytes of a file that `_unpack_in_one_go` did not take, as far as it has them, and how many it has.

    Raises:
        ScanError: the file is damaged, or much longer than expected.
    """
    parts: list[bytes] = []
    num_found = 0
    try:
        for piece in _unpacked_pieces(path, file):
            parts.append(piece[max(0, part.start - num_found) : max(0, part.stop - num_found)])
            num_found += len(piece)
            _check_behind(path, num_found - num_expected, num_expected)
    except EOFError:
        if num_found >= num_expected:
            raise ScanError(
                f"decode: {path}: the file is truncated: all {num_expected:,} bytes expected by its header are "
                "present, but the checksum after them is missing; copy or download it again"
            ) from None
    return np.frombuffer(b"".join(parts), dtype=np.uint8), num_found


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the system refuses while a scan is read into an error that names the file.

    Raises:
        ScanError: it cannot be opened or read.
    """
    try:
        yield
    except FileNotFoundError:
        raise ScanError(
            f"decode: {path}: the file does not exist; correct the path or remove the case from the data set"
        ) from None
    except OSError as error:
        raise ScanError(
            f"decode: {path}: the file cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None
