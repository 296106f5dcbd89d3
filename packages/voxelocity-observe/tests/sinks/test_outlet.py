import threading
from dataclasses import replace

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.sinks import Outlets, outlet


class Listener:
    """A sink that keeps what it is told; at `fails_at` ("begin", an event's name, "end") it raises."""

    def __init__(self, fails_at="", name="listener"):
        self.name, self.fails_at, self.calls, self.run = name, fails_at, [], None

    def begin(self, run):
        self.run = run
        self._call("begin")

    def write(self, event):
        self._call(event["event"])

    def end(self):
        self._call("end")

    def _call(self, what):
        self.calls.append(what)
        if what == self.fails_at:
            raise OSError("no route\n to host")


def test_a_sink_is_told_every_event_in_order_between_its_beginning_and_its_end(start, tell, first_session):
    sink = Listener()
    assert tell(sink, first_session) == []
    assert sink.calls == ["begin", *(event["event"] for event in first_session), "end"]
    assert (sink.run.is_resumed, sink.run.first_step) == (False, 0)
    assert replace(sink.run, told=(), kept=()) == start


def test_a_resumed_run_is_begun_once_it_is_known_where_it_goes_on(tell, first_session, second_session):
    sink = Listener()
    tell(sink, second_session, first_session)
    assert sink.calls == ["begin", *(event["event"] for event in second_session), "end"]
    assert sink.run.is_resumed
    assert sink.run.first_step == 20
    assert sink.run.told == first_session
    assert [event.get("step") for event in sink.run.kept] == [None, 10, 20, 20, 20]


def test_a_resumed_run_that_comes_to_nothing_leaves_the_record_as_it_was(tell, first_session, second_session):
    sink = Listener()
    tell(sink, second_session[:2], first_session)
    assert sink.calls == []


@pytest.mark.parametrize("fails_at", ["begin", "validation", "end"])
def test_a_sink_that_fails_is_told_of_once_and_left_alone(tell, first_session, fails_at):
    sink = Listener(fails_at)
    assert tell(sink, first_session) == [
        "sinks: listener is dropped (OSError: no route to host); the run continues, and its folder has all data"
    ]
    assert sink.calls.count(fails_at) == 1
    assert sink.calls[-1] == fails_at


def test_a_sink_that_fails_takes_no_other_along(start, first_session):
    warnings, bad, good = [], Listener("steps", name="bad"), Listener(name="good")
    with Outlets([bad, good], start, warn=warnings.append) as outlets:
        for event in first_session:
            outlets.write(event)
    assert bad.calls == ["begin", "run_started", "steps"]
    assert good.calls[-1] == "end"
    assert len(warnings) == 1
    assert "bad is dropped" in warnings[0]


def test_a_warning_about_a_sink_may_be_an_event_itself(start, first_session):
    bad, good = Listener("run_started", name="bad"), Listener(name="good")
    outlets = Outlets([bad, good], start, warn=lambda text: outlets.write({"event": "warning", "text": text}))
    with outlets:
        outlets.write(first_session[0])
        outlets._outlets[0]._thread.join()
    assert good.calls == ["begin", "run_started", "warning", "end"]


class Stuck(Listener):
    def __init__(self):
        super().__init__()
        self.release, self.entered = threading.Event(), threading.Event()

    def write(self, event):
        self.entered.set()
        self.release.wait(timeout=HANGS_S)
        super().write(event)


def test_a_sink_that_hangs_holds_up_neither_the_run_nor_its_end(start, first_session):
    sink, warnings = Stuck(), []
    with Outlets([sink], start, warn=warnings.append, end_s=0.05) as outlets:
        for event in first_session:
            outlets.write(event)
        assert sink.entered.wait(timeout=HANGS_S)
    assert len(warnings) == 1
    assert "dropped (it was not done 0 s after the end of the run)" in warnings[0]
    sink.release.set()
    outlets._outlets[0]._thread.join(timeout=HANGS_S)
    assert sink.calls == ["begin", "run_started"] or sink.calls == ["begin", "run_started", "end"]
    assert len(warnings) == 1


def test_a_sink_that_falls_too_far_behind_is_given_up(start, first_session, monkeypatch):
    monkeypatch.setattr(outlet, "_MAX_WAITING", 3)
    sink, warnings = Stuck(), []
    with Outlets([sink], start, warn=warnings.append) as outlets:
        for event in [*first_session, *first_session]:
            outlets.write(event)
        sink.release.set()
    assert warnings == [
        "sinks: listener is dropped (it is 3 events behind); the run continues, and its folder has all data"
    ]
    outlets._outlets[0]._thread.join(timeout=HANGS_S)


def test_without_sinks_nothing_is_started(start, first_session):
    before = threading.active_count()
    with Outlets([], start, warn=print) as outlets:
        outlets.write(first_session[0])
        assert threading.active_count() == before
