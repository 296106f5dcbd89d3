import gc
import subprocess
import sys
import threading
import traceback
import weakref
from itertools import count, islice

import pytest
import torch

from shared.limits import HANGS_S
from voxelocity.data import feed
from voxelocity.data.feed import BufferRing, OrderedPrefetch, ThreadBuffer

WAIT_S = 20.0
"""Longest wait for another thread; reached only when a test fails."""


def feed_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("voxelocity-feed")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if feed_threads():
        gc.collect()
    for thread in feed_threads():
        thread.join(WAIT_S)
    assert feed_threads() == []


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_items_come_in_order_for_any_number_of_threads(num_threads):
    with OrderedPrefetch(lambda i: i * i, start=3, stop=50, num_threads=num_threads, num_ahead=5) as items:
        assert list(items) == [i * i for i in range(3, 50)]
    assert feed_threads() == []


def test_items_come_in_order_when_they_are_finished_in_reverse():
    later_is_made = threading.Event()

    def make(index):
        if index == 0:
            assert later_is_made.wait(WAIT_S)
        else:
            later_is_made.set()
        return index

    with OrderedPrefetch(make, stop=2, num_threads=2, num_ahead=2) as items:
        assert list(items) == [0, 1]


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_ahead", [1, 2, 5])
@pytest.mark.parametrize("stop", [None, 1, 7, 300])
def test_no_thread_waits_for_a_wake_up_that_was_lost(num_threads, num_ahead, stop):
    items = OrderedPrefetch(lambda i: i, stop=stop, num_threads=num_threads, num_ahead=num_ahead)
    taken, done = [], threading.Event()

    def take():
        taken.extend(islice(items, 300))
        done.set()

    threading.Thread(target=take, daemon=True).start()
    assert done.wait(WAIT_S)
    assert taken == list(range(300 if stop is None else stop))
    items.close()


def test_an_item_wakes_only_those_it_concerns(monkeypatch):
    looks = count()
    has_no_more = feed._WorkerPool._has_no_more

    def counted(pool):
        next(looks)
        return has_no_more(pool)

    monkeypatch.setattr(feed._WorkerPool, "_has_no_more", counted)
    with OrderedPrefetch(lambda i: i, num_threads=8, num_ahead=8) as items:
        assert list(islice(items, 400)) == list(range(400))
    # Of an item: before a wait, after one wake-up, before it is claimed, and after that. Eight threads that all woke
    # would look eight times as often.
    assert next(looks) <= 4 * (400 + 8) + 3 * 8


