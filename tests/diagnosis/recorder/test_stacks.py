"""Looks at stacks come to shares of time by line, and leave the program as it is."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from voxelocity.diagnosis.recorder.lines import OwnCode
from voxelocity.diagnosis.recorder.stacks import Stacks
from voxelocity.testing.watched_moment import WatchedMoment


def own_code():
    return OwnCode(script=__file__)


def in_python(until):
    while time.perf_counter() < until:
        pass


def in_c_with_the_lock(until):
    while time.perf_counter() < until:
        sum(range(1_500_000))


def test_shares_of_a_known_program_are_right_within_a_few_points():
    """Also of C code that holds the interpreter lock longer than the sampler's period."""
    moment = WatchedMoment()
    stacks = Stacks(moment, own_code(), period_s=0.005)
    spent = {in_python: 0.0, in_c_with_the_lock: 0.0}
    stacks.start()
    for _ in range(4):
        for work, seconds in ((in_python, 0.15), (in_c_with_the_lock, 0.25)):
            began = time.perf_counter()
            work(began + seconds)
            spent[work] += time.perf_counter() - began
    stacks.stop()
    stacks.report(moment)
    first = in_c_with_the_lock.__code__.co_firstlineno
    found = {True: 0, False: 0}
    for event in moment.written("stacks"):
        number = int(event["where"].rpartition(":")[2])
        if number < first + 4:
            found[number >= first] += event["num_samples"]
    expected = spent[in_c_with_the_lock] / sum(spent.values())
    # Within 2 points where the machine has nothing else to do; looks of equal weight would be wrong by more than 20.
    assert found[True] / sum(found.values()) == pytest.approx(expected, abs=0.1)
    assert sum(found.values()) * 0.005 == pytest.approx(sum(spent.values()), rel=0.25)


def test_a_look_tells_part_line_kind_and_weight():
    moment = WatchedMoment("wait")
    release, ready = threading.Event(), threading.Event()

    def train():
        ready.set()
        time.sleep(0)
        release.wait()

    thread = threading.Thread(target=train)
    thread.start()
    ready.wait()
    stacks = Stacks(moment, own_code(), thread=thread.ident, period_s=0.01)
    while not release._cond._waiters:
        time.sleep(0)
    stacks.look_once(0.05)
    moment.part = "forward"
    stacks.look_once(0.01)
    release.set()
    thread.join()
    stacks.report(moment)
    line = train.__code__.co_firstlineno + 3
    assert [
        (event["part"], event["where"].rpartition(":")[2], event["line"], event["kind"], event["num_samples"])
        for event in moment.written("stacks")
    ] == [("wait", str(line), "release.wait()", "other", 5), ("forward", str(line), "release.wait()", "other", 1)]
    assert moment.written("stacks")[0]["function"] == "threading.Condition.wait"


def test_nothing_is_looked_at_while_no_step_is_counted():
    moment = WatchedMoment()
    moment.counting = False
    stacks = Stacks(moment, own_code(), period_s=0.001)
    stacks.start()
    in_python(time.perf_counter() + 0.05)
    stacks.stop()
    stacks.report(moment)
    assert moment.events == []
    assert not [thread for thread in threading.enumerate() if thread.name == "voxelocity-stacks"]


def test_threads_of_a_loader_count_as_workers_and_other_threads_do_not():
    from monai.data import ThreadBuffer

    moment = WatchedMoment("forward")
    entered, release = threading.Event(), threading.Event()

    def items():
        entered.set()
        release.wait()
        yield 1

    bystander = threading.Thread(target=release.wait)
    bystander.start()
    consumer = threading.Thread(target=lambda: list(ThreadBuffer(items())))
    consumer.start()
    entered.wait()
    stacks = Stacks(moment, own_code())
    stacks.look_once(0.015)
    release.set()
    consumer.join()
    bystander.join()
    stacks.report(moment)
    lines = {event["line"]: event["part"] for event in moment.written("stacks")}
    assert lines.pop("release.wait()") == "worker"
    assert set(lines.values()) == {"forward"}


def test_a_look_keeps_no_array_of_the_program_alive():
    class Volume(np.ndarray):
        pass

    stacks = Stacks(WatchedMoment(), own_code())

    def step():
        volume = np.zeros(4).view(Volume)
        stacks.look_once(0.015)
        return weakref.ref(volume)

    alive = step()
    gc.collect()
    assert alive() is None


def test_a_failure_ends_the_looking_and_is_told_but_not_in_the_programs_output(capfd):
    class Broken(WatchedMoment):
        def current_part(self):
            raise LookupError("no part")

    stacks = Stacks(Broken(), own_code(), period_s=0.001)
    stacks.start()
    while not stacks.failure:
        time.sleep(0)
    stacks.stop()
    assert stacks.failure == "sampling the stacks failed: LookupError: no part"
    assert capfd.readouterr() == ("", "")


def test_draws_of_the_program_do_not_change():
    import random

    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    stacks = Stacks(WatchedMoment(), own_code(), period_s=0.001)
    stacks.start()
    in_python(time.perf_counter() + 0.02)
    stacks.stop()
    assert [random.random() for _ in range(3)] == expected
    assert sys.getswitchinterval() == pytest.approx(0.005)
