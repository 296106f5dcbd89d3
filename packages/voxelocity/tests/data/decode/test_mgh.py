"""MGH and MGZ beyond the contract of formats: FreeSurfer's own fields, and headers that lie."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.damage import check_reading, rotten
from shared.examples import examples
from voxelocity.core.volume import Grid
from voxelocity.data.decode import gunzip, read_header, read_scan, write_scan
from voxelocity_observe.core.errors import ScanError

VOXELS = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
AFFINE = np.array([[-1.0, 0.0, 0.0, 90.0], [0.0, 0.0, 1.0, -20.0], [0.0, -1.0, 0.0, 30.0], [0.0, 0.0, 0.0, 1.0]])
HEADER_BYTES = 284


@pytest.fixture
def mgh(tmp_path):
    """Writes a file whose first bytes are changed: pairs of place and content."""

    def write(*changes, name="a.mgh", tail=b""):
        nib.save(nib.MGHImage(VOXELS, AFFINE), tmp_path / "a.mgh")
        content = bytearray((tmp_path / "a.mgh").read_bytes())
        for place, piece in changes:
            content[place : place + len(piece)] = piece
        path = tmp_path / name
        path.write_bytes(gzip.compress(content + tail) if name.endswith(".mgz") else content + tail)
        return path

    return write


def test_a_file_of_freesurfer_is_what_nibabel_reads():
    path = Path(nib.__file__).parent / "tests" / "data" / "test.mgz"
    if not path.exists():
        pytest.skip("nibabel was installed without its test data")
    image = nib.load(path)
    voxels, grid = read_scan(path)
    assert np.array_equal(voxels, np.moveaxis(np.asanyarray(image.dataobj), -1, 0))
    assert grid.is_close(Grid.of(image.shape[:3], image.affine), atol_mm=1e-4)


@pytest.mark.parametrize("name", ["a.mgh", "a.mgz"])
def test_what_freesurfer_puts_behind_the_voxels_is_no_reason_to_warn(mgh, name):
    path = mgh(name=name, tail=b"\0\0\0\x01mri_convert orig.mgz T1.mgz" * 500)
    assert np.array_equal(read_scan(path)[0][0], VOXELS)


def test_a_scan_without_a_place_lies_as_freesurfer_puts_it(mgh):
    header = read_header(mgh((28, b"\0\0")))
    assert header.placement.form == "none"
    expected = [[-1, 0, 0, 1.5], [0, 0, 1, -2.5], [0, -1, 0, 2], [0, 0, 0, 1]]
    assert np.array_equal(header.grid.matrix, expected)


@pytest.mark.parametrize(
    ("place", "piece", "words"),
    [
        (0, b"\0\0\0\2", r"not an MGH or MGZ file \(it starts with b'.*', not with version 1\); convert it"),
        (0, b"\0\0\6\1", r"holds a warp, or data on a surface \(version 0x601\); name the volume"),
        (4, b"\0\0\0\0", r"shape \(0, 4, 5, 1\), so it holds no voxels"),
        (4, b"\xff\xff\xff\xff", r"shape \(-1, 4, 5, 1\), so it holds no voxels"),
        (4, b"\x7f\xff\xff\xff" * 3, r"more voxels than any file can hold"),
        (8, b"\0\0\0\5", r"the file is truncated: 434 bytes expected by its header, 4\d\d found"),
        (20, b"\0\0\0\7", r"voxel type has the code 7, .*0 \(uint8\), 1 \(int32\), .*; save it"),
        (30, b"\0\0\0\0", r"spacing on x is 0\.0 mm \(delta\)"),
        (34, b"\x7f\xc0\0\0", r"spacing on y is nan mm \(delta\)"),
        (42, b"\0" * 12, r"spacing on x is 0\.0 mm \(affine\)"),
        (54, b"\xbf\x80\0\0" + b"\0" * 8, r"the affine is singular"),
    ],
)
@pytest.mark.parametrize("name", ["a.mgh", "a.mgz"])
def test_headers_that_cannot_be_are_refused_in_words(mgh, place, piece, words, name):
    path = mgh((place, piece), name=name)
    with pytest.raises(ScanError, match=rf"decode: .*{name}: .*{words}"):
        read_scan(path)


def test_labels_of_an_intent_are_read(mgh):
    assert np.array_equal(read_scan(mgh((0, b"\0\0\1\1")))[0][0], VOXELS)


def test_a_file_that_ends_within_its_header_is_truncated(mgh):
    path = mgh()
    path.write_bytes(path.read_bytes()[: HEADER_BYTES - 1])
    with pytest.raises(ScanError, match=r"truncated: it ends within its header of 284 bytes; copy"):
        read_header(path)


def test_a_packed_file_of_far_more_than_its_header_says_is_refused(mgh, monkeypatch):
    monkeypatch.setattr(gunzip, "_MOST_BEHIND_BYTES", 4 << 20)
    path = mgh(name="a.mgz", tail=bytes(8 << 20))
    with pytest.raises(ScanError, match=r"404 bytes are expected by its header, but more than .* do not belong"):
        read_scan(path)


def test_odd_headers_are_refused_in_words_or_read(mgh):
    path = mgh()
    whole, numbers = path.read_bytes(), random.Random(0)
    headers = (rotten(numbers, whole[:90]).ljust(90, b"\0")[:90] for _ in range(examples(200)))
    check_reading(path, (header + whole[90:] for header in headers))


def test_values_beyond_eight_bits_are_written_as_every_freesurfer_reads_them(tmp_path):
    labels = np.array([[[0, 14_175], [40_000, 7]]], np.uint16)
    write_scan(tmp_path / "a.mgz", labels, Grid.of(labels.shape, AFFINE))
    image = nib.load(tmp_path / "a.mgz")
    assert image.get_data_dtype() == np.dtype(">i4")
    assert np.array_equal(np.asarray(image.dataobj), labels)
    assert np.allclose(image.affine, AFFINE)
