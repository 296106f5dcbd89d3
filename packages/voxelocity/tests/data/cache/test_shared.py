import gc
import os
import shutil
import signal
import threading

import pytest

from shared.raising import raising
from voxelocity.data.cache import SharedMemoryTier, disk_bytes_in, shared
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError, OutputError


def entry_bytes(place, volume):
    """What an entry of this volume takes, header included."""
    tier = SharedMemoryTier(place / "measure", 2**30)
    tier.put("k", volume)
    size = disk_bytes_in(place / "measure")
    tier.close()
    return size


def held_keys(tier, keys):
    """Keys of entries that are there, without using any."""
    return "".join(key for key in keys if tier._path(key).exists())


def files_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_entry_used_longest_ago_by_any_process_goes_first(memory_place, sized_volume):
    size = entry_bytes(memory_place, sized_volume())
    tier, other = (SharedMemoryTier(memory_place / "cache", 3 * size + 100) for _ in range(2))
    for number, key in enumerate("abc"):
        tier.put(key, sized_volume(number))
    assert other.get("a") is not None
    tier.put("d", sized_volume(4))
    assert held_keys(tier, "abcd") == "acd"
    assert disk_bytes_in(memory_place / "cache") <= 3 * size + 100


def test_budget_counts_the_entries_of_all_tiers_on_the_folder(memory_place, sized_volume):
    size = entry_bytes(memory_place, sized_volume())
    first, second = (SharedMemoryTier(memory_place / "cache", 2 * size) for _ in range(2))
    for number, key in enumerate("abcd"):
        (first, second)[number % 2].put(key, sized_volume(number))
        assert disk_bytes_in(memory_place / "cache") <= 2 * size
    assert held_keys(first, "abcd") == "cd"
    assert first.room_bytes() == 0


def test_evicted_entry_stays_valid_for_its_holder_and_is_let_go_by_the_tier(memory_place, sized_volume):
    size = entry_bytes(memory_place, sized_volume())
    first, second = (SharedMemoryTier(memory_place / "cache", 2 * size) for _ in range(2))
    first.put("a", sized_volume(1))
    held = first.get("a")
    assert second.evict(1)[0][0] == "a"
    assert (held.image == 1).all()
    assert "a" in first._mapped
    first.put("b", sized_volume(2))
    assert "a" not in first._mapped
    assert first.get("a") is None


def test_entry_made_again_by_another_tier_replaces_what_was_mapped(memory_place, sized_volume):
    first, second = (SharedMemoryTier(memory_place / "cache", 2**20) for _ in range(2))
    first.put("a", sized_volume(1))
    old = first.get("a")
    second.drop("a")
    second.put("a", sized_volume(1))
    assert first.get("a") is not old
    assert first.get("a") is first.get("a")


def test_evict_drops_as_much_as_asked_oldest_first_and_returns_it(memory_place, sized_volume):
    size = entry_bytes(memory_place, sized_volume())
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    for number, key in enumerate("abc"):
        tier.put(key, sized_volume(number))
    evicted = tier.evict(size + 1)
    assert [key for key, _ in evicted] == ["a", "b"]
    assert [int(volume.image[0, 0, 0, 0]) for _, volume in evicted] == [0, 1]
    assert held_keys(tier, "abc") == "c"
    assert [key for key, _ in tier.evict(2**30)] == ["c"]
    assert tier.evict(1) == []


def test_an_entry_that_another_tier_uses_goes_when_the_last_of_them_drops_it(memory_place, sized_volume):
    """As when two runs, or two ranks an epoch apart, rotate over the same cases."""
    first, second = (SharedMemoryTier(memory_place / "cache", 2**20) for _ in range(2))
    first.put("a", sized_volume())
    assert second.get("a") is not None
    first.drop("a")
    assert files_in(memory_place / "cache") == ["a.safetensors"]
    assert second.get("a") is not None
    second.drop("a")
    assert files_in(memory_place / "cache") == []
    assert first.get("a") is None


def test_many_small_entries_leave_in_groups_so_that_not_every_put_looks_at_all(memory_place, sized_volume, monkeypatch):
    size = entry_bytes(memory_place, sized_volume())
    tier = SharedMemoryTier(memory_place / "cache", 100 * size)
    looks, oldest_first = [], shared.oldest_first
    monkeypatch.setattr(shared, "oldest_first", lambda folder: looks.append(1) or oldest_first(folder))
    for number in range(140):
        tier.put(f"k{number}", sized_volume(number))
    assert 1 <= len(looks) <= 20


