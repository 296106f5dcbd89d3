from __future__ import annotations

import io
import itertools
import os
import signal

import pytest
from rich.console import Console

import voxelocity
from voxelocity.step import TrainingStep
from voxelocity.training import open_session, train
from voxelocity.training.session import StopRequest
from voxelocity_observe.core.errors import InterruptedRunError
from voxelocity_observe.core.events import read_events
from voxelocity_observe.monitor.samples import HostSample, Sample


class Kept:
    """A sink that keeps what it is told, and raises at an event of the given name."""

    name = "kept"

    def __init__(self, fails_at=""):
        self.fails_at, self.run, self.events, self.has_ended = fails_at, None, [], False

    def begin(self, run):
        self.run = run

    def write(self, event):
        if event["event"] == self.fails_at:
            raise OSError("the disk is gone")
        self.events.append(event)

    def end(self):
        self.has_ended = True


@pytest.fixture
def stop_at_step_3(monkeypatch):
    """As if Ctrl-C arrived once three steps are done."""
    stop, step = StopRequest(), TrainingStep.__call__
    count = itertools.count(1)

    def counted(training, batch, learning_rate):
        if next(count) == 3:
            stop.signal_number = signal.SIGINT
        return step(training, batch, learning_rate)

    monkeypatch.setattr(TrainingStep, "__call__", counted)
    return stop


@pytest.fixture
def run(tiny_msd, tiny_plan, tmp_path):
    def run(*sinks, steps=6, **options):
        out = io.StringIO()
        console = Console(file=out, width=400)
        plan = {**tiny_plan, "train.steps": steps}
        result = train(
            voxelocity.open(tiny_msd), tmp_path / "run", overrides=plan, device="cpu", console=console, sinks=sinks,
            **options,
        )  # fmt: skip
        return result, out.getvalue()

    return run


def test_a_sink_is_told_what_the_folder_of_the_run_holds(run, tmp_path):
    sink = Kept()
    run(sink)
    assert sink.events == read_events(tmp_path / "run" / "events.jsonl")
    assert [event["event"] for event in (sink.events[0], *sink.events[-2:])] == ["run_started", "run_finished", "stage"]
    assert sink.has_ended
    assert sink.run.name == "run"
    assert sink.run.folder == tmp_path / "run" / "tracking"
    assert sink.run.config["train"]["steps"] == 6
    assert sink.run.environment["torch"]


def test_a_sink_that_fails_is_told_of_and_the_run_comes_to_its_end(run, tmp_path):
    bad, good = Kept(fails_at="steps"), Kept()
    result, told = run(bad, good)
    assert result.step == 6
    assert told.count("sinks: kept is dropped (OSError: the disk is gone)") == 1
    assert not bad.has_ended
    assert good.has_ended
    warnings = [
        event["text"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "warning"
    ]
    assert len(warnings) == 2
    assert "and its folder has all data" in warnings[0]
    assert "this training has no score" in warnings[1]


def test_a_run_that_goes_on_tells_where_from(run, stop_at_step_3):
    first, second = Kept(), Kept()
    with pytest.raises(InterruptedRunError):
        run(first, stop=stop_at_step_3)
    assert first.events[-1]["event"] == "interrupted"
    run(second, resume=True)
    assert second.run.is_resumed
    assert second.run.first_step == 3
    assert [*second.run.told] == first.events
    steps = [event["step"] for event in [*second.run.kept, *second.events] if event["event"] == "steps"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 6


def test_the_command_line_writes_the_records_that_it_is_asked_for(voxelocity, tiny_msd, tiny_sets, tmp_path):
    out = tmp_path / "run"
    command = ("train", tiny_msd, "-o", out, "--device", "cpu", *tiny_sets)
    told = voxelocity(*command, "--log", "openmetrics", "--log", "tensorboard")
    assert told.status == 0, told.err
    assert "voxelocity_train_step" in (out / "tracking" / "metrics.prom").read_text()
    first = {path.name for path in (out / "tracking" / "tensorboard").iterdir()}
    assert len(first) == 1
    assert voxelocity(*command, "--overwrite").status == 0
    assert not (out / "tracking").exists(), "what a replaced run told must not stay"


def test_a_sink_that_is_not_known_stops_the_command_before_anything_is_done(voxelocity, tiny_msd, tmp_path):
    told = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--log", "tensorbord")
    assert told.status == 2
    assert "sinks: --log 'tensorbord' is not known; choose tensorboard, wandb, mlflow, openmetrics" in told.err
    assert not (tmp_path / "run").exists()


def test_runs_with_sinks_tell_of_the_machine_and_others_do_not_ask(run, tmp_path, monkeypatch):
    made = []

    class Once:
        """A sampler that takes one sample, when it begins."""

        def __init__(self, pid, *, period_s, on_sample):
            made.append((pid, period_s))
            self.on_sample = on_sample

        def __enter__(self):
            self.on_sample(Sample(time_s=1.0, period_s=1.0, host=HostSample(core_shares=(0.25,), program_cores=0.2)))

        def __exit__(self, *_):
            made.append("stopped")

    monkeypatch.setattr(open_session, "Sampler", Once)
    run()
    assert made == []
    sink = Kept()
    run(sink, overwrite=True)
    assert made == [(os.getpid(), 10.0), "stopped"]
    told = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "sample"]
    assert [event["host"]["program_cores"] for event in told] == [0.2]
