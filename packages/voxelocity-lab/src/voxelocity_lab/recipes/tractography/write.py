"""Streamlines to files: TRK and TCK by nibabel, and TRX, while they are made."""

from __future__ import annotations

import itertools
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import nibabel as nib
import numpy as np
from nibabel.affines import voxel_sizes
from nibabel.streamlines.tractogram import LazyTractogram

from voxelocity.data.decode import read_header
from voxelocity_lab.recipes.tractography.shapes import Points
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.whole_file import whole_file

_WRITTEN = (".trk", ".tck", ".trx")
_MARGIN_MM = 10.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


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
    if ending not in _WRITTEN:
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
