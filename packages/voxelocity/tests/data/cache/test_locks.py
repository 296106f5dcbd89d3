import threading

import pytest
from filelock import FileLock

from voxelocity.data.cache import PassingLocks, SharedMemoryTier, locks
from voxelocity.data.cache.locks import KeyLocks


def test_one_thread_at_a_time_holds_a_key_and_other_keys_do_not_wait(tmp_path):
    passing, order = PassingLocks(tmp_path), []

    def work(number):
        with passing.hold("a"):
            order.append(number)
            order.append(number)

    with passing.hold("a"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        with passing.hold("b"):
            assert order == []
            assert {path.name for path in tmp_path.iterdir()} == {".a.lock", ".b.lock"}
    for thread in threads:
        thread.join()
    assert order[::2] == order[1::2]
    assert sorted(order[::2]) == [0, 1, 2]


def test_nothing_is_left_in_the_folder_when_nobody_holds_a_lock(tmp_path):
    with PassingLocks(tmp_path).hold("a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_done_without(tmp_path):
    with PassingLocks(tmp_path / "gone").hold("a"):
        pass
    assert not (tmp_path / "gone" / ".a.lock").exists()


def test_locks_of_a_key_each_leave_no_file_and_shared_ones_stay(tmp_path):
    with KeyLocks(tmp_path).hold("a"):
        assert (tmp_path / "locks" / "a.lock").exists()
    assert list((tmp_path / "locks").iterdir()) == []
    with KeyLocks(tmp_path, num_files=4).hold("a"):
        pass
    assert len(list((tmp_path / "locks").iterdir())) == 1


@pytest.mark.parametrize("kind", ["key", "passing", "shared memory"])
def test_a_process_that_holds_a_lock_and_is_stopped_is_not_waited_for_without_end_and_that_is_said_once(
    tmp_path, memory_place, monkeypatch, kind
):
    monkeypatch.setattr(locks, "_MAX_WAIT_S", 0.0)
    messages = []
    if kind == "key":
        folder = tmp_path
        hold, path = KeyLocks(folder, warn=messages.append).hold, tmp_path / "locks" / "a.lock"
    elif kind == "passing":
        folder = tmp_path
        hold, path = PassingLocks(folder, warn=messages.append).hold, tmp_path / ".a.lock"
    else:
        folder = memory_place / "cache"
        tier = SharedMemoryTier(folder, 2**20, warn=messages.append)
        hold, path = tier.lock, folder / ".a.lock"
    with FileLock(path):
        for _ in range(2):
            with hold("a"):
                pass
        assert path.exists(), "the lock of another process was removed"
    assert len(messages) == 1
    assert str(folder) in messages[0]
    assert "also prepares the case" in messages[0]
