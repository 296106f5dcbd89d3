from __future__ import annotations

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.raising import raising
from voxelocity.core.volume import Grid
from voxelocity.data.decode import read_header, read_scan, write_scan
from voxelocity_observe.core.errors import OutputError

ROTATED = np.array([[0.0, -1.5, 0.0, 10.0], [2.0, 0.0, 0.0, -4.0], [0.0, 0.0, 3.0, 7.5], [0, 0, 0, 1.0]])
SHEARED = ROTATED + np.array([[0, 0, 0.7, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("name", ["p.nii", "p.nii.gz"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_nibabel_reads_what_was_written(tmp_path: Path, name: str, dtype: str, order: str) -> None:
    array = np.asarray(np.arange(60).reshape(3, 4, 5), dtype=dtype, order=order)
    write_scan(tmp_path / name, array, Grid.of(array.shape, ROTATED))
    image = nib.load(tmp_path / name)
    assert image.get_data_dtype() == np.dtype(dtype)
    assert np.array_equal(np.asarray(image.dataobj), array)
    assert np.array_equal(image.affine, ROTATED)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_both_forms_are_set_and_qform_only_where_it_can_say_it(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 5), np.uint8)
    write_scan(tmp_path / "r.nii", array, Grid.of(array.shape, ROTATED))
    header = nib.load(tmp_path / "r.nii").header
    assert (int(header["sform_code"]), int(header["qform_code"])) == (1, 1)
    assert np.allclose(header.get_qform(), ROTATED, atol=1e-5)
    write_scan(tmp_path / "s.nii", array, Grid.of(array.shape, SHEARED))
    header = nib.load(tmp_path / "s.nii").header
    assert (int(header["sform_code"]), int(header["qform_code"])) == (1, 0)
    assert np.allclose(nib.load(tmp_path / "s.nii").affine, SHEARED, atol=1e-6)
    assert np.allclose(header.get_zooms(), np.linalg.norm(SHEARED[:3, :3], axis=0))


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), seed=st.integers(0, 20))
def test_own_reader_gives_back_what_was_written(tmp_path_factory, shape: tuple[int, int, int], seed: int) -> None:
    path = tmp_path_factory.mktemp("w") / "a.nii.gz"
    array = np.random.default_rng(seed).integers(-9, 9, shape).astype(np.int16)
    write_scan(path, array, Grid.of(shape, ROTATED))
    scan, grid = read_scan(path)
    assert np.array_equal(scan[0], array)
    assert grid == Grid.of(shape, ROTATED)


def test_a_dtype_that_the_format_lacks_is_refused(tmp_path: Path) -> None:
    array = np.zeros((1, 1, 3), np.float16)
    with pytest.raises(OutputError, match=r"NIfTI cannot store shape .* of float16"):
        write_scan(tmp_path / "a.nii", array, Grid.of(array.shape, np.eye(4)))


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    for name in ("a.nii.gz", "b.nii.gz"):
        write_scan(tmp_path / name, array, Grid.of(array.shape, ROTATED))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    array = np.zeros((3, 4, 5), np.uint8)
    path = tmp_path / "a.nii.gz"
    write_scan(path, array, Grid.of(array.shape, ROTATED))
    before = path.read_bytes()
    monkeypatch.setattr("voxelocity_observe.core.whole_file.os.fsync", raising(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match=r"cannot write .*a\.nii\.gz \(No space left on device\); make space or"):
        write_scan(path, array + 1, Grid.of(array.shape, ROTATED))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.nii.gz"]


def test_wrong_names_shapes_and_folders_are_refused(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 5), np.uint8)
    with pytest.raises(OutputError, match=r"a\.png is not named \.nii\.gz, \.nii, .* or \.\w+; rename it"):
        write_scan(tmp_path / "a.png", array, Grid.of(array.shape, ROTATED))
    with pytest.raises(OutputError, match=r"the array has shape \(3, 4, 5\), its grid \(3, 4, 6\)"):
        write_scan(tmp_path / "a.nii", array, Grid.of((3, 4, 6), ROTATED))
    with pytest.raises(OutputError, match=r"cannot write .*\(No such file or directory\)"):
        write_scan(tmp_path / "none" / "a.nii", array, Grid.of(array.shape, ROTATED))


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize(("sform", "qform"), [(0, 0), (0, 2), (3, 1), (1, 0)])
def test_placement_of_another_file_is_repeated_field_by_field(tmp_path: Path, kind, sform: int, qform: int) -> None:
    image = kind(np.zeros((3, 4, 5, 1), np.int16), None)
    image.header.set_qform(ROTATED, code=qform)
    image.header.set_sform(SHEARED, code=sform)
    image.header.set_xyzt_units("mm", "sec")
    image.header["pixdim"][4] = 2.5
    kind(np.zeros((3, 4, 5, 1), np.int16), None, image.header).to_filename(tmp_path / "scan.nii")
    header = read_header(tmp_path / "scan.nii")
    write_scan(tmp_path / "p.nii.gz", np.zeros((3, 4, 5), np.uint8), header.grid, placement=header.placement)
    scan, prediction = nib.load(tmp_path / "scan.nii"), nib.load(tmp_path / "p.nii.gz")
    for name in ("qform_code", "sform_code", "quatern_b", "qoffset_x", "srow_x", "srow_z", "xyzt_units"):
        assert np.array_equal(prediction.header[name], scan.header[name].astype(prediction.header[name].dtype)), name
    assert np.array_equal(prediction.header["pixdim"][:4], scan.header["pixdim"][:4].astype("f4"))
    assert np.allclose(prediction.affine, scan.affine, rtol=0.0, atol=1e-6)
    assert read_header(tmp_path / "p.nii.gz").grid.is_close(header.grid)


def test_no_link_is_followed_and_no_name_can_be_guessed(tmp_path: Path, monkeypatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".a.nii.gz.{os.getpid()}.part").symlink_to(victim)
    write_scan(tmp_path / "a.nii.gz", np.zeros((3, 4, 5), np.uint8), Grid.of((3, 4, 5), ROTATED))
    assert victim.read_text() == "mine"
    assert not (tmp_path / "a.nii.gz").is_symlink()
