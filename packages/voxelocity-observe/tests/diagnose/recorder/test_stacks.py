"""Looks at stacks come to shares of time by line, and leave the program as it is. What a thread is doing is read from
the names on its stack."""

import gc
import gzip
import io
import logging
import sys
import threading
import time
import weakref
from types import FunctionType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.recorder.lines import OwnCode, line_of
from voxelocity_observe.diagnose.recorder.stacks import StackReader, Stacks, _kind, _public

READER = StackReader(OwnCode(script=__file__))


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
    # Within 2 points where the machine has nothing else to do, 10 where other programs keep its cores; looks of equal
    # weight would be wrong by more than 20.
    assert found[True] / sum(found.values()) == pytest.approx(expected, abs=0.15)
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
    within = f"{test_a_look_tells_part_line_kind_and_weight.__name__}.<locals>.train"
    assert {(event["within"], event["draws"]) for event in moment.written("stacks")} == {(within, False)}


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


def found_when(call, target, name, monkeypatch, part="wait"):
    """What a look finds at the moment when `call` comes to `target.name`, which stands for a C function there."""
    spy = []
    original = getattr(target, name)

    def stand_in(*args, **named):
        spy.append(READER.look(sys._getframe(1), part))
        return original(*args, **named)

    monkeypatch.setattr(target, name, stand_in)
    call()
    return spy[0]


def test_scipy_and_its_zoom_are_resampling(monkeypatch):
    import scipy.ndimage
    from scipy.ndimage import _nd_image

    found = found_when(lambda: scipy.ndimage.zoom(np.ones((4, 4, 4)), 2, order=1), _nd_image, "zoom_shift", monkeypatch)
    assert (found.kind, found.own.f_code.co_name) == ("resample", "<lambda>")
    assert found.function.startswith("scipy.ndimage")


@pytest.mark.parametrize(("part", "kind"), [("worker", "resample"), ("wait", "resample"), ("forward", "other")])
def test_interpolation_counts_as_resampling_only_where_items_are_made(part, kind, monkeypatch):
    image = torch.ones(1, 1, 4, 4, 4)
    found = found_when(
        lambda: torch.nn.functional.interpolate(image, scale_factor=2, mode="trilinear"),
        torch._C._nn,
        "upsample_trilinear3d",
        monkeypatch,
        part,
    )
    assert found.kind == kind
    assert found.function == "torch.nn.functional.interpolate"


def test_a_collate_function_of_the_person_is_known_by_who_calls_it():
    looks = []

    def together(items):
        looks.append(READER.look(sys._getframe(), "wait"))
        return default_collate(items)

    next(iter(DataLoader([1, 2], batch_size=2, collate_fn=together)))
    assert [found.kind for found in looks] == ["collate"]


@pytest.mark.parametrize("part", ["other", "wait"])
def test_what_a_handler_of_the_person_waits_for_is_logging(part, monkeypatch):
    class Handler(logging.Handler):
        def emit(self, record):
            time.sleep(0)

    log = logging.Logger("planted")
    log.addHandler(Handler())
    found = found_when(lambda: log.warning("a step"), time, "sleep", monkeypatch, part)
    assert (found.kind, found.own.f_code.co_name) == ("log", "emit")


def test_locks_that_logging_takes_around_a_fork_are_no_logging(monkeypatch):
    looks = []

    class Lock:
        def acquire(self):
            looks.append(READER.look(sys._getframe(1), "other"))

        release = __enter__ = acquire

        def __exit__(self, *error):
            self.release()

    monkeypatch.setattr(logging, "_lock", Lock())
    for name in ("_acquireLock", "_releaseLock", "_prepareFork", "_afterFork"):
        getattr(logging, name, Lock().acquire)()
    assert {found.kind for found in looks} == {"other"}


def test_work_within_a_transform_of_a_library_is_a_transform():
    from monai.transforms import Compose

    looks = []
    Compose([lambda item: looks.append(READER.look(sys._getframe(), "worker"))])(1)
    assert (looks[0].kind, looks[0].own.f_code.co_name) == ("transform", "<lambda>")


def test_a_name_that_is_private_is_not_what_a_person_reads():
    assert _public("_compression", "DecompressReader.read") == ""
    assert _public("scipy.ndimage._interpolation", "zoom") == "scipy.ndimage.zoom"
    assert _public("torch.nn.modules.module", "Module._call_impl") == ""
    assert _public("monai.transforms.compose", "Compose.__call__") == "monai.transforms.compose.Compose.__call__"


def test_tensors_in_a_data_set_are_no_waits_for_the_device():
    assert _kind("", "item", True) == ""
    assert _kind("", "item", False) == "sync"
    assert _kind("", "cpu", True) == ""


def test_an_instruction_that_belongs_to_no_line_is_told_with_the_definition():
    """Of such Python says that its line is None."""

    def run():
        return [READER.look(sys._getframe(), "forward"), sys._getframe().f_lineno, line_of(sys._getframe())]

    seen = FunctionType(run.__code__.replace(co_linetable=b""), {**globals()})()
    assert seen[0].own.f_code.co_name == "run"
    assert seen[1:] == [None, run.__code__.co_firstlineno]


def test_a_stack_of_libraries_alone_has_their_function_and_no_line():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    try:
        while not done._cond._waiters:
            time.sleep(0)
        found = READER.look(sys._current_frames()[thread.ident], "worker")
    finally:
        done.set()
        thread.join()
    assert (found.own, found.kind) == (None, "other")
    assert found.function == "threading.Condition.wait"


def test_the_buffer_that_gzip_fills_is_unpacking_and_its_file_is_reading(tmp_path):
    path = tmp_path / "scan.gz"
    path.write_bytes(gzip.compress(b"voxels" * 100))
    with gzip.open(path) as file:
        look = found_in(file, "_buffer", "read")
    assert look.kind == "gunzip"
    looks = []

    class Watching(io.FileIO):
        def read(self, size=-1):
            looks.append(READER.look(sys._getframe(1), "worker"))
            return super().read(size)

    with Watching(path) as raw, gzip.GzipFile(fileobj=raw) as file:
        file.read()
    assert {found.kind for found in looks} == {"read"}
    assert looks[-1].function.startswith("gzip.")
    assert looks[-1].own.f_code.co_name == "test_the_buffer_that_gzip_fills_is_unpacking_and_its_file_is_reading"


def found_in(file, attribute, name):
    """What a look finds while `file` reads its buffer."""
    buffer, looks = getattr(file, attribute), []

    class Spy:
        def read(self, size=-1):
            looks.append(READER.look(sys._getframe(1), "worker"))
            return getattr(buffer, name)(size)

        def __getattr__(self, other):
            return getattr(buffer, other)

    setattr(file, attribute, Spy())
    try:
        file.read()
    finally:
        setattr(file, attribute, buffer)
    return looks[0]
