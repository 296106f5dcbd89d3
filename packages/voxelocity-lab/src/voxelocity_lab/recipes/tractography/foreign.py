"""Streamline files that no installed library reads: legacy VTK (polydata), and DSI Studio's TinyTrack (.tt.gz).

Sources: VTK File Formats (https://docs.vtk.org/en/latest/design_documents/VTKFileFormats.html), whose binary numbers
are big-endian; DSI Studio's documentation of TT files, which are gzipped MATLAB files of version 4.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io.matlab import loadmat, matfile_version

from voxelocity.data.decode import read_all_unpacked
from voxelocity_lab.recipes.tractography.shapes import Numbers, Tracts

_VTK_TYPES = {
    "float": ">f4", "double": ">f8", "int": ">i4", "unsigned_int": ">u4", "long": ">i8", "short": ">i2",
    "vtktypeint64": ">i8", "vtktypeint32": ">i4", "vtkidtype": ">i8",
}  # fmt: skip
_CELLS = ("LINES", "VERTICES", "POLYGONS", "TRIANGLE_STRIPS")
_LONGEST_LINE = 1 << 10
# 3D Slicer writes it into the title; MRtrix has a title of its own, and one space.
_SPACE = re.compile(r"SPACE\s*=\s*(RAS|LPS)")
_TITLE_OF_MRTRIX = "Data values for Tracks"
# Of a position: a voxel of DSI Studio has this many steps.
_STEPS_PER_VOXEL = 32.0
_RECORD_START_BYTES = 16


class _Text:
    """The content of a VTK file, read from its beginning.

    Attributes:
        at: the byte that is read next.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def line(self) -> str:
        """The next line; "" at the end too."""
        end = self._content.find(b"\n", self.at, self.at + _LONGEST_LINE)
        if end < 0:
            end = len(self._content)
            if end - self.at > _LONGEST_LINE:
                raise ValueError(f"a line has more than {_LONGEST_LINE} characters")
        text = self._content[self.at : end].decode("latin-1").strip()
        self.at = min(end + 1, len(self._content))
        return text

    def filled_line(self) -> str:
        """The next line that holds something; "" at the end."""
        while self.at < len(self._content):
            if text := self.line():
                return text
        return ""

    def numbers(self, count: int, kind: str, *, is_binary: bool) -> Any:
        """The next numbers.

        Raises:
            ValueError: there are fewer, or they are of another kind.
        """
        if kind.lower() not in _VTK_TYPES:
            raise ValueError(f"numbers of type {kind[:40]!r} are not known")
        dtype = np.dtype(_VTK_TYPES[kind.lower()])
        left = len(self._content) - self.at
        if not 0 <= count <= left // (dtype.itemsize if is_binary else 1):
            raise ValueError(f"{count} numbers are announced, and {left} bytes are left")
        if is_binary:
            found = np.frombuffer(self._content, dtype, count, self.at)
            self.at += count * dtype.itemsize
            return found.astype(dtype.newbyteorder("="))
        words = self._content[self.at :].split(None, count)
        if len(words) < count:
            raise ValueError(f"{count} numbers are announced, and {len(words)} are left")
        self.at = len(self._content) - len(words[count]) if len(words) > count else len(self._content)
        # What a type cannot hold is judged where it is used.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([float(word) for word in words[:count]]).astype(dtype.newbyteorder("="))


def read_vtk(path: Path) -> Tracts:
    """The lines of a legacy VTK file, as text or binary, of versions up to 5.1.

    Raises:
        ValueError: it is damaged, or holds no lines.
        ScanError: it cannot be read.
    """
    text = _Text(read_all_unpacked(path))
    if not text.line().startswith("# vtk DataFile"):
        raise ValueError("it does not begin as a legacy VTK file")
    title, form, dataset = text.line(), text.line().upper(), text.filled_line().upper()
    if form not in ("ASCII", "BINARY") or dataset.split() != ["DATASET", "POLYDATA"]:
        raise ValueError(f"it holds {dataset[:40] or 'nothing'} as {form[:40]}, not polydata as ASCII or BINARY")
    points, lines, is_binary = None, None, form == "BINARY"
    while (words := text.filled_line().split()) and words[0].upper() not in ("POINT_DATA", "CELL_DATA", "FIELD"):
        keyword = words[0].upper()
        if keyword == "METADATA":
            while text.line():
                pass
        elif keyword == "POINTS" and len(words) == 3:
            points = text.numbers(3 * int(words[1]), words[2], is_binary=is_binary).reshape(-1, 3)
        elif keyword in _CELLS and len(words) == 3:
            cells = _cells(text, int(words[1]), int(words[2]), is_binary=is_binary)
            lines = cells if keyword == "LINES" else lines
        else:
            raise ValueError(f"the line {' '.join(words)[:60]!r} is not known")
    if points is None or lines is None:
        raise ValueError("it holds no lines")
    lengths, members = lines
    if len(wrong := members[(members < 0) | (members >= len(points))]):
        raise ValueError(f"a line names point {wrong[0]} of {len(points)}")
    with np.errstate(over="ignore"):
        mm = points[members].astype(np.float32)
    space = _SPACE.search(title)
    note = ""
    if space is not None and space[1] == "LPS":
        mm[:, :2] *= -1.0
    elif space is None and title != _TITLE_OF_MRTRIX:
        note = (
            f"{path} does not say whether its x goes to the right (RAS) or to the left (LPS, as DIPY writes VTK); it "
            "is read as RAS: write .trx or .tck if that is wrong"
        )
    return Tracts.of_lengths(mm, lengths, left_out=note)


