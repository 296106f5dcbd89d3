import pytest

from voxelocity.bench import places
from voxelocity.bench.places import Places, real_data
from voxelocity.core.errors import InputError


def test_a_folder_of_scans_that_does_not_exist_is_named(tmp_path, monkeypatch):
    text = r"bench: the folder of real scans .*gone does not exist; correct --data or VOXELOCITY_DATA, or leave it out"
    with pytest.raises(InputError, match=text):
        real_data(tmp_path / "gone")
    monkeypatch.setenv("VOXELOCITY_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=text):
        real_data(None)


def test_without_a_folder_of_scans_there_are_phantoms_only(tmp_path, monkeypatch):
    monkeypatch.delenv("VOXELOCITY_DATA", raising=False)
    monkeypatch.setattr(places, "_BESIDE_CHECKOUT", tmp_path / "gone")
    found = Places(work=tmp_path, data=real_data(None))
    assert (found.data, found.hippocampus(), found.packed_scans()) == (None, (), ())


def test_a_folder_without_the_known_scans_gives_none(tmp_path):
    found = Places(work=tmp_path, data=tmp_path)
    assert (found.hippocampus(), found.packed_scans()) == ((), ())


@pytest.mark.data
def test_real_scans_are_found(real_data, tmp_path):
    found = Places(work=tmp_path, data=real_data)
    assert len(found.hippocampus()) > 100
    assert all(path.name.endswith(".nii.gz") for path in found.packed_scans())
    assert found.packed_scans()
