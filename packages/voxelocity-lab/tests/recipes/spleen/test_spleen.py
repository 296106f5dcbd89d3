"""The recipe of the spleen: phantoms, what it refuses and what each change brings; `recipes/test_both.py` trains."""

from pathlib import Path

import numpy as np
import pytest

from shared.recipe_call import call_of
from voxelocity.data.source import open_cases
from voxelocity_lab.recipes.factors import SIDES, factors_table, split_factors
from voxelocity_lab.recipes.spleen import phantom, recipe
from voxelocity_observe.core.errors import ConfigError, DatasetError


def test_data_of_several_organs_are_refused(tiny_msd, tmp_path):
    with pytest.raises(DatasetError, match="this recipe is for one organ"):
        recipe.train(call_of(tiny_msd, tmp_path / "run"))


def test_without_data_the_error_says_where_they_are(tmp_path):
    with pytest.raises(
        DatasetError, match=r"Task09_Spleen does not exist; .*medicaldecathlon\.com.* or write phantoms"
    ):
        recipe.train(call_of(tmp_path / "Task09_Spleen", tmp_path / "run"))


def test_phantoms_have_the_size_of_msds_spleen():
    grid = phantom._draw_grid(0, 1.0)
    assert (grid.shape, grid.spacing_mm) == ((512, 512, 90), (0.8, 0.8, 5.0))
    assert phantom.NUM_CASES == 41
    small = phantom._draw_grid(0, 0.25)
    assert small.shape == (128, 128, 45)
    assert small.spacing_mm == pytest.approx((3.2, 3.2, 10.0))


def test_phantoms_are_asked_for_by_a_word_and_kept(tmp_path):
    call = recipe._with_data(call_of(Path("phantoms:0.1:4"), tmp_path / "run"))
    cases = open_cases(call.data)
    assert call.data == tmp_path / "run-phantoms"
    assert cases.class_names == ("background", "spleen")
    assert len(cases) == 4
    before = [path.stat().st_mtime_ns for path in sorted(call.data.rglob("*.nii.gz"))]
    recipe._with_data(call_of(Path("phantoms:0.1:4"), tmp_path / "run"))
    assert [path.stat().st_mtime_ns for path in sorted(call.data.rglob("*.nii.gz"))] == before
    with pytest.raises(ConfigError, match=r"phantoms of scale 3, 4 of them"):
        recipe._with_data(call_of(Path("phantoms:3:4"), tmp_path / "run"))


def test_a_spleen_lies_among_organs_of_its_density_and_no_two_have_one_size():
    sizes = []
    for index in range(4):
        image, label, grid = phantom.draw_spleen(0, index, 0.15)
        spleen = label == 1
        sizes.append(spleen.sum() * np.prod(grid.spacing_mm) / 1000.0)
        low, high = np.percentile(image[spleen], (15, 85))
        # Within 5 cm of its box.
        box = tuple(
            slice(max(0, int(at.min() - 50 / step)), int(at.max() + 50 / step) + 1)
            for at, step in zip(np.nonzero(spleen), grid.spacing_mm, strict=True)
        )
        alike = (image[box] > low) & (image[box] < high) & ~spleen[box]
        assert alike.sum() > 1.5 * spleen.sum()
    assert min(sizes) > 30.0
    assert max(sizes) > 1.5 * min(sizes)


def test_each_change_stands_next_to_the_one_before_it():
    labels = [recipe.CONTEST.sides[0], "other", "third"]
    trainings = {
        label: [
            {
                "seconds_per_epoch": epoch_s,
                "dice_history": [[5.0, 0.7], [9.0, 0.6]],
                "stages": {"training steps": 10.0 * epoch_s},
            }
        ]
        * 2
        for label, epoch_s in zip(labels, (8.0, 2.0, 1.0), strict=True)
    }
    race = {
        "trainings": trainings,
        "seconds_to_target": dict(zip(labels, ([None, None], [30.0, 50.0], [10.0, 10.0]), strict=True)),
        "seeds": [0, 1],
        "limit_s": 90.0,
    }
    first, second, third = split_factors(race)
    assert (first.epoch_factors, second.epoch_factors, third.epoch_factors) == ((), (4.0, 4.0), (2.0, 2.0))
    assert (second.epochs, second.best_dice) == ((10.0, 10.0), (0.7, 0.7))
    # A side that did not get there counts with the limit.
    assert second.target_factor_text == "at least 2.4×"
    rows = factors_table([first, second, third], target_dice=0.95).rows
    assert rows[0] == ["plain", "8.0 s", "not reached", "", ""]
    assert rows[2] == ["third", "1.0 s", "10 s", "2.0×", "4.0×"]
    race["trainings"]["third"][1] = {**race["trainings"]["third"][1], "seconds_per_epoch": None}
    assert split_factors(race)[1].target_factor_text == "at least 3.0×"


def test_the_benchmark_goes_from_the_plain_script_to_ours_one_change_at_a_time():
    assert recipe.CONTEST.sides == SIDES == ("plain", "fast", "equal", "float32", "ours")
    assert recipe.CONTEST.target_dice == 0.95
