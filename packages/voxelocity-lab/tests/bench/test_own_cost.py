"""The structure of `benchmarks/own_cost.py`; its figures mean nothing here."""

import importlib
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def own_cost():
    return importlib.import_module("own_cost")


def test_what_a_watcher_takes_is_the_cpu_time_beside_the_programs(own_cost):
    forks = "import subprocess, sys; sum(range(30_000_000)); sys.exit(subprocess.call(sys.argv[2:]))"
    found = own_cost.watch_program(lambda folder: [sys.executable, "-c", forks], "cpu", 2, 2)
    assert found["note"] == ""
    assert found["own_cpu_s"]["low"] > 0.0
    assert found["own_share"]["low"] > 0.0
    assert {"wall_share", "cpu_share"} <= set(found)


def test_what_a_watcher_tells_of_itself_is_kept_beside_what_was_measured(own_cost, tmp_path):
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / "monitor.json").write_text('{"own_cpu_s": 0.5, "seconds": 20.0}')
    assert own_cost._measured_shares(tmp_path / "monitor") == [0.025]
    (tmp_path / "diagnosis.json").write_text('{"own_share": 0.01}')
    assert own_cost._measured_shares(tmp_path) == [0.01]
    (tmp_path / "diagnosis.json").write_text('{"own_share": null}')
    assert own_cost._measured_shares(tmp_path) == []


def test_a_watcher_that_is_not_there_has_a_note_and_no_figures(own_cost):
    assert own_cost.watch_program(lambda folder: [sys.executable, "-c", "raise SystemExit(2)"], "cpu", 1, 1) == {
        "note": "could not be run: -c raise SystemExit(2)"
    }


def test_all_is_measured_with_few_repeats_too(own_cost, monkeypatch):
    asked = []

    def watch_program(watcher, program, rounds, pairs):
        asked.append((program, watcher(Path("x"))[3]))
        return {"note": "not here"}

    monkeypatch.setattr(own_cost, "watch_program", watch_program)
    record = json.loads(json.dumps(own_cost.measure(own_cost.QUICK)))
    assert set(record) == {"span_off_us", "span_on_us", "watchers"}
    assert asked == [("cpu", "monitor")] * 2 + [("training", "monitor")] * 2 + [("training", "diagnose")]
    assert record["watchers"][1] == {
        "watcher": "voxelocity monitor --period 0.1", "program": "cpu", "note": "not here",
    }  # fmt: skip


def test_the_watched_programs_do_their_rounds(monkeypatch, capsys):
    programs = importlib.import_module("watched_programs")
    for name in programs.PROGRAMS:
        monkeypatch.setattr(sys, "argv", ["watched_programs.py", name, "--rounds", "9"])
        programs.main()
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(found) == {"wall_s", "cpu_s", "process_cpu_s"}
        assert 0.0 < found["cpu_s"] <= found["process_cpu_s"]
