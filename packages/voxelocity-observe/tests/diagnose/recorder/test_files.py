"""Files that are opened for reading are counted by kind; code, libraries and what is written are not."""

import gzip
import io
import json
import os
import sys
import types
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.recorder import files as files_module
from voxelocity_observe.diagnose.recorder import hooks
from voxelocity_observe.diagnose.recorder.files import Files


@pytest.fixture
def moment():
    return WatchedMoment("wait")


@pytest.fixture
def files(moment, tmp_path):
    files = Files(moment, ignore=(str(tmp_path / "recording"),))
    files.start()
    yield files
    files.stop()


def seen(files, moment):
    moment.events.clear()
    files.report(moment)
    return moment.written("files")[0]


def test_each_opening_counts_and_each_file_once(files, moment, tmp_path):
    image = tmp_path / "case.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.float32), np.eye(4)), image)
    np.save(tmp_path / "label.npy", np.zeros(8))
    before = seen(files, moment)
    for _ in range(2):
        nib.load(image).get_fdata()
    np.load(tmp_path / "label.npy")
    found = seen(files, moment)
    assert before["num_opens"] == 0
    assert found["kinds"] == {".nii.gz": found["num_opens"] - 1, ".npy": 1}
    assert found["num_files"] == 2
    sizes = image.stat().st_size, (tmp_path / "label.npy").stat().st_size
    assert found["read_bytes"] == sizes[0] * (found["num_opens"] - 1) + sizes[1]
    assert set(found["largest"]) == {str(image), str(tmp_path / "label.npy")}


def test_code_libraries_devices_own_files_and_writing_are_left_out(files, moment, tmp_path):
    (tmp_path / "recording").mkdir()
    for name in ("module.py", "recording/events.jsonl", "written.bin", "weights.pt"):
        (tmp_path / name).write_text("x")
    for name in (tmp_path / "module.py", tmp_path / "recording/events.jsonl", "/proc/self/stat", json.__file__):
        Path(name).read_bytes()
    (Path(np.__file__).parent / "py.typed").read_bytes()
    for mode in ("wb", "r+b"):
        with (tmp_path / "written.bin").open(mode):
            pass
    os.close(os.open(tmp_path / "written.bin", os.O_RDWR))
    with pytest.raises(FileNotFoundError):
        (tmp_path / "missing.nii").read_bytes()
    assert seen(files, moment)["num_opens"] == 0
    os.close(os.open(tmp_path / "weights.pt", os.O_RDONLY))
    assert seen(files, moment)["kinds"] == {".pt": 1}


def test_nothing_is_counted_outside_of_what_counts_or_after_stop(files, moment, tmp_path):
    path = tmp_path / "case.gz"
    path.write_bytes(gzip.compress(b"x"))
    moment.counting = False
    path.read_bytes()
    moment.counting = True
    files.stop()
    path.read_bytes()
    assert seen(files, moment)["num_opens"] == 0
    assert files._heard not in hooks._listeners
    files.start()
    path.read_bytes()
    assert seen(files, moment)["kinds"] == {".gz": 1}


def test_files_are_counted_from_a_working_folder_that_was_deleted(files, moment, tmp_path, monkeypatch):
    (tmp_path / "case.nii").write_bytes(b"x")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert Path("../case.nii").read_bytes() == b"x"
    assert seen(files, moment)["kinds"] == {".nii": 1}


def test_only_one_hook_is_ever_added(moment):
    for _ in range(3):
        files = Files(moment)
        files.start()
        files.stop()
    assert hooks._hooks == [hooks._on_event]


def test_files_of_simpleitk_are_seen_and_its_reader_is_put_back(files, moment, tmp_path):
    # Another test may have imported it before the fixture started.
    files.stop()
    sitk = pytest.importorskip("SimpleITK")
    original = sitk.ReadImage
    path = str(tmp_path / "case.mha")
    sitk.WriteImage(sitk.Image(4, 4, 4, sitk.sitkInt16), path)
    files.start()
    assert sitk.ReadImage is not original
    sitk.ReadImage(path)
    sitk.ReadImage(fileName=path)
    found = seen(files, moment)
    assert (found["kinds"], found["num_files"], found["largest"]) == ({".mha": 2}, 1, [path])
    files.stop()
    assert sitk.ReadImage is original


def test_files_of_h5py_are_seen_when_they_are_read(files, moment, tmp_path, monkeypatch):
    path = tmp_path / "cases.h5"
    path.write_bytes(b"12345")

    class File:
        def __init__(self, name, mode="r", **_):
            self.mode = mode

    module = types.ModuleType("h5py")
    module.File = File
    monkeypatch.setitem(sys.modules, "h5py", module)
    original = vars(File)["__init__"]
    files.start()
    assert File(path).mode == "r"
    File(str(path), "a")
    File(str(path), mode="w")
    File(io.BytesIO())
    found = seen(files, moment)
    assert (found["kinds"], found["read_bytes"]) == ({".h5": 1}, 5)
    files.stop()
    assert vars(File)["__init__"] is original


def test_libraries_that_open_files_unseen_are_named(files, moment, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", types.ModuleType("lmdb"))
    monkeypatch.delitem(sys.modules, "itk", raising=False)
    unseen = seen(files, moment)["unseen"]
    assert "lmdb" in unseen
    assert "itk" not in unseen


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.nii.gz", ".nii.gz"),
        ("a.NII", ".nii"),
        ("v1.2.dcm", ".dcm"),
        ("README", ""),
        ("a.gz", ".gz"),
        (".hidden", ""),
    ],
)
def test_a_kind_is_the_suffix_with_the_one_that_is_packed(name, kind):
    assert files_module._kind(f"/data/{name}") == kind


def test_a_file_that_is_opened_for_its_header_and_again_for_its_voxels_is_used_once(files, moment, tmp_path):
    paths = [tmp_path / f"{number}.raw" for number in range(10)]
    for path in paths:
        path.write_bytes(bytes(8))
    for _ in range(2):
        for path in paths:
            path.read_bytes()
            path.read_bytes()
    found = seen(files, moment)
    assert (found["num_opens"], found["num_files"], found["num_uses"]) == (40, 10, 20)


def test_what_gzip_files_hold_is_told_beside_the_size_of_others(files, moment, tmp_path):
    (tmp_path / "scan.nii.gz").write_bytes(gzip.compress(bytes(5000)))
    (tmp_path / "label.raw").write_bytes(bytes(100))
    (tmp_path / "torn.nii.gz").write_bytes(b"12")
    for name in ("scan.nii.gz", "label.raw", "torn.nii.gz"):
        (tmp_path / name).read_bytes()
    assert seen(files, moment)["unpacked_bytes"] == 5000 + 100 + 2
