import pytest

from voxelocity.report import LabeledRun
from voxelocity.report.differences import (
    different_machines,
    different_settings,
    differing_settings,
    machine_notices,
    machines_table,
    settings_section,
)
from voxelocity.report.document import Table, Text

COMMIT = "8f14e45fceea167a5a36dedd4bea2543d0c3f1a2"


def run(label, **changes):
    return LabeledRun(
        label=label,
        settings={"data": {"patch": {"shape_voxel": [1, 2, 3]}}, "seed": 0, **changes.pop("settings", {})},
        reasons=changes.pop("reasons", {}),
        machine={"cpu": "EPYC", "torch": "2.13.0", "commit": COMMIT, **changes.pop("machine", {})},
    )


def test_only_settings_that_differ_are_listed_and_tuples_equal_lists():
    a = {"spacing": (1, 1, 1), "cache": {"tier": "none"}, "lr": 0.1}
    b = {"spacing": [1, 1, 1], "cache": {"tier": "memory"}, "seed": 0, "lr": 0.1}
    assert differing_settings([a, b]) == ({"cache.tier": ("none", "memory"), "seed": (None, 0)}, 2)
    assert differing_settings([{}, {}]) == ({}, 0)


def test_each_setting_that_differs_comes_with_the_reasons_of_both():
    found, num_equal = different_settings(
        [
            run("A", settings={"precision": {"compute": "float32"}}, reasons={"precision.compute": "no units"}),
            run("B", settings={"precision": {"compute": "bfloat16"}}, reasons={"precision.compute": "set by you"}),
        ]
    )
    assert found == [["precision.compute", "float32", "bfloat16", "A: no units; B: set by you"]]
    assert num_equal == 2


def test_a_reason_of_both_is_told_once_and_one_of_a_section_holds_for_its_keys():
    reasons = {"data.patch": "as large as fits"}
    (setting,), _ = different_settings(
        [run("A", reasons=reasons), run("B", reasons=reasons, settings={"data": {"patch": {"shape_voxel": [4, 4, 4]}}})]
    )
    assert setting[-1] == "as large as fits"
    (setting,), _ = different_settings([run("A"), run("B", settings={"seed": 1})])
    assert setting == ["seed", "0", "1"]


@pytest.mark.parametrize(
    ("rows", "num_equal", "texts"),
    [
        ([["seed", "0", "1"]], 0, []),
        ([["seed", "0", "1"]], 2, ["2 more settings are equal."]),
        ([], 1, ["Nothing: the one setting is equal."]),
        ([], 0, ["No settings were recorded."]),
    ],
)
def test_what_was_set_differently_is_a_table_or_a_sentence(rows, num_equal, texts):
    blocks = settings_section(rows, ["A", "B"], num_equal).blocks
    assert [block.text for block in blocks if isinstance(block, Text)] == texts
    assert [block.heads for block in blocks if isinstance(block, Table)] == [["Setting", "A", "B"]] * bool(rows)


def test_machines_that_are_alike_take_one_column():
    table = machines_table([run("A"), run("B")])
    assert table.heads == ("What", "Value")
    assert ("Processor", "EPYC") in table.rows


def test_machines_that_differ_stand_side_by_side():
    table = machines_table([run("A"), run("B", machine={"cpu": "Xeon", "gpu": "H100"})])
    assert table.heads == ["What", "A", "B"]
    assert ["Processor", "EPYC", "Xeon"] in table.rows
    assert ["GPU", "", "H100"] in table.rows


def test_other_machines_and_other_versions_are_told_each_for_what_it_spoils():
    assert machine_notices([run("A"), run("B")]) == []
    other = run("B", machine={"cpu": "Xeon", "torch": "2.12.1", "commit": f"{COMMIT}-dirty"})
    assert machine_notices([run("A"), other]) == [
        "The runs were made on different machines (cpu: EPYC, Xeon); their times are not directly comparable.",
        "The runs were made with different versions (commit: 8f14e45fceea, 8f14e45fceea-dirty; torch: 2.13.0, 2.12.1); "
        "differences may come from them and not from the settings.",
    ]


def test_of_machines_only_what_all_of_them_tell_can_differ():
    machines = [{"cpu": "EPYC", "num_cpus": 8, "gpu": None}, {"cpu": "Xeon", "num_cpus": 4, "gpu": "H100"}]
    assert different_machines(machines) == "gpu: none, H100; cpu: EPYC, Xeon; num_cpus: 8, 4"
    assert different_machines([machines[0], {}]) == ""
