"""Streamline files in RAS millimeters: TRK and TCK by nibabel, TRX, and arrays of NumPy."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import nibabel as nib
import numpy as np
from nibabel.affines import apply_affine, voxel_sizes
from nibabel.streamlines.tractogram import LazyTractogram

from voxelocity.data.decode import read_header
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points
from voxelocity_observe.core.errors import InputError, ScanError
from voxelocity_observe.core.whole_file import whole_file

TRACT_ENDINGS = (".trk", ".tck", ".trx")
# Of int16 points, as the array of HCP1065 has them.
_QUANTA_PER_MM = 32.0
_MOST_OUTSIDE = 0.01
_MARGIN_MM = 10.0
# Characters of what a library says that errors show.
_LONGEST_REASON = 300
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class Tracts:
    """Streamlines in RAS millimeters.

    Attributes:
        points: (m, 3) float32, all streamlines one after another.
        offsets: (n + 1), where each begins; each has at least two points.
        bundle: (n), index of each streamline's name.
        names: of the bundles.
        left_out: why streamlines of the files are not among them, for a warning; "" if all are.
    """

    points: Points
    offsets: Numbers
    bundle: Numbers
    names: tuple[str, ...]
    left_out: str = ""

    def __len__(self) -> int:
        return len(self.bundle)


def tract_files(data: Path) -> list[Path]:
    """The files of a data set: a file, the one array in a folder, or all streamline files in a folder.

    Raises:
        InputError: there are none, or several arrays.
    """
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise InputError(f"tractography: {data} does not exist; name a file or folder of streamlines")
    arrays = sorted(data.glob("*.npz"))
    if len(arrays) > 1:
        raise InputError(f"tractography: {data} holds {len(arrays)} .npz files; name the one to use")
    found = arrays or sorted(path for path in data.iterdir() if path.suffix.lower() in TRACT_ENDINGS)
    if not found:
        others = [cure for path in sorted(data.iterdir()) if (cure := _conversion_of(path))]
        cure = f"it holds {len(others)} in other forms; {others[0]}" if others else "name a folder that does"
        raise InputError(f"tractography: {data} holds no .trk, .tck or .trx file and no .npz array; {cure}")
    return found


def _conversion_of(path: Path) -> str:
    """How to make a file of streamlines that is packed, or of another format, one that is read; "" for other files."""
    name = path.name.lower()
    if name.endswith(tuple(f"{ending}.gz" for ending in TRACT_ENDINGS)):
        return f"unpack it: gunzip -k {shlex.quote(str(path))}"
    if name.endswith((".vtk", ".vtp", ".fib", ".tt", ".tt.gz")):
        return f"convert {path.name} to .tck or .trx, for example with MRtrix (tckconvert), DSI Studio, or DIPY"
    return ""


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
    readers = {".npz": _read_array, ".trx": _read_trx, ".trk": _read_by_nibabel, ".tck": _read_by_nibabel}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        cure = _conversion_of(path) or "convert it to one of these"
        raise InputError(f"tractography: {path} is not a .trk, .tck, .trx or .npz file; {cure}")
    try:
        return reader(path)
    except (InputError, FileNotFoundError, PermissionError):
        raise
    # Each library has errors of its own for a damaged file.
    except Exception as error:
        # Some of them show the bytes that they found.
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise ScanError(
            f"tractography: {path} cannot be read ({reason}); repair or replace it, or leave it out"
        ) from error


def _read_by_nibabel(path: Path) -> Tracts:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = nib.streamlines.load(path)
    if any("vox_to_ras" in str(warning.message) for warning in caught):
        raise ScanError(
            f"tractography: {path} has no voxel-to-RAS matrix in its header, so nobody knows where its streamlines "
            "lie; save it again with the affine of its image"
        )
    streamlines = found.streamlines
    return _of_lengths(streamlines.get_data(), [len(streamline) for streamline in streamlines], path.stem)


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
    names = names or tuple(f"bundle {number}" for number in range(int(bundle.max(initial=0)) + 1))
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


def _of_lengths(points: Any, lengths: Sequence[int], name: str) -> Tracts:
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    return Tracts(
        points=np.asarray(points, np.float32).reshape(-1, 3),
        offsets=offsets,
        bundle=np.zeros(len(lengths), np.int64),
        names=(name,),
    )


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


@dataclass(frozen=True, kw_only=True)
class Space:
    """The grid of voxels that headers of tract files name.

    Attributes:
        affine: 4 rows of 4, from a voxel index to RAS mm.
        shape: voxels along each axis.
    """

    affine: tuple[tuple[float, ...], ...]
    shape: tuple[int, int, int]

    @classmethod
    def of_image(cls, image: Path) -> Space:
        """That of an image."""
        grid = read_header(image).grid
        return cls(affine=grid.affine, shape=grid.shape)

    @classmethod
    def enclosing(cls, points: Points) -> Space:
        """Voxels of 1 mm, with some room around points (m, 3)."""
        low = np.floor(points.min(axis=0)) - _MARGIN_MM
        x, y, z = (int(size) for size in np.ceil(points.max(axis=0)) + _MARGIN_MM - low)
        affine = np.eye(4)
        affine[:3, 3] = low
        return cls(affine=tuple(map(tuple, affine.tolist())), shape=(x, y, z))


def write_tracts(path: Path, made: Iterable[tuple[Points, str]], *, space: Space) -> int:
    """Writes streamlines while they are made; the file is there once all are, and unchanged after an error.

    Args:
        path: of a .trk, .tck or .trx file. TRX alone keeps the bundles, as groups.
        made: streamlines (n, p, 3) in RAS mm, and the name of their bundle.
        space: that TRK and TRX headers name.

    Returns:
        How many streamlines there are.

    Raises:
        InputError: the ending is another one.
        OSError: the file cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in TRACT_ENDINGS:
        raise InputError(f"tractography: {path} is not a .trk, .tck or .trx file; choose one of these endings")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        if ending == ".trx":
            return _write_trx(file, made, space)
        count = 0

        def lines() -> Iterator[Points]:
            nonlocal count
            for streamlines, _ in made:
                count += len(streamlines)
                yield from streamlines

        # Made from a function of whole items, it would take the first one twice.
        tractogram = LazyTractogram(lines, affine_to_rasmm=np.eye(4))
        if ending == ".trk":
            nib.streamlines.TrkFile(tractogram, header=_trk_header(space)).save(file)
        else:
            nib.streamlines.TckFile(tractogram).save(file)
        return count


