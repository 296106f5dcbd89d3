"""Cases prepared ahead of any training are those that a training looks for."""

import re

import pytest

import voxelocity as vx
from voxelocity.training.building import cache_job, check_kept
from voxelocity_observe.core.errors import CacheError


def test_a_training_finds_every_case_that_was_built_and_a_second_build_too(voxelocity, tiny_msd, tiny_sets, tmp_path):
    sets = [*tiny_sets, "--set", "data.cache.tier=disk", "--set", f"data.cache.folder={tmp_path / 'cache'}"]
    first = voxelocity("cache", "build", tiny_msd, "--device", "cpu", *sets)
    assert (first.status, first.err) == (0, "")
    assert re.search(r"prepared 6 cases in .* in the disk cache", first.out)
    assert f"in {tmp_path / 'cache'}; trainings with --set data.cache.tier=disk use them" in first.out.replace("\n", "")
    assert "6 of them already cached" in voxelocity("cache", "build", tiny_msd, "--device", "cpu", *sets).out
    trained = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *sets)
    assert trained.status == 0
    assert "6 of them already cached" in trained.out


def test_a_folder_that_lacks_a_case_is_no_success(tiny_msd, tmp_path):
    job = cache_job(vx.open(tiny_msd), device="cpu", overrides={"data.cache.folder": str(tmp_path)})
    job.prepared(print).part(range(5)).fill(num_threads=1, on_case=lambda *_: None, should_stop=lambda: False)
    with pytest.raises(CacheError, match=f"1 of 6 cases, such as 'case_5', .* not in {tmp_path}; free space"):
        check_kept(job, hint="free space there")


def test_a_tier_that_keeps_nothing_is_refused(voxelocity, tiny_msd):
    ended = voxelocity("cache", "build", tiny_msd, "--device", "cpu", "--set", "data.cache.tier=memory")
    assert ended.status == 2
    assert "data.cache.tier=memory keeps no cases for later runs" in ended.err
