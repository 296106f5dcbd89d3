import numpy as np
import torch

from voxelocity.observe import SpanRecorder, span
from voxelocity.observe.spans import CudaPeak, HostPeak


def test_the_process_peak_counts_what_was_used_within_a_span():
    with SpanRecorder(meters={"host": HostPeak()}) as recorder:
        with span("small"):
            pass
        with span("large"):
            np.ones(8_000_000).sum()
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