def _cells(text: _Text, first: int, second: int, *, is_binary: bool) -> tuple[Numbers, Numbers]:
    """The number of points of each cell, and their indices, in either of the two forms of VTK."""
    place = text.at
    words = text.filled_line().split()
    if words[:1] == ["OFFSETS"] and len(words) == 2:
        offsets = text.numbers(first, words[1], is_binary=is_binary).astype(np.int64)
        head = text.filled_line().split()
        if head[:1] != ["CONNECTIVITY"] or len(head) != 2:
            raise ValueError("offsets of cells stand without their points")
        members = text.numbers(second, head[1], is_binary=is_binary).astype(np.int64)
        lengths = np.diff(offsets)
        if first and (offsets[0] != 0 or offsets[-1] != second or (lengths < 0).any()):
            raise ValueError("offsets of cells do not count their points")
        return lengths, members
    text.at = place
    numbers = text.numbers(second, "int", is_binary=is_binary).astype(np.int64)
    found, at = np.empty(min(first, second), np.int64), 0
    is_member = np.ones(second, bool)
    for cell in range(first):
        if at >= second or not 0 <= numbers[at] < second - at:
            raise ValueError(f"cell {cell} of {first} does not say how many points it has")
        found[cell], is_member[at] = numbers[at], False
        at += 1 + int(numbers[at])
    if at != second:
        raise ValueError(f"{first} cells take {at} numbers, and there are {second}")
    return found, numbers[is_member]


def read_tiny_tracks(path: Path) -> Tracts:
    """The streamlines of a .tt.gz file of DSI Studio; its clusters are bundles.

    Raises:
        ValueError: it is damaged, or does not say where its voxels lie.
        ScanError: it cannot be read.
    """
    matrices = _matrices(read_all_unpacked(path))
    blocks = [matrices[name] for name in sorted(matrices, key=_block_number) if _block_number(name) >= 0]
    affine = matrices.get("trans_to_mni")
    if not blocks or affine is None or affine.size != 16:
        raise ValueError("it has no track, or no trans_to_mni, the affine of its voxels")
    affine = np.asarray(affine, np.float64).reshape(-1, order="F").reshape(4, 4)
    if not np.isfinite(affine).all() or not np.allclose(affine[3], (0.0, 0.0, 0.0, 1.0)):
        raise ValueError("its trans_to_mni is not an affine")
    parts = [points for block in blocks for points in _records(block.tobytes(order="F"))]
    voxels = np.concatenate([np.empty((0, 3)), *parts]) / _STEPS_PER_VOXEL
    with np.errstate(over="ignore"):
        mm = (voxels @ affine[:3, :3].T + affine[:3, 3]).astype(np.float32)
    tracts = Tracts.of_lengths(mm, [len(points) for points in parts])
    clusters = np.asarray(matrices.get("cluster", ())).reshape(-1, order="F")
    if len(clusters) != len(parts) or not (clusters >= 0).all():
        return tracts
    used, bundle = np.unique(clusters, return_inverse=True)
    return replace(tracts, bundle=bundle.reshape(-1), names=_names(path, [int(number) for number in used]))


def _block_number(name: str) -> int:
    """Which part of the streamlines a matrix holds; -1 if none."""
    number = name.removeprefix("track") if name.startswith("track") else "no number"
    return 0 if number == "" else int(number) + 1 if number.isdecimal() else -1


def _matrices(content: bytes) -> dict[str, Any]:
    """The matrices of a MATLAB file of version 4, by name."""
    file = io.BytesIO(content)
    # Later versions pack their matrices, each of which may be of any size.
    if matfile_version(file)[0] != 0:
        raise ValueError("it is not a MATLAB file of version 4")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found: dict[str, Any] = loadmat(file)
    return found


def _records(content: bytes) -> list[Any]:
    """The points (n, 3) of each streamline of a block, in steps: the first, then differences of a byte each."""
    found = []
    at = 0
    while at < len(content):
        if at + _RECORD_START_BYTES > len(content):
            raise ValueError("it ends within a streamline")
        size = int.from_bytes(content[at : at + 4], "little")
        stop = at + size + _RECORD_START_BYTES - 3
        if size == 0 or size % 3 or stop > len(content):
            raise ValueError(f"a streamline has {size} bytes, which do not make its points")
        points = np.empty((size // 3, 3), np.int64)
        points[0] = np.frombuffer(content, "<i4", 3, at + 4)
        points[1:] = np.frombuffer(content, np.int8, size - 3, at + _RECORD_START_BYTES).reshape(-1, 3)
        found.append(np.cumsum(points, axis=0))
        at = stop
    return found


def _names(path: Path, used: Sequence[int]) -> tuple[str, ...]:
    """Of these clusters: a line each in a text file next to the streamlines, if it has as many, as atlases have."""
    text = path.with_name(f"{path.name}.txt")
    known = text.read_text("utf-8", "replace").split("\n") if text.is_file() and text.stat().st_size < 1 << 20 else []
    lines = [line.strip() for line in known if line.strip()]
    return tuple(lines[number] if len(lines) > max(used) else f"bundle {number}" for number in used)
