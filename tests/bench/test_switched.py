import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity.bench import switched
from voxelocity.bench.phantom import PhantomSet
from voxelocity.bench.switched import (
    Trainings,
    figures_of,
    losses_by_stretch,
    record_of,
    run_switch,
    run_switched,
    steady_images_per_s,
    train_afresh,
    warm_up_s,
)
from voxelocity.bench.switches import NEED_CUDA, SWITCHES, Device, make_switch, this_device
from voxelocity.core.config import check_key, check_value
from voxelocity.core.errors import InputError
from voxelocity.planning import Plan
from voxelocity.report import RunFacts, StepRecord
from voxelocity.report.document import Table
from voxelocity.report.records import DatasetFacts

CPU = Device(kind="cpu", words="EPYC", fast_bfloat16=True)
GPU = Device(kind="cuda", words="H100", fast_bfloat16=True)
OLD_GPU = Device(kind="cuda", words="V100", fast_bfloat16=False)
AMP = make_switch("amp", CPU)
TINY = Trainings(
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


def test_mixed_precision_changes_the_number_format_and_no_memory_format():
    switch = make_switch("amp", CPU)
    assert switch.off == {"precision.compute": "float32", "precision.channels_last": True}
    assert switch.on == {"precision.compute": "bfloat16", "precision.channels_last": True}


def test_mixed_precision_takes_the_format_that_the_device_multiplies():
    assert make_switch("amp", CPU).on["precision.compute"] == "bfloat16"
    assert make_switch("amp", GPU).on["precision.compute"] == "bfloat16"
    assert make_switch("amp", OLD_GPU).on["precision.compute"] == "float16"


def test_the_published_figure_is_told_with_what_it_was_measured_on():
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


def test_the_device_here_is_the_one_that_a_plan_would_take():
    device = this_device()
    assert device.kind in ("cpu", "cuda")
    assert device.words


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
    monkeypatch.setattr(switched, "run_python", lambda *words, environ: said.append((words, environ)))
    train_afresh(tmp_path / "cases.csv", tmp_path / "run", {"train.steps": 5, "seed": 1}, {"A": "b"})
    ((words, environ),) = said
    assert environ == {"A": "b"}
    assert words[:3] == ("-m", "voxelocity", "train")
    assert words[3:6] == (tmp_path / "cases.csv", "-o", tmp_path / "run")
    config = words[words.index("--config") + 1]
    assert config.read_text() == '{"train.steps": 5, "seed": 1}'


@pytest.fixture
def record(tmp_path, fake_train):
    return run_switch("amp", quick=True, work=tmp_path / "work", device=CPU, train=fake_train)


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


def tables(record):
    (rounds,) = (section for section in record.document().sections if section.title == "Round by round")
    return [block for block in rounds.blocks if isinstance(block, Table)]


def test_the_tables_show_both_sides_with_their_spread_and_the_ratio_within_rounds(record):
    figures, losses = tables(record)
    assert figures.caption == "2 rounds"
    spread = "Least to most"
    assert figures.heads == ["Measure", "float32", spread, "bfloat16", spread, "Better by", spread]
    rows = {row[0]: row[1:] for row in figures.rows}
    assert rows["Images per second"] == ["1.00", "1.00 to 1.00", "2.00", "2.00 to 2.00", "2.00×", "2.00× to 2.00×"]
    assert rows["Peak main memory"][4:] == ["1.50×", "1.50× to 1.50×"]
    assert rows["More time for the first steps"][:2] == ["8.0 s", "8.0 s to 8.0 s"]
    dice = ["0.810", "0.805 to 0.815", "0.812", "0.807 to 0.817", "+0.002", "+0.002 to +0.002"]
    assert rows["Final Dice"] == dice
    assert "Peak device memory" not in rows, "no run had a device"
    assert losses.rows[0] == ["1 to 1", "1.0000", "1.0000", "±0.0000"]
    assert len(losses.rows) == 6


def test_the_page_and_the_record_are_written_and_agree(record, tmp_path):
    page, kept = record.write(tmp_path / "out")
    assert (page.name, kept.name) == ("bench_amp.html", "bench_amp.json")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).replace("\u00a0", " ").split())
    for phrase in (
        "Mixed precision: bfloat16 against float32",
        "on EPYC; 2 rounds",
        "1.11 times as fast",
        "Images per second 1.00 1.00 to 1.00 2.00 2.00 to 2.00 2.00×",
        "Each of the 2 pairs of trainings has one seed and is judged on 3 cases.",
        "voxelocity bench amp --quick",
        "their figures mean nothing",
    ):
        assert phrase in text
    plain = json.loads(kept.read_text())
    assert plain["benchmark"] == "amp"
    assert plain["settings"]["off"] == {"precision.compute": "float32", "precision.channels_last": True}
    assert plain["comparisons"][0]["sides"][1]["ours_better_by"]["median"] == 2.0
    assert plain["losses"]["on"][0] == 1.0
    assert plain["final_dice"]["off"] == pytest.approx([0.805, 0.815])
    assert plain["comparison"]["accuracy"]["overall"]["judgment"] == "same"
    assert plain["environment"]["num_cpus"] >= 1


def test_a_single_round_has_no_spread_and_what_takes_no_time_no_factor(amp):
    at_once = [
        replace(run, steps=(replace(run.steps[0], seconds=run.steps[1].seconds), *run.steps[1:]))
        for run in (amp.off[0], amp.on[0])
    ]
    speed = replace(amp.speed, figures=tuple(replace(each, values=each.values[:1]) for each in amp.speed.figures))
    alone = replace(amp, off=(at_once[0],), on=(at_once[1],), speed=speed)
    rows = {row[0]: row[1:] for row in tables(record_of(alone, TINY, "EPYC", "x"))[0].rows}
    assert rows["Images per second"] == ["1.00", "", "2.00", "", "2.00×", ""]
    assert rows["More time for the first steps"] == ["0 s", "", "0 s", "", "", ""]
