"""The name and the bytes of one kept entry.

The name changes with the files, the preparation and the entry format, so nothing stale is served. The bytes are a
safetensors file whose metadata holds everything of a `Volume` except its arrays.

Layout: header length (8 bytes, little endian), JSON header padded with spaces to a multiple of 64, tensors without
gaps, in C order. See https://huggingface.co/docs/safetensors. In the format "raw" image and label are stored unchanged
as tensors; in "blosc2" each is a tensor of bytes that holds a Blosc2 array (`chunked`). We do not read with the
safetensors library because it copies every tensor into fresh memory, while a patch needs only a small part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from isal import isal_zlib

from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec
from voxelocity.data.cache.chunked import encode
from voxelocity_observe.core.errors import CacheError, ScanError
from voxelocity_observe.core.host import file_system_of
from voxelocity_observe.core.plain import shortened

Format = Literal["raw", "blosc2"]
FORMAT_VERSION = 5
"""Increased whenever the meaning or the layout of an entry changes, or what is read of a file, as with 5: packed voxels
are verified and units of length are read. Older entries are then never opened."""

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
_KEY = re.compile(r"[0-9a-f]{40}")
"""The names that `entry_key` gives. A file named like this is an entry even where nothing in it can be read."""
_inodes_last: dict[int, bool] = {}
"""By device: whether a file there keeps its inode across mounts."""


def source_identity(paths: Iterable[os.PathLike[str] | str]) -> str:
    """A text that changes when one of these files changes, in the given order.

    For each file it holds the path, the target of a link, the inode, the size, and the times of content and of status.
    No file is opened. The system sets the time of status: it changes when a file is replaced or rewritten, even if its
    size and content time are kept, and also when a file is renamed or its permissions change.

    Raises:
        ScanError: a file is missing, its status cannot be read, or it is not a regular file.
    """
    return json.dumps([_file_identity(os.path.abspath(path)) for path in paths])


def entry_key(identity: str, preparation_fingerprint: str) -> str:
    """The name of a cache entry, 40 hexadecimal digits, for these sources prepared in this way.

    Args:
        identity: from `source_identity`.
        preparation_fingerprint: a text that changes whenever the prepared voxels of some case could change.
    """
    text = json.dumps([FORMAT_VERSION, identity, preparation_fingerprint])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def checked_key(key: str) -> str:
    """The key itself, which can name a file.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[0-9A-Za-z_-]+", key):
        raise ValueError(f"cache.key: key {key!r} cannot name a file; use letters, digits, '-' and '_'")
    return key


def is_named_by_us(key: str) -> bool:
    """Whether this is a name that `entry_key` gives, which no other program gives its files."""
    return _KEY.fullmatch(key) is not None


class EntryBytes(Protocol):
    """The bytes of an entry: mapped, or read from its file one slice at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> memoryview: ...


class DamagedEntryError(CacheError):
    """The bytes are not a whole entry of this key."""


class OutdatedEntryError(DamagedEntryError):
    """The entry is whole, but its format version is no longer read."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """All of an entry except its arrays.

    Attributes:
        spec: channels, grid and dtype of the decoded image.
        label_dtype: of the decoded label, or None where there is none.
        created_s: when the entry was made, in seconds since 1970.
        crc32: checksum of each tensor's bytes.
        table: the safetensors header's description of each tensor.
        num_header_bytes: where the tensors start.
        num_bytes: of the whole entry.
    """

    case_id: str
    format: Format
    spec: VolumeSpec
    label_dtype: str | None
    scaling: tuple[Scaling, ...]
    trace: tuple[Mapping[str, Any], ...]
    created_s: float
    crc32: Mapping[str, int]
    table: Mapping[str, Mapping[str, Any]]
    num_header_bytes: int
    num_bytes: int

    def place(self, name: str) -> tuple[int, int]:
        """First byte of a tensor in the entry, and the byte after its last."""
        start, stop = self.table[name]["data_offsets"]
        return self.num_header_bytes + start, self.num_header_bytes + stop

    def tensor(self, name: str, content: EntryBytes) -> Array:
        """A read-only view of the entry's bytes, which must be those this header was read from."""
        dtype, shape = _DTYPES[self.table[name]["dtype"]], self.table[name]["shape"]
        return np.frombuffer(content[slice(*self.place(name))], dtype=dtype).reshape(shape)

    def foreground(self, content: EntryBytes) -> dict[int, Array]:
        """The foreground indices among the tensors, by class index."""
        names = [name for name in self.table if name.startswith(_FOREGROUND)]
        return {int(name.removeprefix(_FOREGROUND)): self.tensor(name, content) for name in names}

    def first_damage(self, content: EntryBytes, *, full: bool) -> str | None:
        """The name of a tensor whose bytes do not match their checksum, or None.

        If not `full`, reads only the foreground indices, as a wrong one would point outside the volume.
        """
        for name in self.table:
            if (full or name.startswith(_FOREGROUND)) and _crc32(self.tensor(name, content)) != self.crc32[name]:
                return name
        return None


