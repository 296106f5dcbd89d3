"""What can go wrong with a cache, made to happen for every tier: each ends in the right voxels or in a clear error."""

import contextlib
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.batches import batch_digest
from shared.noted_cases import NotedCases, assert_whole, drawn, fill
from voxelocity.data.cache import LmdbTier, entry
from voxelocity.data.cache.contents import CacheContents
from voxelocity.data.pipeline import Feed
from voxelocity_observe.core.errors import CacheError

ON_DISK = ("disk", "disk blosc2", "lmdb", "lmdb blosc2")
SHARED = ("memory", *ON_DISK)

pytestmark = pytest.mark.usefixtures("place")


@contextlib.contextmanager
def entry_bytes(config, place, case_key):
    """The bytes of an entry as it is kept, to be changed within the block; kept again after it."""
    if config.cache.tier == "lmdb":
        file = LmdbTier(Path(config.cache.folder))._store
        with file.reading(case_key) as kept:
            content = bytearray(kept)
        yield content
        file.write(case_key, [memoryview(content)])
        return
    in_memory = config.cache.tier in ("memory", "rotating")
    folder = next(place.glob("voxelocity-*")) if in_memory else Path(config.cache.folder)
    path = folder / f"{case_key}.safetensors"
    content = bytearray(path.read_bytes())
    yield content
    path.unlink()  # others may have it mapped, and a mapped file must not become shorter
    path.write_bytes(content)


def place_of(name, content, share=0.5):
    """Where in an entry a part of it lies: the header itself, or by default the middle of a tensor."""
    if name == "header":
        return 20
    num_header_bytes = 8 + int.from_bytes(content[:8], "little")
    table = entry._parse(memoryview(content))[0]
    start, stop = table[name]["data_offsets"]
    return num_header_bytes + int(start + share * (stop - start))


# A source file or the preparation changes


@pytest.mark.parametrize("edited", ["image", "label"])
@pytest.mark.parametrize("tier", ["memory", "disk", "lmdb", "rotating"])
def test_an_edited_source_file_is_prepared_again(blob_refs, data_config, tmp_path, tier, edited):
    config, paths = data_config(tier), {}
    for name, path in (("image", blob_refs[0].images[0]), ("label", blob_refs[0].label)):
        paths[name] = Path(shutil.copy(path, tmp_path / f"{name}.nii.gz"))
    ref = replace(blob_refs[0], images=(paths["image"],), label=paths["label"])
    held = NotedCases([ref], config)  # keeps a tier in memory alive
    before = held[0].load()
    scan = nib.load(paths[edited])
    nib.save(nib.Nifti1Image(np.asarray(scan.dataobj)[::-1].copy(), scan.affine), paths[edited])
    os.utime(paths[edited], (1, 1))
    cases = NotedCases([ref], config)
    after = cases[0].load()
    assert cases.prepared == ["case_0"]
    old, new = (before.image[0], after.image[0]) if edited == "image" else (before.label, after.label)
    np.testing.assert_array_equal(new, old[::-1])


@pytest.mark.parametrize("tier", SHARED)
def test_another_preparation_format_version_or_label_meets_no_old_entry(blob_refs, data_config, monkeypatch, tier):
    config = data_config(tier)
    held = NotedCases(blob_refs, config)
    fill(held)
    assert fill(NotedCases(blob_refs, config)).num_found == 5
    finer = config.model_copy(update={"prepare": config.prepare.model_copy(update={"spacing_mm": (1.0, 1.0, 0.5)})})
    assert fill(NotedCases(blob_refs, finer)).num_found == 0
    assert fill(NotedCases([replace(ref, label=None) for ref in blob_refs], config)).num_found == 0
    monkeypatch.setattr(entry, "FORMAT_VERSION", entry.FORMAT_VERSION + 1)
    newer = NotedCases(blob_refs, config)
    assert fill(newer).num_found == 0
    assert len(newer.prepared) == 5


# An entry is damaged


