"""The bytes of one disk entry: a safetensors file whose metadata is everything of a `Volume` that is no array.

Layout: header length (8 bytes, little endian), JSON header padded with spaces to a multiple of 64, tensors without
gaps, in C order. See https://huggingface.co/docs/safetensors. Reading is done here and not by that library because it
copies every tensor into fresh memory, where a patch needs a small part of it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.errors import CacheError
from voxelocity.core.volume import Array, Grid, Scaling, Volume
from voxelocity.data.cache.key import FORMAT_VERSION

_DTYPE_NAMES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _DTYPE_NAMES.items()}
_FOREGROUND = "foreground_"
_ALIGNMENT_BYTES = 64


class DamagedEntryError(CacheError):
    """The bytes are not those of a whole entry of this key."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry's volume, its arrays views of the entry's bytes, and the checksum that was stored for each array."""

    volume: Volume
    tensors: Mapping[str, Array]
    crc32: Mapping[str, int]

    def first_damage(self) -> str | None:
        """The name of an array whose bytes do not match their checksum, or None. Reads every byte."""
        return next((name for name, array in self.tensors.items() if _crc32(array) != self.crc32[name]), None)


def pack(key: str, volume: Volume) -> list[memoryview]:
    """The bytes of an entry, header first; arrays in C order are not copied.

    Raises:
        CacheError: an array has a dtype that the format does not know.
        TypeError: the trace holds something else than plain data.
    """
    tensors = _tensors_of(volume)
    table: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in tensors.items():
        if array.dtype.name not in _DTYPE_NAMES:
            raise CacheError(
                f"cache.disk: case '{volume.case_id}': {name} has dtype {array.dtype}, which cannot be kept on disk; "
                "prepare it as float32 or another plain number"
            )
        table[name] = {
            "dtype": _DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    record = json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "key": key,
            "case_id": volume.case_id,
            "grid": {"shape": volume.grid.shape, "affine": volume.grid.affine},
            "trace": volume.trace,
            "scaling": [[channel.slope, channel.inter] for channel in volume.scaling],
            "crc32": {name: _crc32(array) for name, array in tensors.items()},
        }
    )
    header = json.dumps({"__metadata__": {"record": record, "crc32": _header_crc32(record, table)}, **table}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT_BYTES)
    return [memoryview(len(header).to_bytes(8, "little") + header), *(_bytes_of(array) for array in tensors.values())]


def unpack(key: str, content: memoryview) -> Entry:
    """The entry in these bytes, its arrays read-only views of them. Checks all but the bytes of the arrays.

    Raises:
        DamagedEntryError: the bytes are cut short, are no entry, or are that of another key or format version.
    """
    try:
        table, record = _read_header(content)
        if record["format_version"] != FORMAT_VERSION or record["key"] != key:
            raise DamagedEntryError(f"it is entry {record['key']} in format {record['format_version']}")
        data = content[8 + int.from_bytes(content[:8], "little") :]
        tensors = {name: _view(data, description) for name, description in table.items()}
        if sum(array.nbytes for array in tensors.values()) != len(data):
            raise DamagedEntryError(f"it holds {len(data)} bytes of voxels, which is not what its header says")
        volume = Volume(
            case_id=record["case_id"],
            image=tensors["image"],
            label=tensors.get("label"),
            grid=Grid.of(tuple(record["grid"]["shape"]), np.array(record["grid"]["affine"], dtype=np.float64)),
            trace=tuple(record["trace"]),
            scaling=tuple(Scaling(slope=float(slope), inter=float(inter)) for slope, inter in record["scaling"]),
            foreground={
                int(name.removeprefix(_FOREGROUND)): array
                for name, array in tensors.items()
                if name.startswith(_FOREGROUND)
            },
        )
        return Entry(volume=volume, tensors=tensors, crc32={name: int(record["crc32"][name]) for name in tensors})
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedEntryError(f"its header cannot be read ({error!r})") from error


def _tensors_of(volume: Volume) -> dict[str, Array]:
    tensors = {"image": volume.image}
    if volume.label is not None:
        tensors["label"] = volume.label
    tensors |= {f"{_FOREGROUND}{index}": voxels for index, voxels in volume.foreground.items()}
    # C order: a 96^3 float32 patch is cut from it in 0.2 ms, from the order of a NIfTI file in 2 to 5 ms.
    contiguous = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("=")) for name, array in tensors.items()}
    # Wide numbers first keeps every array aligned, as the format allows no gaps.
    return dict(sorted(contiguous.items(), key=lambda item: -item[1].itemsize))


def _read_header(content: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= len(content) - 8:
        raise DamagedEntryError(f"it is {len(content)} bytes long, too short for its header")
    table = json.loads(bytes(content[8 : 8 + length]))
    metadata = table.pop("__metadata__")
    if metadata["crc32"] != _header_crc32(metadata["record"], table):
        raise DamagedEntryError("its header does not match its checksum")
    return table, json.loads(metadata["record"])


def _view(data: memoryview, description: Mapping[str, Any]) -> Array:
    start, stop = description["data_offsets"]
    dtype = _DTYPES[description["dtype"]]
    shape = tuple(description["shape"])
    if not 0 <= start <= stop <= len(data) or stop - start != math.prod(shape) * dtype.itemsize:
        raise DamagedEntryError(f"an array at bytes {start} to {stop} does not fit into its {len(data)} bytes")
    return np.frombuffer(data[start:stop], dtype=dtype).reshape(shape)


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _crc32(array: Array) -> int:
    return zlib.crc32(_bytes_of(array))


def _header_crc32(record: str, table: Mapping[str, Any]) -> str:
    return f"{zlib.crc32((record + json.dumps(table, sort_keys=True)).encode()):08x}"
