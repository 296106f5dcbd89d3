"""Lesions and their score, on planted cases that were computed by hand."""

import numpy as np
import pytest

from voxelocity_lab.recipes.pathology.froc import RATES, SlideHits, froc, lesions_of, match

WIDTH = 0.5  # micrometers of a pixel
DOWN = 32.0  # so that a pixel of these masks is 16 micrometers wide


def planted(*squares, shape=(200, 200)):
    """Lesions of a mask with squares (row, column, side)."""
    mask = np.zeros(shape, bool)
    for row, column, side in squares:
        mask[row : row + side, column : column + side] = True
    return lesions_of(mask, downsample=DOWN, micrometers=WIDTH)


def at(row, column):
    return (column + 0.5) * DOWN, (row + 0.5) * DOWN


def test_lesions_less_than_75_micrometers_apart_are_one():
    # A gap of 4 pixels is 64 micrometers, one of 5 is 80.
    assert planted((20, 20, 30), (20, 54, 30)).num_counted == 1
    assert planted((20, 20, 30), (20, 55, 30)).num_counted == 2


def test_isolated_cells_are_shorter_than_275_micrometers():
    # With what it has grown, 2 pixels on each side, a square of n pixels has a longer axis of 4 sqrt((n + 4)^2 / 12).
    assert planted((50, 50, 8)).num_counted == 0
    assert planted((50, 50, 20)).num_counted == 1
    assert planted((50, 50, 8)).small == {1}


def test_a_detection_hits_the_lesion_it_lies_in_and_cells_do_not_count():
    lesions = planted((20, 20, 30), (100, 100, 40), (160, 20, 8))
    detections = [(0.9, *at(30, 30)), (0.6, *at(25, 25)), (0.8, *at(5, 150)), (0.7, *at(163, 23)), (0.5, -10.0, 5.0)]
    found = match(detections, lesions)
    assert found.hits == (0.9, 0.0)
    assert found.false == (0.8, 0.5)


def shares(*values):
    return pytest.approx(dict(zip(RATES, values, strict=True)))


def test_one_slide_with_everything_found_and_nothing_else():
    assert froc([SlideHits(false=(), hits=(0.9, 0.4))]) == shares(1, 1, 1, 1, 1, 1)


def test_one_slide_with_a_false_positive_before_the_second_lesion():
    # Half is found without any, all with one.
    assert froc([SlideHits(false=(0.7,), hits=(0.9, 0.4))]) == shares(0.625, 0.75, 1, 1, 1, 1)


def test_two_slides_share_their_false_positives():
    # Thresholds 0.9: (0, 1/4); 0.8: (1/2, 1/4); 0.6: (1/2, 2/4); 0.5: (1, 2/4); 0.3: (1, 3/4); one is never found.
    found = [SlideHits(false=(0.8,), hits=(0.9, 0.3)), SlideHits(false=(0.5,), hits=(0.6, 0.0))]
    assert froc(found) == shares(0.375, 0.5, 0.75, 0.75, 0.75, 0.75)


def test_nothing_found_scores_nothing():
    assert froc([SlideHits(false=(0.9, 0.8), hits=(0.0,))]) == shares(0, 0, 0, 0, 0, 0)


def test_a_slide_without_lesions_counts_by_its_false_positives():
    found = [SlideHits(false=(0.95, 0.9, 0.8, 0.7), hits=()), SlideHits(false=(), hits=(0.75, 0.99))]
    # (0, 1/2), (1/2, 1/2), (1, 1/2), (3/2, 1/2), (3/2, 1), (2, 1)
    assert froc(found) == shares(0.5, 0.5, 0.5, 1, 1, 1)


def test_no_lesions_have_no_score():
    assert froc([SlideHits(false=(0.5,), hits=())]) == {}
