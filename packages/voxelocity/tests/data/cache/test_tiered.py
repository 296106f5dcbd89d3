import re
from functools import partial

import pytest

from shared.raising import raising
from voxelocity.data.cache import DiskTier, MemoryTier, TieredCache
from voxelocity.data.cache.tiered import memory_floor_bytes
from voxelocity.testing.tier_contract import TierContract
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError, OutputError
from voxelocity_observe.core.host import total_memory_bytes

SIZE = 10_000


class Machine:
    """Memory that is free, the clock, and what was reported."""

    def __init__(self):
        self.free_bytes = 10**9
        self.now_s = 0.0
        self.messages = []


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def cache(machine, tmp_path):
    def make(*, max_bytes=10 * SIZE, front=None, behind="disk"):
        behinds = {"disk": lambda: DiskTier(tmp_path / "disk"), "none": None}
        return TieredCache(
            lambda: MemoryTier(max_bytes) if front is None else front,
            behinds.get(behind, behind),
            second_name="the disk tier in X",
            warn=machine.messages.append,
            floor_bytes=50_000,
            free_bytes=lambda: machine.free_bytes,
            clock=lambda: machine.now_s,
        )

    return make


def on_disk(tmp_path):
    return sorted(path.stem for path in (tmp_path / "disk").glob("*.safetensors"))


def values(cache, keys):
    found = {key: cache.get(key) for key in keys}
    return {key: None if volume is None else int(volume.load().image[0, 0, 0, 0]) for key, volume in found.items()}


def test_while_memory_lasts_no_disk_is_touched_and_nothing_is_reported(cache, machine, sized_volume, tmp_path):
    tier = cache()
    for number in range(10):
        tier.put(f"k{number}", sized_volume(number))
    assert values(tier, ["k0", "k9"]) == {"k0": 0, "k9": 9}
    assert not (tmp_path / "disk").exists()
    assert machine.messages == []


def test_when_the_budget_is_used_up_the_cache_continues_behind_it_and_says_so_once(
    cache, machine, sized_volume, tmp_path
):
    tier = cache(max_bytes=2 * SIZE)
    for number in range(5):
        tier.put(f"k{number}", sized_volume(number))
    assert values(tier, [f"k{n}" for n in range(5)]) == {f"k{n}": n for n in range(5)}
    assert on_disk(tmp_path) == ["k2", "k3", "k4"]
    assert machine.messages == [
        "cache: the memory tier has no space for case 'case_2' (0.0 MB); the cache continues in the disk tier in X, "
        "which is slower to read"
    ]


def test_when_memory_runs_low_new_entries_go_behind_and_old_ones_move_there(cache, machine, sized_volume, tmp_path):
    tier = cache()
    for number in range(4):
        tier.put(f"k{number}", sized_volume(number))
    machine.free_bytes = 35_000
    tier.put("k4", sized_volume(4))
    assert on_disk(tmp_path) == ["k0", "k1", "k4"]
    assert values(tier, [f"k{n}" for n in range(5)]) == {f"k{n}": n for n in range(5)}
    assert machine.messages == [
        "cache: memory runs low: 0 MB are free and 0 MB are reserved for other use; 0.0 MB of prepared cases moved "
        "to the disk tier in X, and more may follow",
        "cache: memory runs low: 0 MB are free and 0 MB are reserved for other use; the cache continues in the "
        "disk tier in X, which is slower to read",
    ]


def test_memory_that_runs_low_later_is_noticed_while_cases_are_read(cache, machine, sized_volume, tmp_path):
    tier = cache()
    for number in range(4):
        tier.put(f"k{number}", sized_volume(number))
    assert values(tier, ["k0"]) == {"k0": 0}
    machine.free_bytes = 45_000
    assert values(tier, ["k0"]) == {"k0": 0}
    assert not (tmp_path / "disk").exists(), "looked at again before a second was over"
    machine.now_s += 1.0
    assert values(tier, ["k0", "k1"]) == {"k0": 0, "k1": 1}
    assert on_disk(tmp_path) == ["k1"]
    machine.now_s += 1.0
    assert values(tier, ["k0"]) == {"k0": 0}
    assert len(on_disk(tmp_path)) == 2
    assert len(machine.messages) == 1


def test_floor_counts_with_the_entry_that_is_to_come(cache, machine, sized_volume, tmp_path):
    tier = cache()
    machine.free_bytes = 60_000
    tier.put("fits", sized_volume())
    machine.free_bytes = 59_999
    tier.put("not", sized_volume())
    assert on_disk(tmp_path) == ["not"]


def test_without_a_tier_behind_low_memory_refuses_new_entries_with_a_cure(cache, machine, sized_volume):
    tier = cache(behind="none")
    tier.put("a", sized_volume())
    machine.free_bytes = 55_000
    assert not tier.put("b", sized_volume(1))
    assert re.search(r"memory runs low: .* so case 'case_1' is not kept; free some, or set", machine.messages[0])
    assert values(tier, ["a", "b"]) == {"a": 0, "b": None}


