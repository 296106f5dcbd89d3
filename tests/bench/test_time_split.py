"""What `benchmarks/time_split.py` makes of a run's folder and the seconds of its processes."""

import importlib
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def time_split():
    return importlib.import_module("time_split")


@pytest.fixture
def run(tmp_path):
    steps = {"step": 5, "epoch": 0, "loss": 1.0, "learning_rate": 0.1, "num_steps": 5, "num_images": 10}
    parts = {"wait": 1.0, "forward": 2.0, "backward": 4.5}
    events = [
        {"event": "run_started", "time_s": 2.0},
        {"event": "stage", "time_s": 2.0, "name": "start", "seconds": 1.9},
        {"event": "steps", "time_s": 10.0, **steps, "seconds": 8.0, "wait_s": 1.0, "parts": parts},
    ]
    (tmp_path / "run.yaml").write_text("dataset: {name: Tiny}\n")
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return tmp_path


@pytest.mark.nightly
def test_the_split_is_set_beside_the_seconds_of_the_process(time_split, run):
    found = time_split.split_of(run, 10.4)
    assert found["reported_s"] == pytest.approx(10.0)
    assert found["gap_share"] == pytest.approx(0.4 / 10.4)
    assert found["other_share"] == pytest.approx(0.01)
    assert found["other_share_of_steps"] == pytest.approx(0.5 / 8.0)
    assert found["stages"] == {"start-up": 1.9, "training steps": 8.0, "other": pytest.approx(0.1)}
    assert found["parts_of_steps"] == {
        "waiting for data": 1.0, "forward": 2.0, "backward": 4.5, "other": pytest.approx(0.5),
    }  # fmt: skip


@pytest.mark.nightly
def test_a_run_is_stopped_after_some_steps_and_resumed(time_split, run, monkeypatch):
    calls = []
    # A process that ends with 130 on Ctrl-C, as `voxelocity train` does.
    waits = "import signal, sys; signal.signal(2, lambda *_: sys.exit(130)); print('ready', flush=True); signal.pause()"

    class Process(time_split.subprocess.Popen):
        def __init__(self, words):
            calls.append(words[3:])
            stopped = "--resume" not in words
            super().__init__([sys.executable, "-c", waits if stopped else ""], stdout=time_split.subprocess.PIPE)
            if stopped:
                self.stdout.readline()

        def wait(self, timeout=None):
            status = super().wait(timeout)
            self.stdout.close()
            return status

    monkeypatch.setattr(time_split.subprocess, "Popen", Process)
    (run / "run").mkdir()
    for name in ("run.yaml", "events.jsonl"):
        (run / name).rename(run / "run" / name)
    text = (run / "run" / "events.jsonl").read_text().replace('"event": "steps"', '"event":"steps"')
    (run / "run" / "events.jsonl").write_text(text)
    found = time_split.measure(Path("data"), run, ["--fold", "0"], stop_after=1)
    assert found["resumed"]
    assert [call[-1] for call in calls] == ["0", "--resume"]
