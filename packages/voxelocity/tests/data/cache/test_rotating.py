import gc
import threading
import warnings
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data import SmartCacheDataset

from shared.limits import HANGS_S
from voxelocity.data.cache import RotatingCache, RotatingSchedule
from voxelocity_observe.core.errors import ScanError


@pytest.mark.parametrize(
    ("num_cases", "num_cached", "replace_rate"),
    [(5, 4, 0.25), (7, 3, 0.1), (10, 4, 0.6), (10, 9, 1.0), (9, 5, 0.41), (30, 10, 0.3), (6, 3, 1.0)],
)
def test_windows_are_those_of_monai(num_cases, num_cached, replace_rate):
    peer = SmartCacheDataset(
        list(range(num_cases)), transform=lambda case: case, replace_rate=replace_rate, cache_num=num_cached,
        shuffle=False, progress=False,
    )  # fmt: skip
    schedule = RotatingSchedule(num_cases, num_cached=num_cached, replace_rate=replace_rate)
    assert schedule.num_replaced == peer._replace_num
    peer.start()
    for epoch in range(6):
        assert schedule.window(epoch) == tuple(peer[index] for index in range(len(peer)))
        peer.update_cache()
    peer.shutdown()


def test_number_that_is_replaced_is_rounded_as_monai_rounds_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for num_cached in range(1, 41):
            for rate in (0.05, 0.1, 0.15, 0.25, 0.3, 0.55, 0.7, 1.0):
                peer = SmartCacheDataset(
                    list(range(40)), lambda case: case, replace_rate=rate, cache_num=num_cached, progress=False
                )
                ours = RotatingSchedule(40, num_cached=num_cached, replace_rate=rate)
                assert ours.num_replaced == peer._replace_num, (num_cached, rate)


@given(
    num_cases=st.integers(1, 30),
    num_cached=st.integers(1, 40),
    rate=st.floats(0.01, 1.0),
    seed=st.none() | st.integers(0, 9),
    epoch=st.integers(0, 200),
)
def test_each_window_has_its_width_and_follows_from_the_one_before(num_cases, num_cached, rate, seed, epoch):
    schedule = RotatingSchedule(num_cases, num_cached=num_cached, replace_rate=rate, seed=seed)
    window, following = schedule.window(epoch), schedule.window(epoch + 1)
    assert len(set(window)) == len(window) == schedule.num_cached == min(num_cached, num_cases)
    assert following[: len(window) - schedule.num_replaced] == window[schedule.num_replaced :]
    assert set(window) <= set(range(num_cases))


def test_all_cases_come_into_use_and_a_window_of_all_never_moves():
    schedule = RotatingSchedule(11, num_cached=3, replace_rate=0.1)
    assert set().union(*(schedule.window(epoch) for epoch in range(11))) == set(range(11))
    whole = RotatingSchedule(4, num_cached=9, replace_rate=0.5)
    assert [whole.window(epoch) for epoch in range(3)] == [(0, 1, 2, 3)] * 3


def test_a_seed_shuffles_the_cases_once():
    first, second, third = (RotatingSchedule(50, num_cached=9, replace_rate=0.1, seed=seed) for seed in (0, 0, 1))
    assert first.window(3) == second.window(3)
    assert first.window(3) != third.window(3)
    assert first.window(1)[:-1] == first.window(0)[1:]


class Volumes:
    """Prepares cases as asked, keeps them, and writes down what was prepared and dropped."""

    def __init__(self, sized_volume):
        self.prepared, self.dropped, self.failing, self.kept = [], [], {}, {}
        self.held_back = {}
        self._make, self._caches = sized_volume, []

    def prepare(self, case):
        if case in self.kept:
            return self.kept[case]
        if case in self.held_back:
            assert self.held_back[case].wait(HANGS_S)
        self.prepared.append(case)
        if case in self.failing:
            raise self.failing[case]
        return self.kept.setdefault(case, self._make(case, 8))

    def drop(self, case):
        self.dropped.append(case)
        self.kept.pop(case, None)

    def cache(self, *, num_cases=5, num_cached=4, replace_rate=0.25, num_threads=1):
        schedule = RotatingSchedule(num_cases, num_cached=num_cached, replace_rate=replace_rate)
        cache = RotatingCache(
            schedule.window,
            self.prepare,
            drop=self.drop,
            name=lambda case: f"c{case}",
            num_threads=num_threads,
        )
        self._caches.append(weakref.ref(cache))
        return cache

    def close(self):
        for event in self.held_back.values():
            event.set()
        for cache in filter(None, (made() for made in self._caches)):
            cache.close()


@pytest.fixture
def volumes(sized_volume):
    volumes = Volumes(sized_volume)
    yield volumes
    volumes.close()