@pytest.mark.parametrize("num_threads", [1, 3])
def test_no_more_items_are_made_ahead_than_allowed(num_threads):
    made, is_made = [], threading.Condition()

    def make(index):
        with is_made:
            made.append(index)
            is_made.notify_all()
        return index

    def settled(num_items):
        with is_made:
            assert is_made.wait_for(lambda: len(made) >= num_items, WAIT_S)
        return sorted(made)

    with OrderedPrefetch(make, num_threads=num_threads, num_ahead=3) as items:
        assert settled(3) == [0, 1, 2]
        assert next(items) == 0
        assert settled(4) == [0, 1, 2, 3]
        assert next(items) == 1
        assert settled(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_error_surfaces_at_its_item_with_its_traceback_and_the_rest_continues(num_threads):
    def fails_for_two(index):
        if index == 2:
            raise ValueError("item two")
        return index

    with OrderedPrefetch(fails_for_two, stop=5, num_threads=num_threads, num_ahead=4) as items:
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(ValueError, match="item two") as caught:
            next(items)
        assert "fails_for_two" in "".join(traceback.format_tb(caught.tb))
        assert list(items) == [3, 4]


def test_error_is_not_kept_alive_by_its_own_traceback():
    class MarkedError(Exception):
        pass

    def make(_index):
        raise MarkedError

    gc.collect()
    gc.disable()
    try:
        with OrderedPrefetch(make, stop=1, num_threads=1, num_ahead=1) as items:
            try:
                next(items)
            except MarkedError as error:
                alive = weakref.ref(error)
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_stop_iteration_from_an_item_does_not_end_the_loop_silently(num_threads):
    with (
        OrderedPrefetch(lambda _: next(iter(())), stop=3, num_threads=num_threads, num_ahead=2) as items,
        pytest.raises(RuntimeError, match="making item 0 raised StopIteration"),
    ):
        list(items)


def test_system_exit_in_a_thread_reaches_the_consumer():
    with OrderedPrefetch(sys.exit, start=7, stop=8, num_threads=1, num_ahead=1) as items, pytest.raises(SystemExit):
        next(items)


def test_early_break_ends_the_threads():
    with OrderedPrefetch(lambda i: i, num_threads=3, num_ahead=4) as items:
        for item in items:
            if item == 10:
                break
        assert len(feed_threads()) == 3
    assert feed_threads() == []


def test_finished_stream_ends_its_threads_without_close():
    assert len(list(OrderedPrefetch(lambda i: i, stop=5, num_threads=2, num_ahead=2))) == 5
    assert feed_threads() == []


def test_iterator_that_is_forgotten_ends_its_threads():
    items = OrderedPrefetch(lambda i: i, num_threads=2, num_ahead=2)
    assert next(items) == 0
    del items
    gc.collect()
    assert feed_threads() == []


def test_close_waits_for_the_item_in_work_and_makes_no_other():
    begun, may_end, finished = threading.Event(), threading.Event(), []

    def make(index):
        begun.set()
        assert may_end.wait(WAIT_S)
        finished.append(index)

    items = OrderedPrefetch(make, num_threads=1, num_ahead=3)
    assert begun.wait(WAIT_S)
    threading.Timer(0.01, may_end.set).start()
    items.close()
    assert finished == [0]
    assert feed_threads() == []
    assert list(items) == []
    items.close()


def test_no_thread_is_started_for_an_empty_stream_or_none_asked_for():
    with OrderedPrefetch(lambda i: i, stop=0, num_threads=4, num_ahead=2) as items:
        assert feed_threads() == []
        assert list(items) == []
    with OrderedPrefetch(lambda i: i, stop=9, num_threads=0, num_ahead=2) as items:
        assert next(items) == 0
        assert feed_threads() == []


@pytest.mark.parametrize("num_threads", [0, 2])
def test_waiting_is_measured(num_threads):
    with OrderedPrefetch(
        lambda i: i, stop=3, num_threads=num_threads, num_ahead=1, clock=count(step=1.5).__next__
    ) as items:
        list(items)
    assert items.wait_s == 4.5


def test_a_thread_that_cannot_be_started_is_an_error_and_is_not_waited_for(monkeypatch):
    start, started = threading.Thread.start, []

    def start_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_one)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            OrderedPrefetch(lambda i: i, start=0, stop=9, num_threads=3, num_ahead=2)


