"""Lossless JPEG, the commonest compression of clinical archives, of one gray picture (ITU-T T.81, annex H).

pydicom needs packages for it of which one is under the GPL and one has no wheels for all platforms; SimpleITK's decoder
ends the process on damaged streams. A stream has no checksum: damage is only seen where a code or marker is impossible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, has_loops
from voxelocity.core.volume import Array
from voxelocity_observe.core.errors import ScanError

SYNTAXES = ("1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70")
"""Transfer syntaxes of this compression."""
_decode_lossless = NativeLoop("decode_lossless", "in uint8", "in int64", "in uint16", "out uint16")
_START, _TABLES, _SCAN, _RESTART, _END = 0xC3, 0xC4, 0xDA, 0xDD, 0xD9
_ALONE = (0xD8, *range(0xD0, 0xD8))
_MOST_CATEGORY = 16


@dataclass
class _Stream:
    """What the segments before the coded values say.

    Attributes:
        shape: rows, columns.
        precision: bits of a value.
        tables: for each 16 bits the length of the code that they begin with, times 256, and its category.
        interval: values between restarts; 0 for none.
    """

    shape: tuple[int, int] = (0, 0)
    precision: int = 0
    tables: dict[int, npt.NDArray[np.uint16]] = field(default_factory=dict)
    interval: int = 0


def decode_lossless_jpeg(stream: bytes, shape: tuple[int, int], *, where: str) -> Array:
    """The values (rows, columns) uint16.

    Args:
        stream: a whole JPEG file.
        shape: rows and columns that it must have.
        where: start of the error text.

    Raises:
        ScanError: it is damaged, has another size, or is another kind of JPEG.
    """
    try:
        return _decode(stream, shape)
    except (ValueError, LookupError, struct.error) as error:
        raise ScanError(
            f"{where} the lossless JPEG in it cannot be read ({error}); copy or export the file again, or decompress "
            "it with `dcmdjpeg`"
        ) from None


def _decode(stream: bytes, shape: tuple[int, int]) -> Array:
    found, place = _Stream(), 0
    while True:
        kind, content, place = _segment(stream, place)
        if kind == _START:
            precision, rows, columns, number = struct.unpack(">BHHB", content[:6])
            if number != 1 or not 2 <= precision <= 16 or (rows, columns) != shape:
                raise ValueError(f"{rows} x {columns} values of {precision} bits in {number} components")
            found.precision, found.shape = precision, (rows, columns)
        elif kind == _TABLES:
            found.tables |= _tables(content)
        elif kind == _RESTART:
            (found.interval,) = struct.unpack(">H", content[:2])
        elif kind == _SCAN:
            break
        elif 0xC0 <= kind <= 0xCF:
            raise ValueError("another kind of JPEG")
    if not found.precision:
        raise ValueError("no size before the values")
    number, _, table, predictor, _, point = struct.unpack(">6B", content[:6])
    rows, columns = found.shape
    every, rest = divmod(found.interval, columns)
    point &= 15
    if number != 1 or not 1 <= predictor <= 7 or point >= found.precision or rest:
        raise ValueError(f"predictor {predictor}, shift {point}, {found.interval} values between restarts")
    codes = found.tables[table >> 4]
    coded = np.frombuffer(stream, dtype=np.uint8, offset=place)
    numbers = np.array([len(coded), rows, columns, predictor, found.precision, point, every], dtype=np.int64)
    out = np.empty(shape, dtype=np.uint16)
    if has_loops():
        _decode_lossless(coded, numbers, codes, out)
    else:
        decode_slowly(coded, numbers, codes, out)
    return out


def _segment(stream: bytes, place: int) -> tuple[int, bytes, int]:
    """The kind of the next segment, its content, and where the one after it begins."""
    while stream[place] == 0xFF and stream[place + 1] in (0xFF, *_ALONE):
        place += 1 if stream[place + 1] == 0xFF else 2
    if stream[place] != 0xFF or stream[place + 1] in (0, _END):
        raise ValueError(f"no segment at byte {place}")
    (length,) = struct.unpack(">H", stream[place + 2 : place + 4])
    content = stream[place + 4 : place + 2 + length]
    if length < 2 or len(content) != length - 2:
        raise ValueError(f"the segment at byte {place} is truncated")
    return stream[place + 1], content, place + 2 + length


def _tables(content: bytes) -> dict[int, npt.NDArray[np.uint16]]:
    """Codes by the number of their table."""
    found = {}
    while content:
        name, counts = content[0], list(content[1:17])
        categories = content[17 : 17 + sum(counts)]
        if len(counts) != 16 or len(categories) != sum(counts) or max(categories, default=0) > _MOST_CATEGORY:
            raise ValueError("a table of codes is damaged")
        content = content[17 + sum(counts) :]
        codes = np.zeros(1 << 16, dtype=np.uint16)
        code, rest = 0, iter(categories)
        for length, count in enumerate(counts, start=1):
            for _ in range(count):
                start = code << (16 - length)
                if start >= 1 << 16:
                    raise ValueError("a table has too many codes")
                codes[start : start + (1 << (16 - length))] = length << 8 | next(rest)
                code += 1
            code <<= 1
        found[name & 15] = codes
    return found


def decode_slowly(
    coded: npt.NDArray[np.uint8], numbers: npt.NDArray[np.int64], codes: npt.NDArray[np.uint16], out: Array
) -> None:
    """The reference of the loop, in Python: fills `out` from the coded bytes, as the loop's arguments say.

    Raises:
        ValueError: a code or a restart is missing.
    """
    _, rows, columns, predictor, precision, point, every = numbers.tolist()
    parts = _intervals(coded.tobytes())
    values, text = [[0] * columns for _ in range(rows)], 0
    is_begin, length, place = True, 0, 0
    for i in range(rows):
        if not i or (every and i % every == 0):
            part = next(parts, None)
            if part is None:
                raise ValueError("a restart is missing")
            is_begin, place, length = True, 0, 8 * len(part) + 64
            text = int.from_bytes(part + bytes(8), "big")
        for j in range(columns):
            window = text >> max(0, length - place - 32) & 0xFFFFFFFF
            code = int(codes[window >> 16])
            if not code >> 8:
                raise ValueError("no code begins here")
            place += code >> 8
            category = code & 0xFF
            step = 32768 if category == 16 else 0
            if 0 < category < 16:
                step = text >> (length - place - category) & ((1 << category) - 1)
                place += category
                step += 0 if step >> (category - 1) else 1 - (1 << category)
            left = values[i][j - 1] if j else 0
            above, corner = (values[i - 1][j], values[i - 1][j - 1]) if i else (0, 0)
            if is_begin:
                guess = left if j else 1 << (precision - point - 1)
            else:
                guess = _PREDICTORS[predictor](left, above, corner) if j else above
            values[i][j] = (guess + step) & 0xFFFF
        is_begin = False
        if place > length - 64:
            raise ValueError("values are missing")
    out[...] = np.array(values, dtype=np.int64) << point & 0xFFFF


_PREDICTORS = {
    1: lambda left, above, corner: left,
    2: lambda left, above, corner: above,
    3: lambda left, above, corner: corner,
    4: lambda left, above, corner: left + above - corner,
    5: lambda left, above, corner: left + ((above - corner) >> 1),
    6: lambda left, above, corner: above + ((left - corner) >> 1),
    7: lambda left, above, corner: (left + above) >> 1,
}


def _intervals(coded: bytes) -> Iterator[bytes]:
    """The bytes between restarts, without those that keep values from looking like markers."""
    part, place = bytearray(), 0
    while place < len(coded):
        byte = coded[place]
        following = coded[place + 1] if place + 1 < len(coded) else _END
        place += 1
        if byte != 0xFF:
            part.append(byte)
        elif following == 0:
            part.append(byte)
            place += 1
        elif 0xD0 <= following <= 0xD7:
            yield bytes(part)
            part = bytearray()
            place += 1
        else:
            break
    yield bytes(part)
