import math

import pytest
import torch
from rich.console import Console

import voxelocity
from voxelocity.report import read_run
from voxelocity.step import TrainingStep
from voxelocity.training import loop as loop_module
from voxelocity.training import train
from voxelocity.training.loop import Loop
from voxelocity.training.readings import PART_OF_SPAN, AskedLosses, StepParts, part_seconds
from voxelocity_observe.core.errors import NonFiniteLossError
from voxelocity_observe.core.time_parts import EXCHANGE, GRAPH
from voxelocity_observe.spans import SpanRecord


def test_no_step_of_a_run_needs_the_value_of_a_tensor(monkeypatch, tiny_msd, tiny_plan, tmp_path, reads_of_tensors):
    one_step, found = Loop._one_step, []

    def watched(loop, *arguments):
        with reads_of_tensors() as reads:
            one_step(loop, *arguments)
        found.append(reads.found)

    monkeypatch.setattr(Loop, "_one_step", watched)
    # Batches are made in this thread, so that their operations are seen as well.
    overrides = {**tiny_plan, "data.feed.num_threads": 0}
    train(
        voxelocity.open(tiny_msd), tmp_path / "run", overrides=overrides, device="cpu", console=Console(quiet=True)
    )  # fmt: skip
    assert found == [[]] * 6


def record(name, number, *, parent=None, seconds=1.0, device_s=None):
    return SpanRecord(name, 0.0, seconds, device_s, "", "MainThread", 0, number, parent, 0, False, {})


def test_parts_are_summed_over_the_steps_in_one_order():
    records = [
        record("loss", 3, parent=1, seconds=0.5),
        record("forward", 2, parent=1),
        record("layout", 7, parent=1, seconds=0.25),
        record("step", 1),
        record("averaging", 6, parent=4, seconds=0.25),
        record("wait", 5, parent=4, seconds=3.0),
        record("step", 4),
    ]
    assert list(part_seconds(records).items()) == [("wait", 3.0), ("forward", 1.75), ("optimizer", 0.25)]


def test_only_what_lies_in_a_step_counts():
    records = [record("layout", 1), record("layout", 3, parent=2), record("batch", 2), record("step", 4)]
    assert part_seconds(records) == {}


def test_the_devices_seconds_are_taken_where_there_are_any():
    records = [
        record("backward", 2, parent=1, seconds=0.001, device_s=0.2),
        record("wait", 3, parent=1, seconds=0.7, device_s=0.0),
        record("step", 1),
    ]
    assert part_seconds(records) == {"wait": 0.0, "backward": 0.2}


class Spans:
    """In place of a recorder: what it has by a certain call."""

    def __init__(self, *taken):
        self.taken = list(taken)

    def take(self):
        return self.taken.pop(0)


def test_a_step_that_a_device_has_not_ended_counts_later_and_once():
    first = [record("wait", 2, parent=1, device_s=0.5), record("batch", 9), record("graph", 3, parent=1, device_s=2.0)]
    second = [record("step", 1), record("wait", 5, parent=4, device_s=0.25)]
    third = [record("graph", 6, parent=4, device_s=1.0), record("step", 4)]
    parts = StepParts(Spans(first, second, third))
    assert parts.take() == {}
    assert parts.take() == {"wait": 0.5, "graph": 2.0}
    assert parts.take() == {"wait": 0.25, "graph": 1.0}


def test_losses_and_whether_weights_are_finite_come_together():
    asked = AskedLosses([torch.tensor(1.5), torch.tensor(2.5)], torch.tensor(True))
    assert asked.read() == ([1.5, 2.5], True)
    assert AskedLosses([torch.tensor(1.5)], torch.tensor(False)).read() == ([1.5], False)


@pytest.fixture
def reading_late(monkeypatch):
    """A loop that reads losses as with a GPU, with a window of two steps."""
    made = Loop.__init__

    def late(loop, *arguments):
        made(loop, *arguments)
        loop._reads_late = True

    monkeypatch.setattr(Loop, "__init__", late)
    monkeypatch.setattr(loop_module, "_WINDOW_STEPS", 2)


def trained(cases, folder, overrides):
    return train(voxelocity.open(cases), folder, overrides=overrides, device="cpu", console=Console(quiet=True))


def test_losses_that_are_read_late_are_all_logged_once(reading_late, tiny_msd, tiny_plan, tmp_path):
    trained(tiny_msd, tmp_path / "run", {**tiny_plan, "train.validate_every_steps": 3})
    facts = read_run(tmp_path / "run")
    assert sum(stretch.num_steps for stretch in facts.steps) == 6
    assert [stretch.step for stretch in facts.steps] == sorted({stretch.step for stretch in facts.steps})
    assert facts.steps[-1].step == 6
    assert all(math.isfinite(stretch.loss) for stretch in facts.steps)
    assert sum(stretch.parts["forward"] for stretch in facts.steps) > 0.0


@pytest.mark.parametrize("broken_step", [1, 3, 5])
def test_a_loss_that_is_read_late_still_keeps_its_weights_out_of_checkpoints(
    reading_late, tiny_msd, tiny_plan, tmp_path, monkeypatch, broken_step
):
    step = TrainingStep.__call__

    def breaks(training, batch, learning_rate):
        loss = step(training, batch, learning_rate)
        if batch.step == broken_step:
            with torch.no_grad():
                next(training.network.parameters()).fill_(math.nan)
            return loss * math.nan
        return loss

    monkeypatch.setattr(TrainingStep, "__call__", breaks)
    # It wants to save after every step.
    overrides = {**tiny_plan, "train.checkpoint_every_s": 1e-6}
    with pytest.raises(NonFiniteLossError, match=f"step {broken_step}"):
        trained(tiny_msd, tmp_path / "run", overrides)
    for path in (tmp_path / "run").rglob("step_*.pt"):
        network = torch.load(path, weights_only=True)["training"]["network"]
        assert all(tensor.isfinite().all() for tensor in network.values())


def test_waiting_for_other_ranks_is_a_part_of_its_own_and_not_of_the_loss():
    records = [
        record("exchange", 4, parent=3, seconds=0.5),
        record("loss", 3, parent=2, seconds=0.75),
        record("exchange", 6, parent=5, seconds=9.0),
        record("validation", 5, seconds=9.0),
        record("forward", 7, parent=2),
        record("step", 2),
    ]
    assert part_seconds(records) == {"forward": 1.25, "exchange": 0.5}


def test_parts_are_those_of_a_diagnosis():
    from voxelocity_observe.diagnose.facts import PARTS

    # A program that is watched has no exchange that is known to be one, and no graph of ours.
    assert set(PART_OF_SPAN.values()) - {EXCHANGE, GRAPH} <= set(PARTS)
