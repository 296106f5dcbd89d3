"""Deflated DICOM files, which pydicom unpacks in one piece: a small file can be gigabytes."""

from __future__ import annotations

import zlib
from pathlib import Path

from voxelocity.data.decode.header import check_memory
from voxelocity_observe.core.errors import ScanError

_DEFLATED = b"1.2.840.10008.1.2.1.99"
# Of the file's meta information, which is not packed.
_META_BYTES = 1 << 12
_CHUNK_BYTES = 1 << 20
# The pixels of a file cannot have more; its other elements are small.
_MOST_BYTES = (1 << 32) + (1 << 28)


def check_deflated(path: Path) -> None:
    """Returns if a file is not deflated, or fits into memory unpacked. Keeps a megabyte of it at a time.

    Raises:
        ScanError: it does not fit, or is larger than a file can be.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_META_BYTES)
        if _DEFLATED not in start:
            return
        from pydicom.filereader import _read_file_meta_info, read_preamble

        file.seek(0)
        read_preamble(file, force=True)
        _read_file_meta_info(file)
        unpacker, num_bytes = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while packed := file.read(_CHUNK_BYTES):
            while packed and not unpacker.eof:
                try:
                    num_bytes += len(unpacker.decompress(packed, _CHUNK_BYTES))
                except zlib.error:
                    # pydicom meets it too, and that is reported.
                    return
                packed = unpacker.unconsumed_tail
                # pydicom holds what it has unpacked, and copies the pixels out of it.
                check_memory(path, 2 * num_bytes)
                if num_bytes > _MOST_BYTES:
                    raise ScanError(
                        f"decode: {path}: the file unpacks to more than {num_bytes:,} bytes, more than the pixels of a "
                        "DICOM file can have; export it again"
                    )
