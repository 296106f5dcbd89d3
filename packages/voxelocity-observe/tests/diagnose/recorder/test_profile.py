"""A few steps under torch.profiler, on a real program, and the trace that comes of it."""

import gzip
import json
import os
import subprocess
import sys
import threading
import types

import pytest
import torch

from shared.limits import HANGS_S
from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.recorder import profile as profile_module
from voxelocity_observe.diagnose.recorder.lines import OwnCode
from voxelocity_observe.diagnose.recorder.profile import TRACE_NAME, CaptureRange, Profiler
from voxelocity_observe.diagnose.recorder.syncs import Syncs
from voxelocity_observe.diagnose.tracing.trace import profile_facts


@pytest.fixture
def step():
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3), torch.nn.ReLU(), torch.nn.Conv3d(2, 1, 3))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    image = torch.randn(1, 1, 8, 8, 8)

    def run():
        optimizer.zero_grad()
        loss = network(image).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def profile_one(step, folder, **options):
    """Profiles a step and writes its trace into the folder."""
    profiler = Profiler(str(folder), **options)
    assert profiler.start() == ""
    step()
    profiler.stop()
    return profiler


def test_the_trace_has_the_steps_their_parts_and_their_operators(tmp_path, step):
    profiler = Profiler(str(tmp_path))
    assert profiler.start() == ""
    profiler.part("forward")
    step()
    assert profiler.step()
    profiler.part("wait")
    profiler.part("forward")
    step()
    profiler.stop()
    path = tmp_path / TRACE_NAME
    assert list(tmp_path.iterdir()) == [path]
    with gzip.open(path) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
    own = sorted(name for name in names if name.startswith(("Prof", "part")))
    assert own == ["ProfilerStep#0", "ProfilerStep#1", "part: forward", "part: forward", "part: wait"]
    profile = profile_facts(path)
    operators = {operator.name for operator in profile.operators}
    assert {"aten::convolution", "aten::convolution_backward"} <= operators
    assert profile.num_steps == 2
    assert 0 < sum(operator.cpu_ns for operator in profile.operators) <= profile.wall_ns * 2
    assert not torch._C._autograd._profiler_enabled()


def test_of_stderr_only_what_torch_says_of_its_probes_is_kept_back(tmp_path, step, capfd, monkeypatch):
    native = torch.autograd.profiler._disable_profiler

    def disable():
        os.write(2, b"USDT: of the program\nthe program's own\n\nand USDT: within, then a line that does not end")
        return native()

    monkeypatch.setattr(torch.autograd.profiler, "_disable_profiler", disable)
    os.write(2, b"before\n")
    profile_one(step, tmp_path)
    os.write(2, b", after\n")
    written = capfd.readouterr().err
    assert written == (
        "before\nUSDT: of the program\nthe program's own\n\nand USDT: within, then a line that does not end, after\n"
    )
    assert torch.autograd.profiler._disable_profiler is disable


def test_a_child_that_another_thread_starts_meanwhile_has_the_programs_own_stderr(capfd):
    has_started, children = threading.Event(), []
    pipe = subprocess.PIPE

    def start():
        children.append(subprocess.Popen(["sh", "-c", "read line; echo of a child >&2"], stdin=pipe))
        has_started.set()

    thread = threading.Thread(target=start)

    def native():
        thread.start()
        return has_started.wait(0.1)

    assert not profile_module._filtered(native)(), "it has waited"
    thread.join()
    children[0].communicate(b"\n", timeout=HANGS_S)
    assert capfd.readouterr().err == "of a child\n"


def test_stderr_is_put_back_where_the_profiler_fails(tmp_path, capfd, monkeypatch):
    def refuse(*_):
        os.write(2, b"no right to profile\n")
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(torch.autograd.profiler, "_enable_profiler", refuse)
    place = os.fstat(2).st_ino
    profiler = Profiler(str(tmp_path))
    assert profiler.start() == "torch.profiler did not start: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    profiler.stop()
    assert os.fstat(2).st_ino == place
    assert capfd.readouterr().err == "no right to profile\n"
    torch.autograd.profiler._disable_profiler()


