import io
import json
import os
import threading
from concurrent.futures import wait

import pytest
from rich.console import Console

from voxelocity.report import RunFacts
from voxelocity.report.records import DatasetFacts
from voxelocity.training import progress as module
from voxelocity.training.progress import EpochPhases, ProgressPicture, TerminalProgress
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.events import EventLog
from voxelocity_observe.spans import SpanRecorder, span
from voxelocity_observe.spans.scope import LISTENERS


@pytest.fixture
def drawn(monkeypatch):
    """The facts of each picture, with the thread that drew it."""
    pictures = []
    monkeypatch.setattr(
        module, "render_progress_png", lambda facts, path: pictures.append((facts, threading.current_thread()))
    )
    return pictures


@pytest.fixture
def run(tmp_path):
    clock = FakeClock()
    facts = RunFacts(folder=tmp_path, status="unfinished", dataset=DatasetFacts(name="tiny"))
    told = []
    with EventLog(tmp_path / "events.jsonl", clock=clock) as log:
        yield (
            clock,
            log,
            lambda: ProgressPicture(facts, tmp_path / "progress.png", log=log, clock=clock, warn=told.append),
            told,
        )


def steps(log, step, loss=0.5):
    log.write(
        "steps", step=step, epoch=0, loss=loss, learning_rate=0.1, num_steps=1, num_images=2, seconds=1.0, wait_s=0.0
    )


def validation(log, step):
    log.write("validation", step=step, seconds=1.0, mean_dice=0.5, dice={"a": 0.5, "b": None}, is_best=False)


def test_it_is_drawn_outside_the_trainings_thread_at_most_once_a_minute_and_its_cost_is_told(run, drawn):
    clock, log, make, told = run
    events = []
    log.listen(lambda event: events.append(event["event"]))
    with make() as picture:
        steps(log, 1)
        validation(log, 1)
        picture.draw()
        clock.advance(59.0)
        picture.draw()
    with make() as picture:
        picture.draw()
    assert len(drawn) == 2
    facts, thread = drawn[0]
    assert thread is not threading.main_thread()
    assert [record.step for record in facts.steps] == [1]
    assert facts.validations[0].dice["a"] == 0.5
    assert events.count("picture") == 2
    assert told == []


def test_a_long_run_keeps_few_points_and_its_best_validation(run, drawn):
    _, _, make, _ = run
    with make() as picture:
        for step in range(5000):
            picture._add({**point(step), "event": "steps"})
            picture._add({**judged(step, 0.9 if step == 17 else 0.5), "event": "validation"})
        picture.draw()
    facts, _ = drawn[0]
    assert len(facts.steps) <= 2001
    assert len(facts.validations) <= 2001
    assert (facts.steps[0].step, facts.steps[-1].step) == (0, 4999)
    assert facts.best_validation.step == 17


def point(step):
    names = ("epoch", "learning_rate", "num_steps", "num_images", "seconds", "wait_s")
    return {"time_s": float(step), "step": step, "loss": 0.5, **dict.fromkeys(names, 1)}


def judged(step, dice):
    return {"time_s": float(step), "step": step, "seconds": 1.0, "mean_dice": dice, "dice": {}, "is_best": False}


def test_a_picture_that_cannot_be_written_is_told_once_and_the_run_goes_on(run, monkeypatch):
    clock, _, make, told = run

    def fail(facts, path):
        raise OutputError(f"report: cannot write '{path}': No space left on device; free the path or choose another")

    monkeypatch.setattr(module, "render_progress_png", fail)
    with make() as picture:
        for _ in range(3):
            clock.advance(100.0)
            picture.draw()
            wait([picture._drawing])
    assert len(told) == 1
    assert "the run continues without its picture" in told[0]


@pytest.fixture
def phases():
    """A function that gives the phases told since the last call, with their seconds."""
    with SpanRecorder() as recorder:
        yield lambda: [(record.name, record.seconds) for record in recorder.take()]


