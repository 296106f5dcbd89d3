import pickle
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.patch import CaseOrder, PartitionedOrder, partition, share_of_rank
from voxelocity_observe.core.errors import ConfigError, DatasetError

SIZES = st.lists(st.integers(1, 10**9), min_size=8, max_size=40)


def names(num_cases):
    return [f"case{number}" for number in range(num_cases)]


def order(num_cases=5, batch_size=2, draws_per_case=1, seed=0, **options):
    return CaseOrder(names(num_cases), seed=seed, batch_size=batch_size, draws_per_case=draws_per_case, **options)


def parted_order(num_cases=10, num_parts=4, batch_size=4, draws_per_case=1, seed=0):
    parts = partition([1] * num_cases, num_parts)
    return PartitionedOrder(names(num_cases), parts, seed=seed, batch_size=batch_size, draws_per_case=draws_per_case)


@given(num_cases=st.integers(1, 7), batch_size=st.integers(1, 9), draws_per_case=st.integers(1, 4))
def test_every_epoch_holds_every_draw_once(num_cases, batch_size, draws_per_case):
    per_epoch = num_cases * draws_per_case
    made = order(num_cases, batch_size, draws_per_case)
    draws = list(chain.from_iterable(made.draws(step) for step in range(-(-3 * per_epoch // batch_size))))[
        : 3 * per_epoch
    ]
    assert [draw.epoch for draw in draws] == [epoch for epoch in range(3) for _ in range(per_epoch)]
    assert all(draw.case_id == f"case{draw.case}" for draw in draws)
    assert Counter((draw.epoch, draw.case, draw.draw) for draw in draws) == Counter(
        (epoch, case, draw) for epoch in range(3) for case in range(num_cases) for draw in range(draws_per_case)
    )


@pytest.mark.parametrize(("make", "batch_sizes"), [(order, (1, 2, 5, 12)), (parted_order, (4, 8))])
@given(steps=st.lists(st.integers(0, 40), max_size=20), data=st.data())
def test_a_step_is_the_same_in_whatever_order_steps_are_asked_for(make, batch_sizes, steps, data):
    batch_size = data.draw(st.sampled_from(batch_sizes))
    in_turn = [make(batch_size=batch_size).draws(step) for step in range(41)]
    jumping = make(batch_size=batch_size)
    assert [jumping.draws(step) for step in steps] == [in_turn[step] for step in steps]


def test_epochs_and_seeds_have_orders_of_their_own():
    made = order(num_cases=50, batch_size=50)
    first, second = ([draw.case for draw in made.draws(step)] for step in (0, 1))
    other_seed = [draw.case for draw in order(num_cases=50, batch_size=50, seed=1).draws(0)]
    assert sorted(first) == sorted(second) == sorted(other_seed) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(other_seed)}) == 3


def test_stream_does_not_depend_on_the_batch_size():
    small, large = order(batch_size=1), order(batch_size=4)
    assert [draw for step in range(12) for draw in small.draws(step)] == [
        draw for step in range(3) for draw in large.draws(step)
    ]


def test_epoch_and_steps_per_epoch_are_known():
    made = order(num_cases=5, batch_size=2)
    assert [made.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]
    assert made.draws(2)[0].epoch == 0
    assert made.draws(2)[1].epoch == 1


@pytest.mark.parametrize(
    ("made", "kept"), [(order(num_cases=3, batch_size=3), "_permutation"), (parted_order(batch_size=12), "_epoch")]
)
def test_only_two_epochs_are_kept_and_the_order_travels_to_another_process(made, kept):
    for step in range(10):
        made.draws(step)
    assert [epoch for epoch, _ in getattr(made, kept)._made] == [8, 9]
    assert pickle.loads(pickle.dumps(made)).draws(17) == made.draws(17)


def test_no_cases_is_a_clear_error():
    with pytest.raises(DatasetError, match="zero cases to draw from; add cases"):
        CaseOrder([], seed=0, batch_size=1, draws_per_case=1)


@given(batch_size=st.integers(1, 9), draws_per_case=st.integers(1, 3))
def test_an_epoch_with_a_window_draws_its_cases_alone_and_each_as_often(batch_size, draws_per_case):
    def window(epoch):
        return [(epoch + place) % 7 for place in range(3)]

    made = order(7, batch_size, draws_per_case, window=window)
    per_epoch = 3 * draws_per_case
    draws = list(chain.from_iterable(made.draws(step) for step in range(-(-5 * per_epoch // batch_size))))
    assert all(draw.case_id == f"case{draw.case}" for draw in draws)
    assert Counter((draw.epoch, draw.case, draw.draw) for draw in draws[: 5 * per_epoch]) == Counter(
        (epoch, case, draw) for epoch in range(5) for case in window(epoch) for draw in range(draws_per_case)
    )


def test_a_window_of_all_cases_changes_nothing():
    plain, windowed = order(6, 4, 2, 3), order(6, 4, 2, 3, window=lambda _: range(6))
    assert [plain.draws(step) for step in range(9)] == [windowed.draws(step) for step in range(9)]


@given(sizes=SIZES, num_parts=st.integers(1, 8))
def test_every_case_is_in_one_part_and_parts_are_alike_in_number_and_bytes(sizes, num_parts):
    parts = partition(sizes, num_parts)
    assert sorted(chain.from_iterable(parts)) == list(range(len(sizes)))
    counts = [len(part) for part in parts]
    assert max(counts) - min(counts) <= 1
    held = [sum(sizes[case] for case in part) for part in parts]
    assert max(held) - min(held) <= max(sizes)
    assert partition(list(sizes), num_parts) == parts


def test_large_cases_are_spread_and_small_ones_fill_up():
    parts = partition([100, 10, 90, 20, 60, 50], 2)
    held = [sum([100, 10, 90, 20, 60, 50][case] for case in part) for part in parts]
    assert held == [170, 160]
    assert all(part == tuple(sorted(part)) for part in parts)


def test_fewer_cases_than_parts_is_a_clear_error():
    with pytest.raises(
        DatasetError, match=r"num_parts = 4 is not valid for 3 case\(s\): .* choose at most 3, or 1 to let"
    ):
        partition([1, 1, 1], 4)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_global_batch_is_the_same_for_any_number_of_ranks_when_all_draw_every_case(num_ranks):
    whole = order(11, 8, 2, 5)
    for step in range(12):
        shares = [share_of_rank(whole.draws(step), rank, num_ranks) for rank in range(num_ranks)]
        assert {len(share) for share in shares} == {8 // num_ranks}
        assert tuple(chain.from_iterable(shares)) == whole.draws(step)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_global_batch_of_four_parts_is_the_same_for_any_number_of_ranks_that_divides_them(num_ranks):
    whole = parted_order(num_cases=11, num_parts=4, batch_size=8)
    parts = partition([1] * 11, 4)
    for step in range(12):
        shares = [share_of_rank(whole.draws(step), rank, num_ranks) for rank in range(num_ranks)]
        assert tuple(chain.from_iterable(shares)) == whole.draws(step)
        for rank, share in enumerate(shares):
            own = set(chain.from_iterable(parts[rank * 4 // num_ranks : (rank + 1) * 4 // num_ranks]))
            assert {draw.case for draw in share} <= own


def test_batch_that_ranks_cannot_share_evenly_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"batch_size = 6 is not valid for 4 ranks: .* choose a multiple of 4"):
        share_of_rank(order(batch_size=6).draws(0), 0, 4)
    with pytest.raises(ConfigError, match=r"batch_size = 6 is not valid for a cache in 4 parts.* multiple of 4"):
        parted_order(batch_size=6)


@given(
    num_cases=st.integers(4, 14), num_parts=st.integers(1, 4), share=st.integers(1, 5), draws_per_case=st.integers(1, 3)
)
def test_every_epoch_holds_every_draw_of_every_case_and_no_patch_twice(num_cases, num_parts, share, draws_per_case):
    made = parted_order(num_cases, num_parts, share * num_parts, draws_per_case)
    per_epoch = num_parts * -(-num_cases // num_parts) * draws_per_case
    draws = chain.from_iterable(made.draws(step) for step in range(-(-2 * per_epoch // (share * num_parts))))
    counts = Counter((draw.epoch, draw.case, draw.draw) for draw in draws)
    for epoch in range(2):
        keys = [key for key in counts if key[0] == epoch]
        assert len(keys) == per_epoch
        assert all(counts[key] == 1 for key in keys)
        assert {(epoch, case, draw) for case in range(num_cases) for draw in range(draws_per_case)} <= set(keys)


def test_small_parts_fill_up_with_other_cases_in_the_next_epoch():
    made = parted_order(num_cases=7, num_parts=2, batch_size=2)
    small = min(partition([1] * 7, 2), key=len)
    twice = []
    for epoch in range(3):
        draws = [draw for step in range(4 * epoch, 4 * epoch + 4) for draw in made.draws(step)]
        twice += [draw.case for draw in draws if draw.draw == 1]
    assert twice == list(small)


def test_parts_begin_an_epoch_together_and_it_is_known_where():
    made = parted_order(num_cases=10, num_parts=4, batch_size=8)
    assert [made.epoch_of(step) for step in range(4)] == [0, 0, 1, 2]
    for step in range(8):
        shares = [share_of_rank(made.draws(step), rank, 4) for rank in range(4)]
        assert len({tuple(draw.epoch for draw in share) for share in shares}) == 1
        assert shares[0][0].epoch == made.epoch_of(step)


def test_epochs_parts_and_seeds_have_orders_of_their_own():
    def cases(made, step, part):
        return [draw.case // 2 for draw in share_of_rank(made.draws(step), part, 2)]

    parts = (tuple(range(0, 80, 2)), tuple(range(1, 80, 2)))
    first, other = (PartitionedOrder(names(80), parts, seed=seed, batch_size=80) for seed in (0, 1))
    orders = [cases(first, 0, 0), cases(first, 0, 1), cases(first, 1, 0), cases(other, 0, 0)]
    assert all(sorted(cases) == list(range(40)) for cases in orders)
    assert len({tuple(cases) for cases in orders}) == 4
