import sys
from types import SimpleNamespace

import numpy as np
import psutil

from voxelocity.observe import peak_device_bytes, peak_host_bytes

MIB = 2**20


def test_the_peak_grows_with_what_is_held_and_stays_when_it_is_let_go():
    before = peak_host_bytes()
    held_bytes = before - psutil.Process().memory_info().rss + 64 * MIB
    held = np.ones(held_bytes, dtype=np.uint8)
    grown = peak_host_bytes()
    assert grown > before + 32 * MIB
    del held
    # The kernel counts pages in lots, so that two readings may differ by a few.
    assert peak_host_bytes() > grown - MIB


def test_linux_is_asked_for_the_peak_of_this_program_alone(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9999 kB\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n")
    assert peak_host_bytes(status=status) == 2 * MIB


def test_where_there_is_no_proc_the_system_is_asked(tmp_path):
    assert peak_host_bytes(status=tmp_path / "none") > MIB


def test_devices_that_nobody_uses_have_no_peak(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert peak_device_bytes() is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    assert peak_device_bytes() is None


def test_the_peaks_of_all_devices_are_summed(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 2, max_memory_allocated=lambda index: (index + 1) * MIB
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert peak_device_bytes() == 3 * MIB
