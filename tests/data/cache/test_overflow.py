from functools import partial

import pytest

from voxelocity.core.errors import CacheError, CacheFullError, EntryTooLargeError
from voxelocity.data.cache import DiskTier, MemoryTier, OverflowingTier
from voxelocity.testing.tier_contract import TierContract


class SmallDisk(DiskTier):
    """A disk with room for so many entries."""

    num_free = 0

    def put(self, key, volume):
        if self.num_free == 0:
            raise CacheFullError("cache.disk: no space in X")
        self.num_free -= 1
        super().put(key, volume)


def opened(make, folder):
    return OverflowingTier(make(folder), partial(MemoryTier, 2**30), warn=lambda _: None)


class TestOverflowingTierWithRoom(TierContract):
    def maker(self):
        return partial(opened, DiskTier)


class TestOverflowingTierOnAFullDisk(TierContract):
    def maker(self):
        return partial(opened, SmallDisk)


@pytest.fixture
def told():
    return []


@pytest.fixture
def tier(tmp_path, told):
    disk = SmallDisk(tmp_path)
    disk.num_free = 2
    return OverflowingTier(disk, partial(MemoryTier, 2**20), warn=told.append)


def test_entries_that_find_no_space_go_to_memory_which_is_told_once(tier, told, sized_volume):
    for number in range(5):
        tier.put(f"k{number}", sized_volume(number))
    assert [int(tier.get(f"k{number}").load().image[0, 0, 0, 0]) for number in range(5)] == list(range(5))
    assert tier._files.keys() == ["k0", "k1"]
    assert tier._spare.bytes_used() == 3 * sized_volume().num_bytes
    assert tier.bytes_used() == tier._files.bytes_used() + tier._spare.bytes_used()
    assert told == [
        "cache.disk: no space in X; continuing in memory, up to data.cache.max_bytes; the next run prepares those "
        "cases again"
    ]


def test_space_that_becomes_free_on_the_disk_is_used_again(tier, sized_volume):
    for number in range(3):
        tier.put(f"k{number}", sized_volume(number))
    tier._files.num_free = 1
    tier.put("later", sized_volume(7))
    assert tier._files.keys() == ["k0", "k1", "later"]


def test_memory_is_not_opened_before_it_is_needed(tmp_path, sized_volume):
    tier = OverflowingTier(DiskTier(tmp_path), lambda: pytest.fail("opened"), warn=pytest.fail)
    tier.put("a", sized_volume())
    tier.drop("a")
    assert tier.get("a") is None


def test_dropped_entries_leave_both(tier, sized_volume):
    for number in range(3):
        tier.put(f"k{number}", sized_volume(number))
    tier.drop("k0")
    tier.drop("k2")
    assert [tier.get(f"k{number}") is None for number in range(3)] == [True, False, True]


@pytest.mark.parametrize("error", [EntryTooLargeError("too large"), CacheError("not allowed")])
def test_other_errors_of_the_disk_are_passed_on(tier, told, sized_volume, monkeypatch, error):
    def refuse(key, volume):
        raise error

    monkeypatch.setattr(tier._files, "put", refuse)
    with pytest.raises(type(error), match=str(error)):
        tier.put("a", sized_volume())
    assert told == []
