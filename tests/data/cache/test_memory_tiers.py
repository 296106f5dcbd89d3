"""What all tiers in memory promise, alone and with a disk behind them."""

import threading

import numpy as np
import pytest

from voxelocity.core.contracts import Tier
from voxelocity.core.errors import EntryTooLargeError
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.cache import DiskTier, MemoryTier, SharedMemoryTier, TieredCache

ROOM = 2**20


@pytest.fixture(params=["private", "shared", "tiered", "tiered, all behind"])
def open_tier(request, memory_place, tmp_path):
    def make(max_bytes=ROOM):
        if request.param == "private":
            return MemoryTier(max_bytes)
        if request.param == "shared":
            return SharedMemoryTier(memory_place / "cache", max_bytes)
        front = MemoryTier(max_bytes if request.param == "tiered" else 0)
        return TieredCache(lambda: front, lambda: DiskTier(tmp_path / "disk"), warn=lambda _: None, floor_bytes=0)

    return make


def rich_volume():
    rng = np.random.default_rng(0)
    image = rng.integers(-1000, 1000, (2, 5, 4, 3)).astype(np.int16)
    return Volume(
        case_id="case é 1",
        image=image,
        label=rng.integers(0, 4, (5, 4, 3)).astype(np.uint8),
        grid=Grid.of(image.shape, np.diag([1.1, 0.7, 2.5, 1.0])),
        scaling=(Scaling(slope=0.5, inter=1.0), Scaling(slope=2.0, inter=0.0)),
        trace=({"name": "crop", "keep": None},),
        foreground={1: np.array([3, 5], np.int32), 3: np.array([], np.int32)},
    )


def test_what_was_put_comes_back_voxel_for_voxel(open_tier):
    tier, given = open_tier(), rich_volume()
    assert isinstance(tier, Tier)
    assert tier.get("k") is None
    tier.put("k", given)
    got = tier.get("k").load()
    assert (got.case_id, got.grid, got.scaling, got.trace) == (given.case_id, given.grid, given.scaling, given.trace)
    assert (got.image.dtype, got.label.dtype) == (np.int16, np.uint8)
    np.testing.assert_array_equal(got.image, given.image)
    np.testing.assert_array_equal(got.label, given.label)
    assert set(got.foreground) == {1, 3}
    np.testing.assert_array_equal(got.foreground[1], [3, 5])
    assert tier.bytes_used() >= given.num_bytes


def test_volumes_are_read_only_and_the_same_memory_each_time(open_tier):
    tier = open_tier()
    tier.put("k", rich_volume())
    first, second = tier.get("k").load(), tier.get("k").load()
    with pytest.raises(ValueError, match="read-only"):
        first.image[0, 0, 0, 0] = 1
    np.testing.assert_array_equal(first.image, second.image)


def test_a_dropped_entry_is_gone_and_volumes_handed_out_stay_valid(open_tier, sized_volume):
    tier = open_tier()
    tier.put("k", sized_volume(7))
    held = tier.get("k")
    tier.drop("k")
    tier.drop("never-put")
    assert tier.get("k") is None
    assert tier.bytes_used() == 0
    assert (held.load().image == 7).all()


def test_putting_a_key_again_replaces_and_does_not_count_twice(open_tier, sized_volume):
    tier = open_tier()
    tier.put("k", sized_volume(1, 20_000))
    tier.put("k", sized_volume(2, 500))
    assert (tier.get("k").load().image == 2).all()
    assert tier.bytes_used() < 10_000


@pytest.mark.parametrize("open_tier", ["private", "shared"], indirect=True)
def test_volume_above_the_whole_budget_is_refused_with_a_cure_and_others_stay(open_tier, sized_volume):
    tier = open_tier(20_000)
    tier.put("k", sized_volume())
    with pytest.raises(EntryTooLargeError, match=r"case 'case_1' takes 0\.1 MB.*raise data\.cache\.max_bytes"):
        tier.put("large", sized_volume(1, 100_000))
    assert tier.get("k") is not None


def test_one_entry_is_made_by_one_thread_at_a_time_and_others_are_free(open_tier):
    tier = open_tier()
    inside, most = [], []

    def work():
        with tier.lock("a"):
            inside.append(1)
            most.append(len(inside))
            with tier.lock("b" + threading.current_thread().name):
                inside.pop()

    threads = [threading.Thread(target=work, name=f"t{number}") for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6


def test_a_lock_is_free_again_after_an_error(open_tier):
    tier = open_tier()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="preparation"), tier.lock("a"):
            raise RuntimeError("preparation")


def test_many_threads_never_see_anything_but_whole_entries(open_tier, sized_volume):
    tier = open_tier(45_000)
    wrong = []

    def work(offset):
        for index in range(60):
            number = (7 * offset + index) % 9
            found = tier.get(f"k{number}")
            if found is None:
                tier.put(f"k{number}", sized_volume(number))
            elif not (found.load().image == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
