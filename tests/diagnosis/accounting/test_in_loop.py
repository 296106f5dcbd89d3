"""Which lines of a loop without a loader make its batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.accounting.in_loop import making_places, making_share, place
from voxelocity.diagnosis.accounting.split import ceiling
from voxelocity.diagnosis.accounting.watched import data_room_s


@pytest.fixture
def looping(clean, make):
    """Reads at line 25, scales at 27, calls the network at 32, and takes a mean of its losses at 40."""
    return replace(
        clean,
        steps=make.steps({"forward": 0.04, "backward": 0.06, "other": 0.1}),
        loaders=[],
        fetches=[],
        experiments=[],
        stacks=[
            make.stack("other", "gunzip", 50, where="train.py:25"),
            make.stack("other", "other", 30, where="train.py:27"),
            make.stack("other", "other", 20, where="train.py:40"),
            make.stack("forward", "other", 40, where="train.py:32"),
            make.stack("forward", "other", 40, where="network.py:30"),
        ],
    )


def test_lines_between_reading_and_the_network_make_the_batch_and_later_ones_do_not(looping):
    assert [one.where for one in making_places(looping)] == ["train.py:25", "train.py:27"]
    assert making_share(looping) == pytest.approx(0.8)


def test_a_file_that_reads_and_never_calls_the_network_makes_batches_to_its_end(looping, make):
    stacks = [make.stack("other", "read", 5, where="data.py:3"), make.stack("other", "other", 5, where="data.py:90")]
    found = making_places(replace(looping, stacks=[*looping.stacks, *stacks]))
    assert {"data.py:3", "data.py:90"} <= {one.where for one in found}


def test_without_a_look_at_the_network_only_known_work_counts(looping):
    beside = [one for one in looping.stacks if one.part == "other"]
    assert [one.where for one in making_places(replace(looping, stacks=beside))] == ["train.py:25"]


def test_own_lines_beside_a_loader_make_no_batches(looping, make):
    assert [one.where for one in making_places(replace(looping, loaders=[make.loader()]))] == ["train.py:25"]


def test_the_ceiling_of_a_loop_is_without_its_making(looping):
    assert ceiling(looping).resident_s == pytest.approx(0.2 - 0.08)
    assert data_room_s(looping) == pytest.approx(100 * 0.08)


def test_a_place_without_a_line_has_line_zero():
    assert place("train.py:12") == ("train.py", 12)
    assert place("") == ("", 0)
