import threading
import time

import pytest

from voxelocity.data.pipeline.prepared import MemoryBudget


def most_at_once(room, sizes):
    lock, in_work, largest = threading.Lock(), [], []

    def work(size):
        with room.taking(size):
            with lock:
                in_work.append(size)
                largest.append(tuple(in_work))
            time.sleep(0.02)
            with lock:
                in_work.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    return largest


def test_work_at_once_stays_within_the_budget():
    assert max(sum(sizes) for sizes in most_at_once(MemoryBudget(100), [40] * 8)) == 80


def test_work_larger_than_the_budget_is_done_alone_and_not_refused():
    assert set(most_at_once(MemoryBudget(100), [500, 600, 700])) == {(500,), (600,), (700,)}


def test_room_is_given_back_when_the_work_fails():
    room = MemoryBudget(10)
    with pytest.raises(ValueError, match="broken"), room.taking(10):
        raise ValueError("broken")
    with room.taking(10):
        pass
