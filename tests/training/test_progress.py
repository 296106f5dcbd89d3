import threading
from dataclasses import replace

import pytest

from voxelocity.core.errors import OutputError
from voxelocity.observe import EventLog, FakeClock
from voxelocity.report import RunFacts
from voxelocity.report.records import DatasetFacts
from voxelocity.training import progress_picture as module
from voxelocity.training.progress_picture import ProgressPicture


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
    assert replace(facts).best_validation.step == 17


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
            while not picture._drawing.done():
                pass
    assert len(told) == 1
    assert "the run continues without its picture" in told[0]
