from rich.console import Console

import voxelocity
from voxelocity.core.time_parts import EXCHANGE
from voxelocity.observe import SpanRecord
from voxelocity.training import train
from voxelocity.training.loop import PART_OF_SPAN, Loop, part_seconds


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
    from voxelocity.diagnosis.facts import PARTS

    # A program that is watched has no exchange that is known to be one.
    assert set(PART_OF_SPAN.values()) - {EXCHANGE} <= set(PARTS)
