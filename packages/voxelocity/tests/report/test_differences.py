from __future__ import annotations

import json

import pytest

from voxelocity.core.records import CaseScore
from voxelocity.report import LabeledRun
from voxelocity.report.differences import (
    compare,
    comparison_values,
    different_settings,
    machine_notices,
    machines_table,
)
from voxelocity.report.parity import paired_parity
from voxelocity_observe.core.errors import InputError

PLAIN = LabeledRun(
    label="Plain",
    seconds_to_target=240.0,
    seconds_per_epoch=4.0,
    images_per_s=40.0,
    wall_s=260.0,
    wait_share=0.62,
    dice_history=((120.0, 0.7), (240.0, 0.86)),
)
OURS = LabeledRun(
    label="Ours",
    seconds_to_target=50.0,
    seconds_per_epoch=1.0,
    images_per_s=180.0,
    wall_s=65.0,
    wait_share=0.013,
    dice_history=((25.0, 0.72), (50.0, 0.864)),
    final_dice=0.863,
)


def rows(*runs, target_dice=None):
    return {row.key: row for row in compare(runs, target_dice=target_dice)}


def test_times_count_how_often_the_new_fits_into_the_old_and_rates_the_other_way_round():
    factors = {key: row.factors[0].value for key, row in rows(PLAIN, OURS).items() if row.factors}
    assert factors == {
        "seconds_to_target": pytest.approx(4.8),
        "seconds_per_epoch": pytest.approx(4.0),
        "images_per_s": pytest.approx(4.5),
        "wall_s": pytest.approx(4.0),
        "best_dice": pytest.approx(0.004),
        "last_dice": pytest.approx(0.003),
    }


def test_waiting_is_shown_without_a_factor():
    row = rows(PLAIN, OURS)["wait_share"]
    assert row.texts == ("62.0 %", "1.3 %")
    assert row.factors == ()


def test_a_first_run_that_never_got_there_gives_a_lower_bound():
    never = LabeledRun(label="Plain", wall_s=600.0)
    row = rows(never, OURS)["seconds_to_target"]
    assert row.texts == ("not in 10 min", "50 s")
    assert row.factors[0].value == pytest.approx(12.0)
    assert row.factors[0].text == "> 12×"
    # A bound below 1 says nothing about which is better.
    (bound,) = rows(LabeledRun(label="Plain", wall_s=20.0), OURS)["seconds_to_target"].factors
    assert (bound.text, bound.is_worse, bound.is_even) == ("> 0.40×", False, True)


def test_a_run_that_never_got_there_has_no_factor():
    row = rows(PLAIN, LabeledRun(label="Ours", wall_s=600.0))["seconds_to_target"]
    assert row.factors[0].value is None
    assert row.factors[0].text == "n/a"


def test_measures_that_no_run_knows_are_left_out():
    assert list(rows(LabeledRun(label="a", wall_s=2.0), LabeledRun(label="b"))) == ["wall_s"]


def test_three_runs_are_each_held_against_the_first():
    third = LabeledRun(label="Third", seconds_to_target=80.0)
    row = rows(PLAIN, OURS, third, target_dice=0.85)["seconds_to_target"]
    assert row.name == "Time to Dice 0.85"
    assert [factor.value for factor in row.factors] == [pytest.approx(4.8), pytest.approx(3.0)]


def test_runs_need_labels_of_their_own():
    with pytest.raises(InputError, match=r"two runs have the same label in \['Plain', 'Plain'\]; give each its own"):
        compare([PLAIN, PLAIN])


def test_the_comparison_is_plain_data():
    data = comparison_values([PLAIN, OURS], target_dice=0.85)
    assert json.loads(json.dumps(data)) == data
    assert data["runs"][1]["dice_history"] == [[25.0, 0.72], [50.0, 0.864]]
    first = data["factors"][0]
    assert first["values"] == {"Plain": 240.0, "Ours": 50.0}
    assert first["factors"] == {"Ours": {"value": pytest.approx(4.8), "kind": "times", "is_at_least": False}}
    assert next(row for row in data["factors"] if row["key"] == "wait_share")["factors"] == {}


