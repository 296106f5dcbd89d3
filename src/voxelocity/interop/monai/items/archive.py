"""Whether an archive that torch wrote still holds the bytes that were written. Unpacks nothing."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

_LOCAL_HEADER_BYTES = 30
_READ_BYTES = 2**20


def first_damaged(path: Path) -> str:
    """The name of the first record whose checksum is not the one that was written, or "".

    Reads the whole file, at the speed of memory. Skips records without a checksum, which torch can be set to leave out.

    Raises:
        FileNotFoundError: there is no such file.
        zipfile.BadZipFile: it is truncated, or not an archive.
    """
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for record in archive.infolist():
            file.seek(record.header_offset)
            header = file.read(_LOCAL_HEADER_BYTES)
            # The last four bytes: how long the name is, and the extra field after it.
            file.seek(int.from_bytes(header[-4:-2], "little") + int.from_bytes(header[-2:], "little"), os.SEEK_CUR)
            if record.CRC and _checksum(file, record.file_size) != record.CRC:
                return record.filename
    return ""


def _checksum(file: BinaryIO, num_bytes: int) -> int:
    found, num_left = 0, num_bytes
    while data := file.read(min(num_left, _READ_BYTES)):
        found = isal_zlib.crc32(data, found)
        num_left -= len(data)
    return found