def number_of(volume):
    return int(volume.image[0, 0, 0, 0])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_each_case_is_prepared_once_while_it_stays_and_leaves_when_its_epochs_are_over(volumes, num_threads):
    cache = volumes.cache(num_threads=num_threads, num_cases=9, num_cached=3, replace_rate=0.3)
    for epoch in range(4):
        cache.begin(epoch)
        assert [number_of(cache.take(epoch + place)) for place in range(3)] == [epoch, epoch + 1, epoch + 2]
        assert set(cache._works) == {epoch, epoch + 1, epoch + 2, epoch + 3}
    cache.close()
    assert sorted(volumes.prepared)[:6] == list(range(6))
    assert len(set(volumes.prepared)) == len(volumes.prepared)
    assert volumes.dropped == [0, 1, 2]


def test_replacements_are_prepared_while_the_epoch_is_in_use(volumes):
    cache = volumes.cache(num_cases=6, num_cached=2, replace_rate=1.0)
    cache.begin(0)
    for case in (2, 3):
        while not cache._works[case]._is_made:
            threading.Event().wait(0.001)
    assert sorted(volumes.prepared) == [0, 1, 2, 3]
    cache.begin(1)
    cache.take(2), cache.take(3)
    assert volumes.prepared.count(2) == volumes.prepared.count(3) == 1


def test_case_that_no_thread_came_to_is_prepared_by_who_asks(volumes):
    volumes.held_back[0] = threading.Event()
    cache = volumes.cache()
    cache.begin(0)
    assert number_of(cache.take(3)) == 3
    volumes.held_back[0].set()
    assert number_of(cache.take(0)) == 0
    assert volumes.prepared.count(3) == 1


def test_case_outside_the_windows_is_served_and_leaves_with_the_next_epoch(volumes):
    cache = volumes.cache(num_cases=9, num_cached=2, replace_rate=0.1)
    cache.begin(0)
    assert number_of(cache.take(7)) == 7
    cache.begin(1)
    assert 7 not in cache._works
    assert 7 in volumes.dropped


def test_an_epoch_that_is_over_does_not_come_back(volumes):
    cache = volumes.cache()
    cache.begin(2)
    held = set(cache._works)
    cache.begin(1)
    assert set(cache._works) == held


def test_error_ahead_is_tried_again_by_who_takes_the_case_and_names_it(volumes):
    volumes.failing[4] = ScanError("decode: broken.nii.gz is cut short; restore it")
    cache = volumes.cache()
    cache.begin(0)
    assert [number_of(cache.take(case)) for case in range(4)] == [0, 1, 2, 3]
    cache.begin(1)
    for _ in range(2):
        with pytest.raises(ScanError, match="broken") as caught:
            cache.take(4)
        assert set(caught.value.__notes__) == {"raised while case 'c4' was prepared for the rotating cache"}
    volumes.failing.clear()
    assert [number_of(cache.take(case)) for case in (4, 1)] == [4, 1]


def test_a_case_that_leaves_while_it_is_in_work_is_dropped_again_when_the_work_ends(volumes):
    volumes.held_back[4] = threading.Event()
    cache = volumes.cache(num_cases=9, num_cached=4, replace_rate=0.25)
    cache.begin(0)
    while not cache._works[4]._preparing.locked():
        threading.Event().wait(0.001)
    cache.begin(8)
    assert 4 in volumes.dropped
    assert 4 not in cache._works
    volumes.held_back[4].set()
    cache.close()
    assert volumes.prepared.count(4) == 1
    assert 4 not in volumes.kept


def test_case_that_had_to_go_from_memory_is_free_there_and_prepared_again_when_it_is_taken(volumes):
    cache = volumes.cache(num_cached=2)
    cache.begin(0)
    held = [weakref.ref(cache.take(case)) for case in (0, 1)]
    assert all(found() is not None for found in held)
    volumes.kept.clear()
    gc.collect()
    assert [found() for found in held] == [None, None]
    volumes.failing[1] = ScanError("decode: c1.nii.gz is gone")
    with pytest.raises(ScanError, match="gone") as caught:
        cache.take(1)
    assert caught.value.__notes__ == ["raised while case 'c1' was prepared for the rotating cache"]
    volumes.failing.clear()
    assert number_of(cache.take(1)) == 1
    assert volumes.prepared.count(1) == 3


def test_case_interrupted_in_the_thread_that_asked_can_be_asked_for_again(volumes):
    cache = volumes.cache()
    volumes.failing[3] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cache.take(3)
    volumes.failing.clear()
    assert number_of(cache.take(3)) == 3


def test_close_ends_the_threads_with_work_still_to_do(volumes):
    volumes.held_back[0] = threading.Event()
    cache = volumes.cache()
    cache.begin(0)
    closing = threading.Thread(target=cache.close)
    closing.start()
    while not cache._works[3]._is_withdrawn:
        threading.Event().wait(0.001)
    volumes.held_back[0].set()
    closing.join(HANGS_S)
    assert not any(thread.is_alive() for thread in cache._threads)
    assert volumes.prepared in ([], [0])


def test_forgotten_cache_ends_its_threads(volumes):
    cache = volumes.cache(num_threads=2)
    cache.begin(0)
    cache.take(0)
    threads = cache._threads
    del cache
    gc.collect()
    for thread in threads:
        thread.join(HANGS_S)
    assert not any(thread.is_alive() for thread in threads)
