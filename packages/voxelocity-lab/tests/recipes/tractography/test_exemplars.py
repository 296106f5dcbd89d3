"""Which streamlines are paired with which exemplars, and what a network sees of a pair."""

import numpy as np
import pytest

from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.exemplars import ExemplarPairs, Exemplars, Frame
from voxelocity_observe.core.errors import InputError


def bundles_of(*nums):
    """Bundles of this many straight lines, each 1 mm from the next, and the bundles 1 m from each other."""
    line = np.stack([np.linspace(0, 50, 8), np.zeros(8), np.zeros(8)], axis=1)
    lines = [line + np.array([0, at, 1000 * number]) for number, num in enumerate(nums) for at in range(num)]
    bundle = np.repeat(np.arange(len(nums)), nums)
    return Bundles(
        streamlines=np.float32(lines), bundle=bundle, subject=0 * bundle, names=tuple(map(str, range(len(nums)))),
        subjects=("one",), identity=np.arange(len(bundle), dtype=np.uint64),
    )  # fmt: skip


def pairs_of(bundles, num_nearest=2, num_per_bundle=100, num_around=3):
    return ExemplarPairs.of(
        bundles, num_nearest=num_nearest, num_per_bundle=num_per_bundle, num_around=num_around, seed=0
    )


def test_a_streamline_is_paired_with_the_nearest_of_its_bundle_and_never_with_itself():
    bundles = bundles_of(5, 7)
    pairs = pairs_of(bundles)
    assert pairs.index.tolist() == list(range(12))
    near = pairs.exemplars.streamlines[pairs.nearest]
    away = np.linalg.norm(bundles.streamlines[:, None] - near, axis=3).mean(axis=2)
    assert (pairs.exemplars.bundle[pairs.nearest] == bundles.bundle[:, None]).all()
    assert away.min() == 1.0
    assert away.max() == 2.0


def test_exemplars_are_as_many_as_allowed_and_all_streamlines_have_one():
    pairs = pairs_of(bundles_of(40, 3), num_per_bundle=10)
    assert np.bincount(pairs.exemplars.bundle).tolist() == [10, 3]
    assert len(pairs.index) == 43


def test_a_bundle_of_one_streamline_is_not_learned_but_has_its_exemplar():
    bundles = bundles_of(1, 2, 0)
    pairs = pairs_of(bundles, num_nearest=4)
    assert pairs.index.tolist() == [1, 2]
    assert pairs.nearest.tolist() == [[2] * 4, [1] * 4]
    drawn = pairs.exemplars.draw(np.array([0, 0, 1, 2]), seed=0)
    assert drawn[:2].tolist() == [0, 0]
    assert (drawn >= 0).all(), "a bundle without streamlines takes those of all"
    assert np.array_equal(pairs.exemplars.with_neighbors(drawn[:1])[0], bundles.streamlines[[0] * 4])
    with pytest.raises(InputError, match=r"no bundle has two of the 2 streamlines .* hold out fewer"):
        pairs_of(bundles_of(1, 1))


def test_exemplars_are_as_frequent_as_in_the_training_and_come_all_before_one_comes_again():
    lines = bundles_of(5, 3)
    nearest = np.array([[1], [2], [3], [4], [3], [6], [7], [6]])
    exemplars = Exemplars(streamlines=lines.streamlines, bundle=lines.bundle, around=nearest, nearest=nearest)
    wanted = np.repeat([0, 1], 6)
    drawn = exemplars.draw(wanted, seed=1)
    assert sorted(drawn[:5]) == [1, 2, 3, 3, 4]
    assert sorted(drawn[6:9]) == [6, 6, 7]
    assert not np.array_equal(drawn, exemplars.draw(wanted, seed=2))
    assert np.array_equal(drawn[:4], exemplars.draw(wanted[:4], seed=1)), "however many follow"


def test_what_is_around_an_exemplar_is_shown_without_what_is_to_be_learned():
    bundles = bundles_of(6)
    pairs = pairs_of(bundles, num_around=2)
    assert {1, 3} < set(pairs.exemplars.around[2]) < {0, 1, 3, 4}
    at = pairs.exemplars.with_neighbors(np.array([2, 2]), without=np.array([3, -1]))[:, :, 0, 1]
    assert at[0, 0] == at[1, 0] == 2.0
    assert 3.0 not in at[0]
    assert sorted(at[1, 1:]) == [1.0, 3.0]


def test_the_frame_sees_neighbors_at_unit_distance():
    bundles = bundles_of(30, 30)
    pairs = pairs_of(bundles, num_nearest=8)
    frame = Frame.of(bundles, pairs, num_waves=8)
    exemplars = pairs.exemplars.with_neighbors(pairs.nearest[:, 3], without=pairs.own)
    scales = frame.scales(exemplars, bundles.bundle)
    seen = frame.seen(bundles.streamlines, exemplars[:, 0], scales)
    # Parallel lines differ in their means alone.
    assert np.sqrt((seen[:, 0, 1] ** 2).mean()) == pytest.approx(np.sqrt(3.0), rel=0.4)
    assert np.abs(seen[:, 1:]).max() < 0.1
    # All waves are seen, so nothing is lost.
    assert frame.placed(seen, exemplars[:, 0], scales) == pytest.approx(bundles.streamlines, abs=1e-3)


def test_the_scale_of_an_exemplar_is_how_far_the_streamlines_around_it_lie():
    bundles = bundles_of(30)
    frame = Frame.of(bundles, pairs_of(bundles), num_waves=4)
    line = bundles.streamlines[:1]
    near, far = (np.stack([line, line + np.float32([0, away, 0])], axis=1) for away in (1.0, 2.0))
    assert frame.scales(far, np.array([0])) == pytest.approx(2.0 * frame.scales(near, np.array([0])))
    assert frame.scales(near, np.array([0])) == pytest.approx(np.sqrt(1.0 / 3.0))
    assert frame.scales(near[:, :1], np.array([0])) == frame.scale_mm[0], "nothing is around it"
    alone = np.concatenate([near, near[:, :1]], axis=1)
    assert frame.scales(alone, np.array([0])) == frame.scales(near, np.array([0])), "itself does not count"
    for_network = frame.context(far, np.array([0]))
    assert for_network.shape == (1, 7, 4)
    assert np.exp(for_network[0, -1]) * frame.scale_mm[0] == pytest.approx(2.0 * np.sqrt(1.0 / 3.0), rel=1e-4)


def test_a_bundle_without_streamlines_has_the_frame_of_all():
    bundles = bundles_of(9, 0)
    frame = Frame.of(bundles, pairs_of(bundles), num_waves=4)
    assert frame.mean_mm[1] == pytest.approx(bundles.of(0).mean(axis=0), abs=1e-4)
    assert np.isfinite(frame.scale_mm).all()
    assert np.isfinite(frame.spread_mm).all()