def pack(key: str, volume: Volume, *, format: Format) -> list[memoryview]:
    """The bytes of an entry, header first. For "raw", arrays in C order are not copied.

    Raises:
        CacheError: an array has a dtype that the format does not know, or the Blosc2 library is missing.
        TypeError: the trace holds something other than plain data.
    """
    tensors = _tensors_of(volume, format)
    table: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in tensors.items():
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
            "format": format,
            "grid": {"shape": volume.grid.shape, "affine": volume.grid.affine},
            "num_channels": int(volume.image.shape[0]),
            "image_dtype": volume.image.dtype.name,
            "label_dtype": None if volume.label is None else volume.label.dtype.name,
            "trace": volume.trace,
            "scaling": [[channel.slope, channel.inter] for channel in volume.scaling],
            "created_s": time.time(),
            "crc32": {name: _crc32(array) for name, array in tensors.items()},
        }
    )
    header = json.dumps({"__metadata__": {"record": record, "crc32": _header_crc32(record, table)}, **table}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT_BYTES)
    return [memoryview(len(header).to_bytes(8, "little") + header), *(_bytes_of(array) for array in tensors.values())]


def read_header(key: str, content: EntryBytes) -> Header:
    """The header of the entry in these bytes. Checks everything except the bytes of the arrays.

    Raises:
        DamagedEntryError: the bytes are cut short, not an entry, or an entry of another key or format version.
    """
    try:
        table, record = _parse(content)
        if record["key"] != key:
            raise DamagedEntryError(f"it is the entry of another key, {shortened(record['key'])}")
        if record["format_version"] != FORMAT_VERSION:
            raise OutdatedEntryError(
                f"it has format version {shortened(record['format_version'])}, not {FORMAT_VERSION}"
            )
        grid = Grid.of(tuple(record["grid"]["shape"]), np.array(record["grid"]["affine"], dtype=np.float64))
        header = Header(
            case_id=record["case_id"],
            format=_checked_format(record["format"]),
            spec=VolumeSpec(num_channels=record["num_channels"], grid=grid, dtype=record["image_dtype"]),
            label_dtype=record["label_dtype"],
            scaling=tuple(Scaling(slope=float(slope), inter=float(inter)) for slope, inter in record["scaling"]),
            trace=tuple(record["trace"]),
            created_s=float(record["created_s"]),
            crc32={name: int(record["crc32"][name]) for name in table},
            table=table,
            num_header_bytes=8 + int.from_bytes(content[:8], "little"),
            num_bytes=len(content),
        )
        num_data_bytes = len(content) - header.num_header_bytes
        if sum(_checked_size(table[name], num_data_bytes) for name in table) != num_data_bytes:
            raise DamagedEntryError(f"it holds {num_data_bytes} bytes of arrays, which is not what its header says")
        if "image" not in table or ("label" in table) != (header.label_dtype is not None):
            raise DamagedEntryError(
                f"it holds the arrays {shortened(sorted(table))}, which is not what its header says"
            )
        return header
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedEntryError(f"its header cannot be read ({shortened(error)})") from error


