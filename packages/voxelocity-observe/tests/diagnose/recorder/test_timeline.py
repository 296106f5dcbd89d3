"""The parts of a step on an emulated device with a fake clock, and which stretches are the step, a validation, a saving
or the start of an epoch."""

from __future__ import annotations

from typing import Any

import pytest

from shared.watched_moment import WatchedMoment
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.diagnose.recorder.process import Settings
from voxelocity_observe.diagnose.recorder.steps import Steps
from voxelocity_observe.diagnose.recorder.timeline import Ledger, Stretch, divide, keys_of_training

TRAIN, VAL = 0, 1


class Queue:
    """A device that works through what it was given, in order, while the host goes on."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.free_s = 0.0
        self.is_capturing = False
        self.released: list[Any] = []

    def launch(self, seconds: float) -> None:
        self.free_s = max(self.free_s, self.clock()) + seconds

    def wait(self) -> None:
        self.clock.advance(max(0.0, self.free_s - self.clock()))

    def stamp(self) -> float | None:
        return None if self.is_capturing else max(self.free_s, self.clock())

    def is_done(self, stamp: float) -> bool:
        return self.clock() >= stamp

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def release(self, stamps: list[Any]) -> None:
        self.released += stamps


class Program:
    """A training loop on the emulated device, seconds of the host and of the device apart."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = Queue(self.clock)
        self.lines = WatchedMoment()
        self.ledger = Ledger(self.clock)
        self.ledger.device = self.queue
        self.ledger.start()
        self.steps = Steps(
            self.ledger,
            self.lines,  # type: ignore[arg-type]
            Settings(folder="", warmup_steps=0),
            after_step=lambda seconds, parts: None,
            start_age_s=0.0,
        )
        self.optimizer = object()

    def step(self, *, load_s: float, compute_s: float, launch_s: float = 0.001, waits: bool = False) -> None:
        self.steps.settle()
        self.ledger.cut("fetch", key=0, part="wait").has_batch = True
        self.clock.advance(load_s)
        self.ledger.move("forward")
        self.ledger.running.num_forwards += 1
        self.clock.advance(launch_s)
        self.queue.launch(compute_s / 3)
        self.ledger.move("backward")
        self.ledger.running.num_backwards += 1
        self.queue.launch(compute_s * 2 / 3)
        self.ledger.move("other")
        if waits:
            self.queue.wait()
        self.steps.optimizer_begins(self.optimizer)
        self.ledger.move("optimizer")
        self.ledger.move("other")
        self.steps.optimizer_ended(self.optimizer)

    def parts(self, *, skip: int = 3) -> dict[str, float]:
        """Shares of the device's time over the steps written, the first ones left out."""
        self.queue.wait()
        self.steps.settle()
        counted = self.lines.written("step")[skip:]
        total = sum(step["seconds"] for step in counted)
        return {
            part: sum(step["parts"].get(part, 0.0) for step in counted) / total for part in ("wait", "forward", "other")
        }


def test_wait_for_data_behind_the_devices_work_costs_nothing() -> None:
    program = Program()
    for _ in range(20):
        program.step(load_s=0.005, compute_s=0.030)
    assert program.parts()["wait"] == pytest.approx(0.0, abs=1e-9)
    assert sum(step["host_parts"]["wait"] for step in program.lines.written("step")) == pytest.approx(20 * 0.005)


def test_slow_loader_is_seen_as_the_time_in_which_the_device_had_nothing_to_do() -> None:
    program = Program()
    for _ in range(20):
        program.step(load_s=0.030, compute_s=0.010, launch_s=0.0)
    # A step takes 30 ms of loading; the device works in 10 of them, while the next batch is loaded.
    assert program.parts()["wait"] == pytest.approx(20 / 30, abs=0.01)


