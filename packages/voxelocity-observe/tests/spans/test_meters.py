import mmap
import threading

import pytest
import torch

from voxelocity_observe.spans import CudaClock, CudaPeak, HostPeak, SpanRecorder, device_clock, span


class Event:
    """As `torch.cuda.Event`; all are passed once `Event.passed` says so."""

    made = 0
    passed = False

    def __init__(self, *, enable_timing):
        assert enable_timing
        type(self).made += 1
        self.at = 0.0

    def record(self, stream):
        self.stream, self.at = stream, self.at + 250.0

    def query(self):
        return type(self).passed

    def elapsed_time(self, end):
        return end.at - self.at + 4.0


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "passed", False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_a_cpu_has_no_clock_of_its_own():
    assert device_clock("cpu") is None
    assert isinstance(device_clock("cuda:0"), CudaClock)


def test_seconds_are_known_once_both_events_are_passed_and_events_come_from_a_pool(cuda):
    clock = CudaClock(torch.device("cuda:1"))
    begin, end = clock.mark(), clock.mark()
    assert begin.stream == "stream of cuda:1"
    assert clock.seconds(begin, end) is None
    Event.passed = True
    assert clock.seconds(begin, end) == 0.004
    clock.release(begin)
    assert clock.mark() is begin
    assert Event.made == 2


def test_no_event_is_put_into_a_graph_that_is_captured(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert CudaClock(torch.device("cuda")).mark() is None
    assert Event.made == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_tells_the_time_of_its_own_work():
    clock = device_clock("cuda")
    matrix = torch.randn(4096, 4096, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    begin = clock.mark()
    for _ in range(20):
        matrix @ matrix
    end = clock.mark()
    torch.cuda.synchronize()
    assert clock.seconds(begin, end) > 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_spans_of_a_captured_graph_leave_it_as_it_is_and_the_clock_stays_with_its_device():
    clock, given = device_clock("cuda"), torch.ones(8, device="cuda")
    begin = clock.mark()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = given * 2.0
        assert clock.mark() is None
    given.fill_(3.0)
    graph.replay()
    end = clock.mark()
    torch.cuda.synchronize()
    assert clock.seconds(begin, end) > 0.0
    assert (doubled == 6.0).all()
    marks = []
    thread = threading.Thread(target=lambda: marks.append(clock.mark()))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert clock.seconds(end, marks[0]) is not None


def test_the_process_peak_counts_what_was_used_within_a_span():
    with SpanRecorder(meters={"host": HostPeak()}) as recorder:
        with span("small"):
            pass
        # Pages of its own: an allocator may give out again what was freed before.
        with span("large"), mmap.mmap(-1, 64_000_000) as pages:
            pages[::4096] = bytes(15_625)
    small, large = (record.peak_bytes["host"] for record in recorder.take())
    if small is None:
        assert large is None  # a system that lets no process reset its mark
    else:
        assert 50_000_000 < large - small < 100_000_000


def test_a_system_that_lets_nothing_be_reset_has_no_peak(tmp_path):
    meter = HostPeak(tmp_path / "missing")
    meter.reset()
    assert meter.peak_bytes() is None


def test_the_peak_is_read_from_the_high_water_mark(tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t 900 kB\nVmHWM:\t   500 kB\n")
    meter = HostPeak(tmp_path)
    assert meter.peak_bytes() is None  # never reset
    meter.reset()
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert meter.peak_bytes() == 500 * 1024
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert meter.peak_bytes() is None


def test_the_device_peak_is_that_of_torchs_allocator(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 4096)
    meter = CudaPeak(torch.device("cuda:1"))
    meter.reset()
    assert asked == [torch.device("cuda:1")]
    assert meter.peak_bytes() == 4096
