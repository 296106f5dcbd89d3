import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity.core.config import check_key, check_value
from voxelocity.planning import Machine, Plan
from voxelocity.report import RunFacts, StepRecord
from voxelocity.report.records import DatasetFacts
from voxelocity_lab.bench import switched
from voxelocity_lab.bench.phantom import PhantomSet
from voxelocity_lab.bench.switched import (
    SwitchSettings,
    losses_by_stretch,
    run_switch,
    steady_images_per_s,
    train_afresh,
    train_both,
    warm_up_s,
)
from voxelocity_lab.bench.switches import NEED_CUDA, SWITCHES, make_switch
from voxelocity_observe.core.errors import InputError


def machine(device, name, *, fast_bfloat16=True):
    sizes = dict.fromkeys(
        ("device_memory_bytes", "device_free_bytes", "memory_bytes", "shared_bytes", "disk_bytes"), 2**33
    )
    return Machine(device=device, device_name=name, fast_bfloat16=fast_bfloat16, num_cpus=2, **sizes)


CPU, GPU = machine("cpu", "CPU"), machine("cuda", "H100")
OLD_GPU = machine("cuda", "V100", fast_bfloat16=False)
AMP = make_switch("amp", CPU)
TINY = SwitchSettings(
    cases=PhantomSet(kind="ct", shape=(20, 20, 16), num_cases=6), num_held_out=3, steps=8, rounds=3, seed=4
)


@pytest.mark.parametrize("name", SWITCHES)
def test_both_sides_set_the_same_keys_of_the_plan_to_other_values(name):
    switch = make_switch(name, GPU)
    assert switch.name == name
    assert switch.off.keys() == switch.on.keys()
    for key, value in [*switch.off.items(), *switch.on.items()]:
        check_key(Plan, key)
        check_value(Plan, key, value)
    assert switch.off != switch.on or switch.on_environ
    assert switch.labels[0] != switch.labels[1]
    for key, value in SwitchSettings(**switch.scenario).keys().items():
        check_key(Plan, key)
        check_value(Plan, key, value)
    assert bool(switch.about) == bool(switch.scenario), "what is not as in other trainings is explained"


def test_mixed_precision_takes_the_format_that_the_device_multiplies():
    assert make_switch("amp", CPU).off == {"precision.compute": "float32", "precision.channels_last": True}
    assert make_switch("amp", CPU).on == {"precision.compute": "bfloat16", "precision.channels_last": True}
    assert make_switch("amp", GPU).on["precision.compute"] == "bfloat16"
    assert make_switch("amp", OLD_GPU).on["precision.compute"] == "float16"


def test_the_published_figure_is_reported_with_what_it_was_measured_on():
    text = make_switch("amp", CPU).published
    assert "1.11 times as fast" in text
    assert "2892 MB of device memory became 1829 MB" in text
    assert "another network on other hardware" in text
    assert make_switch("compile", CPU).published == ""


@pytest.mark.parametrize("name", NEED_CUDA)
def test_what_only_a_gpu_gives_a_meaning_to_is_refused_on_a_cpu(name):
    with pytest.raises(
        InputError, match=rf"bench: '{name}' needs a CUDA device \(.*\), and torch sees none here; choose one of amp"
    ):
        make_switch(name, CPU)
    assert make_switch(name, GPU).name == name


@pytest.fixture
def amp(tmp_path, fake_train):
    """Speed and CPU time, and the runs without and with the setting."""
    return train_both(AMP, TINY, tmp_path, train=fake_train)


def stretch(step, num_steps, loss, seconds=1.0):
    return StepRecord(
        time_s=0.0, step=step, epoch=0, loss=loss, learning_rate=0.1, num_steps=num_steps, num_images=2 * num_steps,
        seconds=seconds, wait_s=0.0,
    )  # fmt: skip


def facts(*steps):
    return RunFacts(folder=Path("run"), status="finished", dataset=DatasetFacts(name="x"), steps=steps)


def test_each_round_has_one_seed_for_both_sides_and_the_next_round_another(amp):
    _, without, with_it = amp
    assert [run.seed for run in without] == [run.seed for run in with_it] == [4, 5, 6]


def test_both_sides_differ_in_the_setting_alone(amp):
    off, on = (runs[0].plan["keys"] for runs in amp[1:])
    assert {key for key in off if off[key] != on[key]} == {"precision.compute"}
    assert off.keys() == on.keys()
    assert off["planner.measure"] == "never", "measured, the plans of both sides could differ in more"
    assert (off["train.validate_every_steps"], off["train.validation_cases"]) == (2, 4)