def check_arrays(header: Header, content: EntryBytes, *, full: bool) -> None:
    """Raises DamagedEntryError if the arrays have changed; if not `full`, only the foreground indices are looked at."""
    changed = header.first_damage(content, full=full)
    if changed is not None:
        raise DamagedEntryError(f"the {changed} of case {shortened(header.case_id)} has changed")


def _tensors_of(volume: Volume, format: Format) -> dict[str, Array]:
    voxels = {"image": volume.image} | ({} if volume.label is None else {"label": volume.label})
    indices = {f"{_FOREGROUND}{index}": array for index, array in volume.foreground.items()}
    for name, array in (voxels | indices).items():
        if array.dtype.name not in _DTYPE_NAMES:
            raise CacheError(
                f"cache.entry: case '{volume.case_id}': {name} has dtype {array.dtype}, which the cache cannot "
                "store; prepare it as float32 or another plain number type"
            )
    if format == "blosc2":
        voxels = {name: np.frombuffer(encode(array), np.uint8) for name, array in voxels.items()}
    # C order: cutting a 96^3 float32 patch takes 0.2 ms; from the order of a NIfTI file it takes 2 to 5 ms.
    contiguous = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("=")) for name, array in (voxels | indices).items()
    }
    # Wide numbers first keeps every array aligned, as the format allows no gaps.
    return dict(sorted(contiguous.items(), key=lambda item: -item[1].itemsize))


def _parse(content: EntryBytes) -> tuple[dict[str, Any], dict[str, Any]]:
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= len(content) - 8:
        raise DamagedEntryError(f"it is {len(content)} bytes long, too short for its header")
    table = json.loads(bytes(content[8 : 8 + length]))
    metadata = table.pop("__metadata__")
    if metadata["crc32"] != _header_crc32(metadata["record"], table):
        raise DamagedEntryError("its header does not match its checksum")
    return table, json.loads(metadata["record"])


def _checked_format(name: str) -> Format:
    if name not in get_args(Format):
        raise DamagedEntryError(f"its format is {shortened(name)}")
    return name  # type: ignore[return-value]


def _checked_size(description: Mapping[str, Any], num_data_bytes: int) -> int:
    """Bytes of a tensor, which must lie within the entry."""
    start, stop = description["data_offsets"]
    size: int = math.prod(description["shape"]) * _DTYPES[description["dtype"]].itemsize
    if not 0 <= start <= stop <= num_data_bytes or stop - start != size:
        raise DamagedEntryError(
            f"an array at bytes {shortened(start)} to {shortened(stop)} does not fit into its {num_data_bytes} bytes"
        )
    return size


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _crc32(array: Array) -> int:
    checksum: int = isal_zlib.crc32(_bytes_of(array))
    return checksum


def _header_crc32(record: str, table: Mapping[str, Any]) -> str:
    return f"{isal_zlib.crc32((record + json.dumps(table, sort_keys=True)).encode()):08x}"


def _file_identity(path: str) -> tuple[str, str, int, int, int, int]:
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
    except OSError as error:
        raise ScanError(
            f"cache.key: file {path} is not accessible ({error.strerror}); restore it, or remove the case from "
            "the data set"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ScanError(
            f"cache.key: {path} is not a regular file, so changes to it could not be detected; list regular files"
        )
    if status.st_dev not in _inodes_last:
        # Most file systems in user space assign inode numbers at each mount, as files are looked up.
        _inodes_last[status.st_dev] = not file_system_of(os.path.dirname(real)).startswith("fuse")
    inode = status.st_ino if _inodes_last[status.st_dev] else 0
    return path, real, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
