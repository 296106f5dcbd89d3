"""What a thread is doing is read from the names on its stack."""

import gzip
import io
import logging
import sys
import threading
import time
from types import FunctionType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from voxelocity.diagnosis.recorder import kinds
from voxelocity.diagnosis.recorder.kinds import StackReader
from voxelocity.diagnosis.recorder.lines import OwnCode, line_of

READER = StackReader(OwnCode(script=__file__))


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


def test_unpacking_is_told_from_reading(tmp_path, monkeypatch):
    path = tmp_path / "scan.gz"
    path.write_bytes(gzip.compress(b"voxels" * 100))

    class Watching(io.FileIO):
        def read(self, size=-1):
            looks.append(READER.look(sys._getframe(1), "worker"))
            return super().read(size)

    looks = []
    with Watching(path) as raw, gzip.GzipFile(fileobj=raw) as file:
        file.read()
    assert {found.kind for found in looks} <= {"gunzip", "read"}
    assert looks[-1].function.startswith("gzip.")
    assert looks[-1].own.f_code.co_name == "test_unpacking_is_told_from_reading"


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
    assert kinds._public("_compression", "DecompressReader.read") == ""
    assert kinds._public("scipy.ndimage._interpolation", "zoom") == "scipy.ndimage.zoom"
    assert kinds._public("torch.nn.modules.module", "Module._call_impl") == ""
    assert kinds._public("monai.transforms.compose", "Compose.__call__") == "monai.transforms.compose.Compose.__call__"


def test_tensors_in_a_data_set_are_no_waits_for_the_device():
    assert kinds._kind("", "item", True) == ""
    assert kinds._kind("", "item", False) == "sync"
    assert kinds._kind("", "cpu", True) == ""


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


def test_the_buffer_that_gzip_fills_is_unpacking_and_its_file_is_reading(tmp_path, monkeypatch):
    path = tmp_path / "scan.gz"
    path.write_bytes(gzip.compress(b"voxels" * 100))
    with gzip.open(path) as file:
        look = found_in(file, "_buffer", "read")
    assert look.kind == "gunzip"
    looks = []

    class Watching(io.FileIO):
        def read(self, size=-1):
            looks.append(READER.look(sys._getframe(1), "worker").kind)
            return super().read(size)

    with Watching(path) as raw, gzip.GzipFile(fileobj=raw) as file:
        file.read()
    assert set(looks) == {"read"}


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
