"""What all tiers in memory promise, alone and with a disk behind them."""

import threading

import pytest

from voxelocity.data.cache import DiskTier, MemoryTier, SharedMemoryTier, TieredCache
from voxelocity_observe.core.errors import EntryTooLargeError

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


def test_a_dropped_entry_is_gone_and_volumes_handed_out_stay_valid(open_tier, sized_volume):
    tier = open_tier()
    tier.put("k", sized_volume(7))
    held = tier.get("k")
    tier.drop("k")
    tier.drop("never-put")
    assert tier.get("k") is None
    assert (held.load().image == 7).all()


@pytest.mark.parametrize("open_tier", ["private", "shared"], indirect=True)
def test_putting_a_key_again_replaces_and_does_not_count_twice(open_tier, sized_volume):
    tier = open_tier()
    tier.put("k", sized_volume(1, 20_000))
    tier.put("k", sized_volume(2, 500))
    assert (tier.get("k").load().image == 2).all()
    assert tier.room_bytes() > ROOM - 10_000


@pytest.mark.parametrize("open_tier", ["private", "shared"], indirect=True)
def test_volume_above_the_whole_budget_is_refused_with_a_cure_and_others_stay(open_tier, sized_volume):
    tier = open_tier(20_000)
    tier.put("k", sized_volume())
    with pytest.raises(EntryTooLargeError, match=r"case 'case_1' takes 0\.1 MB.*raise data\.cache\.max_bytes"):
        tier.put("large", sized_volume(1, 100_000))
    assert tier.get("k") is not None


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
