import dataclasses

import pytest

from voxelocity.diagnosis.facts import ExperimentFacts, FetchFacts
from voxelocity.diagnosis.render.evidence import evidence_sections
from voxelocity.diagnosis.render.wording import quantile
from voxelocity.report.document import Table

EXAMPLES = ["data-bound", "clean", "validation-bound", "on a GPU", "killed", "nothing seen"]


def tables_of(diagnosis):
    blocks = [block for section in evidence_sections(diagnosis) for block in section.blocks]
    return {block.caption: block for block in blocks if isinstance(block, Table)}


@pytest.fixture
def tables(example_diagnosis):
    return tables_of(example_diagnosis("data-bound"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_row_has_a_cell_for_every_head_and_every_bar_its_row(example_diagnosis, name):
    for table in tables_of(example_diagnosis(name)).values():
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.heads)}, table.caption
        assert len(table.shares) in (0, len(table.rows))
        assert all(0.0 <= share <= 1.0 for share in table.shares)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)


def test_sections_without_facts_are_left_out(example_diagnosis):
    assert [section.key for section in evidence_sections(example_diagnosis("nothing seen"))] == []
    keys = [section.key for section in evidence_sections(example_diagnosis("clean"))]
    assert keys == ["steps", "experiments", "loaders", "settings", "host", "environment"]


def test_steps_are_told_by_how_they_were_run(tables):
    rows = {row[0]: row[1:] for row in tables["Time of a step"].rows}
    assert rows["counted"] == ("40", "0.50 s", "0.45 s to 0.55 s", "20 s")
    assert rows["on batches that were there"][0] == "5"
    parts = {row[0]: row[1:] for row in tables["Parts of a counted step"].rows}
    assert parts["waiting for data"] == ["0.30 s", "0.34 s", "61.0 %"]


def test_on_a_device_the_hosts_view_of_a_step_stands_beside_it(example_diagnosis):
    table = tables_of(example_diagnosis("on a GPU"))["Parts of a counted step"]
    assert "Median on the host" in table.heads


def test_passes_of_one_kind_and_place_are_summed(example_diagnosis):
    diagnosis = example_diagnosis("validation-bound")
    validation, saving = diagnosis.facts.passes
    facts = dataclasses.replace(diagnosis.facts, passes=[validation, saving, validation])
    rows = tables_of(dataclasses.replace(diagnosis, facts=facts))["Passes that train nothing"].rows
    assert rows[0] == ("validation", "val.py:70", "2", "32 s", "16 s", "1,624", "1 × 1 × 64 × 64 × 64", "recorded")
    assert len(rows) == 2


def test_each_experiment_has_its_pace_in_its_own_unit(tables):
    rows = {row[0]: row[1:] for row in tables["Experiments"].rows}
    assert rows["The step, on batches that are there"] == ("0.20 s a step", "5.13 steps/s", "3", "")
    assert rows["The data set, in one thread"] == ("76 ms an item", "13.2 items/s, 3.29 batches/s", "1", "")
    assert rows["Reading the files from storage"] == ("4.2 ms a MiB", "238 MiB/s", "1", "")
    assert rows["Putting a batch together"] == ("n/a", "", "", "the collate function takes two arguments")


def test_columns_of_batches_are_left_out_where_nothing_was_validated(example_diagnosis):
    starts = tables_of(example_diagnosis("data-bound"))["Passes that train nothing"]
    assert list(starts.heads) == ["Kind", "Where", "Times", "Sum", "Longest"]
    validated = tables_of(example_diagnosis("validation-bound"))["Passes that train nothing"]
    assert "Forward passes" in validated.heads
    assert {validated.heads[column] for column in validated.text_columns} <= {
        "Where", "Most frequent shape", "Gradients"
    }  # fmt: skip


def test_an_experiment_that_nobody_foresaw_keeps_its_name_and_unit(example_diagnosis):
    diagnosis = example_diagnosis("clean")
    new = ExperimentFacts(name="two loaders", unit="epoch", seconds=[2.0])
    facts = dataclasses.replace(diagnosis.facts, experiments=[new])
    rows = tables_of(dataclasses.replace(diagnosis, facts=facts))["Experiments"].rows
    assert rows == [("two loaders", "2.0 s an epoch", "0.500 epoch/s", "1", "")]


def test_loaders_stand_side_by_side_and_lines_without_words_are_left_out(tables):
    rows = {row[0]: row[1:] for row in tables["Loaders"].rows}
    assert rows["num_workers"] == ("0", "0")
    assert rows["For"] == ("training", "other")
    assert "prefetch_factor" not in rows


