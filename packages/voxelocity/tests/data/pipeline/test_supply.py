import gc
import itertools
import threading
import time

import pytest
import torch

from shared.batches import assert_equal_batches
from shared.noted_cases import NotedCases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import RotatingSchedule
from voxelocity.data.pipeline import Feed
from voxelocity_observe.core.errors import CacheFullError, ScanError


@pytest.fixture
def rotating(data_config):
    """The path's configuration with a cache that rotates over 3 of 5 cases."""
    return lambda num_threads=0, **cache: data_config("rotating", num_threads, cache=cache)


class CountingCases(NotedCases):
    """Prepared cases that also write down what is dropped."""

    def __init__(self, refs, config):
        self.dropped = []
        super().__init__(refs, config)

    def drop(self, index):
        self.dropped.append(index)
        super().drop(index)


def take(refs, config, count, **options):
    cases = NotedCases(refs, config)
    with Feed(cases, config, seed=3, **options) as feed:
        batches = list(itertools.islice(feed, count))
    assert cases.warnings == []
    return batches


def test_an_epoch_draws_the_cases_of_its_window_alone(blob_refs, rotating):
    schedule = RotatingSchedule(5, num_cached=3, replace_rate=0.3, seed=3)
    draws = [draw for batch in take(blob_refs, rotating(2), 8) for draw in batch.draws]
    for epoch in range(8):
        assert sorted(draw.case for draw in draws if draw.epoch == epoch) == sorted(schedule.window(epoch))


def test_patches_of_a_case_do_not_depend_on_the_rotation(blob_refs, rotating, data_config):
    """The same (epoch, case, draw) gives the same patch in a cache that holds all cases."""

    def by_key(batches):
        return {
            (draw.epoch, draw.case): (image, label)
            for batch in batches
            for draw, image, label in zip(batch.draws, batch.image, batch.label, strict=True)
        }

    ours, whole = by_key(take(blob_refs, rotating(), 5)), by_key(take(blob_refs, data_config(), 9))
    assert len(ours) == 15
    for key, (image, label) in ours.items():
        assert torch.equal(image, whole[key][0])
        assert torch.equal(label, whole[key][1])


@pytest.mark.parametrize("num_threads", [0, 3])
def test_each_case_is_prepared_once_for_its_stay(blob_refs, rotating, num_threads):
    config = rotating(num_threads)
    cases = NotedCases(blob_refs, config)
    with Feed(cases, config, seed=3) as feed:
        list(itertools.islice(feed, 4))
    schedule = RotatingSchedule(5, num_cached=3, replace_rate=0.3, seed=3)
    # One batch is one epoch here. Four windows of three that move by one, and what threads began ahead of use.
    assert set(cases.prepared) >= {f"case_{case}" for epoch in range(4) for case in schedule.window(epoch)}
    assert len(cases.prepared) <= 3 + 3 + 1 + 1 + config.feed.num_batches_ahead + max(1, num_threads)


def test_the_first_of_a_window_is_dropped_when_its_epoch_is_over(blob_refs, rotating):
    config = rotating()
    cases = CountingCases(blob_refs, config)
    schedule = RotatingSchedule(5, num_cached=3, replace_rate=0.3, seed=3)
    with Feed(cases, config, seed=3) as feed:
        for epoch in range(7):
            next(feed)
            assert cases.dropped == [schedule.window(past)[0] for past in range(epoch + 1)]


def test_dropped_cases_leave_the_cache(blob_refs, rotating):
    config = rotating()
    cases = CountingCases(blob_refs, config)
    with Feed(cases, config, seed=3) as feed:
        list(itertools.islice(feed, 6))
        held = set(feed._supply._cache._works)
    assert len(held) <= 4
    kept = [case for case in range(5) if cases._cache.get(cases._keys[case]) is not None]
    assert set(kept) <= held