def test_less_memory_is_better_and_half_of_it_is_a_factor_of_two():
    a, b = LabeledRun(label="a", peak_host_bytes=2**32), LabeledRun(label="b", peak_host_bytes=2**31)
    row = rows(a, b)["peak_host_bytes"]
    assert (row.name, row.texts) == ("Peak main memory", ("4.00 GiB", "2.00 GiB"))
    assert row.factors[0].value == 2.0
    device = rows(LabeledRun(label="a", peak_device_bytes=2892), LabeledRun(label="b", peak_device_bytes=1829))
    assert device["peak_device_bytes"].factors[0].text == "1.6×"


def test_accuracy_is_plain_data_with_its_judgments():
    scores = [CaseScore(case_id=str(i), dice={"liver": 0.8}) for i in range(3)]
    data = comparison_values([PLAIN, OURS], parity=paired_parity(scores, scores))
    assert json.loads(json.dumps(data)) == data
    assert data["accuracy"]["overall"]["judgment"] == "same"
    assert [row["judgment"] for row in data["accuracy"]["structures"]] == ["same", "undecided"]
    assert comparison_values([PLAIN, OURS])["accuracy"] is None


COMMIT = "8f14e45fceea167a5a36dedd4bea2543d0c3f1a2"


def run(label, **changes):
    return LabeledRun(
        label=label,
        settings={"data": {"patch": {"shape_voxel": [1, 2, 3]}}, "seed": 0, **changes.pop("settings", {})},
        reasons=changes.pop("reasons", {}),
        machine={"cpu": "EPYC", "torch": "2.13.0", "commit": COMMIT, **changes.pop("machine", {})},
    )


def test_each_setting_that_differs_comes_with_the_reasons_of_both():
    found, num_equal = different_settings(
        [
            run("A", settings={"precision": {"compute": "float32"}}, reasons={"precision.compute": "no units"}),
            run("B", settings={"precision": {"compute": "bfloat16"}}, reasons={"precision.compute": "set by you"}),
        ]
    )
    assert found == [["precision.compute", "float32", "bfloat16", "A: no units; B: set by you"]]
    assert num_equal == 2


def test_a_reason_of_both_is_reported_once_and_one_of_a_section_holds_for_its_keys():
    reasons = {"data.patch": "as large as fits"}
    (setting,), _ = different_settings(
        [run("A", reasons=reasons), run("B", reasons=reasons, settings={"data": {"patch": {"shape_voxel": [4, 4, 4]}}})]
    )
    assert setting[-1] == "as large as fits"
    (setting,), _ = different_settings([run("A"), run("B", settings={"seed": 1})])
    assert setting == ["seed", "0", "1"]


def test_machines_that_are_alike_take_one_column():
    table = machines_table([run("A"), run("B")])
    assert table.heads == ("What", "Value")
    assert ("Processor", "EPYC") in table.rows


def test_machines_that_differ_stand_side_by_side():
    table = machines_table([run("A"), run("B", machine={"cpu": "Xeon", "gpu": "H100"})])
    assert table.heads == ["What", "A", "B"]
    assert ["Processor", "EPYC", "Xeon"] in table.rows
    assert ["GPU", "", "H100"] in table.rows


def test_other_machines_and_other_versions_are_reported_each_for_what_it_spoils():
    assert machine_notices([run("A"), run("B")]) == []
    other = run("B", machine={"cpu": "Xeon", "torch": "2.12.1", "commit": f"{COMMIT}-dirty"})
    assert machine_notices([run("A"), other]) == [
        "The runs were made on different machines (cpu: EPYC, Xeon); their times are not directly comparable.",
        "The runs were made with different versions (commit: 8f14e45fceea, 8f14e45fceea-dirty; torch: 2.13.0, 2.12.1); "
        "differences may come from them and not from the settings.",
    ]