def test_without_a_tier_behind_entries_are_dropped_when_memory_runs_low_and_it_is_reported(
    cache, machine, sized_volume
):
    tier = cache(behind="none")
    for number in range(3):
        tier.put(f"k{number}", sized_volume(number))
    machine.free_bytes, machine.now_s = 35_000, 1.0
    assert values(tier, ["k0", "k1", "k2"]) == {"k0": None, "k1": None, "k2": 2}
    assert machine.messages == [
        "cache: memory runs low: 0 MB are free and 0 MB are reserved for other use; 0.0 MB of prepared cases were "
        "dropped and are prepared again when they are used"
    ]


def test_front_that_is_full_for_a_reason_of_its_own_is_reported_with_that_reason(
    cache, machine, sized_volume, tmp_path
):
    class Full(MemoryTier):
        def put(self, key, volume):
            raise CacheFullError("cache.shared: no space in /dev/shm")

    tier = cache(front=Full(2**20))
    tier.put("a", sized_volume(3))
    assert on_disk(tmp_path) == ["a"]
    assert values(tier, ["a"]) == {"a": 3}
    assert machine.messages == [
        "cache.shared: no space in /dev/shm; the cache continues in the disk tier in X, which is slower to read"
    ]


def test_disk_that_cannot_be_used_is_reported_only_when_it_is_needed(cache, machine, sized_volume):
    def unusable():
        raise OutputError("cache.disk: folder /x cannot be used (Permission denied)")

    tier = cache(max_bytes=SIZE, behind=unusable)
    assert tier.put("a", sized_volume())
    assert not tier.put("b", sized_volume(1))
    assert "folder /x cannot be used (Permission denied); continuing without more" in machine.messages[-1]
    machine.free_bytes, machine.now_s = 0, 1.0
    assert values(tier, ["a"]) == {"a": None}
    assert machine.messages[-1].endswith(
        "were dropped and are prepared again when they are used: cache.disk: folder /x cannot be used "
        "(Permission denied)"
    )


def test_entry_that_another_process_moved_behind_is_found_when_memory_is_low(cache, machine, sized_volume, tmp_path):
    DiskTier(tmp_path / "disk").put("moved", sized_volume(8))
    tier = cache()
    assert values(tier, ["moved"]) == {"moved": None}
    machine.free_bytes, machine.now_s = 0, 1.0
    assert values(tier, ["moved"]) == {"moved": 8}


def test_the_floor_is_a_share_of_the_memory_there_is():
    assert memory_floor_bytes() == int(0.05 * total_memory_bytes())


# Files first, memory behind them


class SmallDisk(DiskTier):
    """A disk with space for this many entries."""

    num_free = 0

    def put(self, key, volume):
        if self.num_free == 0:
            raise CacheFullError("cache.disk: no space in X")
        self.num_free -= 1
        super().put(key, volume)


def opened(folder):
    return TieredCache(partial(SmallDisk, folder), partial(MemoryTier, 2**30), warn=lambda _: None)


class TestFilesFirstOnAFullDisk(TierContract):
    def maker(self):
        return opened


@pytest.fixture
def messages():
    return []


@pytest.fixture
def disk(tmp_path):
    disk = SmallDisk(tmp_path)
    disk.num_free = 2
    return disk


@pytest.fixture
def files_first(disk, messages):
    return TieredCache(lambda: disk, partial(MemoryTier, 2**20), warn=messages.append)


def test_entries_that_find_no_space_go_to_memory_which_is_reported_once(files_first, disk, messages, sized_volume):
    for number in range(5):
        files_first.put(f"k{number}", sized_volume(number))
    assert [int(files_first.get(f"k{number}").load().image[0, 0, 0, 0]) for number in range(5)] == list(range(5))
    assert disk.keys() == ["k0", "k1"]
    assert messages == [
        "cache.disk: no space in X; continuing in memory, up to data.cache.max_bytes; the next run prepares those "
        "cases again"
    ]


def test_space_that_becomes_free_on_the_disk_is_used_again(files_first, disk, sized_volume):
    for number in range(3):
        files_first.put(f"k{number}", sized_volume(number))
    disk.num_free = 1
    files_first.put("later", sized_volume(7))
    assert disk.keys() == ["k0", "k1", "later"]


def test_memory_is_not_opened_before_it_is_needed(tmp_path, sized_volume):
    files_first = TieredCache(lambda: DiskTier(tmp_path), lambda: pytest.fail("opened"), warn=pytest.fail)
    files_first.put("a", sized_volume())
    files_first.drop("a")
    assert files_first.get("a") is None


def test_dropped_entries_leave_both(files_first, disk, sized_volume):
    for number in range(3):
        files_first.put(f"k{number}", sized_volume(number))
    files_first.drop("k0")
    files_first.drop("k2")
    assert [files_first.get(f"k{number}") is None for number in range(3)] == [True, False, True]


@pytest.mark.parametrize("error", [EntryTooLargeError("too large"), CacheError("not allowed")])
def test_other_errors_of_the_disk_do_not_fill_memory(files_first, disk, messages, sized_volume, monkeypatch, error):
    monkeypatch.setattr(disk, "put", raising(error))
    assert not files_first.put("a", sized_volume())
    assert len(messages) == 1
    assert messages[0].startswith(f"{error}; ")
    assert "continuing in memory" not in messages[0]
