"""The same patches for one training process or four, in any cache."""

import itertools
from pathlib import Path

import pytest

from shared.batches import digests_by_draw
from voxelocity.data.cache import DiskTier
from voxelocity.data.pipeline import Feed, PreparedCases, RankDraws
from voxelocity_observe.core.errors import ConfigError, DatasetError

NUM_STEPS = 5


@pytest.fixture
def parted(data_config):
    """The path's configuration with batches of four patches, and the cache in this many parts."""

    def make(num_parts=4, **cache):
        return data_config("disk", cache={"num_parts": num_parts, **cache}).model_copy(update={"batch_size": 4})

    return make


def prepared(refs, config):
    return PreparedCases(refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=pytest.fail)


def by_draw(refs, config, count, **options):
    with Feed(prepared(refs, config), config, seed=3, **options) as feed:
        return digests_by_draw(itertools.islice(feed, count))


@pytest.mark.slow
def test_patches_of_four_processes_together_are_those_of_one(blob_refs, parted, start_worker, tmp_path):
    """Bit for bit, with one cache that all read, and with a cache in parts of which each keeps one."""

    def config_of(rank, num_parts):
        return parted(num_parts, folder=str(tmp_path / ("common" if num_parts == 1 else f"rank{rank}")))

    workers = [start_worker() for _ in range(4)]
    for num_parts in (1, 4):
        for rank, worker in enumerate(workers):
            options = {"rank": rank, "world_size": 4}
            worker.ask(config_of(rank, num_parts), blob_refs, tmp_path, num_steps=NUM_STEPS, feed=options)
        answers = [worker.hear() for worker in workers]
        assert [answer["warnings"] for answer in answers] == [[]] * 4
        assert [len(answer["by_draw"]) for answer in answers] == [NUM_STEPS] * 4
        together = {name: digest for answer in answers for name, digest in answer["by_draw"].items()}
        assert together == by_draw(blob_refs, config_of("alone", num_parts), NUM_STEPS)
    held = [set(DiskTier(tmp_path / f"rank{rank}").keys()) for rank in range(4)]
    assert sorted(map(len, held)) == [1, 1, 1, 2]
    assert len(set.union(*held)) == 5, "each case is kept by one of them"


@pytest.mark.parametrize("world_size", [2, 4])
def test_cases_in_parts_make_the_same_batches_for_any_number_of_ranks(blob_refs, parted, world_size):
    config = parted(4)
    shares = [by_draw(blob_refs, config, 3, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {name: digest for share in shares for name, digest in share.items()} == by_draw(blob_refs, config, 3)


def test_a_rank_needs_its_own_parts_before_it_begins_and_draws_from_these_alone(blob_refs, parted):
    config = parted(4)
    cases = prepared(blob_refs, config)
    ranks = [RankDraws(cases, config, seed=3, rank=rank, world_size=2) for rank in range(2)]
    needed = [set(rank.cases_from(0)) for rank in ranks]
    assert needed[0] | needed[1] == set(range(5))
    assert not needed[0] & needed[1]
    for step in range(6):
        for rank, own in zip(ranks, needed, strict=True):
            assert {draw.case for draw in rank.draws(step)} <= own


def test_the_size_of_a_case_is_known_from_its_headers_before_it_is_prepared(blob_refs, parted):
    cases = prepared(blob_refs, parted(4))
    sizes = [cases.most_bytes(index) for index in range(5)]
    assert DiskTier(Path(parted(4).cache.folder)).keys() == []
    assert sizes == [cases[index].image.nbytes + cases[index].label.nbytes for index in range(5)]


def test_a_rank_of_a_rotating_cache_needs_the_window_of_its_epoch(blob_refs, data_config):
    config = data_config("rotating")
    draws = RankDraws(prepared(blob_refs, config), config, seed=3)
    assert len(draws.cases_from(0)) == 3
    assert set(draws.cases_from(0)) == {draw.case for draw in draws.draws(0)}
    assert set(draws.cases_from(4)) == {draw.case for draw in draws.draws(4)} != set(draws.cases_from(0))


@pytest.mark.parametrize(("rank", "world_size"), [(4, 4), (-1, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(blob_refs, parted, rank, world_size):
    config = parted(1)
    with pytest.raises(ConfigError, match=rf"feed: there is no rank {rank} of {world_size}; ranks count from 0 to"):
        Feed(prepared(blob_refs, config), config, rank=rank, world_size=world_size)


def test_batches_and_parts_that_ranks_cannot_share_are_refused_before_any_batch(blob_refs, parted):
    config = parted(1)
    with pytest.raises(ConfigError, match=r"batch_size = 4 is not valid for 3 ranks: .* choose a multiple of 3"):
        Feed(prepared(blob_refs, config), config, world_size=3)
    config = parted(4)
    with pytest.raises(ConfigError, match=r"num_parts = 4 is not valid for 3 ranks: .* a multiple of 3, or 1 to let"):
        Feed(prepared(blob_refs, config), config, world_size=3)
    with pytest.raises(DatasetError, match=r"num_parts = 4 is not valid for 2 case\(s\)"):
        Feed(prepared(blob_refs[:2], config), config)
