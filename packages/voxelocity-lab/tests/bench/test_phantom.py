import zlib

import numpy as np
import pytest

from voxelocity.data.decode import read_case
from voxelocity.data.source import open_cases
from voxelocity_lab.bench import phantom
from voxelocity_lab.bench.phantom import (
    BenchFolders,
    PhantomSet,
    draw,
    make_phantoms,
    phantom_table,
    real_data,
    work_folder,
)
from voxelocity_observe.core.errors import InputError, OutputError

CT = PhantomSet(kind="ct", shape=(96, 96, 40), num_cases=2, spacing_mm=(1.5, 1.5, 3.0), packed=True)
MR = PhantomSet(kind="mr", shape=(64, 60, 56), num_cases=1)


@pytest.mark.parametrize("phantoms", [CT, MR], ids=["ct", "mr"])
def test_a_phantom_depends_on_its_number_alone(phantoms):
    image, label = draw(phantoms, 1)
    again, _ = draw(phantoms, 1)
    other, _ = draw(phantoms, 0)
    assert np.array_equal(image, again)
    assert not np.array_equal(image, other)
    assert (image.dtype, image.shape) == (np.int16, (phantoms.num_channels, *phantoms.shape))
    assert set(np.unique(label)) == set(range(phantoms.num_classes))


@pytest.mark.parametrize("phantoms", [CT, MR], ids=["ct", "mr"])
def test_a_phantom_packs_like_a_scan_and_not_like_noise_or_zeros(phantoms):
    image, _ = draw(phantoms, 0)
    raw = image.T.tobytes()
    assert 1.4 < len(raw) / len(zlib.compress(raw, 1)) < 6.0


def test_files_hold_what_was_drawn_on_its_grid(tmp_path):
    refs = make_phantoms(CT, tmp_path)
    volume = read_case(refs[1], label_values=range(CT.num_classes))
    image, label = draw(CT, 1)
    assert np.array_equal(volume.image, image)
    assert np.array_equal(volume.label, label)
    assert volume.grid.spacing_mm == (1.5, 1.5, 3.0)
    assert [ref.case_id for ref in refs] == ["case_000", "case_001"]


def test_channels_stand_in_files_of_their_own(tmp_path):
    (ref,) = make_phantoms(MR, tmp_path)
    assert len(ref.images) == 4
    assert read_case(ref, label_values=range(4)).image.shape == (4, *MR.shape)


def test_files_that_are_there_are_not_made_again(tmp_path):
    refs = make_phantoms(MR, tmp_path)
    before = refs[0].label.stat().st_mtime_ns
    assert make_phantoms(MR, tmp_path) == refs
    assert refs[0].label.stat().st_mtime_ns == before


def test_each_user_has_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4321)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert work_folder(None) == tmp_path / "voxelocity-bench-4321"
    assert work_folder(tmp_path / "given").is_dir()


def test_a_set_is_reported_in_words():
    assert CT.words == "2 CT-like volumes of 96x96x40"
    assert MR.words == "1 MR-like volume of 64x60x56, 4 channels"


def test_packed_and_plain_phantoms_do_not_lie_side_by_side(tmp_path):
    plain, packed = (
        make_phantoms(PhantomSet(kind="ct", shape=(16, 16, 8), num_cases=1, packed=packed), tmp_path)
        for packed in (False, True)
    )
    assert plain[0].images[0].parent != packed[0].images[0].parent


def test_a_table_holds_out_the_last_cases(tmp_path):
    phantoms = PhantomSet(kind="ct", shape=(20, 20, 16), num_cases=5)
    table = phantom_table(phantoms, tmp_path / "work", tmp_path / "cases.csv", num_held_out=2)
    split = open_cases(table).split(0)
    assert [ref.case_id for ref in split.validation] == ["case_003", "case_004"]
    assert len(split.training) == 3
    plain = phantom_table(phantoms, tmp_path / "work", tmp_path / "plain.csv")
    assert plain.read_text().splitlines()[0] == "case,image,label"


def test_a_folder_of_scans_that_does_not_exist_is_named(tmp_path, monkeypatch):
    text = r"bench: the folder of real scans .*gone does not exist; correct --data or VOXELOCITY_DATA, or leave it out"
    with pytest.raises(InputError, match=text):
        real_data(tmp_path / "gone")
    monkeypatch.setenv("VOXELOCITY_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=text):
        real_data(None)


def test_without_a_folder_of_known_scans_there_are_phantoms_only(tmp_path, monkeypatch):
    monkeypatch.delenv("VOXELOCITY_DATA", raising=False)
    monkeypatch.setattr(phantom, "_NEXT_TO_CHECKOUT", tmp_path / "gone")
    for data in (real_data(None), tmp_path):
        found = BenchFolders(work=tmp_path, data=data)
        assert (found.hippocampus(), found.packed_scans()) == ((), ())
    assert real_data(None) is None


@pytest.mark.data
def test_real_scans_are_found(request, tmp_path):
    found = BenchFolders(work=tmp_path, data=request.getfixturevalue("real_data"))
    assert len(found.hippocampus()) > 100
    assert all(path.name.endswith(".nii.gz") for path in found.packed_scans())
    assert found.packed_scans()


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_drawn(tmp_path, monkeypatch):
    # Root may write anywhere.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OutputError, match=r"bench: cannot write into the folder .*; name another with --work"):
        work_folder(tmp_path)
