"""What each format gives: a header, then the voxels, and the files of a scan; and, if it is written, a file's bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from voxelocity.core.scan_formats import ScanFormat
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.header import Placement, ScanHeader


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What stands in a file in front of the values (z, y, x), and how these are stored.

    Attributes:
        dtype: of the stored values, with their byte order.
        header: the bytes in front of them, packed as they are.
        is_packed: whether both are gzipped.
        plain: bytes in front of all others, which are not packed.
    """

    dtype: np.dtype[Any]
    header: bytes
    is_packed: bool
    plain: bytes = b""


class ReadVoxels(Protocol):
    """(c, x, y, z) of what `Codec.read_header` gave, in its `read_dtype`; may be read-only.

    With the number of a volume, counted from 1, that channel alone: memory does not hold the others where the format
    allows it.
    """

    def __call__(self, header: Any, volume: int | None = None) -> Array: ...


class Encode(Protocol):
    """How an array of this dtype on a grid is stored in a file of this name.

    Raises OutputError if the format cannot hold it. A format repeats what it can of the placement.
    """

    def __call__(self, path: Path, grid: Grid, dtype: np.dtype[Any], placement: Placement | None) -> Encoding: ...


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How scans of one format are read and written. Imports the format's library when it is first needed.

    `testing.format_contract` lists the obligations, and tests them.

    Attributes:
        format: what is known of it without a file.
        read_header: of a file, or a series; checked, without a look at the voxels.
        read_voxels: of what `read_header` gave.
        source_files: all files of a scan; a change in the scan is a change in one of them.
        encode: None if arrays are not written in this format.
    """

    format: ScanFormat
    read_header: Callable[[Path], ScanHeader]
    read_voxels: ReadVoxels
    source_files: Callable[[Path], tuple[Path, ...]] = lambda path: (path,)
    encode: Encode | None = None
