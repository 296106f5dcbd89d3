"""The text of NRRD and MHA headers, for what SimpleITK does not read (units) or does not check.

Long fields of NRRD and an odd number of axes of MHA make its readers write behind their buffers, which ends the
process. They print "Uncompress failed" on a damaged zlib stream and return memory that nobody wrote, and they ignore
wrong checksums of gzip. So packed voxels are unpacked here, and verified.

Sources: https://teem.sourceforge.net/nrrd/format.html and MetaIO's metaImage.cxx.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxelocity.core.scan_formats import MHA
from voxelocity.core.volume import Array
from voxelocity.data.decode.gunzip import read_packed_voxels, reading, warn_of_rest
from voxelocity.data.decode.header import mm_per_unit
from voxelocity.data.decode.notes import warn_once
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import shortened

_MOST_HEADER_BYTES = 1 << 20
_LAST_OF_MHA = "elementdatafile"
_PACKED, _UNPACKED = ("gzip", "gz", "bzip2", "bz2"), ("raw", "text", "txt", "ascii", "hex")
_MHA_FIELD = re.compile("([^=:]+)[=:](.*)")
# With ":=" the value is that of a name which programs choose.
_NRRD_FIELD = re.compile("([^:#][^:]*):(?!=)(.*)")
# Where a program could take the first of two values, and we the second.
_ONCE = frozenset({"compresseddata", "binarydata", "headersize", "encoding", "endian", "binarydatabyteordermsb",
                   "elementbyteordermsb"})  # fmt: skip
_NRRD_NAMES = frozenset(
    ("type", "dimension", "sizes", "spacings", "thicknesses", "axis mins", "axismins", "axis maxs", "axismaxs",
     "space directions", "centers", "centerings", "kinds", "labels", "units", "min", "max", "old min", "oldmin",
     "old max", "oldmax", "block size", "blocksize", "endian", "encoding", "line skip", "lineskip", "byte skip",
     "byteskip", "number", "space", "space dimension", "space units", "space origin", "measurement frame", "data file",
     "datafile")
)  # fmt: skip
# Other spaces, such as "scanner-xyz", do not say where the patient lies in them.
_ANATOMICAL_SPACES = (
    *("right-anterior-superior", "left-anterior-superior", "left-posterior-superior"),
    *("ras", "las", "lps", "rast", "last", "lpst"),
)
_MHA_SCALING = {"elementtointensityfunctionslope": "1", "elementtointensityfunctionoffset": "0"}
_LONGEST_FIELD, _MOST_AXES = 480, 10
# No file has more bytes.
_WHOLE_NUMBER = re.compile("[+-]?[0-9]{1,15}")
_QUOTED = re.compile(r'"([^"]*)"')
# Kinds of an axis along which voxels follow each other in space; others hold the values of a voxel.
_DOMAIN_KINDS = ("domain", "space", "time", "none", "???")


@dataclass(frozen=True, kw_only=True)
class HeaderText:
    """The fields of a header.

    Attributes:
        path: of the file.
        fields: values by name in lower case, without spaces around them.
        num_bytes: of the header, after which voxels of the same file begin.
        too_long: a line that SimpleITK cannot take; empty if there is none.
    """

    path: Path
    fields: dict[str, str]
    num_bytes: int
    too_long: str

    @property
    def is_mha(self) -> bool:
        return self.path.suffix.lower() in MHA.endings

    @property
    def is_packed(self) -> bool:
        """Whether the voxels are a stream of zlib, gzip or bzip2."""
        if self.is_mha:
            return self._is_true("compresseddata") and self._is_true("binarydata", default=True)
        return self.fields.get("encoding", "").lower() in _PACKED

    @property
    def is_placed(self) -> bool:
        """Whether the header says where in the patient the voxels are; ITK fills in a place where it does not."""
        return self.is_mha or self.fields.get("space", "").lower().removesuffix("-time") in _ANATOMICAL_SPACES

    def check(self) -> None:
        """Returns if SimpleITK can be given the file.

        Raises:
            ScanError: it would end the process, or the voxels are stored in a way that it does not read.
        """
        encoding, num_axes = self.fields.get("encoding", "raw").lower(), self.fields.get("ndims", "3")
        if self.is_mha and not (num_axes.isascii() and num_axes.isdecimal() and 1 <= int(num_axes[:9]) <= _MOST_AXES):
            raise ScanError(
                f"decode: {self.path}: NDims is {shortened(num_axes)}, not a number of axes; export the file again"
            )
        self._warn_of_scaling()
        if self.too_long:
            raise ScanError(
                f"decode: {self.path}: a line of the header has {len(self.too_long):,} characters "
                f"({shortened(self.too_long)}), and {_LONGEST_FIELD} can be read; the header is damaged: export the "
                "file again"
            )
        if not self.is_mha and encoding not in _PACKED + _UNPACKED:
            raise ScanError(
                f"decode: {self.path}: the voxels are encoded as {shortened(encoding)}, which is not read; save "
                "the file with gzip"
            )
        if not self.is_mha and (num_skipped := self._number("byte skip", "byteskip")) < -1:
            raise ScanError(
                f"decode: {self.path}: byte skip is {num_skipped}; NRRD knows numbers of bytes, and -1 for voxels at "
                "the end of the file: correct the number in the header, or export the file again"
            )

    def _warn_of_scaling(self) -> None:
        for name, usual in _MHA_SCALING.items():
            if self.is_mha and self.fields.get(name, usual).rstrip("0").rstrip(".") not in (usual, ""):
                warn_once(
                    f"{name} {self.path.parent}",
                    f"decode: {self.path}: {name} is {shortened(self.fields[name])}, which is not applied, as in "
                    "other ITK programs; if the scaled values are meant, save the scan with them (reported once per "
                    "folder)",
                )

    def millimeters(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Millimeters per unit, (3,), along each direction of space, and along each axis of voxels."""
        ones = np.ones(3)
        if self.is_mha:
            unit = self.fields.get("distanceunits", "").replace("?", "")
            return np.full(3, mm_per_unit(self.path, unit, "DistanceUnits")), ones
        of_space = self._units("space units")
        if len(of_space) == 3:
            return of_space, ones
        # Units of axes count where lengths along axes are all that is given.
        of_axes = np.array([]) if "space directions" in self.fields else self._units("units")
        spatial = of_axes[[place for place in range(len(of_axes)) if place not in self._value_axes]][:3]
        return ones, spatial if len(spatial) == 3 else ones

    def _units(self, name: str) -> npt.NDArray[np.float64]:
        units = _QUOTED.findall(self.fields.get(name, ""))
        return np.array([mm_per_unit(self.path, unit, name) for unit in units])

    @property
    def _value_axes(self) -> list[int]:
        """Axes of an NRRD file that hold the values of a voxel."""
        kinds = self.fields.get("kinds", "").lower().split()
        return [place for place, kind in enumerate(kinds) if kind not in _DOMAIN_KINDS]

    def _is_true(self, name: str, *, default: bool = False) -> bool:
        value = self.fields.get(name)
        if value is None:
            return default
        if value[:1].lower() not in ("t", "f", "1", "0"):
            raise ScanError(
                f"decode: {self.path}: {name} is {shortened(value)}, neither True nor False; the header is damaged: "
                "copy or export the file again"
            )
        return value[:1].lower() in ("t", "1")

    def _number(self, *names: str) -> int:
        text = next((self.fields[name] for name in names if name in self.fields), "0")
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ScanError(
                f"decode: {self.path}: {names[0]} is {shortened(text)}, which is not a number of bytes or lines; "
                "export the file again"
            )
        return int(text)

    def unpacked(self, files: tuple[Path, ...], dtype: str, shape: tuple[int, ...], num_components: int) -> Array:
        """The voxels (..., z, y, x), components first, of a file that `is_packed`; a view on verified bytes.

        Args:
            files: the header's, and the file of the voxels if that is another one.
            dtype: of a voxel's values.
            shape: x first, without the components of a voxel.
            num_components: of a voxel.

        Raises:
            ScanError: the voxels are damaged, truncated, of another number than the header says, or do not fit into
                memory.
        """
        num_values = num_components * int(np.prod(shape, dtype=np.int64))
        num_skipped = 0 if self.is_mha else self._number("byte skip", "byteskip")
        if num_skipped < 0:
            raise ScanError(f"decode: {self.path}: byte skip is {num_skipped} for packed voxels; export the file again")
        stored = np.dtype(dtype).newbyteorder(">" if self._is_big_endian else "<")
        data = read_packed_voxels(
            files[-1], start=self._start_in(files), num_expected=num_skipped + num_values * stored.itemsize
        )
        values = data[num_skipped:].view(stored).astype(np.dtype(dtype), copy=False)
        if num_components == 1:
            return values.reshape(shape[::-1])
        # Of NRRD, any axis may be that of the components.
        place = 0 if self.is_mha else self._place_of(num_components, shape)
        slowest_first = (*shape[:place], num_components, *shape[place:])[::-1]
        return np.moveaxis(values.reshape(slowest_first), len(slowest_first) - 1 - place, 0)

    def _place_of(self, num_components: int, shape: tuple[int, ...]) -> int:
        sizes, axes = self.fields.get("sizes", "").split(), self._value_axes
        if len(axes) != 1 or sizes != [*map(str, (*shape[: axes[0]], num_components, *shape[axes[0] :]))]:
            raise ScanError(
                f"decode: {self.path}: an axis of kind {shortened(self.fields.get('kinds', ''))} holds the values of a "
                "voxel, which is not read from packed files; save it as a list of channels"
            )
        return axes[0]

    @property
    def _is_big_endian(self) -> bool:
        if self.is_mha:
            return any(self._is_true(name) for name in ("binarydatabyteordermsb", "elementbyteordermsb"))
        return self.fields.get("endian", "little").lower() == "big"

    def _start_in(self, files: tuple[Path, ...]) -> int:
        start = self.num_bytes if len(files) == 1 else 0
        if self.is_mha:
            skipped = self._number("headersize")
            if skipped < 0:
                raise ScanError(
                    f"decode: {self.path}: HeaderSize is {skipped} for packed voxels, whose length is not known; "
                    "export the file again"
                )
            return skipped or start
        num_lines = self._number("line skip", "lineskip")
        if num_lines == 0:
            return start
        with reading(files[-1]), files[-1].open("rb") as file:
            file.seek(start)
            if num_lines > 0 and all(file.readline() for _ in range(num_lines)):
                return file.tell()
        raise ScanError(
            f"decode: {self.path}: line skip is {num_lines}, which is not a number of lines of the file; export the "
            "file again"
        )

    def warn_of_rest(self, files: tuple[Path, ...], num_expected: int) -> None:
        """Warns of bytes behind voxels that are stored as they are, see `gunzip.warn_of_rest`.

        Args:
            files: as for `unpacked`.
            num_expected: bytes of the voxels.
        """
        is_raw = (
            self._is_true("binarydata", default=True)
            if self.is_mha
            else self.fields.get("encoding", "raw").lower() == "raw"
        )
        num_skipped = self._number("headersize") if self.is_mha else self._number("byte skip", "byteskip")
        # A negative number places the voxels at the end of the file.
        if is_raw and num_skipped >= 0:
            start = self._start_in(files) + (0 if self.is_mha else num_skipped)
            warn_of_rest(files[-1], start=start, num_expected=num_expected)


