import os
import threading

import pytest

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.spans import SpanRecorder, end_range, report_ended_span, span, start_range


class LateDevice:
    """A device that passes its marks only when asked to; each mark lies 2 s after the one before."""

    def __init__(self):
        self.made = 0
        self.queued = []
        self.free = []

    def mark(self):
        mark = self.free.pop() if self.free else [self._new()]
        mark[0] = 2.0 * len(self.queued)
        self.queued.append(mark[0])
        mark[1:] = [False]
        self.all = [*getattr(self, "all", []), mark]
        return mark

    def _new(self):
        self.made += 1
        return 0.0

    def pass_first(self, count):
        for mark in self.all[:count]:
            mark[1] = True

    def seconds(self, begin, end):
        return end[0] - begin[0] if begin[1] and end[1] else None

    def release(self, mark):
        self.free.append(mark)


class Meter:
    def __init__(self):
        self.resets = 0
        self.used = 100

    def reset(self):
        self.resets += 1

    def peak_bytes(self):
        self.used += 1
        return self.used


def test_nested_spans_know_their_times_their_parent_and_their_depth():
    clock = FakeClock(10.0)
    with SpanRecorder(clock=clock) as recorder, span("step"):
        clock.advance(1.0)
        with span("forward", color="green"):
            clock.advance(2.0)
        with span("backward"):
            clock.advance(3.0)
    forward, backward, step = recorder.take()
    assert [(r.name, r.start_s, r.seconds, r.depth) for r in (forward, backward, step)] == [
        ("forward", 11.0, 2.0, 1),
        ("backward", 13.0, 3.0, 1),
        ("step", 10.0, 6.0, 0),
    ]
    assert (forward.parent, backward.parent, step.parent) == (step.number, step.number, None)
    assert (forward.color, forward.thread, forward.device_s, forward.rank) == ("green", "MainThread", None, 0)
    assert recorder.take() == []


def test_threads_have_their_own_nesting_and_name():
    with SpanRecorder(rank=3) as recorder, span("main"):
        thread = threading.Thread(target=span("decode")(lambda: None), name="feed-0")
        thread.start()
        thread.join()
    decode, main = recorder.take()
    assert (decode.thread, decode.parent, decode.depth, decode.rank) == ("feed-0", None, 0, 3)
    assert main.thread == "MainThread"


def test_many_threads_lose_no_span():
    def work():
        for _ in range(300):
            with span("outer"), span("inner"):
                pass

    with SpanRecorder() as recorder:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = recorder.take()
    assert len(records) == 2400
    assert len({r.number for r in records}) == 2400
    outer = {r.number: r.thread for r in records if r.name == "outer"}
    assert all(outer[r.parent] == r.thread for r in records if r.name == "inner")


def test_a_range_may_end_in_another_thread():
    clock = FakeClock()
    with SpanRecorder(clock=clock) as recorder, span("around"):
        opened = start_range("batch")
        clock.advance(1.5)
        thread = threading.Thread(target=end_range, args=(opened,))
        thread.start()
        thread.join()
    batch, around = recorder.take()
    assert (batch.seconds, batch.thread, batch.parent) == (1.5, "MainThread", around.number)


def test_only_the_newest_spans_are_kept_and_the_rest_is_counted():
    device = LateDevice()
    with SpanRecorder(max_spans=2, device=device) as recorder:
        for name in "abcd":
            with span(name):
                pass
    device.pass_first(8)
    assert [record.name for record in recorder.take()] == ["c", "d"]
    assert recorder.num_dropped == 2
    assert len(device.free) == device.made  # nothing that was dropped keeps a mark


def test_spans_are_given_when_the_device_has_passed_them_and_not_before():
    device = LateDevice()
    with SpanRecorder(device=device) as recorder:
        with span("step"), span("forward"):
            pass
        with span("next"):
            pass
        assert recorder.take() == []
        device.pass_first(3)  # begin of step, begin and end of forward
        assert [(r.name, r.device_s) for r in recorder.take()] == [("forward", 2.0)]
        device.pass_first(6)
        assert [(r.name, r.device_s) for r in recorder.take()] == [("step", 6.0), ("next", 2.0)]


def test_marks_are_used_again():
    device = LateDevice()
    with SpanRecorder(device=device) as recorder:
        for _ in range(20):
            with span("step"):
                pass
            device.pass_first(len(device.all))
            recorder.take()
    assert device.made == 2


def test_the_device_and_the_meters_are_asked_in_the_recorders_thread_alone():
    device, meter = LateDevice(), Meter()
    with SpanRecorder(device=device, meters={"device": meter}) as recorder:
        thread = threading.Thread(target=span("decode")(lambda: None))
        thread.start()
        thread.join()
    (decode,) = recorder.take()
    assert (decode.device_s, dict(decode.peak_bytes), device.made, meter.resets) == (None, {}, 0, 0)


def test_a_range_that_ends_in_another_thread_has_no_time_of_the_device():
    device = LateDevice()
    with SpanRecorder(device=device) as recorder:
        opened = start_range("batch")
        thread = threading.Thread(target=end_range, args=(opened,))
        thread.start()
        thread.join()
    (batch,) = recorder.take()
    assert batch.device_s is None
    assert len(device.free) == device.made == 1


def test_a_device_that_gives_no_mark_now_leaves_the_host_time():
    device = LateDevice()
    device.mark = lambda: None
    with SpanRecorder(device=device) as recorder, span("captured"):
        pass
    assert [(r.name, r.device_s) for r in recorder.take()] == [("captured", None)]


def test_peaks_are_counted_from_the_begin_of_the_outermost_span():
    meter = Meter()
    with SpanRecorder(meters={"device": meter}) as recorder:
        for _ in range(2):
            with span("step"), span("forward"):
                pass
    assert meter.resets == 2
    assert [r.peak_bytes["device"] for r in recorder.take()] == [101, 102, 103, 104]


def test_a_generator_that_ends_late_closes_its_own_span():
    def numbers():
        with span("numbers"):
            yield 1

    with SpanRecorder() as recorder, span("outer"):
        generator = numbers()
        next(generator)
        with span("within"):
            generator.close()
    numbers_record, within, outer = recorder.take()
    assert [r.name for r in (numbers_record, within, outer)] == ["numbers", "within", "outer"]
    assert within.parent == numbers_record.number
    assert outer.depth == 0


def test_the_rank_is_the_launchers(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    with SpanRecorder() as recorder:
        report_ended_span("start-up", start_s=0.0, seconds=1.0)
    assert [r.rank for r in recorder.take()] == [5]


def test_a_recorder_that_could_keep_nothing_is_refused():
    with pytest.raises(ConfigError, match="max_spans=0; keep at least 1 span"):
        SpanRecorder(max_spans=0)


def test_a_forked_child_is_not_recorded():
    with SpanRecorder() as recorder:
        child = os.fork()
        if child == 0:
            with span("child"):
                pass
            os._exit(len(recorder.take()))
        assert os.waitpid(child, 0)[1] == 0
