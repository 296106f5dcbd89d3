import threading

import numpy as np
import pytest

from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import MemoryTier


def volume(case_id="a", num_bytes=1000):
    image = np.arange(num_bytes, dtype=np.uint8).reshape(1, num_bytes, 1, 1)
    return Volume(case_id=case_id, image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))


def test_arrays_are_handed_out_read_only_and_without_a_copy():
    tier = MemoryTier(10_000)
    given = volume()
    tier.put("k", given)
    image = tier.get("k").image
    assert np.shares_memory(image, given.image)
    with pytest.raises(ValueError, match="read-only"):
        image[0, 0, 0, 0] = 1


def test_part_of_a_larger_array_is_copied_so_that_the_rest_can_go():
    large = np.zeros((1, 100, 10, 10), np.float32)
    part = large[:, :50]
    tier = MemoryTier(10**6)
    tier.put("k", Volume(case_id="a", image=part, label=None, grid=Grid.of(part.shape, np.eye(4))))
    assert not np.shares_memory(tier.get("k").image, large)


def test_entry_used_longest_ago_goes_first():
    tier = MemoryTier(3000)
    for key in "abc":
        tier.put(key, volume(key))
    tier.get("a")
    tier.put("d", volume("d", 1500))
    assert [key for key in "abcd" if tier.get(key) is not None] == ["a", "d"]
    assert tier._num_bytes == 2500


def test_budget_holds_under_many_threads():
    tier = MemoryTier(5000)
    start = threading.Barrier(4)
    over = []

    def work(number):
        start.wait()
        for index in range(200):
            key = f"{(number * 7 + index) % 12}"
            if tier.get(key) is None:
                tier.put(key, volume(key))
            if tier._num_bytes > 5000:
                over.append(index)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not over
    assert tier._num_bytes == 5000
