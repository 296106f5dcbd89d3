import json
import re
from dataclasses import replace

import pytest

from voxelocity.bench.switch_report import SwitchReport
from voxelocity.bench.switch_run import run_switch
from voxelocity.bench.switches import Device
from voxelocity.report.document import Table

CPU = Device(kind="cpu", words="EPYC", fast_bfloat16=True)


@pytest.fixture
def report(tmp_path, fake_train) -> SwitchReport:
    return run_switch("amp", quick=True, work=tmp_path / "work", device=CPU, train=fake_train)


def test_both_sides_stand_as_one_run_with_the_medians_of_all_rounds(report):
    off, on = report.pair.runs
    assert (off.label, on.label) == ("float32", "bfloat16")
    assert (off.wall_s, on.wall_s) == (20.0, 15.0)
    assert (off.peak_host_bytes, on.peak_host_bytes) == (300 * 2**20, 200 * 2**20)
    # Seeds 0 and 1 give 0.80 and 0.81, and the liver 0.01 more on the mean of the cases.
    assert off.final_dice == pytest.approx(0.81)
    assert report.pair.target_dice == 0.8
    assert (off.seconds_to_target, on.seconds_to_target) == (20.0, 15.0)


def test_accuracy_is_paired_over_the_trainings_of_all_rounds(report):
    parity = report.pair.parity
    assert (parity.unit, parity.num_cases, parity.overall.n) == ("training", 3, 2)
    assert parity.overall.difference == pytest.approx(0.002)
    assert parity.overall.judgment == "same"


def tables(report):
    (rounds,) = (section for section in report.document.sections if section.title == "Round by round")
    return [block for block in rounds.blocks if isinstance(block, Table)]


def test_the_tables_show_both_sides_with_their_spread_and_the_ratio_within_rounds(report):
    figures, losses = tables(report)
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


def test_the_page_and_the_record_are_written_and_agree(report, tmp_path):
    page, record = report.write(tmp_path / "out")
    assert (page.name, record.name) == ("bench_amp.html", "bench_amp.json")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).replace("\u00a0", " ").split())
    for phrase in (
        "Mixed precision: bfloat16 against float32",
        "on EPYC; 2 rounds, each with one seed for both sides",
        "Published for mixed precision on a GPU: 1.11 times as fast",
        "Images per second 1.00 1.00 to 1.00 2.00 2.00 to 2.00 2.00×",
        "Each of the 2 pairs of trainings has one seed and is judged on 3 cases.",
        "voxelocity bench amp --quick",
        "their figures mean nothing",
    ):
        assert phrase in text
    plain = json.loads(record.read_text())
    assert plain["benchmark"] == "amp"
    assert plain["settings"]["off"] == {"precision.compute": "float32", "precision.channels_last": True}
    assert plain["comparisons"][0]["sides"][1]["ours_better_by"]["median"] == 2.0
    assert plain["losses"]["on"][0] == 1.0
    assert plain["final_dice"]["off"] == pytest.approx([0.805, 0.815])
    assert plain["comparison"]["accuracy"]["overall"]["judgment"] == "same"
    assert plain["environment"]["num_cpus"] >= 1


def test_the_record_does_not_say_whose_home_the_cache_lies_in(report, tmp_path, monkeypatch):
    plain = report.to_plain()
    monkeypatch.setattr(SwitchReport, "to_plain", lambda self: {**plain, "folder": str(tmp_path / "me" / "cache")})
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    _, record = report.write(tmp_path / "out")
    assert json.loads(record.read_text())["folder"] == "~/cache"


def test_a_single_round_has_no_spread_and_what_takes_no_time_no_factor(report):
    switched = report.switched
    at_once = [
        replace(run, steps=(replace(run.steps[0], seconds=run.steps[1].seconds), *run.steps[1:]))
        for run in (switched.off[0], switched.on[0])
    ]
    speed = switched.speed
    speed = replace(speed, figures=tuple(replace(figure, values=figure.values[:1]) for figure in speed.figures))
    alone = replace(switched, off=(at_once[0],), on=(at_once[1],), speed=speed)
    rows = {row[0]: row[1:] for row in tables(replace(report, switched=alone))[0].rows}
    assert rows["Images per second"] == ["1.00", "", "2.00", "", "2.00×", ""]
    assert rows["More time for the first steps"] == ["0 s", "", "0 s", "", "", ""]