def test_each_epoch_is_a_phase_and_short_ones_are_told_together(phases):
    clock = FakeClock()
    epochs = EpochPhases(clock)
    for epoch, seconds in ((0, 1.0), (0, 1.0), (1, 0.4), (2, 0.4), (3, 0.4), (4, 5.0)):
        epochs.at(epoch)
        clock.advance(seconds)
    epochs.end()
    epochs.end()
    assert phases() == [("epoch 0", 2.0), ("epochs 1 to 3", pytest.approx(1.2)), ("epoch 4", 5.0)]


def test_a_training_without_a_step_has_no_epoch(phases):
    EpochPhases(FakeClock()).end()
    assert phases() == []


def test_a_run_under_a_monitor_leaves_its_phases_and_not_its_steps(
    voxelocity, tiny_msd, tiny_sets, tmp_path, monkeypatch
):
    monkeypatch.setenv("VOXELOCITY_SPANS", str(tmp_path))
    LISTENERS.forget()
    try:
        with span("ours"):
            (file,) = LISTENERS.now
        ended = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *tiny_sets,
                           "--set", "train.validate_every_steps=3")  # fmt: skip
        assert ended.status == 0, ended.err
        file.close()
    finally:
        LISTENERS.forget()
    lines = [json.loads(line) for line in (tmp_path / f"spans-{os.getpid()}.jsonl").read_text().splitlines()]
    names = [line["name"] for line in lines]
    expected = ["start-up", "plan", "cache", "network", "validation", "checkpoint", "train", "report"]
    assert [name for name in dict.fromkeys(names) if name in expected] == [
        "start-up", "plan", "cache", "network", "checkpoint", "validation", "train", "report",
    ]  # fmt: skip
    assert names[-2:] == ["report", "report"]
    assert {name for name in names if name not in expected and not name.startswith("epoch")} == {"final validation"}
    assert all(line["seconds"] >= 0.0 and line["rank"] == 0 for line in lines)


def make_bar(**options):
    clock, file = FakeClock(), io.StringIO()
    console = Console(file=file, **options)
    return clock, file, TerminalProgress(console, clock, target_dice=0.0), console


FACTS = {"loss": 0.312, "images_per_s": 38.2, "wait_share": 0.02, "progress": 0.25, "remaining_s": 80.0}


def test_a_log_gets_a_line_with_loss_dice_speed_and_time_left_every_few_seconds():
    clock, file, bar, _ = make_bar(width=60)
    with bar:
        for step in range(1, 13):
            clock.advance(1.0)
            bar.show_steps(step=step, **FACTS)
            if step == 6:
                bar.show_validation(6, 0.8451, True, num_cases=1, num_absent=0)
    lines = file.getvalue().splitlines()
    assert lines == [
        " 25%  step 5  loss 0.312  38.2 images/s  waiting 2.0 %  1 min 20 s left",
        "      step 6  validation Dice 0.845 of 1 case (best so far)",
        " 25%  step 10  loss 0.312  Dice 0.845 (1 case, step 6)  38.2 images/s  waiting 2.0 %  1 min 20 s left",
    ]


@pytest.mark.parametrize("width", [*range(40, 201, 16), 100, 101])
def test_a_bar_loses_no_letter_at_any_width(width):
    _, _, bar, _ = make_bar(width=width, force_terminal=True)
    bar.show_validation(1234, 0.8451, True, num_cases=16, num_absent=0)
    bar.show_steps(step=123_456, **FACTS)
    console = Console(file=io.StringIO(), width=width)
    console.print(bar._bar.get_renderable())
    text = "".join(console.file.getvalue().split())
    assert len(text) > 60
    letters = "step123456loss0.312Dice0.845(16cases,step1234)38.2images/swaiting2.0%1min20sleft"
    assert [text.count(letter) for letter in letters] == [letters.count(letter) for letter in letters]


def test_a_target_does_not_hide_the_time_left():
    console = Console(file=io.StringIO(), width=200)
    clock = FakeClock()
    bar = TerminalProgress(console, clock, target_dice=0.85)
    clock.advance(9.0)
    bar.show_steps(step=3, **FACTS)
    assert console.file.getvalue().endswith("until Dice 0.85, at most 1 min 20 s left\n")
