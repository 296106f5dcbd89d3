"""Figures of generated streamlines, on lines whose voxels can be counted."""

import math

import numpy as np
import pytest

from voxelocity_lab.recipes.tractography.bundles import open_bundles, split
from voxelocity_lab.recipes.tractography.judge import judge, mean_of, space_shared, voxels_of


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
    inside = np.ones((3, 5), bool)
    inside[1, :3] = False
    found = judge(generated, trained + np.float32([0, 4, 0]), trained, is_inside=inside)
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


@pytest.mark.data
def test_halves_of_real_bundles_share_as_much_as_their_readme_says(real_data):
    bundles = open_bundles(real_data / "tracts_hcp1065", num_points=32)
    training, held = (bundles.part(indices) for indices in split(bundles, by="streamline", held_out=0.5, seed=0))
    large = [number for number in range(len(bundles.names)) if len(bundles.of(number)) >= 100]
    assert len(large) == 39
    f1 = [space_shared(training.of(number), held.of(number))[2] for number in large]
    assert np.mean(f1) == pytest.approx(0.62, abs=0.02)