def test_batches_are_told_by_who_made_them(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    fetches = [
        FetchFacts(
            key=1, worker=w, num_batches=2, num_items=4, item_s=0.4, item_cpu_s=0.2, collate_s=0.1, collate_cpu_s=0.1
        )
        for w in range(20)
    ]
    facts = dataclasses.replace(diagnosis.facts, fetches=fetches)
    table = tables_of(dataclasses.replace(diagnosis, facts=facts))["Who made the batches (the first 16)"]
    assert table.rows[3][:5] == ("loader 1, worker 3", "2", "0.10 s", "50 ms", "50 ms")
    assert len(table.rows) == 16
    alone = dataclasses.replace(facts, loaders=[])
    assert "worker 3" in [row[0] for row in tables_of(dataclasses.replace(diagnosis, facts=alone))[table.caption].rows]


def test_the_makers_of_batches_name_a_loader_as_the_table_of_loaders_does(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    loaders = [dataclasses.replace(loader, key=loader.key - 1) for loader in diagnosis.facts.loaders]
    fetches = [dataclasses.replace(fetch, key=0) for fetch in diagnosis.facts.fetches]
    facts = dataclasses.replace(diagnosis.facts, loaders=loaders, fetches=fetches)
    rows = tables_of(dataclasses.replace(diagnosis, facts=facts))["Who made the batches"].rows
    assert [row[0] for row in rows] == ["loader 1, the program itself"]


def test_transforms_come_costliest_first_with_their_share(tables):
    table = tables["Transforms, costliest first"]
    assert [row[0] for row in table.rows] == ["LoadImaged", "Spacingd", "RandFlipd"]
    assert table.rows[0][2:] == ("always the same", "192", "52 ms", "50 ms", "69.7 %")
    assert sum(table.shares) == pytest.approx(1.0)


def test_lines_of_code_have_their_share_of_the_part_they_were_found_in(tables):
    table = tables["Where the program was found"]
    assert [row[5] for row in table.rows] == ["63.6 %", "36.4 %", "100.0 %"]
    assert table.rows[0][:4] == ("train.py:21", "image = nib.load(path).get_fdata()", "waiting for data", "gunzip")


def test_waits_are_told_by_step_and_costly_calls_by_their_sum(tables):
    assert tables["Waits for the device"].rows[0][3:] == ("1", "1 ms", "no")
    assert tables["Costly calls"].rows[0] == ("torch.save", "train.py:60", "torch.save(x)", "1", "0.20 s")


def test_kernel_groups_and_operators_are_there_where_a_device_was(example_diagnosis, tables):
    found = tables_of(example_diagnosis("on a GPU"))
    assert found["Kernel groups"].rows[1] == ("Tensor-core kernels", "310", "1.9 ms", "52 ms")
    assert found["The device"].rows[1][1] == "13.8 %"
    assert found["Top operators, without what they call"].rows[0][-1] == "73.5 %"
    assert found["The GPUs"].rows == [
        ("GPU 0", "84.0 %", "20.0 GiB of 80.0 GiB"),
        ("Clocks held back", "SW power cap (2.0 %)", ""),
    ]
    assert "Kernel groups" not in tables


def test_a_profile_without_a_device_ranks_operators_by_the_processor(example_diagnosis):
    diagnosis = example_diagnosis("on a GPU")
    operators = [dataclasses.replace(one, gpu_ns=0) for one in diagnosis.facts.profile.operators]
    profile = dataclasses.replace(diagnosis.facts.profile, gpu_busy_ns=0, operators=operators)
    facts = dataclasses.replace(diagnosis.facts, profile=profile)
    found = tables_of(dataclasses.replace(diagnosis, facts=facts))
    table = found["Top operators, without what they call"]
    assert "GPU time" not in table.heads
    assert table.rows[0][-1] == "61.5 %"
    assert "Kernel groups" not in found


def test_settings_leave_out_what_was_not_seen(tables):
    rows = dict(tables["Settings"].rows)
    assert rows["num threads"] == "2"
    assert "device name" not in rows
    assert dict(tables["Network"].rows)["input shapes"] == "4 × 1 × 64 × 64 × 64 (40 times)"
    assert dict(tables["Network"].rows)["channels"] == "64 to 128, 32 to 64"


def test_the_host_is_told_with_its_limits(tables):
    rows = dict(tables["The host"].rows)
    assert rows["Memory, at most"] == "2.00 GiB of 24.0 GiB"
    assert rows["/dev/shm, at most"] == "1.00 MiB of 64.0 MiB"
    assert rows["Cores it may use"] == "2 of 16"


def test_quantiles_lie_on_a_line_between_the_values():
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([4.0, 0.0], 0.25) == 1.0
    assert quantile(list(range(101)), 0.95) == 95
