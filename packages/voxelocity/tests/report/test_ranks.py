"""What the report of a training on several ranks says of each of them."""

from __future__ import annotations

import copy
import json

import pytest

from voxelocity.report import read_run
from voxelocity.report.page import run_document
from voxelocity.report.summary import rank_words
from voxelocity.report.tables import rank_table


@pytest.fixture
def of_ranks(write, events):
    """Makes the folder of a run on two ranks, the second with these parts in each stretch of a second."""

    def make(*more, **parts):
        own = [*copy.deepcopy(events), *more]
        for event in own:
            if event["event"] == "steps":
                event["parts"] = {"wait": 0.02, "forward": 0.3, "backward": 0.4, "exchange": 0.2}
        folder = write(events=own)
        for event in own:
            if event["event"] == "steps":
                event["parts"] |= parts
        (folder / "events-rank1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in own))
        return read_run(folder)

    return make


def test_each_rank_has_its_seconds_and_shares(of_ranks):
    run = of_ranks(forward=0.48, exchange=0.02)
    assert [(record.rank, record.seconds) for record in run.ranks] == [(0, 260.0), (1, 260.0)]
    table = rank_table(run.ranks)
    assert list(table.heads) == [
        "Rank", "Steps", "waiting for data", "forward", "backward", "waiting for other ranks"
    ]  # fmt: skip
    assert [list(row[:4]) for row in table.rows] == [
        ["rank 0", "4 min 20 s", "2.0 %", "30.0 %"],
        ["rank 1", "4 min 20 s", "2.0 %", "48.0 %"],
    ]
    assert rank_words(run.ranks).startswith("Rank 1 needs 1.6 times as long for its forward passes as rank 0")
    assert "--set parallel.balance=measured" in rank_words(run.ranks)
    captions = [
        block.caption for section in run_document(run).sections for block in section.blocks if block.kind == "table"
    ]
    assert "Training steps by rank" in captions


def test_stages_of_a_pipeline_are_not_asked_to_share_patches(of_ranks):
    decision = {
        "event": "parallel",
        "time_s": 1.0,
        "mode": "pipeline",
        "reason": "pipeline: a step takes 1 GiB of 2 GiB",
    }
    run = of_ranks(decision, forward=0.48)
    texts = [block.text for section in run_document(run).sections for block in section.blocks if block.kind == "text"]
    assert "parallel.mode = pipeline: a step takes 1 GiB of 2 GiB" in texts
    (words,) = [text for text in texts if text.startswith("Each rank is a stage of a pipeline")]
    assert "parallel.num_microbatches" in words
    assert not any("parallel.balance" in text for text in texts)


def test_ranks_are_compared_over_the_steps_that_all_of_them_made(of_ranks):
    run = of_ranks(forward=0.3)
    path = run.folder / "events-rank1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    half = [line for line in lines if '"steps"' not in line or json.loads(line)["time_s"] < 100.0]
    path.write_text("".join(half))
    # The run was resumed without the second rank.
    one, other = read_run(run.folder).ranks
    assert one.parts["forward"] == other.parts["forward"] > 0.0
    assert 0 < one.num_steps == other.num_steps < sum(record.num_steps for record in run.steps)
    assert rank_words((one, other)).startswith("The ranks take about equally long")
    path.write_text("".join(line for line in lines if '"steps"' not in line))
    assert read_run(run.folder).ranks == ()


def test_ranks_that_need_equally_long_are_called_so(of_ranks):
    assert rank_words(of_ranks(forward=0.33).ranks).startswith("The ranks take about equally long")


def test_a_run_on_one_process_says_nothing_of_ranks(finished_run):
    run = read_run(finished_run)
    assert run.ranks == ()
    tables = [block for section in run_document(run).sections for block in section.blocks if block.kind == "table"]
    assert "Training steps by rank" not in [table.caption for table in tables]