def test_file_system_with_less_free_than_the_budget_is_full_and_nothing_is_dropped(
    memory_place, sized_volume, monkeypatch
):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    tier.put("a", sized_volume())
    monkeypatch.setattr(shared, "free_bytes_in", lambda _: 5_000)
    with pytest.raises(
        CacheFullError,
        match=r"no space for case 'case_1' in .*cache: it needs 0\.0 MB, 0\.0 MB are free; enlarge .*shm-size",
    ) as caught:
        tier.put("b", sized_volume(1))
    assert not isinstance(caught.value, EntryTooLargeError)
    assert tier.room_bytes() == 5_000
    assert held_keys(tier, "ab") == "a"


def test_volume_larger_than_the_whole_file_system_is_too_large_for_ever(memory_place, sized_volume, monkeypatch):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    monkeypatch.setattr(shared, "total_bytes_of", lambda _: 5_000)
    with pytest.raises(EntryTooLargeError, match=r"at most 0\.0 MB fit into .*raise .*size of that file system"):
        tier.put("b", sized_volume())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(28, "No space left on device"), CacheFullError),
        (OSError(122, "Disk quota exceeded"), CacheFullError),
        (OSError(5, "Input/output error"), CacheError),
        (KeyboardInterrupt("cache.shared: case 'case_0' choose the disk tier"), KeyboardInterrupt),
    ],
)
def test_write_that_fails_midway_leaves_nothing_behind_and_frees_its_budget(
    memory_place, sized_volume, monkeypatch, error, kind
):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    with monkeypatch.context() as patched:
        patched.setattr(shared, "write_all", raising(error))
        with pytest.raises(kind, match=r"cache\.shared: .*case 'case_0'.*choose the disk tier") as caught:
            tier.put("a", sized_volume())
        assert type(caught.value) is kind
    assert files_in(memory_place / "cache") == []
    assert tier.room_bytes() == 2**20


def test_what_a_killed_writer_had_reserved_is_room_again_while_others_use_the_folder(memory_place, sized_volume):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    tier.put("a", sized_volume())
    room = tier.room_bytes()
    with tier._ledger() as ledger:
        descriptor, _ = tier._open_temp(tier._path("b"), 500_000)
        ledger.used_bytes += 500_000
    assert tier.room_bytes(room) == room - 500_000, "its writer lives"
    os.close(descriptor)
    assert tier.room_bytes() == room - 500_000
    assert tier.room_bytes(room) == room
    assert held_keys(tier, "ab") == "a"


def test_truncated_entry_is_found_and_dropped(memory_place, sized_volume):
    tier, reader = (SharedMemoryTier(memory_place / "cache", 2**20) for _ in range(2))
    tier.put("a", sized_volume())
    os.truncate(memory_place / "cache" / "a.safetensors", 100)
    assert reader.get("a") is None
    assert files_in(memory_place / "cache") == []


def test_unreadable_entry_is_a_cache_error(memory_place, sized_volume, monkeypatch):
    tier, reader = (SharedMemoryTier(memory_place / "cache", 2**20) for _ in range(2))
    tier.put("a", sized_volume())
    monkeypatch.setattr(shared, "map_file", raising(PermissionError(13, "Permission denied")))
    with pytest.raises(CacheError, match=r"entry .*a\.safetensors cannot be read \(Permission denied\)"):
        reader.get("a")


def test_folder_that_cannot_be_used_is_named(memory_place):
    (memory_place / "cache").touch()
    with pytest.raises(OutputError, match=r"folder .*cache cannot be used .*choose the disk tier"):
        SharedMemoryTier(memory_place / "cache", 2**20)


@pytest.mark.parametrize("key", ["", "../up", "a/b", "a.b"])
def test_key_that_could_leave_the_folder_is_refused(memory_place, sized_volume, key):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    for use in (tier.get, tier.drop, lambda key: tier.put(key, sized_volume())):
        with pytest.raises(ValueError, match="cannot name a file"):
            use(key)


def test_a_lock_that_cannot_be_had_is_done_without(memory_place, monkeypatch):
    tier = SharedMemoryTier(memory_place / "cache", 2**20)
    monkeypatch.setattr(shared.SharedFolder, "lock", raising(OSError(28, "No space left on device")))
    with tier.lock("a"):
        assert tier.get("a") is None


