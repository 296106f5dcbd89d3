"""Figures of generated streamlines, on lines whose voxels can be counted."""

import math

import numpy as np
import pytest

from voxelocity_lab.recipes.tractography.bundles import open_bundles, split
from voxelocity_lab.recipes.tractography.judge import (
    MEASURES,
    interval_of,
    is_better,
    is_invalid,
    judge,
    mean_of,
    space_shared,
    voxels_of,
)


def along_x(first_mm, last_mm, y_mm=1.0, num=2):
    return np.stack([np.linspace(first_mm, last_mm, num), np.full(num, y_mm), np.ones(num)], axis=1)[None].astype(
        np.float32
    )


def test_a_line_passes_through_every_voxel_between_its_points():
    assert len(voxels_of(along_x(0.1, 19.9))) == 10
    assert len(voxels_of(along_x(-9.9, 9.9))) == 10
    assert len(voxels_of(along_x(0.1, 19.9)[:0])) == 0


def test_overlap_and_overreach_count_voxels():
    overlap, overreach, f1 = space_shared(along_x(10.1, 29.9), along_x(0.1, 19.9))
    assert (overlap, overreach, f1) == (0.5, 0.5, 0.5)
    overlap, overreach, f1 = space_shared(along_x(0.1, 9.9), along_x(0.1, 19.9))
    assert (overlap, overreach) == (0.5, 0.0)
    assert f1 == pytest.approx(2 / 3)
    assert math.isnan(space_shared(along_x(0, 1), along_x(0, 1)[:0])[0])


def test_copies_of_the_training_are_distinguished_from_new_streamlines():
    trained = np.concatenate([along_x(0, 40, y, num=5) for y in (0.0, 8.0, 16.0)])
    generated = np.concatenate([trained[:1, ::-1], along_x(0, 40, 3.0, num=5), along_x(0, 40, 8.4, num=5)])
    outside_mm = np.zeros((3, 5))
    outside_mm[1, :3] = 1.0
    found = judge(generated, trained + np.float32([0, 4, 0]), trained, outside_mm=outside_mm)
    assert found.copied == pytest.approx(2 / 3)
    assert found.copied_real == 0.0
    assert found.outside == pytest.approx(3 / 15)
    assert found.length_mm[0][2] == pytest.approx(40.0)
    assert found.ceiling_f1 == space_shared(trained, trained + np.float32([0, 4, 0]))[2]


def test_small_bundles_do_not_count_in_the_mean():
    line = along_x(0, 40, num=5)
    many = judge(np.repeat(line, 3, 0), np.repeat(line, 3, 0), line)
    one = judge(along_x(0, 40, 30.0, num=5), line, line)
    assert mean_of({"many": many, "one": one}, least_real=3)["f1"] == 1.0
    assert mean_of({"many": many, "one": one}, least_real=1)["f1"] == 0.5
    assert math.isnan(mean_of({"one": one}, least_real=3)["f1"])


def helix(num, seed=0, radius_mm=25.0, noise_mm=0.0):
    """Smooth arcs of 32 points that differ by their radius, pitch and place, and noise on each point."""
    numbers = np.random.default_rng(seed)
    angle = np.linspace(0.0, 2.0, 32)
    pitch = 0.4 + 0.1 * numbers.standard_normal((num, 1))
    shape = np.stack(np.broadcast_arrays(np.cos(angle), np.sin(angle), pitch * angle), axis=2)
    lines = radius_mm * (1.0 + 0.15 * numbers.standard_normal((num, 1, 1))) * shape
    lines = lines + 2.0 * numbers.standard_normal((num, 1, 3)) + noise_mm * numbers.standard_normal((num, 32, 3))
    return lines.astype(np.float32)


@pytest.fixture(scope="module")
def planted():
    """Judgments of ten bundles by kind of what was planted in place of generated streamlines."""
    kinds = {
        "true": lambda seed: helix(40, 1000 + seed),
        "copied": lambda seed: helix(40, seed),
        "noisy": lambda seed: helix(40, 2000 + seed, noise_mm=2.0),
        "elsewhere": lambda seed: helix(40, 4000 + seed, radius_mm=50.0),
    }
    return {
        kind: [judge(make(seed), helix(40, 500 + seed), helix(40, seed)) for seed in range(10)]
        for kind, make in kinds.items()
    }


def better(planted, one, other):
    return {measure.key for measure in MEASURES if is_better(measure, planted[one], planted[other])}


def test_true_streamlines_are_better_than_noisy_and_misplaced_ones(planted):
    assert better(planted, "true", "noisy") >= {
        "overreach", "length_distance_mm", "curvature_distance_per_mm", "turn_distance_degrees", "invalid",
    }  # fmt: skip
    assert better(planted, "true", "elsewhere") >= {"overlap", "overreach", "length_distance_mm"}
    assert better(planted, "noisy", "true") <= {"overlap"}, "noise fills more voxels"


def test_equally_good_streamlines_are_not_better_by_more_than_the_interval(planted):
    # Of twelve differences without a reason, one in forty is found.
    assert len(better(planted, "true", "copied")) + len(better(planted, "copied", "true")) <= 1


def test_copies_are_told_from_new_streamlines_by_their_distance_alone(planted):
    nearest = {kind: np.mean([judgment.nearest_mm for judgment in found]) for kind, found in planted.items()}
    real = np.mean([judgment.nearest_real_mm for judgment in planted["true"]])
    assert nearest["copied"] < 0.01
    assert nearest["true"] == pytest.approx(real, rel=0.2)
    assert np.mean([judgment.copied for judgment in planted["copied"]]) == 1.0


def test_invalid_streamlines_kink_are_too_short_or_long_or_leave_the_mask():
    straight, kinked = along_x(0, 100, num=9), along_x(0, 100, num=9)
    kinked[0, 4:, 1] += 40.0
    lines = np.concatenate([straight, kinked, along_x(0, 9, num=9), along_x(0, 260, num=9), straight])
    outside_mm = np.zeros((5, 9))
    outside_mm[0, 3], outside_mm[4, 3] = 2.0, 2.1
    assert is_invalid(lines, outside_mm).tolist() == [False, True, True, True, True]
    assert is_invalid(lines, None).tolist() == [False, True, True, True, False]


def test_the_interval_of_a_mean_holds_it_and_is_that_of_one_value_alone():
    values = np.random.default_rng(0).normal(3.0, 1.0, 400)
    low, high = interval_of(values)
    assert low < values.mean() < high
    # Of the normal distribution: 2 * 1.96 / sqrt(400).
    assert high - low == pytest.approx(0.196, rel=0.1)
    assert interval_of(np.array([5.0])) == (5.0, 5.0)


@pytest.mark.data
def test_halves_of_real_bundles_share_as_much_as_their_readme_says(real_data):
    bundles = open_bundles(real_data / "tracts_hcp1065", num_points=32)
    training, held = (bundles.part(indices) for indices in split(bundles, by="streamline", held_out=0.5, seed=0))
    large = [number for number in range(len(bundles.names)) if len(bundles.of(number)) >= 100]
    assert len(large) == 39
    f1 = [space_shared(training.of(number), held.of(number))[2] for number in large]
    assert np.mean(f1) == pytest.approx(0.62, abs=0.02)
