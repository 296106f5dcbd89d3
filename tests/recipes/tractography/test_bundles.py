"""Bundles as one array: the cache, and what is held out."""

import shutil

import numpy as np
import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.recipes.tractography import bundles as module
from voxelocity.recipes.tractography.bundles import open_bundles, split
from voxelocity.recipes.tractography.files import Space, write_tracts

SPACE = Space(affine=((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)), shape=(9, 9, 9))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "voxelocity" / "tracts"


def test_what_the_cache_holds_is_what_the_files_hold(bundles_file, cache, monkeypatch):
    first = open_bundles(bundles_file, num_points=16)
    assert first.streamlines.shape == (48, 16, 3)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(module, "read_tracts", None)
    again = open_bundles(bundles_file.parent, num_points=16)
    assert np.array_equal(again.streamlines, first.streamlines)
    assert again.names == ("left", "right")
    with pytest.raises(TypeError):
        open_bundles(bundles_file, num_points=8)


def test_a_damaged_entry_of_the_cache_is_made_again(bundles_file, cache):
    first = open_bundles(bundles_file, num_points=16)
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:100])
    assert np.array_equal(open_bundles(bundles_file, num_points=16).streamlines, first.streamlines)


def test_each_folder_is_a_subject(bundles_file):
    for name in ("anna", "bob"):
        shutil.copytree(bundles_file.parent, bundles_file.parent.parent / "all" / name)
    found = open_bundles(bundles_file.parent.parent / "all", num_points=16)
    assert found.subjects == ("anna", "bob")
    training, held = split(found, by="subject", held_out=0.5, seed=0)
    assert len(set(found.subject[held])) == 1
    assert not set(found.subject[held]) & set(found.subject[training])


@pytest.mark.parametrize("by", ["streamline", "bundle"])
def test_what_is_held_out_depends_on_the_seed_alone(by, bundles_file):
    found = open_bundles(bundles_file, num_points=16)
    training, held = split(found, by=by, held_out=0.5, seed=7)
    again = split(found, by=by, held_out=0.5, seed=7)
    assert np.array_equal(held, again[1])
    assert sorted([*training, *held]) == list(range(48))
    if by == "streamline":
        assert np.bincount(found.bundle[held]).tolist() == [12, 12]
        assert not np.array_equal(held, split(found, by=by, held_out=0.5, seed=8)[1])
    else:
        assert len(set(found.bundle[held])) == 1


def test_one_subject_cannot_be_held_out(bundles_file):
    with pytest.raises(ConfigError, match=r"of 1 subjects .* none can be held out; set split.by=streamline"):
        split(open_bundles(bundles_file, num_points=16), by="subject", held_out=0.5, seed=0)


def test_a_file_next_to_a_folder_is_found_whatever_its_capitals(bundles_file):
    data = bundles_file.parent.parent / "capitals"
    (data / "notes").mkdir(parents=True)
    write_tracts(data / "lines.trk", iter([(np.ones((2, 5, 3), np.float32).cumsum(axis=1), "lines")]), space=SPACE)
    (data / "lines.trk").rename(data / "LINES.TRK")
    assert open_bundles(data, num_points=8).subjects == ("capitals",)