@pytest.mark.parametrize("has_folder", [True, False])
def test_when_memory_runs_low_a_rotating_feed_says_so_and_gives_the_same_batches(
    blob_refs, rotating, monkeypatch, has_folder
):
    config = rotating(2)
    expected = take(blob_refs, config, 6)
    if not has_folder:
        config = rotating(2, folder="")
    cases = NotedCases(blob_refs, config)
    floor = cases._cache
    with Feed(cases, config, seed=3) as feed:
        batches = list(itertools.islice(feed, 2))
        # All memory is taken by somebody else.
        monkeypatch.setattr(floor, "_floor_bytes", 2**60)
        monkeypatch.setattr(floor, "_next_look_s", 0.0)
        batches += list(itertools.islice(feed, 4))
        assert floor._memory.evict(1) == []
    assert_equal_batches(batches, expected)
    assert cases.warnings
    assert all("memory runs low" in text for text in cases.warnings)
    goes_on = f"moved to the disk tier in {config.cache.folder}" if has_folder else "are prepared again"
    assert any(goes_on in text for text in cases.warnings)


def test_room_that_a_rotating_cache_makes_is_used_again_after_it_was_full(blob_refs, rotating):
    """A budget for little more than the window: now and then a case finds no room, and later ones do."""
    config = rotating(folder="")
    cases = NotedCases(blob_refs, config)
    memory = cases._cache._memory
    put, refusals = memory.put, iter([True])

    def full_once(key, volume):
        if next(refusals, False):
            raise CacheFullError("cache: full")
        put(key, volume)

    memory.put = full_once
    with Feed(cases, config, seed=3) as feed:
        list(itertools.islice(feed, 4))
        held = set(feed._supply._cache._works)
    kept = {case for case in range(5) if cases._cache.get(cases._keys[case]) is not None}
    assert len(kept & held) >= 2, "cases that came after the first was dropped"
    assert cases.warnings == [
        "cache: full; continuing without more: cases not in the cache are prepared again each time they are used"
    ]


def test_a_batch_over_several_epochs_is_made_without_a_hang(blob_refs, rotating):
    config = rotating(3, num_cases=1, replace_rate=1.0)
    batches = take(blob_refs, config, 4)
    assert [[draw.epoch for draw in batch.draws] for batch in batches] == [
        [3 * n, 3 * n + 1, 3 * n + 2] for n in range(4)
    ]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_broken_case_surfaces_in_the_consumer_by_name_and_nothing_hangs(blob_refs, rotating, tmp_path, num_threads):
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(blob_refs[0].images[0].read_bytes()[:200])
    refs = (*blob_refs[:4], VolumeRef(case_id="broken_case", images=(broken,), label=blob_refs[4].label))
    config = rotating(num_threads)
    with Feed(NotedCases(refs, config), config, seed=3) as feed:
        errors = []
        for _ in range(10):
            try:
                assert "broken_case" not in next(feed).case_ids
            except ScanError as error:
                errors.append(error)
    assert all("broken" in str(error) for error in errors)
    notes = [error.__notes__ for error in errors]
    assert notes == [["raised while case 'broken_case' was prepared for the rotating cache"]] * 6, (
        "three of five windows hold the case, and there were ten epochs of one batch"
    )


def test_a_forgotten_rotating_feed_ends_its_threads(blob_refs, rotating):
    before = set(threading.enumerate())
    config = rotating(2)
    feed = Feed(NotedCases(blob_refs, config), config, seed=3)
    next(feed)
    started = set(threading.enumerate()) - before
    assert any("rotating" in thread.name for thread in started)
    del feed
    gc.collect()
    deadline = time.monotonic() + 10
    while any(thread.is_alive() for thread in started) and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.01)
    assert not any(thread.is_alive() for thread in started)


def test_closing_ends_all_threads(blob_refs, rotating):
    before = set(threading.enumerate())
    config = rotating(2)
    with Feed(NotedCases(blob_refs, config), config, seed=3) as feed:
        next(feed)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
