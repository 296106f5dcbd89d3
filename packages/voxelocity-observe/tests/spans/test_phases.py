import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.spans import end_range, phase, phases, report_ended_span, span, start_range
from voxelocity_observe.spans.phases import PhaseFile, open_phase_file
from voxelocity_observe.spans.scope import LISTENERS


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def file(tmp_path, clock):
    """A phase file that listens, and writes only when asked to."""
    written = PhaseFile(tmp_path, clock=clock, wait=lambda closed, seconds: closed.wait())
    LISTENERS.add(written)
    yield written
    LISTENERS.remove(written)
    written.close()


def lines(file):
    file.flush()
    return [json.loads(line) for line in file.path.read_text().splitlines()] if file.path.exists() else []


def test_phases_and_long_outermost_spans_are_written_and_what_lies_in_them_is_not(file, clock):
    with span("train", color="blue"):
        clock.advance(1.0)
        with span("step"):
            clock.advance(0.5)
        with phase("validation"):
            clock.advance(0.01)
    with span("blink"):
        clock.advance(0.09)
    found = lines(file)
    assert [(line["name"], line["start_s"], pytest.approx(line["seconds"])) for line in found] == [
        ("validation", 101.5, 0.01),
        ("train", 100.0, 1.51),
    ]
    assert set(found[1]) == {"name", "start_s", "seconds", "color", "rank", "pid"}
    assert (found[1]["color"], found[1]["rank"], found[1]["pid"]) == ("blue", 0, os.getpid())


def test_spans_of_other_threads_are_no_phases_but_marked_ones_and_ranges_are(file, clock):
    def work():
        with span("decode"):
            clock.advance(1.0)
        with phase("cache"):
            clock.advance(1.0)
        end_range(opened)

    opened = start_range("batch", color="red")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [(line["name"], line["seconds"]) for line in lines(file)] == [("cache", 1.0), ("batch", 2.0)]


def test_what_is_known_afterwards_is_written_as_it_is_reported(file):
    report_ended_span("start-up", start_s=97.0, seconds=3.0)
    assert [(line["name"], line["start_s"], line["seconds"]) for line in lines(file)] == [("start-up", 97.0, 3.0)]


def test_lines_are_written_now_and_then_while_the_program_runs(tmp_path):
    may_write, has_waited = threading.Semaphore(0), threading.Semaphore(0)

    def wait(closed, seconds):
        assert seconds == 1.0
        has_waited.release()
        may_write.acquire()
        return closed.is_set()

    file = PhaseFile(tmp_path, wait=wait)
    file.add("cache", "", 0.0, 1.0)
    has_waited.acquire()
    assert not file.path.exists()
    may_write.release()
    has_waited.acquire()
    assert len(file.path.read_text().splitlines()) == 1
    file.close()
    may_write.release()


def test_a_place_that_cannot_be_written_is_reported_once_and_the_program_continues(tmp_path):
    file = PhaseFile(tmp_path / "missing", wait=lambda closed, seconds: closed.wait())
    file.add("cache", "", 0.0, 1.0)
    with pytest.warns(UserWarning, match=r"cannot write .*spans-\d+.jsonl \(No such file.*another folder with -o"):
        file.flush()
    file.add("train", "", 0.0, 1.0)
    file.close()


def test_no_more_lines_are_written_than_a_time_line_could_show(file, monkeypatch):
    monkeypatch.setattr(phases, "_MOST_LINES", 3)
    for _ in range(5):
        with phase("epoch"):
            pass
    assert len(lines(file)) == 3


def test_workers_of_a_loader_tell_of_marked_phases_alone(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    file = PhaseFile(tmp_path, clock=clock, wait=lambda closed, seconds: closed.wait())
    for make in (file.begin("decode", "", False), file.begin("cache", "", True)):
        clock.advance(1.0)
        file.end(make)
    file.end_range(file.begin_range("batch", ""))
    assert [line["name"] for line in lines(file)] == ["cache"]
    file.close()


def test_a_forked_child_does_not_write_its_parents_phases(file):
    with phase("cache"):
        pass
    child = os.fork()
    if child == 0:
        file.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(lines(file)) == 1


def test_a_span_that_ends_in_a_forked_child_waits_for_nothing(file):
    # Another thread of the parent may have been writing.
    with file._changing:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            file.add("cache", "", 0.0, 1.0)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_only_a_monitor_is_notified():
    assert open_phase_file(environ={}) is None
    assert open_phase_file(environ={"VOXELOCITY_SPANS": ""}) is None


def test_a_script_under_a_monitor_leaves_its_phases(tmp_path):
    script = "import time, voxelocity\nwith voxelocity.span('sleep', color='red'):\n    time.sleep(0.12)\n"
    environ = {**os.environ, "VOXELOCITY_SPANS": str(tmp_path), "RANK": "2"}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True)
    (written,) = tmp_path.iterdir()
    (line,) = written.read_text().splitlines()
    found = json.loads(line)
    assert (found["name"], found["color"], found["rank"]) == ("sleep", "red", 2)
    assert written.name == f"spans-{found['pid']}.jsonl"
    assert found["seconds"] >= 0.12
