"""Streamline files in RAS millimeters: TRK and TCK by nibabel, TRX, arrays of NumPy, and those that `foreign` reads."""

from __future__ import annotations

import io
import json
import shlex
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.affines import apply_affine

from voxelocity.data.decode import read_all_unpacked, read_header
from voxelocity.data.decode.header import check_memory
from voxelocity_lab.recipes.division import visible_in
from voxelocity_lab.recipes.tractography.foreign import read_tiny_tracks, read_vtk
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, Tracts
from voxelocity_observe.core.errors import InputError, ScanError

READ_ENDINGS = (".trk", ".tck", ".trx", ".trk.gz", ".tck.gz", ".vtk", ".tt.gz")
"""Of files that are read, besides arrays of NumPy."""
_BY_DIPY = "convert it by DIPY: dipy_convert_tractogram {file} --reference IMAGE --out_tractogram {place}.trx"
_CONVERSIONS = {
    ".trx.gz": "unpack it: gunzip -k {file}",
    # VTK's XML, which only VTK itself reads.
    ".vtp": "write it as .vtk in 3D Slicer, or in Python with dipy and fury installed: from dipy.io.vtk import "
    "load_polydata, save_polydata; save_polydata(load_polydata({path!r}), {vtk!r})",
    ".fib": _BY_DIPY,
    ".dpy": _BY_DIPY,
    ".fz": "write its tracks as .tt.gz in DSI Studio",
}
"""How to make files of streamlines that are packed, or of other formats, some that are read."""
# Of int16 points, as the array of HCP1065 has them.
_QUANTA_PER_MM = 32.0
_MOST_OUTSIDE = 0.01
# Characters of what a library says that errors show.
_LONGEST_REASON = 300


def tract_files(data: Path) -> list[Path]:
    """The files of a data set: a file, the one array in a folder, or all streamline files in a folder.

    Raises:
        InputError: there are none, or several arrays.
    """
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise InputError(f"tractography: {data} does not exist; name a file or folder of streamlines")
    held = visible_in(data)
    arrays = [path for path in held if path.name.endswith(".npz")]
    if len(arrays) > 1:
        raise InputError(f"tractography: {data} holds {len(arrays)} .npz files; name the one to use")
    found = arrays or [path for path in held if path.name.lower().endswith(READ_ENDINGS)]
    if not found:
        others = [cure for path in held if (cure := _conversion_of(path))]
        cure = f"it holds {len(others)} in other forms; {others[0]}" if others else "name a folder that does"
        raise InputError(f"tractography: {data} holds no {_in_words()} file and no .npz array; {cure}")
    return found


def _conversion_of(path: Path) -> str:
    """How to make a file of streamlines that is packed, or of another format, one that is read; "" for other files."""
    name = next((ending for ending in _CONVERSIONS if path.name.lower().endswith(ending)), "")
    place = str(path)[: len(str(path)) - len(name)]
    shown = {"file": shlex.quote(str(path)), "place": shlex.quote(place), "path": str(path), "vtk": f"{place}.vtk"}
    return _CONVERSIONS[name].format(**shown) if name else ""


def read_tracts(files: Sequence[Path], *, image: Path | None = None) -> Tracts:
    """The streamlines of some files; groups of a TRX file and names of an array are bundles, other files one each.

    Streamlines of fewer than two points, and those with a coordinate that is NaN or infinite, are left out.

    Args:
        files: to read.
        image: whose space the streamlines must lie in.

    Raises:
        ScanError: a file is damaged, has no place in space, lies outside the image, or holds no streamline.
        InputError: a file is in another format.
    """
    parts = [_read(path) for path in files]
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    points: list[Points] = []
    lengths: list[Numbers] = []
    bundle: list[Numbers] = []
    notes: list[str] = []
    for path, part in zip(files, parts, strict=True):
        if part.left_out:
            notes.append(part.left_out)
        keep = _usable(part)
        if not keep.any():
            raise ScanError(f"tractography: {path} holds no streamline of two or more finite points; leave it out")
        if not keep.all():
            first = int(np.flatnonzero(~keep)[0])
            notes.append(
                f"{(~keep).sum()} of {len(keep)} streamlines of {path} are left out, which have fewer than two points "
                f"or a NaN (the first is number {first})"
            )
        if image is not None:
            _check_space(path, part, image)
        each = np.diff(part.offsets)
        points.append(part.points[np.repeat(keep, each)])
        lengths.append(each[keep])
        numbers = np.array([names.index(name) for name in part.names])
        bundle.append(numbers[part.bundle[keep]])
    return Tracts(
        points=np.concatenate(points),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]),
        bundle=np.concatenate(bundle),
        names=names,
        left_out="; ".join(notes),
    )