def read_header_text(path: Path) -> HeaderText:
    """The fields of an NRRD or MHA header, as far as they can be read as text.

    Raises:
        ScanError: the file cannot be read.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(_MOST_HEADER_BYTES)
    is_mha = path.suffix.lower() in MHA.endings
    fields: dict[str, str] = {}
    num_bytes, too_long = 0, ""
    for line in start.split(b"\n"):
        num_bytes += len(line) + 1
        text = os.fsdecode(line).strip()
        # The voxels of an NRRD file follow an empty line.
        if not text and not is_mha:
            break
        if len(line) > _LONGEST_FIELD and not is_mha and not _is_free_text(text):
            too_long = text
        found = (_MHA_FIELD if is_mha else _NRRD_FIELD).match(text)
        if found is None:
            continue
        name, value = found[1].strip().lower(), found[2].strip()
        if name in _ONCE and fields.get(name, value) != value:
            raise ScanError(
                f"decode: {path}: the header says {name} twice, {shortened(fields[name])} and {shortened(value)}; "
                "export the file again"
            )
        fields[name] = value
        if is_mha and name == _LAST_OF_MHA:
            break
    return HeaderText(path=path, fields=fields, num_bytes=num_bytes, too_long=too_long)


def _is_free_text(line: str) -> bool:
    """Whether a line of an NRRD header may have any length: comments, and values whose name a program chose."""
    name, colon, value = line.partition(":")
    is_chosen = colon and value.startswith("=") and name.strip().lower() not in _NRRD_NAMES
    return line.startswith("#") or bool(is_chosen) or name.strip().lower() in ("content", "sample units")
