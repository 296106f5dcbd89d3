"""Bundles as one array: the cache, and what is held out."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from voxelocity_lab.recipes.tractography import bundles as module
from voxelocity_lab.recipes.tractography.bundles import TractDivision, open_bundles, split
from voxelocity_lab.recipes.tractography.write import Space, write_tracts
from voxelocity_observe.core.errors import ConfigError, InputError

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


def test_what_is_held_out_does_not_depend_on_other_bundles_nor_on_order_or_direction(bundles_file, tmp_path):
    found = open_bundles(bundles_file, num_points=16)
    with np.load(bundles_file) as arrays:
        lines, bundle = arrays["points"], arrays["bundle"]
    order = np.random.default_rng(5).permutation(len(lines))
    (tmp_path / "more").mkdir()
    np.savez(
        tmp_path / "more" / "arcs.npz", points=np.concatenate([lines[:9] + 500, lines[order][:, ::-1]]),
        bundle=np.concatenate([np.zeros(9, int), 1 + bundle[order]]), names=np.array(["added", "left", "right"]),
    )  # fmt: skip
    more = open_bundles(tmp_path / "more", num_points=16)
    held = [
        set(part.identity[split(part, by="streamline", held_out=0.3, seed=7)[1]])
        for part in (found, more.named(found.names), more)
    ]
    assert len(held[0]) == 14
    assert held[0] == held[1] < held[2]
    assert np.array_equal(np.sort(more.named(found.names).identity), np.sort(found.identity))


def test_a_streamline_that_occurs_twice_is_on_one_side(bundles_file, tmp_path):
    with np.load(bundles_file) as arrays:
        lines = np.concatenate([arrays["points"], arrays["points"][::-1]])
    np.savez(tmp_path / "twice.npz", points=lines, bundle=np.repeat([0, 1], 48), names=np.array(["a", "b"]))
    found = open_bundles(tmp_path / "twice.npz", num_points=16)
    training, held = split(found, by="streamline", held_out=0.5, seed=0)
    assert len(held)
    assert not set(found.identity[training]) & set(found.identity[held])


def test_bundles_are_found_by_their_names(bundles_file):
    found = open_bundles(bundles_file, num_points=16)
    turned = found.named(("right", "missing", "left"))
    assert np.array_equal(turned.of(0), found.of(1))
    assert np.array_equal(turned.of(2), found.of(0))
    assert len(turned.of(1)) == 0
    assert np.array_equal(found.named(("right",)).of(0), found.of(1))


def test_others_of_a_subject_that_was_trained_on_are_neither_known_nor_unseen(bundles_file):
    for name in ("anna", "bob"):
        shutil.copytree(bundles_file.parent, bundles_file.parent.parent / "all" / name)
    data = bundles_file.parent.parent / "all"
    with np.load(data / "bob" / "arcs.npz") as arrays:
        np.savez(data / "bob" / "arcs.npz", **{**arrays, "points": arrays["points"] + 3.0})
    found = open_bundles(data, num_points=16)
    sides = split(found, by="subject", held_out=0.5, seed=0)
    division = TractDivision.of(found, sides, by="subject", data=data)
    assert [list(side) for side in division.sides(found)] == [list(side) for side in sides]
    (trained,) = division.groups
    with np.load(data / trained / "arcs.npz") as arrays:
        np.savez(data / trained / "arcs.npz", **{**arrays, "points": arrays["points"] + 9.0})
    later = open_bundles(data, num_points=16)
    chosen, held = division.sides(later)
    assert len(chosen) == 0
    assert {later.subjects[number] for number in later.subject[held]} == {"anna", "bob"} - {trained}


def test_files_that_are_read_differently_than_in_the_training_are_refused(bundles_file):
    found = open_bundles(bundles_file, num_points=16)
    division = TractDivision.of(
        found, split(found, by="streamline", held_out=0.5, seed=0), by="streamline", data=bundles_file
    )
    assert division.notices(found, bundles_file) == []
    other = replace(found, identity=found.identity + np.uint64(1))
    with pytest.raises(InputError, match=r"holds the files of the training, but 48 of their streamlines are read diff"):
        division.notices(other, bundles_file)


def test_one_subject_cannot_be_held_out(bundles_file):
    with pytest.raises(ConfigError, match=r"of 1 subjects .* none can be held out; set split.by=streamline"):
        split(open_bundles(bundles_file, num_points=16), by="subject", held_out=0.5, seed=0)


def test_a_file_next_to_a_folder_is_found_whatever_its_capitals(bundles_file):
    data = bundles_file.parent.parent / "capitals"
    (data / "notes").mkdir(parents=True)
    write_tracts(data / "lines.trk", iter([(np.ones((2, 5, 3), np.float32).cumsum(axis=1), "lines")]), space=SPACE)
    (data / "lines.trk").rename(data / "LINES.TRK")
    assert open_bundles(data, num_points=8).subjects == ("capitals",)