def test_interpreter_ends_promptly_with_a_feed_left_open():
    code = (
        "from voxelocity.data.feed import OrderedPrefetch\n"
        "items = OrderedPrefetch(lambda i: i, num_threads=2, num_ahead=2)\n"
        "items.me = items\n"
        "print(next(items))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_thread_buffer_runs_its_source_in_another_thread_ahead_of_the_consumer():
    second_is_taken, threads = threading.Event(), set()

    def source():
        threads.add(threading.current_thread())
        yield "first"
        second_is_taken.set()
        yield "second"

    items = iter(ThreadBuffer(source()))
    assert next(items) == "first"
    assert second_is_taken.wait(WAIT_S)
    assert list(items) == ["second"]
    assert threading.current_thread() not in threads


def test_early_break_ends_the_thread_of_a_buffer():
    assert list(islice(ThreadBuffer(count()), 3)) == [0, 1, 2]
    gc.collect()
    assert feed_threads() == []


def test_closing_ends_a_consumer_that_waits_in_another_thread():
    begun, go_on = threading.Event(), threading.Event()

    def make(index):
        begun.set()
        go_on.wait(HANGS_S)
        return index

    taken = []
    items = OrderedPrefetch(make, num_threads=1, num_ahead=1)
    consumer = threading.Thread(target=lambda: taken.extend(items))
    consumer.start()
    assert begun.wait(HANGS_S)
    closer = threading.Thread(target=items.close)
    closer.start()
    consumer.join(HANGS_S)
    assert not consumer.is_alive()
    go_on.set()
    closer.join(HANGS_S)
    assert taken == []


@pytest.mark.parametrize("num_threads", [0, 1])
def test_an_interrupted_wait_uses_up_no_item(num_threads, monkeypatch):
    items = OrderedPrefetch(lambda index: index, num_threads=num_threads, num_ahead=2)
    times = iter([0.0])
    real = items._make if num_threads == 0 else items._crew.take

    def interrupted(index):
        if next(times, None) is not None:
            raise KeyboardInterrupt
        return real(index)

    monkeypatch.setattr(*((items, "_make") if num_threads == 0 else (items._crew, "take")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    items.close()


def num_free(ring):
    return sum(map(len, ring._free.values()))


def test_memory_is_used_again_once_nobody_holds_it():
    ring = BufferRing(max_free=2)
    first = ring.take((4, 5), torch.float32)
    place = first.data_ptr()
    assert (first.shape, first.dtype, first.is_contiguous()) == ((4, 5), torch.float32, True)
    del first
    gc.collect()
    assert num_free(ring) == 1
    assert ring.take((4, 5), torch.float32).data_ptr() == place


def test_memory_is_kept_while_a_view_or_a_graph_holds_it():
    ring = BufferRing(max_free=2)
    batch = ring.take((4, 5), torch.float32).fill_(3.0)
    view, weight = batch[1], torch.ones(5, requires_grad=True)
    loss = (batch[2] * weight).sum()
    place = batch.data_ptr()
    del batch
    gc.collect()
    assert num_free(ring) == 0
    ring.take((4, 5), torch.float32).fill_(9.0)
    assert (view == 3.0).all()
    del view
    gc.collect()
    assert ring.take((4, 5), torch.float32).data_ptr() != place
    loss.backward()
    assert (weight.grad == 3.0).all()


def test_kinds_do_not_mix_and_only_a_limited_number_is_kept():
    ring = BufferRing(max_free=1)
    held = [ring.take((3,), torch.uint8) for _ in range(3)] + [ring.take((3,), torch.float32)]
    del held
    gc.collect()
    assert num_free(ring) == 2


def test_memory_may_come_back_while_the_same_thread_is_inside_the_ring():
    """As the garbage collector may do at any call."""
    ring = BufferRing(max_free=2)
    held = [ring.take((3,), torch.uint8)]

    class Collecting(dict):
        def __missing__(self, kind):
            held.clear()
            return self.setdefault(kind, [])

    ring._free = Collecting({kind: list(free) for kind, free in ring._free.items()})
    taking = threading.Thread(target=ring.take, args=((4,), torch.uint8), daemon=True)
    taking.start()
    taking.join(HANGS_S)
    assert not taking.is_alive(), "the ring waits for itself"
    assert num_free(ring) == 2


@pytest.mark.gpu
def test_page_locked_memory_is_used_again_with_what_was_copied_from_it_whole():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    ring, stream, copies = BufferRing(max_free=2, pinned=True), torch.cuda.Stream(), []
    busy, places = torch.zeros(2**26, device="cuda"), set()
    for number in range(16):
        buffer = ring.take((2**20,), torch.float32).fill_(number)
        assert buffer.is_pinned()
        places.add(buffer.data_ptr())
        with torch.cuda.stream(stream):
            busy.add_(1.0)
            copies.append(buffer.to("cuda", non_blocking=True))
        # As the feed does before it lets go of the buffer.
        stream.synchronize()
        del buffer
        gc.collect()
    assert len(places) == 1
    assert all(bool((copy == number).all()) for number, copy in enumerate(copies))
