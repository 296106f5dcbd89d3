import os
import shutil

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.errors import CacheFullError, ScanError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import DiskTier
from voxelocity.data.pipeline import PreparedCases


def prepared(refs, config, warnings=None):
    warn = warnings.append if warnings is not None else pytest.fail
    return PreparedCases(refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=warn)


def fill(cases, **options):
    names = []
    facts = cases.fill(
        num_threads=2, on_case=lambda case_id, _: names.append(case_id), should_stop=options.get("stop", lambda: False)
    )
    return facts, names


def test_filling_prepares_each_case_once_and_finds_it_afterwards(blob_refs, data_config):
    config = data_config("disk")
    facts, names = fill(prepared(blob_refs, config))
    assert (facts.num_prepared, facts.num_found, sorted(names)) == (5, 0, [f"case_{i}" for i in range(5)])
    again, _ = fill(prepared(blob_refs, config))
    assert (again.num_prepared, again.num_found, again.num_bytes) == (0, 5, facts.num_bytes)


def test_every_tier_gives_the_same_voxels(blob_refs, data_config):
    tiers = [prepared(blob_refs, data_config(tier)) for tier in ("none", "memory", "disk")]
    for index in range(5):
        first, *others = [cases[index] for cases in tiers]
        for other in others:
            np.testing.assert_array_equal(first.image, other.image)
            np.testing.assert_array_equal(first.label, other.label)
            assert (first.grid, first.trace, first.case_id) == (other.grid, other.trace, other.case_id)


def test_a_changed_file_is_prepared_again_and_never_served_stale(blob_refs, data_config, tmp_path):
    image = shutil.copy(blob_refs[0].images[0], tmp_path / "image.nii.gz")
    ref = VolumeRef(case_id="a", images=(image,), label=blob_refs[0].label)
    config = data_config("disk")
    before = prepared([ref], config)[0].image.copy()
    scan = nib.load(image)
    nib.save(nib.Nifti1Image(np.asarray(scan.dataobj)[::-1].copy(), scan.affine), image)
    os.utime(image, (1, 1))
    after = prepared([ref], config)[0].image
    np.testing.assert_array_equal(after, before[:, ::-1])


def test_a_changed_preparation_never_meets_the_old_entries(blob_refs, data_config):
    config = data_config("disk")
    fill(prepared(blob_refs, config))
    changed = config.model_copy(update={"prepare": config.prepare.model_copy(update={"dtype": "float16"})})
    facts, _ = fill(prepared(blob_refs, changed))
    assert facts.num_found == 0


def test_a_truncated_entry_is_rebuilt(blob_refs, data_config):
    config = data_config("disk")
    cases = prepared(blob_refs[:1], config)
    whole = cases[0].image.copy()
    (entry,) = [p for p in DiskTier(config.cache.folder)._folder.rglob("*") if p.is_file() and p.stat().st_size > 5_000]
    with entry.open("r+b") as file:
        file.truncate(entry.stat().st_size - 100)
    np.testing.assert_array_equal(prepared(blob_refs[:1], config)[0].image, whole)


def test_a_full_disk_is_told_once_and_the_cases_are_prepared_each_time(blob_refs, data_config, monkeypatch):
    def full(self, key, volume):
        raise CacheFullError("cache: no space left in the folder x")

    monkeypatch.setattr(DiskTier, "put", full)
    warnings = []
    cases = prepared(blob_refs, data_config("disk"), warnings)
    facts, _ = fill(cases)
    assert facts.num_prepared == 5
    assert cases[3].image.any()
    assert len(warnings) == 1
    assert "no space left in the folder x; going on without a cache" in warnings[0]


def test_filling_stops_between_cases_when_asked(blob_refs, data_config):
    asked = iter([False, False, True, True, True, True, True])
    facts, _ = fill(prepared(blob_refs, data_config("disk")), stop=lambda: next(asked, True))
    assert 0 < facts.num_prepared < 5


def test_an_error_names_the_case_and_keeps_what_was_cached(blob_refs, data_config, tmp_path):
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(b"not a scan")
    refs = [*blob_refs, VolumeRef(case_id="bad", images=(broken,), label=blob_refs[0].label)]
    config = data_config("disk")
    with pytest.raises(ScanError, match="bad"):
        fill(prepared(refs, config))
    facts, _ = fill(prepared(blob_refs, config))
    assert facts.num_found > 0


def test_a_part_shares_the_cache_of_the_whole(blob_refs, data_config):
    whole = prepared(blob_refs, data_config("memory"))
    fill(whole)
    part = whole.part([4, 1])
    assert [part[i].case_id for i in range(len(part))] == ["case_4", "case_1"]
    assert part[0].image is whole[4].image


def test_volumes_of_the_cache_cannot_be_changed(blob_refs, data_config):
    for tier in ("memory", "disk"):
        volume = prepared(blob_refs, data_config(tier))[0]
        with pytest.raises(ValueError, match="read-only"):
            volume.image[0, 0, 0, 0] = 1.0
