import time
import traceback

import pytest
import torch
from monai.transforms import Compose, Lambda

from shared.limits import HANGS_S
from voxelocity_observe.core.errors import ConfigError


def fails_after(count):
    yield from range(count)
    raise ValueError(f"scan {count} is broken")


def test_items_come_in_order_pass_after_pass(sets):
    source = [*range(20), None, 21]
    buffer = sets.ThreadBuffer(source, buffer_size=3)
    assert list(buffer) == list(buffer) == source
    assert (buffer.src, buffer.buffer_size, buffer.timeout) == (source, 3, 0.01)


def test_an_error_of_the_source_is_raised_where_its_item_would_have_come(sets):
    found = []
    with pytest.raises(ValueError, match="scan 3 is broken") as caught:
        found.extend(sets.ThreadBuffer(fails_after(3)))
    assert found == [0, 1, 2]
    assert "fails_after" in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.parametrize("arguments", [{"num_workers": 1}, {"num_workers": 2, "use_thread_workers": True}])
def test_an_error_of_a_transform_ends_the_epoch_with_the_error(sets, fails_on, arguments):
    dataset = sets.Dataset([0, 1, 2, 3], Compose([fails_on(2)]))
    found = []
    with pytest.raises(RuntimeError, match="applying transform"):
        found.extend(map(int, sets.ThreadDataLoader(dataset, batch_size=1, **arguments)))
    assert found == [0, 1]


def test_making_an_item_adds_nothing_to_a_data_set_that_thread_workers_share(sets):
    dataset = sets.Dataset([0, 1], Compose([]))
    before = set(vars(dataset))
    assert dataset[1] == 1
    assert set(vars(dataset)) == before, "MONAI's worker_init_fn may be going through them"


def test_stop_within_a_loop_ends_it(sets):
    buffer = sets.ThreadBuffer(range(1000))
    found = []
    for item in buffer:
        found.append(item)
        assert buffer.is_running
        if item == 2:
            buffer.stop()
    assert found == [0, 1, 2]
    assert not buffer.is_running


@pytest.mark.timeout(60)
def test_two_passes_at_once_are_each_whole(sets):
    buffer = sets.ThreadBuffer(range(50), buffer_size=2)
    first, second = iter(buffer), iter(buffer)
    assert [next(first) for _ in range(10)] == list(range(10))
    assert list(second) == list(range(50))
    assert list(first) == list(range(10, 50))


@pytest.mark.timeout(60)
def test_two_passes_at_once_never_run_a_transform_in_two_threads(sets):
    inside, seen = [0], []

    def note(x):
        inside[0] += 1
        seen.append(inside[0])
        time.sleep(0.001)
        inside[0] -= 1
        return x

    loader = sets.ThreadDataLoader(sets.Dataset(list(range(40)), Compose([Lambda(note)])), batch_size=1)
    found = [(int(a), int(b)) for a, b in zip(loader, loader, strict=True)]
    assert found == [(i, i) for i in range(40)]
    assert set(seen) == {1}


def test_no_more_is_taken_ahead_than_asked_for(sets):
    taken = []
    source = (taken.append(number) or number for number in range(100))
    items = iter(sets.ThreadBuffer(source, buffer_size=2))
    next(items)
    deadline = time.monotonic() + HANGS_S
    while len(taken) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    # One given, two in the buffer, one in the thread's hand.
    assert len(taken) == 4
    items.close()


@pytest.mark.parametrize("buffer_size", [0, -1])
def test_a_buffer_size_of_nothing_means_no_bound(sets, buffer_size):
    assert list(sets.ThreadBuffer(range(30), buffer_size=buffer_size)) == list(range(30))


def test_batches_are_repeated_as_the_same_object(sets):
    loader = sets.ThreadDataLoader(sets.Dataset([1, 2, 3, 4]), batch_size=2, repeats=3)
    batches = list(loader)
    assert [batch.tolist() for batch in batches] == [[1, 2]] * 3 + [[3, 4]] * 3
    assert batches[0] is batches[1] is batches[2]
    assert isinstance(loader, torch.utils.data.DataLoader)


def test_refused_arguments_are_reported_with_the_cure(sets):
    with pytest.raises(ConfigError, match=r"ThreadBuffer: timeout = -1 is not valid: use 0 or more seconds"):
        sets.ThreadBuffer([], timeout=-1)
    with pytest.raises(ConfigError, match=r"repeats = 0 gives no batches; use 1 or more"):
        sets.ThreadDataLoader([1], repeats=0)
    with pytest.raises(ConfigError, match=r"buffer_timeout = -1 is not valid: use 0 or more seconds"):
        sets.ThreadDataLoader([1], buffer_timeout=-1)