def test_the_line_that_torch_writes_is_known(tmp_path):
    line = b"USDT:2026-11-21 18:12:10 8315:8315 SyncActivityProfilerHandler.cpp:59] profiler_stop\n"
    thread = b"ERROR: External init callback must run in same thread as registerClient (-1693374784 != 110270579)\n"
    with open(tmp_path / "kept", "w+b") as file:
        file.write(b"half a line" + line + thread + line + b"ERROR:2026-11-21 18:12:10 1:1 Kineto.cpp:5] broken\n")
        file.flush()
        assert profile_module._programs_own(file) == (
            b"half a lineERROR:2026-11-21 18:12:10 1:1 Kineto.cpp:5] broken\n"
        )


def test_a_program_without_stderr_is_profiled_all_the_same(tmp_path, step):
    kept = os.dup(2)
    os.close(2)
    try:
        profile_one(step, tmp_path)
        assert (tmp_path / TRACE_NAME).exists()
        with pytest.raises(OSError):
            os.fstat(2)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_where_no_file_can_be_made_stderr_is_left_alone(tmp_path, capfd, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile_module.tempfile, "TemporaryFile", full)
    profile_one(lambda: os.write(2, b"own\n"), tmp_path)
    assert (tmp_path / TRACE_NAME).exists()
    assert "own\n" in capfd.readouterr().err


def test_shapes_and_waits_with_their_lines_stand_in_the_trace(tmp_path, step):
    syncs = Syncs(WatchedMoment(), OwnCode(script=__file__))
    syncs.start()
    try:
        profile_one(step, tmp_path, syncs=syncs)
    finally:
        syncs.stop()
    path = tmp_path / TRACE_NAME
    assert syncs.annotate is None
    with gzip.open(path, "rt") as file:
        text = file.read()
    number = step.__code__.co_firstlineno + 5
    assert f"sync: Tensor.item at {__file__}:{number}" in text
    shapes = {operator.shape for operator in profile_facts(path).operators if operator.name == "aten::convolution"}
    assert "[[1, 1, 8, 8, 8], [2, 1, 3, 3, 3], [2]]" in shapes


def test_a_program_that_profiles_itself_is_left_alone(tmp_path, step):
    profiler = Profiler(str(tmp_path))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        assert profiler.start() == "the program runs torch.profiler itself"
        assert not profiler.step()
        profiler.stop()
        step()
    assert own.key_averages()
    assert list(tmp_path.iterdir()) == []


def test_after_the_time_limit_no_further_step_is_profiled(tmp_path, step, monkeypatch):
    monkeypatch.setattr(profile_module, "_LIMIT_S", 0.0)
    profiler = Profiler(str(tmp_path))
    profiler.start()
    step()
    assert not profiler.step()
    profiler.stop()
    assert profile_facts(tmp_path / TRACE_NAME).num_steps == 1


def test_a_folder_that_is_gone_costs_the_trace_alone(tmp_path, step):
    profile_one(step, tmp_path / "gone").stop()
    assert list(tmp_path.iterdir()) == []


def test_of_several_ranks_the_first_writes_the_trace(tmp_path, step, monkeypatch):
    for rank, names in (("1", []), ("0", ["trace.json.gz"])):
        monkeypatch.setenv("RANK", rank)
        profile_one(step, tmp_path)
        assert sorted(os.listdir(tmp_path)) == names


def test_a_capture_begins_and_ends_with_the_steps(monkeypatch):
    calls = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        profiler=types.SimpleNamespace(start=lambda: calls.append("start"), stop=lambda: calls.append("stop")),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    capture = CaptureRange()
    assert capture.start() == ""
    capture.part("forward")
    assert capture.step()
    capture.stop()
    assert calls == ["start", "stop"]


def test_without_a_device_nothing_is_captured():
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert CaptureRange().start() == "the program sees no CUDA device"
