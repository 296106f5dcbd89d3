from __future__ import annotations

from dataclasses import replace

from voxelocity.core.records import CaseScore, Choice
from voxelocity.report import read_run
from voxelocity.report.tables import (
    case_table,
    choice_groups,
    class_table,
    dataset_table,
    settings_table,
    spread_table,
    statistics_table,
    validation_table,
)
from voxelocity_observe.document.settings import in_words, key_value_table, machine_table


def score(case_id, **dice):
    return CaseScore(case_id=case_id, dice=dice, hd95_mm=dict.fromkeys(dice, 2.0))


def test_every_table_has_a_cell_for_every_head(finished_run):
    run = read_run(finished_run)
    tables = [
        class_table(run.scores),
        case_table(run.scores, "Cases"),
        validation_table(run),
        machine_table(run.environment, device="cuda"),
        dataset_table(run),
        spread_table(run.fingerprint),
        statistics_table(run.fingerprint),
        settings_table(run),
    ]
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.heads)}, table.caption


def test_few_classes_have_columns_and_many_show_their_worst():
    few = case_table([score("x", liver=0.9, tumour=0.5)], "c")
    assert few.rows == [["x", "0.700", "0.900", "0.500", "2.00"]]
    many = case_table([score("x", a=0.9, b=0.5, c=0.7, d=0.8, e=0.6)], "c")
    assert many.heads[2:4] == ["Worst class", "Its Dice"]
    assert many.rows == [["x", "0.700", "b", "0.500", "2.00"]]
    assert case_table([score("x", spleen=0.9)], "c").rows == [["x", "0.900", "2.00"]]


def test_a_case_without_classes_is_shown_without_a_number():
    assert case_table([CaseScore(case_id="x", dice={})], "c").rows == [["x", "n/a", "n/a"]]


def test_the_machine_is_named_in_words_with_a_short_commit():
    rows = dict(
        machine_table(
            {"num_cpus": 2, "memory_bytes": 2**34, "gpu": None, "commit": "0123456789abcdef0123-dirty", "new_fact": 1}
        ).rows
    )
    assert rows == {
        "Cores used": "2",
        "Memory": "16.0 GiB",
        "GPU": "none",
        "Commit": "0123456789ab-dirty",
        "new fact": "1",
    }


def test_of_many_validations_some_are_shown_with_the_best_and_the_last(finished_run):
    run = read_run(finished_run)
    one = run.validations[0]
    many = tuple(replace(one, step=step, mean_dice=0.9 if step == 1234 else 0.5) for step in range(1, 8001))
    table = validation_table(replace(run, validations=many))
    steps = [row[0] for row in table.rows]
    assert len(steps) <= 202
    assert (steps[0], steps[-1]) == ("1", "8,000")
    assert "1,234" in steps
    assert table.caption == f"Validations during training, {len(steps)} of 8,000 (all of them in metrics.csv)"


def test_keys_read_as_words():
    assert [in_words(key) for key in ("shape_voxel", "file_bytes", "prepare_s", "intensity.0.mean")] == [
        "shape (voxel)",
        "file size",
        "prepare time",
        "intensity · 0 · mean",
    ]


def test_settings_become_rows_and_none_become_no_rows():
    table = key_value_table("Settings", {"a": {"b_bytes": 2048}})
    assert table.rows == [("a.b_bytes", "2.00 KiB")]
    assert key_value_table("Settings", {}).rows == []


SPEED = Choice(key="data.feed.num_threads", value=1, reason="x", changes_results=False)
ROUNDINGS = Choice(key="precision.channels_last", value=True, reason="x", changes_results=False, changes_roundings=True)
RESULTS = Choice(key="seed", value=0, reason="x")


def test_choices_are_distinguished_by_what_another_value_would_change_and_no_group_is_empty():
    other = replace(RESULTS, key="network.name")
    both = replace(ROUNDINGS, changes_results=True)
    for choices, groups in (
        ([], []),
        ([SPEED], [("Changes only speed and memory", [SPEED])]),
        (
            [SPEED, RESULTS, ROUNDINGS, other, both],
            [
                ("Changes the results", [RESULTS, other, both]),
                ("Changes only rounding", [ROUNDINGS]),
                ("Changes only speed and memory", [SPEED]),
            ],
        ),
    ):
        assert [(group.title, list(group.choices)) for group in choice_groups(choices)] == groups
