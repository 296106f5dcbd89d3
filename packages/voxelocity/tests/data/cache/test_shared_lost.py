"""Entries of the shared memory tier that go while they are in use: dropped by the tier, or with their whole folder."""

import shutil
from pathlib import Path

import pytest

from voxelocity.data.cache import SharedMemoryTier, shared
from voxelocity.data.cache.shared_folder import SharedFolder


@pytest.mark.parametrize("act", ["room_bytes", "drop", "evict", "put"])
def test_folder_removed_in_the_middle_of_a_call_is_made_again(memory_place, sized_volume, monkeypatch, act):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    tier.put("a", sized_volume(1))
    stay, left = SharedFolder.stay, [1]

    def stay_and_lose_the_folder(self):
        stay(self)
        if left:
            left.pop()
            shutil.rmtree(self.path)

    monkeypatch.setattr(SharedFolder, "stay", stay_and_lose_the_folder)
    arguments = {"drop": ["a"], "evict": [1], "put": ["b", sized_volume(2)]}.get(act, [])
    getattr(tier, act)(*arguments)
    assert not left
    assert tier.get("a") is None
    tier.put("a", sized_volume(3))
    assert (tier.get("a").image == 3).all()
    tier.close()
    assert not (memory_place / "cache").exists()


def test_dropping_many_entries_does_not_look_at_each_of_those_that_stay(memory_place, sized_volume, monkeypatch):
    tier = SharedMemoryTier(memory_place / "cache", 2**24)
    for number in range(60):
        tier.put(f"k{number}", sized_volume(number, num_bytes=100))
        tier.get(f"k{number}")
    looked, exists = [], Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: (looked.append(path), exists(path))[1])
    for number in range(30):
        tier.drop(f"k{number}")
    assert looked == []
    assert sorted(tier._mapped) == sorted(f"k{number}" for number in range(30, 60)), "what is dropped is let go"


def test_no_more_entries_stay_mapped_than_a_process_may_have_mappings(memory_place, sized_volume, monkeypatch):
    monkeypatch.setattr(shared, "_MAX_MAPPED", 4)
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    for number in range(10):
        tier.put(f"k{number}", sized_volume(number))
    held = [tier.get(f"k{number}") for number in range(10)]
    assert list(tier._mapped) == ["k6", "k7", "k8", "k9"]
    for number in range(10):
        assert (held[number].image == number).all()
        assert (tier.get(f"k{number}").image == number).all()
