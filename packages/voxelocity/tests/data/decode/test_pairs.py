"""Pairs of .hdr and .img beyond the contract of formats: Analyze 7.5 as nibabel reads it, and headers that lie."""

from __future__ import annotations

import random
import warnings

import nibabel as nib
import numpy as np
import pytest
from nibabel.spm2analyze import Spm2AnalyzeImage

from shared.damage import check_reading, rotten
from shared.examples import examples
from voxelocity.core.volume import Grid, VolumeRef
from voxelocity.data.decode import read_case, read_header, read_scan, source_files
from voxelocity_observe.core.errors import ScanError

VOXELS = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
AFFINE = np.diag([-1.5, 2.0, 2.5, 1.0])


def as_nibabel_reads(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = nib.load(path)
        return np.asanyarray(image.dataobj), Grid.of(image.shape[:3], image.affine)


@pytest.mark.parametrize("kind", [nib.AnalyzeImage, nib.Spm99AnalyzeImage, Spm2AnalyzeImage])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_analyze_is_what_nibabel_reads(tmp_path, kind, dtype):
    kind(VOXELS.astype(dtype), AFFINE).to_filename(tmp_path / "a.img")
    (tmp_path / "a.mat").unlink(missing_ok=True)
    voxels, grid = read_scan(tmp_path / "a.hdr")
    expected, place = as_nibabel_reads(tmp_path / "a.hdr")
    assert np.array_equal(voxels[0], expected)
    assert grid.is_close(place)
    assert read_header(tmp_path / "a.hdr").placement.form == "none"


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_origin_and_the_scale_of_spm_are_used(tmp_path, order):
    image = Spm2AnalyzeImage(VOXELS, np.eye(4))
    header = Spm2AnalyzeImage.header_class(endianness=order)
    header.set_data_dtype(np.int16)
    header.set_data_shape(VOXELS.shape)
    header.set_zooms((1.5, 2.0, 2.5))
    header["origin"][:3], header["scl_slope"] = (2, 3, 1), 0.5
    image.to_filename(tmp_path / "a.img")
    (tmp_path / "a.mat").unlink(missing_ok=True)
    (tmp_path / "a.hdr").write_bytes(header.binaryblock)
    (tmp_path / "a.img").write_bytes(VOXELS.T.astype(f"{order}i2").tobytes())
    voxels, grid = read_scan(tmp_path / "a.hdr")
    expected, place = as_nibabel_reads(tmp_path / "a.hdr")
    assert voxels.dtype == np.float32
    assert np.array_equal(voxels[0], expected.astype(np.float32))
    assert np.array_equal(voxels[0], VOXELS * 0.5)
    assert grid.is_close(place)


def test_a_matrix_next_to_analyze_is_not_overlooked(tmp_path):
    nib.Spm99AnalyzeImage(VOXELS, AFFINE).to_filename(tmp_path / "a.img")
    assert (tmp_path / "a.mat").is_file()
    with pytest.raises(ScanError, match=r"a\.hdr: a\.mat defines its orientation and is not supported; save both"):
        read_header(tmp_path / "a.hdr")


@pytest.mark.parametrize("start", [b"\x1f\x8b", b"BZh"])
def test_voxels_that_begin_as_a_packed_file_does_are_voxels(tmp_path, start):
    voxels = VOXELS.astype(np.uint8)
    voxels[:, 0, 0] = np.frombuffer(start.ljust(3, b"9"), np.uint8)
    nib.save(nib.Nifti1Pair(voxels, AFFINE), tmp_path / "a.img")
    assert (tmp_path / "a.img").read_bytes().startswith(start)
    assert np.array_equal(read_scan(tmp_path / "a.hdr")[0][0], voxels)


def test_pairs_are_image_and_label_of_a_case(tmp_path):
    for name in ("image", "label"):
        nib.save(nib.Nifti1Pair(VOXELS % 3, AFFINE), tmp_path / f"{name}.img")
    ref = VolumeRef(case_id="a", images=(tmp_path / "image.hdr",), label=tmp_path / "label.hdr")
    assert np.array_equal(read_case(ref, label_values=(0, 1, 2)).label, VOXELS % 3)


def test_names_in_capitals_are_a_pair(tmp_path):
    nib.save(nib.Nifti1Pair(VOXELS, AFFINE), tmp_path / "a.img")
    for ending in ("hdr", "img"):
        (tmp_path / f"a.{ending}").rename(tmp_path / f"A.{ending.upper()}")
    assert source_files(tmp_path / "A.HDR") == (tmp_path / "A.HDR", tmp_path / "A.IMG")
    assert np.array_equal(read_scan(tmp_path / "A.HDR")[0][0], VOXELS)


def test_half_a_pair_and_other_headers_are_refused_in_words(tmp_path):
    nib.save(nib.Nifti1Pair(VOXELS, AFFINE), tmp_path / "a.img")
    header = (tmp_path / "a.hdr").read_bytes()
    (tmp_path / "a.img").rename(tmp_path / "b.img")
    with pytest.raises(ScanError, match=r"a\.hdr: a\.img, the file of its voxels, is not there; copy both"):
        read_header(tmp_path / "a.hdr")
    (tmp_path / "a.img").symlink_to("/proc/self/environ")
    with pytest.raises(ScanError, match=r"its voxels are a link to /proc/.*, which is a system file"):
        read_header(tmp_path / "a.hdr")
    (tmp_path / "a.hdr").write_bytes(header[:344] + b"nj1\0")
    with pytest.raises(ScanError, match=r"a\.hdr: this is not the header of a pair of NIfTI or Analyze"):
        read_header(tmp_path / "a.hdr")
    nib.save(nib.Nifti1Image(VOXELS, AFFINE), tmp_path / "c.nii")
    (tmp_path / "c.nii").rename(tmp_path / "c.hdr")
    with pytest.raises(ScanError, match=r"c\.hdr: the header says that this is a whole file; name it \.nii"):
        read_header(tmp_path / "c.hdr")


@pytest.mark.filterwarnings("ignore:.*:UserWarning:voxelocity.*")
@pytest.mark.parametrize("kind", [nib.Nifti1Pair, nib.AnalyzeImage])
def test_odd_headers_are_refused_in_words_or_read(tmp_path, kind):
    kind(VOXELS, AFFINE).to_filename(tmp_path / "a.img")
    path, numbers = tmp_path / "a.hdr", random.Random(0)
    whole = path.read_bytes()
    check_reading(path, (rotten(numbers, whole) for _ in range(examples(200))))
