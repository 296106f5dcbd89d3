"""Monitor around this process, with and without a folder."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import voxelocity
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.monitor.files import read_monitor
from voxelocity_observe.monitor.monitor import Monitor
from voxelocity_observe.spans.scope import LISTENERS


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn, instead of drawing it."""
    made = []

    def render(record, path):
        made.append((record, path))
        Path(path).write_bytes(b"picture")
        return path

    monkeypatch.setitem(sys.modules, "voxelocity_observe.monitor.page", SimpleNamespace(render_monitor_png=render))
    return made


def _until_sampled(monitor):
    """Waits for a sample that came by itself."""
    pause = threading.Event()
    for _ in range(2000):
        if monitor.last is not None:
            return
        pause.wait(0.01)
    raise AssertionError("no sample came")


def test_without_a_folder_all_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monitor = Monitor(period_s=0.1).start()
    _until_sampled(monitor)
    record = monitor.stop()
    assert len(record.samples) >= 1
    assert record.samples[0].host.num_processes >= 1
    assert record.seconds >= record.samples[-1].time_s
    assert record.own_cpu_s > 0
    assert record.environment["python"]
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_another_guide_do_the_same(tmp_path, drawn):
    stats = voxelocity.GPUStats(log_dir=tmp_path / "gpu_logs")
    assert stats.start_monitoring(interval=0.1) is stats
    assert stats.period_s == 0.1
    _until_sampled(stats)
    record = stats.stop_monitoring()
    assert stats.plot_stats() == tmp_path / "gpu_logs" / "monitor.png"
    assert drawn[0][0].samples == record.samples
    assert read_monitor(tmp_path / "gpu_logs").seconds == pytest.approx(record.seconds, abs=0.01)


def test_with_a_folder_the_record_can_be_read_while_it_runs_and_afterwards(tmp_path):
    with Monitor(tmp_path / "watched", period_s=0.1) as monitor:
        _until_sampled(monitor)
        assert "the end: the monitor was killed, or still runs" in read_monitor(tmp_path / "watched").missing
    read = read_monitor(tmp_path / "watched")
    assert len(read.samples) == len(monitor.record.samples)
    assert read.seconds == pytest.approx(monitor.record.seconds, abs=1e-3)
    assert list(read.missing) == list(monitor.record.missing)


def test_its_own_process_is_notified_where_phases_go_and_forgets_it_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(LISTENERS, "now", ())
    monkeypatch.setenv("VOXELOCITY_SPANS", "before")
    with Monitor(tmp_path / "a", period_s=60) as monitor:
        assert os.environ["VOXELOCITY_SPANS"] == str(tmp_path / "a")
        begin_s = monitor._sampler.begin_s
        (tmp_path / "a" / "spans-1.jsonl").write_text(f'{{"name": "fit", "start_s": {begin_s + 2}, "seconds": 1}}\n')
    assert os.environ["VOXELOCITY_SPANS"] == "before"
    assert [(mark.name, round(mark.start_s, 6)) for mark in monitor.record.phases] == [("fit", 2.0)]
    monkeypatch.delenv("VOXELOCITY_SPANS")
    Monitor(tmp_path / "b", period_s=60).start().stop()
    assert "VOXELOCITY_SPANS" not in os.environ


def test_each_monitor_of_this_process_has_its_own_phases_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(LISTENERS, "now", None)
    monkeypatch.delenv("VOXELOCITY_SPANS", raising=False)
    for name in ("a", "b"):
        with voxelocity.phase("before"), Monitor(tmp_path / name, period_s=60) as monitor:
            with voxelocity.phase(name):
                pass
            assert [mark.name for mark in monitor.record.phases] == [name]
            with voxelocity.phase("last"):
                pass
        assert [mark.name for mark in monitor.record.phases] == [name, "last"]
    assert LISTENERS.now == ()


def test_a_function_that_fails_on_a_sample_ends_the_sampling_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.delenv("VOXELOCITY_SPANS", raising=False)
    monitor = Monitor(tmp_path / "a", period_s=60, on_sample=lambda sample: 1 / 0).start()
    threading.Event().wait(0.03)
    record = monitor.stop()
    assert record.missing[-1].endswith("s: ZeroDivisionError: division by zero")
    assert "VOXELOCITY_SPANS" not in os.environ
    assert "the end: the monitor was killed, or still runs" not in read_monitor(tmp_path / "a").missing


def test_a_second_start_is_refused():
    monitor = Monitor(period_s=60).start()
    for _ in range(2):
        with pytest.raises(InputError, match="was started before; make a new one"):
            monitor.start()
        monitor.stop()


def test_what_goes_wrong_is_printed_to_stderr_by_default_once(capsys):
    monitor = Monitor(period_s=60)
    monitor.note("a thing")
    monitor.note("a thing")
    assert capsys.readouterr() == ("", "voxelocity: a thing\n")


def test_the_picture_goes_to_the_folder_or_where_it_is_asked_for(tmp_path, drawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monitor = Monitor(tmp_path / "a", period_s=60)
    with pytest.raises(InputError, match=r"nothing has been watched yet; call start\(\) before plot\(\)"):
        monitor.plot()
    monitor.start()
    assert monitor.plot() == tmp_path / "a" / "monitor.png"
    monitor.stop()
    assert monitor.plot(tmp_path / "mine.png") == tmp_path / "mine.png"
    in_memory = Monitor(period_s=60).start()
    in_memory.stop()
    assert in_memory.plot() == Path("monitor.png")
    assert drawn[1][0] == monitor.record


def test_a_second_stop_gives_the_same_record():
    monitor = Monitor(period_s=60, command=["x"]).start()
    first = monitor.stop(3)
    assert monitor.stop(4) == first
    assert (first.status, first.command) == (3, ("x",))
