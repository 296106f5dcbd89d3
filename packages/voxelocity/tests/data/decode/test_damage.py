"""Damaged and crafted scans and labels: read unchanged, or refused in words; nothing in between, and no traceback.

`make test` makes a slice of these trials, `make test-all` all of them.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib

import nibabel as nib
import numpy as np
import pytest
from data.decode.dicom.test_structures import SQUARE, write_contours

from shared.damage import odd_elements, odd_lines, rotten
from shared.dicom_series import fix_identity, named_label, write_series
from shared.examples import examples
from voxelocity.data.decode import (
    read_header,
    read_scan,
    read_structures_header,
    source_files,
    write_segmentation,
)
from voxelocity_observe.core.errors import ScanError

# Of pydicom, which warns of values that it repairs, and of our own on units.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

VOXELS = np.random.default_rng(5).integers(-900, 900, (5, 6, 7)).astype("<i2")
_LONGEST_REFUSAL = 1500
_NRRD = (
    "NRRD0004\ntype: int16\ndimension: 3\nspace: left-posterior-superior\nsizes: 7 6 5\n"
    "space directions: (1,0,0) (0,1,0) (0,0,2)\nkinds: domain domain domain\nendian: little\nencoding: {}\n"
    "space origin: (0,0,0)\n"
)
_MHA = (
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = {}\n"
    "TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 0 0 0\nCenterOfRotation = 0 0 0\nElementSpacing = 1 1 2\n"
    "DimSize = 7 6 5\nElementType = MET_SHORT\n"
)


def files_of(kind, *, is_packed=True):
    """The header of a scan of `VOXELS`, the bytes of these, and the name of their own file if they have one."""
    raw = VOXELS.tobytes()
    if kind == "mgz":
        return "", gzip.compress(nib.MGHImage(VOXELS.T, np.eye(4)).to_bytes(), mtime=0), ""
    if kind in ("nrrd", "nhdr"):
        packed = gzip.compress(raw, mtime=0) if is_packed else raw
        header = _NRRD.format("gzip" if is_packed else "raw")
        return (header + "\n", packed, "") if kind == "nrrd" else (header + "data file: a.bin\n", packed, "a.bin")
    packed = zlib.compress(raw) if is_packed else raw
    header = _MHA.format(is_packed)
    return (f"{header}ElementDataFile = {'LOCAL' if kind == 'mha' else 'a.bin'}\n", packed, "a.bin" * (kind == "mhd"))


def write_files(folder, kind, header, voxels, own):
    path = folder / f"a.{kind}"
    path.write_bytes(header.encode() + (b"" if own else voxels))
    if own:
        (folder / own).write_bytes(voxels)
    return path


def refusal_of(read):
    """What a read gives, and the text of its refusal; anything but an error of ours is raised."""
    try:
        return read(), ""
    except ScanError as error:
        refusal = str(error)
    assert 0 < len(refusal) < _LONGEST_REFUSAL, f"{len(refusal)} characters: {refusal[:200]}"
    return None, refusal


@pytest.mark.parametrize("kind", ["nrrd", "nhdr", "mha", "mhd", "mgz"])
def test_rotten_packed_voxels_are_refused_or_the_same(tmp_path, kind):
    header, voxels, own = files_of(kind)
    numbers = random.Random(kind)
    for trial in range(examples(160)):
        path = write_files(tmp_path, kind, header, rotten(numbers, voxels), own)
        found, _ = refusal_of(lambda path=path: read_scan(path)[0])
        assert found is None or np.array_equal(found[0].T, VOXELS), f"trial {trial} changed voxels silently"


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("kind", ["nrrd", "nhdr", "mha", "mhd"])
def test_headers_of_odd_values_are_refused_in_words_or_read(tmp_path, kind, is_packed):
    header, voxels, own = files_of(kind, is_packed=is_packed)
    numbers = random.Random(f"{kind} {is_packed}")
    for _ in range(examples(160)):
        path = write_files(
            tmp_path, kind, odd_lines(numbers, header.rstrip("\n")) + "\n" * (kind == "nrrd"), voxels, own
        )
        for read in (read_scan, read_header, source_files):
            refusal_of(lambda path=path, read=read: read(path))


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct", np.random.default_rng(0).integers(-99, 99, (6, 20, 16)).astype(np.int16))
    return tmp_path / "ct"


@pytest.fixture(params=["seg", "rs"])
def structures(request, tmp_path, series):
    header = read_header(series)
    if request.param == "rs":
        return write_contours(tmp_path / "rs.dcm", series, {"a": [(2, SQUARE), (3, SQUARE)], "b": [(4, SQUARE)]})
    classes = np.random.default_rng(1).integers(0, 3, header.grid.shape).astype(np.uint8)
    write_segmentation(tmp_path / "seg.dcm", classes, header, ["a", "b"])
    fix_identity(tmp_path / "seg.dcm")
    return tmp_path / "seg.dcm"


def test_structures_with_odd_elements_are_refused_in_words_or_read(series, structures):
    import pydicom

    grid, numbers = read_header(series).grid, random.Random(structures.name)
    whole = structures.read_bytes()
    for _ in range(examples(240)):
        structures.write_bytes(whole)
        dataset = pydicom.dcmread(structures)
        done = odd_elements(numbers, dataset)
        # Values that pydicom does not write are no files.
        with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, KeyError):
            dataset.save_as(structures)
        found, _ = refusal_of(lambda: named_label(structures, grid, {"a": 1, "b": 2}))
        refusal_of(lambda: read_structures_header(structures))
        num_frames = len(dataset.get("PerFrameFunctionalGroupsSequence") or ())
        assert found is None or structures.name == "rs.dcm" or num_frames == dataset.get("NumberOfFrames", 1), done


def test_slices_with_odd_elements_are_refused_in_words_or_read(series):
    import pydicom

    numbers = random.Random(7)
    file = sorted(series.iterdir())[2]
    whole = file.read_bytes()
    for _ in range(examples(240)):
        file.write_bytes(whole)
        dataset = pydicom.dcmread(file)
        odd_elements(numbers, dataset)
        with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, KeyError):
            dataset.save_as(file)
        refusal_of(lambda: read_scan(series))


def test_rotten_structures_are_refused_in_words_or_read(series, structures):
    grid, numbers = read_header(series).grid, random.Random(structures.name)
    whole = structures.read_bytes()
    for _ in range(examples(240)):
        structures.write_bytes(rotten(numbers, whole, start=numbers.choice((0, 132))))
        refusal_of(lambda: named_label(structures, grid, {"a": 1, "b": 2}))
        refusal_of(lambda: read_structures_header(structures))
