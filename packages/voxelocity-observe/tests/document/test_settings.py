import pytest

from voxelocity_observe.document.blocks import Table, Text
from voxelocity_observe.document.settings import different_machines, differing_settings, settings_section


def test_only_settings_that_differ_are_listed_and_tuples_equal_lists():
    a = {"spacing": (1, 1, 1), "cache": {"tier": "none"}, "lr": 0.1}
    b = {"spacing": [1, 1, 1], "cache": {"tier": "memory"}, "seed": 0, "lr": 0.1}
    assert differing_settings([a, b]) == ({"cache.tier": ("none", "memory"), "seed": (None, 0)}, 2)
    assert differing_settings([{}, {}]) == ({}, 0)


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


def test_of_machines_only_what_all_of_them_tell_can_differ():
    machines = [{"cpu": "EPYC", "num_cpus": 8, "gpu": None}, {"cpu": "Xeon", "num_cpus": 4, "gpu": "H100"}]
    assert different_machines(machines) == "gpu: none, H100; cpu: EPYC, Xeon; num_cpus: 8, 4"
    assert different_machines([machines[0], {}]) == ""