def test_reading_a_loss_in_each_step_changes_only_the_gaps_of_the_devices_time() -> None:
    free, waiting = Program(), Program()
    for _ in range(20):
        free.step(load_s=0.0, compute_s=0.030, launch_s=0.003)
        waiting.step(load_s=0.0, compute_s=0.030, launch_s=0.003, waits=True)
    assert free.parts()["forward"] == pytest.approx(1 / 3, abs=0.01)
    # Launching is no longer hidden: 3 ms a step in which the device has nothing to do, in the part that launches.
    assert waiting.parts()["forward"] == pytest.approx(13 / 33, abs=0.01)
    assert waiting.parts()["other"] == pytest.approx(0.0, abs=1e-9)


def test_a_step_is_written_only_when_the_device_has_come_past_it() -> None:
    program = Program()
    program.step(load_s=0.0, compute_s=10.0)
    program.step(load_s=0.0, compute_s=10.0)
    program.steps.settle()
    assert program.lines.written("step") == []
    program.queue.wait()
    program.step(load_s=0.0, compute_s=10.0)
    program.steps.settle()
    assert [round(step["seconds"]) for step in program.lines.written("step")] == [10, 10]
    assert len(program.queue.released) > 0


def test_parts_of_a_step_sum_to_its_seconds() -> None:
    program = Program()
    for index in range(10):
        program.step(load_s=0.002 * index, compute_s=0.010)
    program.parts()
    for step in program.lines.written("step"):
        assert sum(step["parts"].values()) == pytest.approx(step["seconds"], abs=1e-6)


def test_a_stamp_that_cannot_be_taken_while_a_graph_is_captured_takes_no_time() -> None:
    program = Program()
    program.step(load_s=0.0, compute_s=0.010)
    program.queue.is_capturing = True
    program.ledger.move("forward")
    program.queue.is_capturing = False
    program.step(load_s=0.0, compute_s=0.010)
    program.parts(skip=0)
    assert sum(step["seconds"] for step in program.lines.written("step")) == pytest.approx(0.021, abs=0.002)


def test_thousands_of_windows_in_a_stretch_are_summed_and_their_stamps_given_back() -> None:
    clock = FakeClock()
    queue = Queue(clock)
    windows = Stretch("eval", -1, "", 0.0, "other", 0.0)
    for _ in range(3000):
        windows.add((clock(), "forward", queue.stamp()), queue)
        queue.launch(0.001)
        clock.advance(0.002)
        windows.add((clock(), "other", queue.stamp()), queue)
    windows.end = (clock(), queue.stamp())
    assert len(windows.entries) < 1000
    assert len(queue.released) > 4000
    assert windows.parts(queue)["forward"] == pytest.approx(6.0)
    assert windows.host_parts()["forward"] == pytest.approx(6.0)


def stretch(
    label: str,
    key: int = -1,
    *,
    batch: bool = False,
    learns: int = 0,
    evaluates: int = 0,
    backwards: int | None = None,
) -> Stretch:
    made = Stretch(label, key, "", 0.0, "other", None)
    made.end = (1.0, None)
    made.has_batch = batch
    made.num_forwards, made.num_evaluating = learns + evaluates, evaluates
    made.num_backwards = learns if backwards is None else backwards
    return made


def fetch(
    key: int, *, learns: int = 0, evaluates: int = 0, batch: bool = True, backwards: int | None = None
) -> Stretch:
    return stretch("fetch", key, batch=batch, learns=learns, evaluates=evaluates, backwards=backwards)


def kinds(stretches: list[Stretch], *, training: set[int] | None = None, has_stepped: bool = True) -> list[str]:
    """The kind of each stretch; "" where it is in no group."""
    groups = divide(stretches, {TRAIN} if training is None else training, has_stepped=has_stepped)
    kind_of = {id(s): group.kind for group in groups for s in group.stretches}
    return [kind_of.get(id(s), "") for s in stretches]


def test_fetch_and_learning_are_one_step() -> None:
    assert kinds([stretch("step"), fetch(TRAIN, learns=1)]) == ["step", "step"]


def test_validation_goes_from_eval_to_train_and_leaves_the_tail_of_the_epoch_to_the_step() -> None:
    between = [
        stretch("step"),
        fetch(TRAIN, batch=False),
        stretch("eval"),
        stretch("iter", VAL),
        stretch("ready"),
        fetch(VAL, evaluates=1),
        fetch(VAL, evaluates=1),
        fetch(VAL, batch=False),
        stretch("train"),
        stretch("iter", TRAIN),
        stretch("ready"),
        fetch(TRAIN, learns=1),
    ]
    assert kinds(between) == [*["step"] * 2, *["validation"] * 6, "step", "epoch start", *["step"] * 2]


