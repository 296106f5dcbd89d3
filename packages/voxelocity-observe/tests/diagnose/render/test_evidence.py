import dataclasses

import pytest

from shared.diagnoses import NAMES, with_facts
from voxelocity_observe.diagnose.facts import ExperimentFacts, FetchFacts
from voxelocity_observe.diagnose.render.evidence import evidence_sections
from voxelocity_observe.diagnose.render.wording import quantile
from voxelocity_observe.document.blocks import Table


def tables_of(diagnosis):
    blocks = [block for section in evidence_sections(diagnosis) for block in section.blocks]
    return {block.caption: block for block in blocks if isinstance(block, Table)}


@pytest.mark.parametrize("name", NAMES)
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


def test_on_a_device_the_hosts_view_of_a_step_stands_beside_it(example_diagnosis):
    table = tables_of(example_diagnosis("on a GPU"))["Parts of a counted step"]
    assert "Median on the host" in table.heads


def test_passes_of_one_kind_and_place_are_summed(example_diagnosis):
    diagnosis = example_diagnosis("validation-bound")
    validation, saving = diagnosis.facts.passes
    rows = tables_of(with_facts(diagnosis, passes=[validation, saving, validation]))["Passes that train nothing"].rows
    assert rows[0] == ("validation", "val.py:70", "2", "32 s", "16 s", "1,624", "1 × 1 × 64 × 64 × 64", "recorded")
    assert len(rows) == 2


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
    rows = tables_of(with_facts(diagnosis, experiments=[new]))["Experiments"].rows
    assert rows == [("two loaders", "2.0 s an epoch", "0.500 epoch/s", "1", "")]


def test_a_network_alone_is_told_in_samples(example_diagnosis):
    alone = ExperimentFacts(name="network, one sample", unit="sample", seconds=[0.5])
    rows = tables_of(with_facts(example_diagnosis("data-bound"), experiments=[alone]))["Experiments"].rows
    assert rows == [("The network alone, on one sample", "0.50 s a sample", "2.00 samples/s", "1", "")]


def test_batches_are_told_by_who_made_them(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    fetches = [
        FetchFacts(
            key=1, worker=w, num_batches=2, num_items=4, item_s=0.4, item_cpu_s=0.2, collate_s=0.1, collate_cpu_s=0.1
        )
        for w in range(20)
    ]
    facts = dataclasses.replace(diagnosis.facts, fetches=fetches)
    table = tables_of(dataclasses.replace(diagnosis, facts=facts))["Batches by loader and worker (the first 16)"]
    assert table.rows[3][:5] == ("loader 1, worker 3", "2", "0.10 s", "50 ms", "50 ms")
    assert len(table.rows) == 16
    alone = dataclasses.replace(facts, loaders=[])
    assert "worker 3" in [row[0] for row in tables_of(dataclasses.replace(diagnosis, facts=alone))[table.caption].rows]


def test_the_makers_of_batches_name_a_loader_as_the_table_of_loaders_does(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    loaders = [dataclasses.replace(loader, key=loader.key - 1) for loader in diagnosis.facts.loaders]
    fetches = [dataclasses.replace(fetch, key=0) for fetch in diagnosis.facts.fetches]
    rows = tables_of(with_facts(diagnosis, loaders=loaders, fetches=fetches))["Batches by loader and worker"].rows
    assert [row[0] for row in rows] == ["loader 1, the program itself"]


def test_a_profile_without_a_device_ranks_operators_by_the_processor(example_diagnosis):
    diagnosis = example_diagnosis("on a GPU")
    operators = [dataclasses.replace(operator, gpu_ns=0) for operator in diagnosis.facts.profile.operators]
    profile = dataclasses.replace(diagnosis.facts.profile, gpu_busy_ns=0, operators=operators)
    found = tables_of(with_facts(diagnosis, profile=profile))
    table = found["Top operators, without what they call"]
    assert "GPU time" not in table.heads
    assert table.rows[0][-1] == "61.5 %"
    assert "Kernel groups" not in found


def test_quantiles_lie_on_a_line_between_the_values():
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([4.0, 0.0], 0.25) == 1.0
    assert quantile(list(range(101)), 0.95) == 95