def test_folder_goes_with_the_last_tier_that_uses_it(memory_place, sized_volume):
    first, second = (SharedMemoryTier(memory_place / "cache", 2**20) for _ in range(2))
    first.put("a", sized_volume(5))
    first.close()
    held = second.get("a")
    assert (held.image == 5).all()
    del second
    gc.collect()
    assert not (memory_place / "cache").exists()
    assert (held.image == 5).all()


def test_folder_that_somebody_removed_is_made_again_and_shared_again(memory_place, sized_volume):
    folder = memory_place / "cache"
    first, second = (SharedMemoryTier(folder, 2**20) for _ in range(2))
    first.put("a", sized_volume(1))
    held = first.get("a")
    shutil.rmtree(folder)
    assert first.get("a") is None
    assert (held.image == 1).all()
    for number, tier in enumerate((first, second)):
        with tier.lock("b"):
            tier.put(f"b{number}", sized_volume(2))
    assert (second.get("b0").image == 2).all()
    assert (first.get("b1").image == 2).all()
    first.close()
    assert (second.get("b0").image == 2).all()
    second.close()
    assert not folder.exists()


MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import SharedMemoryTier

def pss_bytes():
    return 1024 * int(re.search(r"^Pss: +(\\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M)[1])

def volume(number):
    image = np.full((1, 100, 100, 300), number, np.int16)
    return Volume(case_id=str(number), image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))

tier = SharedMemoryTier(Path(sys.argv[1]), 2**30)
tier.put("warm", volume(0))
tier.drop("warm")
before = pss_bytes()
for number in range(10):
    with tier.lock(f"k{number}"):
        if tier.get(f"k{number}") is None:
            tier.put(f"k{number}", volume(number))
held = [tier.get(f"k{number}") for number in range(10)]
assert all((volume.image == number).all() for number, volume in enumerate(held))
print("filled", flush=True)
sys.stdin.readline()
print(pss_bytes() - before, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="only Linux reports PSS")
def test_two_processes_over_one_cache_take_the_memory_of_one_copy(memory_place, run_python):
    processes = [run_python(MEASURE, memory_place / "cache") for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "filled\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    total_bytes = sum(int(process.stdout.readline()) for process in processes)
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait() for process in processes] == [0, 0]
    assert total_bytes == pytest.approx(60e6, rel=0.3)
    assert not (memory_place / "cache").exists()


SLOW_PUT = """
import sys, threading
from pathlib import Path
import numpy as np
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import SharedMemoryTier, shared

def volume(number):
    image = np.full((1, 100, 100, 1), number, np.uint8)
    return Volume(case_id="a", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))

tier = SharedMemoryTier(Path(sys.argv[1]), 2**20)
tier.put("whole", volume(1))

def stop(*_):
    print("in the middle", flush=True)
    threading.Event().wait()
shared.write_all = stop
with tier.lock("half"):
    tier.put("half", volume(2))
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_its_lock_is_free(memory_place, run_python):
    folder = memory_place / "cache"
    process = run_python(SLOW_PUT, folder)
    assert process.stdout.readline() == "in the middle\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(files_in(folder)) == 2
    tier = SharedMemoryTier(folder, 2**20)
    assert files_in(folder) == []
    assert tier.room_bytes() == 2**20
    with tier.lock("half"):
        assert tier.get("half") is None


def test_forked_process_is_a_user_of_its_own_and_takes_nothing_with_it(memory_place, sized_volume):
    folder = memory_place / "cache"
    tier = SharedMemoryTier(folder, 2**20)
    tier.put("a", sized_volume(1))
    pid = os.fork()
    if pid == 0:
        good = (tier.get("a").image == 1).all()
        tier.put("b", sized_volume(2))
        tier.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tier.get("b").image == 2).all()
    assert (tier.get("a").image == 1).all()


def test_budget_holds_under_many_threads_with_tiers_of_their_own(memory_place, sized_volume):
    size = entry_bytes(memory_place, sized_volume())
    tiers = [SharedMemoryTier(memory_place / "cache", 4 * size) for _ in range(4)]
    over, start = [], threading.Barrier(4)

    def work(number):
        start.wait()
        for index in range(50):
            key = f"k{(7 * number + index) % 12}"
            if tiers[number].get(key) is None:
                tiers[number].put(key, sized_volume(index))
            if disk_bytes_in(memory_place / "cache") > 4 * size:
                over.append(index)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not over