def _usable(tracts: Tracts) -> Numbers:
    counts = np.diff(tracts.offsets)
    bad_points = np.concatenate([[0], np.cumsum(~np.isfinite(tracts.points).all(axis=1))])
    usable: Numbers = (counts >= 2) & (bad_points[tracts.offsets[1:]] == bad_points[tracts.offsets[:-1]])
    return usable


def _read(path: Path) -> Tracts:
    name = path.name.lower()
    reader = next((reader for ending, reader in _READERS.items() if name.endswith(ending)), None)
    if reader is None:
        cure = _conversion_of(path) or "convert it to one of these"
        raise InputError(f"tractography: {path} is not a {_in_words()} or .npz file; {cure}")
    try:
        found = reader(path)
    except (InputError, FileNotFoundError, PermissionError):
        raise
    # Each library has errors of its own for a damaged file.
    except Exception as error:
        # Some of them show the bytes that they found.
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise ScanError(
            f"tractography: {path} cannot be read ({reason}); repair or replace it, or leave it out"
        ) from error
    return found if found.names else replace(found, names=(_stem(path),))


def _read_by_nibabel(path: Path) -> Tracts:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_packed = path.suffix.lower() == ".gz"
        found = nib.streamlines.load(io.BytesIO(read_all_unpacked(path)) if is_packed else path)
    if any("vox_to_ras" in str(warning.message) for warning in caught):
        raise ScanError(
            f"tractography: {path} has no voxel-to-RAS matrix in its header, so the position of its streamlines is "
            "unknown; save it again with the affine of its image"
        )
    streamlines = found.streamlines
    return Tracts.of_lengths(streamlines.get_data(), [len(streamline) for streamline in streamlines])


def _read_array(path: Path) -> Tracts:
    with np.load(path, allow_pickle=False) as arrays:
        if "points_q" in arrays:
            points = arrays["points_q"].astype(np.float32) / _QUANTA_PER_MM
        elif "points" in arrays:
            points = arrays["points"].astype(np.float32)
        else:
            raise ScanError(
                f"tractography: {path} holds the arrays {', '.join(arrays.files)}, but neither points (n, p, 3) in RAS "
                "mm nor points_q in 1/32 mm"
            )
        bundle = arrays["bundle"].astype(np.int64) if "bundle" in arrays else np.zeros(len(points), np.int64)
        names = tuple(map(str, arrays["names"])) if "names" in arrays else ()
    if points.ndim != 3 or points.shape[2] != 3 or bundle.shape != points.shape[:1]:
        raise ScanError(
            f"tractography: {path} has points of shape {points.shape} and bundle of shape {bundle.shape}; they must be "
            "(n, p, 3) and (n)"
        )
    if not names and bundle.min(initial=0) >= 0:
        used, bundle = np.unique(bundle, return_inverse=True)
        names = tuple(f"bundle {number}" for number in used)
    if len(bundle) and not 0 <= int(bundle.min()) <= int(bundle.max()) < len(names):
        raise ScanError(f"tractography: {path} has bundle {int(bundle.max())}, but {len(names)} names")
    num_points = points.shape[1]
    return Tracts(
        points=points.reshape(-1, 3), offsets=np.arange(len(points) + 1) * num_points, bundle=bundle, names=names
    )