def test_variables_of_the_setting_reach_its_side_alone(tmp_path, fake_train):
    allocator = make_switch("allocator", GPU)
    given = []

    def train(dataset, out, keys, environ):
        given.append(dict(environ))
        return fake_train(dataset, out, keys, environ)

    train_both(allocator, replace(TINY, rounds=1), tmp_path, train=train)
    assert given == [{"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, {}]


def test_rounds_are_begun_by_the_sides_in_turn(tmp_path, fake_train):
    order = []
    train_both(AMP, TINY, tmp_path, train=fake_train, on_run=lambda label, run: order.append(label))
    assert order == ["bfloat16", "float32", "float32", "bfloat16", "bfloat16", "float32"]


def test_the_speed_leaves_out_the_first_stretch_and_the_setting_comes_first(amp):
    (speed, cpu), *_ = amp
    on, off = speed.figures
    assert (on.name, on.values) == ("bfloat16", (2.0,) * 3)
    assert (off.name, off.values) == ("float32", (1.0,) * 3)
    assert speed.ratios(off) == (2.0,) * 3
    assert [figure.values for figure in cpu.figures] == [(10.0,) * 3, (40.0,) * 3]


def test_nothing_but_the_phantoms_stays_in_the_work_folder(tmp_path, fake_train):
    train_both(AMP, TINY, tmp_path, train=fake_train)
    assert [path.name for path in tmp_path.iterdir()] == ["v1-ct-20x20x16-1x1x1"]


def test_the_first_stretch_is_distinguished_from_the_steady_ones():
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


def test_a_training_afresh_is_the_command_that_a_person_gives(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(switched, "run_python", lambda *words, environ: said.append((words, environ)))
    times = iter(os.times_result((9.0, 9.0, user_s, 1.0, 9.0)) for user_s in (3.0, 10.0))
    monkeypatch.setattr(switched.os, "times", lambda: next(times))
    keys = {"train.steps": 5, "seed": 1}
    assert train_afresh(tmp_path / "cases.csv", tmp_path / "run", keys, {"A": "b"}) == 7.0, "CPU seconds"
    ((words, environ),) = said
    assert environ == {"A": "b"}
    assert words[:3] == ("-m", "voxelocity", "train")
    assert words[3:6] == (tmp_path / "cases.csv", "-o", tmp_path / "run")
    config = words[words.index("--config") + 1]
    assert config.read_text() == '{"train.steps": 5, "seed": 1}'


@pytest.fixture
def record(tmp_path, fake_train, monkeypatch):
    # The figures below are of six steps.
    monkeypatch.setattr(switched, "_QUICK", replace(switched._QUICK, steps=6))
    return run_switch("amp", quick=True, work=tmp_path / "work", machine=CPU, train=fake_train)


def test_both_sides_stand_as_one_run_with_the_medians_of_all_rounds(record):
    values = record.details["comparison"]
    off, on = values["runs"]
    assert (off["label"], on["label"]) == ("float32", "bfloat16")
    assert (off["wall_s"], on["wall_s"]) == (20.0, 15.0)
    assert (off["peak_host_bytes"], on["peak_host_bytes"]) == (300 * 2**20, 200 * 2**20)
    # Seeds 0 and 1 give 0.80 and 0.81, and the liver 0.01 more on the mean of the cases.
    assert off["final_dice"] == pytest.approx(0.81)
    assert values["target_dice"] == 0.8
    assert (off["seconds_to_target"], on["seconds_to_target"]) == (20.0, 15.0)


def test_accuracy_is_paired_over_the_trainings_of_all_rounds(record):
    accuracy = record.details["comparison"]["accuracy"]
    assert (accuracy["unit"], accuracy["num_cases"], accuracy["overall"]["n"]) == ("training", 3, 2)
    assert accuracy["overall"]["difference"] == pytest.approx(0.002)
    assert accuracy["overall"]["judgment"] == "same"


def test_every_figure_that_all_runs_have_is_compared_within_rounds(record):
    found = {comparison.title: comparison for comparison in record.comparisons[1:]}
    assert list(found) == [
        "CPU time of the whole training", "More time for the first steps", "An epoch", "Whole training",
        "Peak main memory", "Final Dice", "Epochs to Dice 0.8", "Steps to Dice 0.8", "Time to Dice 0.8",
    ]  # fmt: skip
    on, off = found["Peak main memory"].figures
    assert (on.values, off.values) == ((200.0, 200.0), (300.0, 300.0))
    assert found["Peak main memory"].ratios(off) == (1.5, 1.5)
    assert found["More time for the first steps"].figures[1].values == (8.0, 8.0)
    # Six steps of two images each are four passes over the three cases.
    assert found["Steps to Dice 0.8"].figures[0].values == (6.0, 6.0)
    assert found["Epochs to Dice 0.8"].figures[0].values == (4.0, 4.0)
    assert found["An epoch"].ratios(found["An epoch"].figures[1]) == (2.0, 2.0)
    assert found["Final Dice"].better == "larger"
    assert found["Final Dice"].figures[1].values == pytest.approx((0.805, 0.815))
    sections = {section.title: section for section in record.document().sections}
    table = sections["Peak main memory"].blocks[0]
    assert table.heads[-1] == "bfloat16 better by"
    assert list(table.rows[1]) == ["float32", "300", "300 to 300", "2", "1.5×"]
    losses = sections["Mean loss"].blocks[0]
    assert list(losses.rows[0]) == ["1 to 1", "1.0000", "1.0000", "±0.0000"]
    assert len(losses.rows) == 6


def test_the_page_and_the_record_are_written_and_agree(record, tmp_path):
    page, kept = record.write(tmp_path / "out")
    assert (page.name, kept.name) == ("bench_amp.html", "bench_amp.json")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).replace("\u00a0", " ").split())
    for phrase in (
        "Mixed precision: bfloat16 against float32",
        "2 rounds, each with one seed",
        "1.11 times as fast",
        "float32 1 1 to 1 2 2.0×",
        "Each of the 2 pairs of trainings has one seed and is scored on 3 cases.",
        "voxelocity bench amp --quick",
        "ignore their figures",
    ):
        assert phrase in text
    plain = json.loads(kept.read_text())
    assert plain["benchmark"] == "amp"
    assert plain["settings"]["off"] == {"precision.compute": "float32", "precision.channels_last": True}
    assert plain["comparisons"][0]["sides"][1]["ours_better_by"]["median"] == 2.0
    assert plain["losses"]["on"][0] == 1.0
    assert plain["comparison"]["accuracy"]["overall"]["judgment"] == "same"
    assert plain["environment"]["num_cpus"] >= 1
