from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity.bench import switched
from voxelocity.bench.phantom import PhantomSet
from voxelocity.bench.switched import (
    Trainings,
    figures_of,
    losses_by_stretch,
    run_switched,
    steady_images_per_s,
    train_afresh,
    warm_up_s,
)
from voxelocity.bench.switches import Device, make_switch
from voxelocity.report import RunFacts, StepRecord
from voxelocity.report.records import DatasetFacts

AMP = make_switch("amp", Device(kind="cpu", words="EPYC", fast_bfloat16=True))
TINY = Trainings(
    cases=PhantomSet(kind="ct", shape=(20, 20, 16), num_cases=6), num_held_out=3, steps=8, rounds=3, seed=4
)


@pytest.fixture
def amp(tmp_path, fake_train):
    return run_switched(AMP, TINY, tmp_path, train=fake_train)


def stretch(step, num_steps, loss, seconds=1.0):
    return StepRecord(
        time_s=0.0, step=step, epoch=0, loss=loss, learning_rate=0.1, num_steps=num_steps, num_images=2 * num_steps,
        seconds=seconds, wait_s=0.0,
    )  # fmt: skip


def facts(*steps):
    return RunFacts(folder=Path("run"), status="finished", dataset=DatasetFacts(name="x"), steps=steps)


def test_each_round_has_one_seed_for_both_sides_and_the_next_round_another(amp):
    assert [run.seed for run in amp.off] == [run.seed for run in amp.on] == [4, 5, 6]


def test_both_sides_differ_in_the_setting_alone(amp):
    off, on = (runs[0].plan["keys"] for runs in (amp.off, amp.on))
    assert {key for key in off if off[key] != on[key]} == {"precision.compute"}
    assert off.keys() == on.keys()
    assert off["planner.measure"] == "never", "measured, the plans of both sides could differ in more"
    assert (off["train.validate_every_steps"], off["train.validation_cases"]) == (2, 4)


def test_variables_of_the_setting_reach_its_side_alone(tmp_path, fake_train):
    allocator = make_switch("allocator", Device(kind="cuda", words="H100", fast_bfloat16=True))
    given = []

    def train(dataset, out, keys, environ):
        given.append(dict(environ))
        fake_train(dataset, out, keys, environ)

    run_switched(allocator, replace(TINY, rounds=1), tmp_path, train=train)
    assert given == [{"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, {}]


def test_rounds_are_begun_by_the_sides_in_turn(tmp_path, fake_train):
    order = []
    run_switched(AMP, TINY, tmp_path, train=fake_train, on_run=lambda label, run: order.append(label))
    assert order == ["bfloat16", "float32", "float32", "bfloat16", "bfloat16", "float32"]


def test_the_speed_leaves_out_the_first_stretch_and_the_setting_comes_first(amp):
    on, off = amp.speed.figures
    assert (on.name, on.values) == ("bfloat16", (2.0,) * 3)
    assert (off.name, off.values) == ("float32", (1.0,) * 3)
    assert amp.speed.ratios(off) == (2.0,) * 3


def test_nothing_but_the_phantoms_stays_in_the_work_folder(tmp_path, fake_train):
    run_switched(AMP, TINY, tmp_path, train=fake_train)
    assert [path.name for path in tmp_path.iterdir()] == ["v1-ct-20x20x16-1x1x1"]


def test_the_first_stretch_is_told_apart_from_the_steady_ones():
    run = facts(stretch(1, 1, 1.0, seconds=30.0), stretch(3, 2, 1.0, seconds=4.0), stretch(4, 1, 1.0, seconds=2.0))
    assert steady_images_per_s(run) == 1.0
    assert warm_up_s(run) == 28.0
    assert warm_up_s(facts(stretch(4, 4, 1.0))) == 0.0


def test_losses_are_taken_over_equal_stretches_of_steps():
    run = facts(stretch(6, 6, 3.0), stretch(16, 10, 1.0))
    # Eight stretches of two steps: the first three from the first record.
    assert losses_by_stretch(run) == (3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    uneven = facts(stretch(3, 3, 3.0), stretch(16, 13, 1.0))
    assert losses_by_stretch(uneven)[:3] == (3.0, 2.0, 1.0)
    assert losses_by_stretch(facts(stretch(2, 2, 5.0))) == (5.0, 5.0)


def test_a_figure_that_one_run_lacks_is_left_out(amp):
    def peak(run):
        return run.finish.peak_host_bytes

    assert [figure.values[0] for figure in figures_of(amp, "Peak", "bytes", peak).figures] == [200 * 2**20, 300 * 2**20]
    torn = replace(amp, on=(*amp.on[:2], replace(amp.on[2], finish=replace(amp.on[2].finish, peak_host_bytes=None))))
    assert figures_of(torn, "Peak", "bytes", peak) is None


def test_a_training_afresh_is_the_command_that_a_person_gives(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(switched, "python_says", lambda *words, environ: said.append((words, environ)))
    train_afresh(tmp_path / "cases.csv", tmp_path / "run", {"train.steps": 5, "seed": 1}, {"A": "b"})
    ((words, environ),) = said
    assert environ == {"A": "b"}
    assert words[:3] == ("-m", "voxelocity", "train")
    assert words[3:6] == (tmp_path / "cases.csv", "-o", tmp_path / "run")
    config = words[words.index("--config") + 1]
    assert config.read_text() == '{"train.steps": 5, "seed": 1}'