def _read_trx(path: Path) -> Tracts:
    """Points, offsets and groups; values along streamlines are not read.

    By zipfile: trx-python 0.6 asks for permission to write, and refuses files of earlier versions.
    """
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
        arrays: dict[tuple[str, str], Any] = {}
        for name in archive.namelist():
            place = PurePosixPath(name)
            is_wanted = len(place.parts) == 1 and place.name.startswith(("positions.", "offsets."))
            if not is_wanted and not (place.parent.name == "groups" and place.suffix):
                continue
            # A small archive may hold members of any size.
            check_memory(path, 2 * archive.getinfo(name).file_size)
            key, *between, dtype = str(place.parent), *place.name.split(".")[1:]
            array = np.frombuffer(archive.read(name), dtype)
            if arrays.setdefault((key, place.name.partition(".")[0]), array) is not array:
                raise ValueError(f"two members hold {place.name.partition('.')[0]}")
            if is_wanted and place.name.startswith("positions.") and between != ["3"]:
                raise ValueError(f"{name} does not hold three coordinates for each point")
    points = arrays[".", "positions"].reshape(-1, 3)
    offsets = arrays[".", "offsets"].astype(np.int64)
    num, num_points = int(header["NB_STREAMLINES"]), int(header["NB_VERTICES"])
    # Earlier versions leave the last one out.
    offsets = np.append(offsets, num_points) if len(offsets) == num else offsets
    if (
        len(offsets) != num + 1
        or len(points) != num_points
        or offsets[0] != 0
        or (np.diff(offsets) < 0).any()
        or offsets[-1] != num_points
    ):
        raise ValueError(f"{len(points)} points and {len(offsets)} offsets for {num_points} and {num} in its header")
    # Streamlines of no group have the file's name.
    names = [*(name for folder, name in arrays if folder == "groups"), path.stem]
    bundle = np.full(num, len(names) - 1)
    for number, name in enumerate(names[:-1]):
        members = arrays["groups", name].astype(np.int64)
        if ((members < 0) | (members >= num)).any():
            raise ValueError(
                f"the group {name} names streamline {members[(members < 0) | (members >= num)][0]} of {num}"
            )
        bundle[members] = number
    used, numbers = np.unique(bundle, return_inverse=True)
    return Tracts(
        points=points.astype(np.float32),
        offsets=offsets,
        bundle=numbers.reshape(-1),
        names=tuple(names[number] for number in used),
    )


def _stem(path: Path) -> str:
    """The name of a file without its ending."""
    endings = [ending for ending in READ_ENDINGS if path.name.lower().endswith(ending)]
    ending = max(endings, key=len, default=path.suffix)
    return path.name[: len(path.name) - len(ending)]


_READERS = {
    ".npz": _read_array, ".trx": _read_trx, ".trk": _read_by_nibabel, ".tck": _read_by_nibabel,
    ".trk.gz": _read_by_nibabel, ".tck.gz": _read_by_nibabel, ".vtk": read_vtk, ".tt.gz": read_tiny_tracks,
}  # fmt: skip


def _in_words() -> str:
    return f"{', '.join(READ_ENDINGS[:-1])} or {READ_ENDINGS[-1]}"


def _check_space(path: Path, tracts: Tracts, image: Path) -> None:
    """Raises if streamlines lie outside the image, as those in another space do."""
    grid = read_header(image).grid
    finite = tracts.points[np.isfinite(tracts.points).all(axis=1)]
    index = apply_affine(np.linalg.inv(grid.matrix), finite)
    outside = ((index < -0.5) | (index > np.array(grid.shape) - 0.5)).any(axis=1)
    if len(finite) and outside.mean() > _MOST_OUTSIDE:
        low, high = finite.min(axis=0), finite.max(axis=0)
        raise ScanError(
            f"tractography: {100 * outside.mean():.0f} % of the points of {path}, from {_triple(low)} to "
            f"{_triple(high)} mm, lie outside the image {image}; give the image in whose space they are, or register "
            "them first"
        )


def _triple(values: Any) -> str:
    return f"({', '.join(f'{value:.0f}' for value in values)})"
