import os

import pytest

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans import SpanRecorder, end_range, phase, report_ended_span, span, start_range
from voxelocity_observe.spans.scope import LISTENERS


def names(recorder):
    return [record.name for record in recorder.take()]


def test_a_span_is_seen_by_all_who_listen_and_by_nobody_else():
    with SpanRecorder() as outer:
        with SpanRecorder() as inner, span("both"):
            pass
        with span("one"):
            pass
    with span("none"):
        pass
    assert names(inner) == ["both"]
    assert names(outer) == ["both", "one"]


def test_a_span_ends_although_its_block_raised():
    with SpanRecorder() as recorder, pytest.raises(ValueError, match="inside"), span("outer"), span("inner"):
        raise ValueError("inside")
    assert names(recorder) == ["inner", "outer"]


def test_a_decorated_function_keeps_its_name_and_has_a_span_for_each_call_of_itself():
    @span("count", color="green")
    def count_down(n: int) -> int:
        """Counts."""
        return 0 if n == 0 else 1 + count_down(n - 1)

    with SpanRecorder() as recorder:
        assert count_down(2) == 2
    assert (count_down.__name__, count_down.__doc__) == ("count_down", "Counts.")
    assert [(r.name, r.color, r.depth) for r in recorder.take()] == [("count", "green", d) for d in (2, 1, 0)]


def test_what_works_after_its_call_has_ended_cannot_be_decorated():
    def numbers():
        yield 1

    async def later():
        return 1

    async def stream():
        yield 1

    for function, name in ((numbers, "numbers"), (later, "later"), (stream, "stream")):
        with pytest.raises(InputError, match=rf"{name} is a generator or a coroutine.*put `with span\('x'\):` around"):
            span("x")(function)


def test_a_listener_that_comes_within_a_span_is_not_notified_of_its_end():
    with span("begun before"):
        recorder = SpanRecorder().start()
        with span("inner"):
            pass
    recorder.stop()
    assert names(recorder) == ["inner"]


def test_a_span_that_ends_after_its_recorder_was_stopped_is_kept():
    recorder = SpanRecorder().start()
    with span("long"):
        recorder.stop()
    assert names(recorder) == ["long"]


def test_phases_are_distinguished_from_other_spans_and_may_be_reported_afterwards():
    with SpanRecorder() as recorder:
        with phase("validation"), span("window"):
            pass
        report_ended_span("start-up", start_s=3.0, seconds=2.5, color="grey")
    window, validation, start = recorder.take()
    assert (window.is_phase, validation.is_phase, start.is_phase) == (False, True, True)
    assert (start.start_s, start.seconds, start.color, start.parent) == (3.0, 2.5, "grey", None)


def test_ranges_cross_each_other():
    with SpanRecorder() as recorder:
        first = start_range("first", color="red")
        # As scripts for the nvtx package call it.
        second = start_range(message="second")
        end_range(first)
        with span("block"):
            pass
        end_range(second)
    found = [(r.name, r.color, r.depth) for r in recorder.take()]
    assert found == [("first", "red", 0), ("block", "", 0), ("second", "", 0)]


@pytest.mark.parametrize("names", [{}, {"name": "a", "message": "b"}])
def test_a_range_has_one_name(names):
    with pytest.raises(InputError, match=r"give one of them, start_range\('dataload'\)"):
        start_range(**names)


def test_a_forked_child_looks_for_listeners_of_its_own():
    with SpanRecorder():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(LISTENERS.now).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            assert answer.read() == "None"


def test_without_a_tool_and_a_monitor_nobody_listens():
    with span("off"):
        assert LISTENERS.now == ()