def _trk_header(space: Space) -> dict[str, Any]:
    affine = np.array(space.affine, np.float32)
    return {
        "voxel_to_rasmm": affine,
        "dimensions": np.array(space.shape, np.int16),
        "voxel_sizes": np.array(voxel_sizes(affine), np.float32),
        "voxel_order": "".join(nib.aff2axcodes(affine)).encode(),
    }


def _write_trx(file: BinaryIO, made: Iterable[tuple[Points, str]], space: Space) -> int:
    """A TRX file, member by member, while streamlines are made.

    Source: the specification, version 1.0, https://tee-ar-ex.github.io/trx-python/trx_specifications.html.
    """
    offsets, groups = [0], dict[str, list[int]]()
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("positions.3.float32", "w", force_zip64=True) as positions:
            for streamlines, name in made:
                positions.write(np.ascontiguousarray(streamlines, "<f4").tobytes())
                first, begin, num_points = len(offsets) - 1, offsets[-1], streamlines.shape[1]
                groups.setdefault(name, []).extend(range(first, first + len(streamlines)))
                offsets += [begin + num_points * (1 + number) for number in range(len(streamlines))]
        archive.writestr("offsets.uint64", np.array(offsets, "<u8").tobytes())
        members = set[str]()
        for name, indices in groups.items():
            member = plain = _NOT_IN_NAMES.sub("_", name)
            # Of bundles whose names differ in other characters alone, the later ones get a number.
            numbers = itertools.count(2)
            while member in members:
                member = f"{plain}_{next(numbers)}"
            members.add(member)
            archive.writestr(f"groups/{member}.uint32", np.array(indices, "<u4").tobytes())
        header = {
            "DIMENSIONS": space.shape,
            "VOXEL_TO_RASMM": space.affine,
            "NB_VERTICES": offsets[-1],
            "NB_STREAMLINES": len(offsets) - 1,
        }
        archive.writestr("header.json", json.dumps(header))
    return len(offsets) - 1
