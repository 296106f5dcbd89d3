"""NRRD and MHA/MHD, read through SimpleITK, which only this module imports; NRRD is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.scan_formats import NRRD
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.codec import Encoding
from voxelocity.data.decode.detached import cure_of_missing, locate_voxels
from voxelocity.data.decode.header import (
    HOW_TO_CONVERT,
    Placement,
    ScanHeader,
    check_affine,
    check_memory,
    check_shape,
    ras_affine,
)
from voxelocity.data.decode.itk_text import HeaderText, read_header_text
from voxelocity_observe.core.errors import OutputError, ScanError
from voxelocity_observe.core.plain import excerpt, shortened


def read_itk_header(path: Path) -> ScanHeader:
    """The checked header of an .nrrd, .nhdr, .mha or .mhd file. No voxels are read.

    Raises:
        ScanError: SimpleITK is not installed or cannot read the file, or as `read_header`.
    """
    reader, text, files = _open(path)
    size, num_axes = tuple(int(n) for n in reader.GetSize()), int(reader.GetDimension())
    check_shape(path, size)
    directions = np.array(reader.GetDirection()).reshape(num_axes, num_axes)[:3, :3]
    affine = ras_affine(directions, np.array(reader.GetSpacing()[:3]), np.array(reader.GetOrigin()[:3]))
    of_space, of_axes = text.millimeters()
    affine[:3] *= np.append(of_axes, 1.0)
    affine[:3] *= of_space[:, None]
    return ScanHeader(
        path=path,
        grid=Grid.of(size[:3], check_affine(path, affine)),
        num_channels=int(np.prod(size[3:], dtype=np.int64)) * int(reader.GetNumberOfComponents()),
        dtype=_dtype(path, reader),
        slope=1.0,
        inter=0.0,
        num_bytes=sum(file.stat().st_size for file in files),
        placement=Placement(fields=(), form="patient" if text.is_placed else "none", forms_apart_mm=0.0),
    )


def read_itk_voxels(header: ScanHeader, volume: int | None = None) -> Array:
    """The voxels (c, x, y, z), or those of one volume, in the stored dtype.

    Raises:
        ScanError: the file is truncated or damaged, or does not fit into memory.
    """
    import SimpleITK

    reader, text, files = _open(header.path)
    num_components, shape = int(reader.GetNumberOfComponents()), tuple(int(n) for n in reader.GetSize())
    if text.is_packed:
        array_czyx = text.unpacked(files, header.dtype, shape, num_components)
    else:
        check_memory(header.path, 2 * header.data_bytes)
        text.warn_of_rest(files, header.data_bytes)
        try:
            array_czyx = SimpleITK.GetArrayFromImage(reader.Execute())
        except RuntimeError as error:
            raise _unreadable(header.path, error, "it may be truncated: copy or export it again") from None
        if num_components > 1:
            # The components of a voxel lie next to each other.
            array_czyx = np.moveaxis(array_czyx, -1, 0)
    x, y, z = header.grid.shape
    stored: Array = np.ascontiguousarray(array_czyx).reshape((header.num_channels, z, y, x)).transpose(0, 3, 2, 1)
    return header.only(stored, volume)


def encode_nrrd(path: Path, grid: Grid, dtype: np.dtype[Any], placement: Placement | None) -> Encoding:
    """An array in an .nrrd file, with all digits of its affine, in LPS; needs no SimpleITK.

    See https://teem.sourceforge.net/nrrd/format.html.

    Raises:
        OutputError: NRRD cannot store this type of values.
    """
    if dtype.kind not in "iuf" or dtype.name == "float16":
        raise OutputError(f"decode: {path}: NRRD cannot store {dtype}; choose another dtype")
    lps = grid.matrix
    lps[:2] *= -1.0
    directions, origin = (
        " ".join(f"({','.join(repr(float(value) + 0.0) for value in vector)})" for vector in vectors)
        for vectors in (lps[:3, :3].T, lps[:3, 3:].T)
    )
    fields = {
        "type": {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name),
        "dimension": "3",
        "space": "left-posterior-superior",
        "sizes": " ".join(map(str, grid.shape)),
        "space directions": directions,
        "kinds": "domain domain domain",
        "endian": "little",
        "encoding": "gzip",
        "space origin": origin,
    }
    text = "\n".join(["NRRD0004", *(f"{key}: {value}" for key, value in fields.items()), "", ""])
    return Encoding(dtype=dtype.newbyteorder("<"), header=b"", is_packed=True, plain=text.encode())


def _open(path: Path) -> tuple[Any, HeaderText, tuple[Path, ...]]:
    """SimpleITK's reader of a file, what the text of its header says, and its files, that of the voxels last."""
    try:
        import SimpleITK
    except ImportError:
        raise ScanError(
            f"decode: {path}: reading {path.suffix} needs SimpleITK, which is not installed; "
            "pip install 'voxelocity[formats]'"
        ) from None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # SimpleITK ends the whole process on such a name.
        raise ScanError(f"decode: {path}: SimpleITK cannot open a path that is not UTF-8; rename it") from None
    opened, files = locate_voxels(path)
    if not files[-1].is_file():
        raise ScanError(
            f"decode: {path}: {shortened(files[-1].name)}, the file of its voxels, is not there; "
            f"{cure_of_missing(path, files[-1].name)}"
        )
    text = read_header_text(path)
    text.check()
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(opened))
    # Fixed by the name, so that the content cannot choose another reader.
    reader.SetImageIO("NrrdImageIO" if path.suffix.lower() in NRRD.endings else "MetaImageIO")
    try:
        reader.ReadImageInformation()
    # SimpleITK raises this class alone, whatever is wrong with a file.
    except RuntimeError as error:
        raise _unreadable(
            path, error, f"its header is damaged or not supported: export it again, or {HOW_TO_CONVERT}"
        ) from None
    return reader, text, files


def _dtype(path: Path, reader: Any) -> str:
    import SimpleITK

    name = SimpleITK.GetPixelIDValueAsString(reader.GetPixelID())
    words = name.removeprefix("vector of ").split()
    kinds = {"unsigned integer": "uint", "signed integer": "int", "float": "float"}
    kind = kinds.get(" ".join(words[1:]))
    if kind is None or not words[0].endswith("-bit"):
        raise ScanError(
            f"decode: {path}: the voxel type is {excerpt(name)}; save it with a plain integer or float type of at "
            "most 64 bits"
        )
    return f"{kind}{words[0].removesuffix('-bit')}"


def _unreadable(path: Path, error: RuntimeError, cure: str) -> ScanError:
    # SimpleITK has one class of errors, and MetaImage's reason is that of the last failed system call.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Reason:")]
    reason = lines[-1].rpartition("): ")[2] if lines else "no reason given"
    if "domain axes" in reason:
        cure = "say in its header which axis holds the channels, for example with `kinds: list domain domain domain`"
    return ScanError(f"decode: {path}: SimpleITK cannot read the file ({excerpt(reason)}); {cure}")
