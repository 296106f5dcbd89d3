import errno
import re
from pathlib import Path

import lmdb
import pytest

from shared.raising import raising
from voxelocity.data.cache import (
    CacheConfig,
    DiskTier,
    LmdbTier,
    MemoryTier,
    SharedMemoryTier,
    choose,
    open_cache,
)
from voxelocity_observe.core.errors import OutputError


def config(tier, tmp_path, **changes):
    return CacheConfig.parse({"tier": tier, "folder": str(tmp_path / "disk"), "max_bytes": 2**20, **changes})


@pytest.fixture
def memory_at(monkeypatch):
    def put(place, reason=""):
        monkeypatch.setattr(choose, "memory_folder", lambda *, min_free_bytes: (place, reason))

    return put


def test_none_keeps_nothing_and_disk_is_the_folder(tmp_path):
    assert not open_cache(config("none", tmp_path), pytest.fail)._tiers
    for tier, kind in (("disk", DiskTier), ("lmdb", LmdbTier)):
        (opened,) = open_cache(config(tier, tmp_path, max_bytes=0), pytest.fail)._tiers
        assert isinstance(opened, kind)


@pytest.mark.parametrize("tier", ["disk", "lmdb"])
def test_a_disk_that_is_full_from_the_start_is_reported_and_memory_takes_over(
    tmp_path, monkeypatch, sized_volume, tier
):
    monkeypatch.setattr(Path, "mkdir", raising(OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(choose, "memory_folder", lambda *, min_free_bytes: (None, "none"))
    messages = []
    memory = open_cache(config(tier, tmp_path), messages.append)
    memory.put("a", sized_volume(3))
    assert (memory.get("a").load().image == 3).all()
    assert messages[0] == (
        f"cache.{tier}: no space in {tmp_path / 'disk'} (No space left on device); free some space or set "
        "data.cache.folder to another disk; continuing in memory, up to data.cache.max_bytes; the next run prepares "
        "those cases again"
    )
    messages.clear()
    assert not open_cache(config(tier, tmp_path, max_bytes=0), messages.append).put("a", sized_volume(3))
    assert len(messages) == 1
    assert f"cache.{tier}: no space in" in messages[0]
    assert messages[0].endswith("continuing without a cache: cases are prepared again each time they are used")


def test_an_lmdb_file_that_finds_no_space_is_reported_as_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb, "open", raising(lmdb.DiskError("entries.lmdb: No space left on device")))
    messages = []
    open_cache(config("lmdb", tmp_path, max_bytes=0), messages.append)
    assert re.match(r"cache\.lmdb: no space in .* \(entries\.lmdb: No space left on device\)", messages[0])


def test_memory_is_shared_between_processes_where_a_file_system_in_memory_has_the_room(
    tmp_path, memory_at, sized_volume
):
    memory_at(tmp_path)
    first, second = (open_cache(config("memory", tmp_path), pytest.fail) for _ in range(2))
    assert isinstance(first._tiers[0], SharedMemoryTier)
    first.put("a", sized_volume(3))
    assert (second.get("a").load().image == 3).all()


def test_memory_that_cannot_be_shared_is_reported_with_its_price_and_used_all_the_same(
    tmp_path, memory_at, sized_volume
):
    memory_at(None, "/dev/shm has 64 MB of the 1000 MB budget free")
    messages = []
    tier = open_cache(config("memory", tmp_path), messages.append)
    assert isinstance(tier._tiers[0], MemoryTier)
    tier.put("a", sized_volume(3))
    assert (tier.get("a").load().image == 3).all()
    assert messages == [
        "cache: prepared cases cannot be shared between processes (/dev/shm has 64 MB of the 1000 MB budget free): "
        "each training process on this machine keeps its own copy; with one process nothing changes; with several, "
        "enlarge /dev/shm (docker run --shm-size)"
    ]


def test_shared_folder_of_somebody_else_is_passed_over(tmp_path, memory_at, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    memory_at(tmp_path)
    monkeypatch.setattr(choose, "memory_folder_in", lambda place: place / "open")
    messages = []
    assert isinstance(open_cache(config("memory", tmp_path), messages.append)._tiers[0], MemoryTier)
    assert "belongs to another user, or others may write in it" in messages[0]


def test_memory_continues_in_the_cache_folder_if_there_is_one(tmp_path, memory_at, sized_volume):
    memory_at(None)
    messages = []
    tier = open_cache(config("memory", tmp_path, max_bytes=15_000), messages.append)
    for number in range(3):
        tier.put(f"k{number}", sized_volume(number))
    assert all(tier.get(f"k{number}") is not None for number in range(3))
    assert (tmp_path / "disk").is_dir()
    alone = open_cache(config("memory", tmp_path, max_bytes=15_000, folder=""), messages.append)
    for number in range(3):
        alone.put(f"k{number}", sized_volume(number))
    assert [alone.get(f"k{number}") is None for number in range(3)] == [True, True, False]


def test_folder_of_the_disk_behind_is_not_made_before_it_is_needed(tmp_path, memory_at):
    (tmp_path / "file").touch()
    memory_at(None)
    unusable = str(tmp_path / "file" / "cache")
    open_cache(config("memory", tmp_path, folder=unusable), lambda _: None)
    with pytest.raises(OutputError, match="cannot be used"):
        open_cache(config("disk", tmp_path, folder=unusable), pytest.fail)