def test_validation_without_eval_begins_at_the_other_loader_and_ends_at_the_training_loader() -> None:
    between = [
        stretch("step"),
        stretch("iter", VAL),
        fetch(VAL, evaluates=1),
        fetch(VAL, batch=False),
        stretch("iter", TRAIN),
        stretch("first", TRAIN, batch=True),
        stretch("batch", learns=1),
    ]
    assert kinds(between) == ["step", *["validation"] * 3, *["epoch start"] * 2, "step"]


def test_validation_in_training_mode_with_gradients_is_known_by_its_loader() -> None:
    between = [stretch("step"), fetch(VAL, learns=1, backwards=0), fetch(TRAIN, learns=1)]
    assert kinds(between) == ["step", "validation", "step"]


def test_teacher_that_runs_on_the_same_batch_belongs_to_the_step() -> None:
    assert kinds([stretch("step"), fetch(TRAIN, evaluates=1), stretch("train", learns=1)]) == ["step"] * 3


def test_validation_between_two_batches_without_a_loader_of_its_own_is_one() -> None:
    between = [stretch("step"), stretch("eval", evaluates=3), stretch("train"), fetch(TRAIN, learns=1)]
    assert kinds(between) == ["step", "validation", "step", "step"]


def test_program_without_loaders_is_divided_by_eval_and_train() -> None:
    between = [stretch("step"), stretch("eval", evaluates=3), stretch("train", learns=1)]
    assert kinds(between, training=set()) == ["step", "validation", "step"]


def test_evaluating_without_any_sign_in_a_program_without_loaders_belongs_to_the_step() -> None:
    assert kinds([stretch("step", evaluates=1, learns=1)], training=set()) == ["step"]


def test_saving_within_a_validation_is_apart_and_does_not_end_it() -> None:
    between = [
        stretch("eval"),
        fetch(VAL, evaluates=1),
        stretch("save"),
        stretch("saved"),
        fetch(VAL, evaluates=1),
        stretch("train"),
        fetch(TRAIN, learns=1),
    ]
    groups = divide(between, {TRAIN}, has_stepped=True)
    assert [group.kind for group in groups] == ["validation", "saving", "step"]
    assert groups[0].stretches == [between[0], between[1], between[3], between[4]]


def test_what_is_open_at_the_end_of_a_program_is_validation_and_no_step() -> None:
    tail = [stretch("step"), stretch("eval"), fetch(VAL, evaluates=1)]
    assert kinds(tail, has_stepped=False) == ["", "validation", "validation"]


def test_epoch_start_of_two_loaders_in_one_loop_is_one_group() -> None:
    between = [
        stretch("iter", 0),
        stretch("ready"),
        stretch("iter", 1),
        stretch("ready"),
        stretch("first", 0, batch=True),
        stretch("batch"),
        stretch("first", 1, batch=True),
        stretch("batch", learns=1),
    ]
    groups = divide(between, {0, 1}, has_stepped=True)
    assert [(group.kind, len(group.stretches)) for group in groups] == [("epoch start", 7), ("step", 1)]


def test_validation_before_the_first_step_leaves_out_what_came_before_it() -> None:
    between = [stretch("start"), stretch("forward", evaluates=2), stretch("train"), fetch(TRAIN, learns=1)]
    assert kinds(between, training=set())[:2] == ["step", "validation"]


def test_loaders_of_training_are_those_fetched_before_learning() -> None:
    both = [fetch(0), fetch(2, learns=1), fetch(VAL, evaluates=1), fetch(0, learns=1)]
    assert keys_of_training(both) == {0, 2}


def test_gradients_that_are_accumulated_over_batches_are_one_step() -> None:
    assert kinds([stretch("step"), *[fetch(TRAIN, learns=1)] * 4]) == ["step"] * 5
