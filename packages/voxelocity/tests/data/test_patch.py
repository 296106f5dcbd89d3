import pickle
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval

from voxelocity.core.region import Region
from voxelocity.data.patch import (
    CaseOrder,
    PartitionedOrder,
    PatchConfig,
    axis_starts,
    choose_region,
    grid_regions,
    partition,
    share_of_rank,
)
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


SIDES = st.tuples(*[st.integers(1, 20)] * 3)


def config(shape=(4, 4, 4), share=0.5):
    return PatchConfig(shape_voxel=shape, foreground_share=share)


def flat(shape, *voxels):
    return np.array([np.ravel_multi_index(voxel, shape) for voxel in voxels], np.int32)


@given(shape=SIDES, patch=SIDES, seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.5, 1.0]), data=st.data())
def test_patch_stays_inside_a_larger_volume_and_stands_centered_on_a_smaller_one(shape, patch, seed, share, data):
    voxel = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    region = choose_region(shape, {1: flat(shape, voxel)}, config(patch, share), np.random.default_rng(seed))
    assert region.shape == patch
    before, after = region.padding(shape)
    for n, side, b, a in zip(shape, patch, before, after, strict=True):
        if n >= side:
            assert (b, a) == (0, 0)
        else:
            assert (b + a, b) == (side - n, (side - n) // 2)
    if share == 1.0:
        assert all(start <= v < stop for start, v, stop in zip(region.start, voxel, region.stop, strict=True))


def test_patch_is_centered_on_the_foreground_voxel_where_there_is_room():
    region = choose_region(
        (20, 20, 20), {2: flat((20, 20, 20), (9, 10, 11))}, config((4, 5, 6), 1.0), np.random.default_rng(0)
    )
    assert region == Region((7, 8, 8), (11, 13, 14))


def test_rare_class_is_drawn_as_often_as_a_common_one():
    shape = (30, 30, 30)
    common = np.arange(27_000, dtype=np.int32)
    rare = flat(shape, (3, 4, 5))
    rng = np.random.default_rng(1)
    foreground = {0: common, 1: common[::3], 4: rare, 5: np.array([], np.int32)}
    starts = Counter(choose_region(shape, foreground, config((1, 1, 1), 1.0), rng).start for _ in range(2000))
    assert starts[(3, 4, 5)] == pytest.approx(1000, abs=100)


def test_share_of_foreground_patches_is_the_configured_one():
    shape = (50, 50, 50)
    rng = np.random.default_rng(2)
    foreground = {1: flat(shape, (7, 7, 7))}
    hits = sum(choose_region(shape, foreground, config((1, 1, 1), 0.3), rng).start == (7, 7, 7) for _ in range(2000))
    assert hits == pytest.approx(600, abs=80)


@pytest.mark.parametrize("foreground", [{}, {0: np.arange(5, dtype=np.int32)}, {1: np.array([], np.int32)}])
def test_case_without_foreground_gives_every_position_alike(foreground):
    rng = np.random.default_rng(3)
    starts = Counter(choose_region((5, 4, 4), foreground, config((4, 4, 4), 1.0), rng).start for _ in range(1000))
    assert set(starts) == {(0, 0, 0), (1, 0, 0)}
    assert starts[(0, 0, 0)] == pytest.approx(500, abs=80)


OVERLAPS = st.floats(0.0, 0.95)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_grid_covers_every_voxel_repeats_no_box_and_stays_inside_wherever_the_volume_is_large_enough(
    shape, patch, overlap
):
    regions = grid_regions(shape, patch, overlap)
    covered = np.zeros(shape, bool)
    for region in regions:
        assert region.shape == patch
        covered[region.clip(shape).slices] = True
        for n, side, *padding in zip(shape, patch, *region.padding(shape), strict=True):
            assert padding == ([(side - n) // 2, side - n - (side - n) // 2] if n < side else [0, 0])
    assert covered.all()
    assert len(set(regions)) == len(regions)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_positions_are_those_of_monai(shape, patch, overlap):
    shape = tuple(max(n, side) for n, side in zip(shape, patch, strict=True))
    slices = dense_patch_slices(shape, patch, _get_scan_interval(shape, patch, 3, [overlap] * 3))
    assert [region.slices for region in grid_regions(shape, patch, overlap)] == list(slices)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_evenly_spread_boxes_cover_every_voxel_and_none_is_further_from_the_next_than_asked(shape, patch, overlap):
    covered = np.zeros(shape, bool)
    for region in grid_regions(shape, patch, overlap, spread="even"):
        assert region.shape == patch
        covered[region.clip(shape).slices] = True
    assert covered.all()
    for n, side in zip(shape, patch, strict=True):
        starts = axis_starts(n, side, overlap, spread="even")
        assert all(0 < b - a <= side * (1 - overlap) + 1 for a, b in pairwise(starts))
        assert starts[-1] == max(n - side, starts[0])


@pytest.mark.parametrize(
    ("n", "side", "starts"),
    [(110, 64, [0, 23, 46]), (64, 64, [0]), (65, 64, [0, 1]), (97, 64, [0, 16, 33]), (4, 1, [0, 1, 2, 3])],
)
def test_evenly_spread_boxes_are_those_of_nnunet(n, side, starts):
    # The first is the example in nnU-Net's `compute_steps_for_sliding_window`; 16.5 is rounded to the even number.
    assert axis_starts(n, side, 0.5, spread="even") == starts


@pytest.mark.parametrize("overlap", [-0.1, 1.0, float("nan")])
def test_overlap_out_of_range_is_refused(overlap):
    with pytest.raises(ConfigError, match=r"patch\.grid: overlap .* is not valid; choose from 0 to below 1"):
        grid_regions((8, 8, 8), (4, 4, 4), overlap)


def test_volume_without_voxels_is_refused():
    with pytest.raises(ConfigError, match=r"a volume of \(8, 0, 8\) voxels cannot be covered"):
        grid_regions((8, 0, 8), (4, 4, 4), 0.5)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"shape_voxel": [8, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 0, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 8, 8], "foreground_share": 1.1}, "foreground_share"),
        ({"shape_voxel": [8, 8, 8], "draws_per_case": 0}, "draws_per_case"),
        (
            {"shape_voxel": [8, 8, 8], "growth": [{"until_share": s, "shape_voxel": [4, 4, 4]} for s in (0.5, 0.5)]},
            r"growth ends its stages at \[0.5, 0.5\]; each until_share must be larger than the one before",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(values, named):
    with pytest.raises(ConfigError, match=named):
        PatchConfig.parse(values)


@pytest.mark.parametrize(("share", "side"), [(0.0, 4), (0.19, 4), (0.2, 6), (0.5, 8), (1.0, 8)])
def test_patches_grow_with_the_share_of_the_training_that_is_done(share, side):
    stages = [{"until_share": 0.2, "shape_voxel": [4, 4, 4]}, {"until_share": 0.5, "shape_voxel": [6, 6, 6]}]
    config = PatchConfig.parse({"shape_voxel": [8, 8, 8], "foreground_share": 0.25, "growth": stages})
    assert config.at(share).shape_voxel == (side,) * 3
    assert config.at(share).foreground_share == 0.25
    assert PatchConfig.parse(config.to_plain()) == config
