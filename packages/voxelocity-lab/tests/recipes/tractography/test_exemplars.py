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


def pairs_of(bundles, num_nearest=2, num_per_bundle=100):
    return ExemplarPairs.of(bundles, num_nearest=num_nearest, num_per_bundle=num_per_bundle, seed=0)


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
    assert np.array_equal(drawn[:2], bundles.streamlines[[0, 0]])
    assert np.isfinite(drawn).all(), "a bundle without streamlines takes those of all"
    with pytest.raises(InputError, match=r"no bundle has two of the 2 streamlines .* hold out fewer"):
        pairs_of(bundles_of(1, 1))


def test_exemplars_come_all_before_one_comes_again():
    exemplars = Exemplars(streamlines=bundles_of(5, 3).streamlines, bundle=np.repeat([0, 1], [5, 3]))
    drawn = exemplars.draw(np.repeat([0, 1], 6), seed=1)
    assert len({tuple(line.flat) for line in drawn[:5]}) == 5
    assert np.array_equal(drawn[5], drawn[0])
    assert not np.array_equal(drawn[:5], exemplars.draw(np.repeat([0, 1], 6), seed=2)[:5])


def test_the_frame_sees_neighbors_at_unit_distance():
    bundles = bundles_of(30, 30)
    pairs = pairs_of(bundles, num_nearest=8)
    frame = Frame.of(bundles, pairs)
    exemplars = pairs.exemplars.streamlines[pairs.nearest[:, 3]]
    seen = frame.seen(bundles.streamlines, exemplars, bundles.bundle)
    assert np.sqrt((seen**2).mean()) == pytest.approx(1.0, rel=0.4)


def test_a_bundle_without_streamlines_has_the_frame_of_all():
    bundles = bundles_of(9, 0)
    frame = Frame.of(bundles, pairs_of(bundles))
    assert frame.mean_mm[1] == pytest.approx(bundles.of(0).mean(axis=0), abs=1e-4)
    assert np.isfinite(frame.scale_mm).all()
    assert np.isfinite(frame.spread_mm).all()