@pytest.mark.parametrize("tier", SHARED)
def test_a_truncated_entry_is_made_again(blob_refs, data_config, wanted, place, tier):
    config = data_config(tier)
    held = NotedCases(blob_refs, config)
    fill(held)
    with entry_bytes(config, place, held._keys[2]) as content:
        del content[len(content) // 2 :]
    cases = NotedCases(blob_refs, config)
    assert_whole(cases, wanted)
    assert cases.prepared == ["case_2"]
    assert len(cases.warnings) == (tier in ON_DISK)
    assert_whole(NotedCases(blob_refs, config), wanted)


@pytest.mark.parametrize("part", ["header", "foreground_1"])
@pytest.mark.parametrize("tier", SHARED)
def test_a_flipped_bit_in_the_header_or_the_foreground_is_found_when_the_entry_is_opened(
    blob_refs, data_config, wanted, place, tier, part
):
    config = data_config(tier)
    held = NotedCases(blob_refs, config)
    fill(held)
    with entry_bytes(config, place, held._keys[2]) as content:
        content[place_of(part, content)] ^= 0x40
    cases = NotedCases(blob_refs, config)
    assert_whole(cases, wanted)
    assert cases.prepared == ["case_2"]
    assert len(cases.warnings) == (tier in ON_DISK)


@pytest.mark.parametrize("part", ["image", "label"])
@pytest.mark.parametrize("tier", ON_DISK)
def test_a_flipped_bit_in_the_voxels_is_found_before_they_are_used_and_the_entry_is_named_and_made_again(
    blob_refs, data_config, wanted, place, tier, part
):
    config = data_config(tier)
    fill(held := NotedCases(blob_refs, config))
    with entry_bytes(config, place, held._keys[2]) as content:
        content[place_of(part, content)] ^= 0x40
    contents = CacheContents(Path(config.cache.folder))
    assert [found.problem for found in contents.entries() if found.state != "whole"] == []
    damaged = [found for found in contents.entries(full=True) if found.state == "damaged"]
    assert [(found.case_id, found.problem) for found in damaged] == [("case_2", f"its {part} has changed")]
    cases = NotedCases(blob_refs, config)
    assert_whole(cases, wanted)
    assert cases.prepared == ["case_2"]
    (messages,) = cases.warnings
    assert held._keys[2] in messages
    assert f"the {part} of case 'case_2' has changed" in messages
    assert [found.state for found in contents.entries(full=True)] == ["whole"] * 5


@pytest.mark.parametrize(("part", "share"), [("image", 0.0), ("label", 0.5)])
@pytest.mark.parametrize("tier", ["disk blosc2", "lmdb blosc2"])
def test_chunks_that_do_not_decode_are_prepared_again_in_mid_run_with_the_same_patches(
    blob_refs, data_config, place, tier, part, share
):
    config = data_config(tier, num_threads=2)
    fill(NotedCases(blob_refs, config))
    cases = NotedCases(blob_refs, config)
    assert fill(cases).num_found == 5
    with entry_bytes(config, place, cases._keys[2]) as content:
        first = place_of(part, content, share)
        content[first : first + 64] = b"\xff" * 64
    assert drawn(cases, config) == drawn(NotedCases(blob_refs, data_config("none")), config)
    assert set(cases.prepared) == {"case_2"}
    assert len(cases.warnings) == 1
    assert "the entry of case 'case_2' is damaged and was dropped" in cases.warnings[0]
    assert cases.warnings[0].endswith("it is prepared again when the case is used")
    assert fill(NotedCases(blob_refs, config)).num_found == 5


@pytest.mark.parametrize("tier", [*SHARED, "rotating"])
def test_a_cache_that_is_cleared_in_mid_run_costs_time_and_nothing_else(blob_refs, data_config, place, tier):
    config = data_config(tier, num_threads=2)
    whole = drawn(NotedCases(blob_refs, data_config("rotating" if tier == "rotating" else "none")), config, 9)
    cases, digests = NotedCases(blob_refs, config), []
    with Feed(cases, config, seed=3) as feed:
        for step in range(9):
            if step in (3, 5):
                if tier in ON_DISK:
                    contents = CacheContents(Path(config.cache.folder))
                    contents.remove(list(contents.entries()))
                else:
                    for folder in place.glob("voxelocity-*"):
                        # What threads write meanwhile may stay.
                        shutil.rmtree(folder, ignore_errors=True)
            digests.append(batch_digest(next(feed)))
    assert digests == whole


def test_a_volume_in_use_whose_entry_is_removed_is_read_all_the_same(blob_refs, data_config, wanted):
    """LMDB gives its pages to the next entry: what is held of a removed one cannot be read any more."""
    cases = NotedCases(blob_refs, data_config("lmdb"))
    held = cases[1]
    cases.drop(1)
    with pytest.raises(CacheError, match="was removed while it was in use"):
        replace(held, renew=None).load()
    np.testing.assert_array_equal(held.load().image, wanted[1].image)
    np.testing.assert_array_equal(held.renamed("b").load().label, wanted[1].label)
    assert held.renamed("b").load().case_id == "b"


# A transform raises


class Failing:
    """A preparation that raises for one case."""

    def __init__(self, preparation, error):
        self._preparation, self._error = preparation, error

    def __getattr__(self, name):
        return getattr(self._preparation, name)

    def __call__(self, volume):
        if volume.case_id == "case_3":
            raise self._error
        return self._preparation(volume)


@pytest.mark.parametrize("tier", ["memory", "disk", "lmdb"])
def test_a_transform_that_raises_in_a_thread_ends_the_build_names_the_case_and_keeps_the_others(
    blob_refs, data_config, tier
):
    config, error = data_config(tier), ValueError("no such axis")
    failing = NotedCases(blob_refs, config)
    failing._preparation = Failing(failing._preparation, error)
    with pytest.raises(ValueError, match="no such axis") as caught:
        fill(failing)
    assert caught.value.__notes__ == ["raised while case 'case_3' was prepared"]
    cases = NotedCases(blob_refs, config)
    assert fill(cases).num_found >= 3, "cases before it"
    assert "case_3" in cases.prepared


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("tier", ["none", "memory", "disk", "rotating"])
def test_a_transform_that_raises_under_a_feed_is_raised_to_the_consumer_and_names_the_case(
    blob_refs, data_config, tier, num_threads
):
    config, error = data_config(tier, num_threads), MemoryError("3 GB")
    failing = NotedCases(blob_refs, config)
    failing._preparation = Failing(failing._preparation, error)
    with Feed(failing, config, seed=3) as feed, pytest.raises(MemoryError, match="3 GB") as caught:
        list(itertools.islice(feed, 20))
    assert caught.value is error
    assert "raised while case 'case_3' was prepared" in error.__notes__
