"""Several ranks: which one the others wait for, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.accounting import COMPUTING, part_s
from voxelocity_observe.diagnose.facts import OWN_FEED, RankFacts


def rank(number, *, forward_s=0.04, wait_s=0.0, num_steps=100):
    return RankFacts(
        rank=number, num_steps=num_steps, parts={"forward": forward_s * num_steps, "wait": wait_s * num_steps}
    )


@pytest.fixture
def two(clean):
    """The clean program as rank 0 of two on one machine."""
    return replace(clean, main=replace(clean.main, world_size=2, num_local_ranks=2))


def test_the_slowest_rank_is_named_with_what_equal_times_would_save(two, find):
    (found,) = find("VX601", replace(two, ranks=[rank(0), rank(1, forward_s=0.08, num_steps=50)]))
    assert found.cause.startswith("Rank 1 needs 2.0 times as long for its forward passes as the other 1 rank")
    # Shares of 2/3 and 1/3 take two thirds of the slow rank's half.
    assert found.saves_s == pytest.approx(part_s(two, *COMPUTING) / 3)
    assert "0: 40.0 ms, 1: 80.0 ms" in found.evidence[0].replace("40 ms", "40.0 ms").replace("80 ms", "80.0 ms")
    assert "nvidia-smi" in found.change
    own = replace(two, loaders=[replace(two.loaders[0], kind=OWN_FEED)], ranks=[rank(0, forward_s=0.08), rank(1)])
    (found,) = find("VX601", own)
    assert found.cause.startswith("Rank 0 needs")
    assert "parallel.balance=measured" in found.change


@pytest.mark.parametrize(
    "ranks", [(), (rank(0),), (rank(0), rank(1, forward_s=0.045)), (rank(0), rank(1, num_steps=0))]
)
def test_ranks_that_need_about_as_long_are_no_finding(two, find, ranks):
    assert find("VX601", replace(two, ranks=ranks)) == ()


def test_another_rank_that_waits_for_data_is_named(two, find):
    (found,) = find("VX602", replace(two, ranks=[rank(0, wait_s=0.001), rank(1, wait_s=0.031)]))
    assert found.cause.startswith("Rank 1 waits 31 ms for data in each step, and rank 0 then waits")
    assert found.saves_s == pytest.approx(0.03 * len(two.counted))
    for ranks in (
        # This one's own waiting is the business of the rules on data.
        (rank(0, wait_s=0.031), rank(1)),
        (rank(0, wait_s=0.02), rank(1, wait_s=0.031)),
        (rank(0), rank(1, wait_s=0.0001)),
        (),
    ):
        assert find("VX602", replace(two, ranks=ranks)) == (), ranks


def test_an_exchange_that_is_not_hidden_is_a_finding_of_several_ranks(two, clean, find):
    optimizer = replace(clean.optimizer, synced_per_step=1.0, sync_s=0.02)
    (found,) = find("VX603", replace(two, optimizer=optimizer))
    assert found.saves_s == pytest.approx(0.01 * len(two.counted))
    assert found.risk == "changes results"
    assert "over 2 ranks is not hidden" in found.evidence[0]
    assert find("VX603", replace(clean, optimizer=optimizer)) == ()
    assert find("VX603", replace(two, optimizer=replace(optimizer, sync_s=0.0))) == ()


def test_a_cache_in_each_rank_is_worth_knowing(two, clean, find):
    cached = [replace(two.loaders[0], dataset="CacheDataset")]
    (found,) = find("VX604", replace(two, loaders=cached))
    assert "in the memory of each of the 2 ranks" in found.cause
    assert not found.is_cause
    assert find("VX604", replace(clean, loaders=cached)) == ()
    assert find("VX604", two) == ()
