"""Intervals of AUCs: what is drawn again, and that counting pairs gives the AUC of each draw."""

import math
from pathlib import Path

import numpy as np
import pytest

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.pathology.dataset import Piece
from voxelocity_lab.recipes.pathology.resampling import Estimate, drawn_aucs, estimate, judge, units_of
from voxelocity_lab.recipes.pathology.score import pooled_auc, roc_auc


def rated_pieces(num, seed=0, size=12):
    """Ratings with ties, better than chance."""
    rng = np.random.default_rng(seed)
    tumor = [rng.random(size) > 0.5 for _ in range(num)]
    return [(np.round(rng.normal(size=size) + labels, 1), labels) for labels in tumor]


def test_each_draw_has_the_auc_of_the_pieces_of_its_units():
    rated, units = rated_pieces(7), [0, 0, 1, 2, 3, 4, 4]
    drawn = drawn_aucs(rated, units)
    assert len(drawn) == 2001
    assert drawn[0] == pytest.approx(pooled_auc(rated))
    for numbers, auc in zip(generator(0, stage="bootstrap").integers(5, size=(2000, 5))[:20], drawn[1:], strict=False):
        chosen = [part for number in numbers for part, unit in zip(rated, units, strict=True) if unit == number]
        assert auc == pytest.approx(roc_auc(*(np.concatenate(side) for side in zip(*chosen, strict=True))))


def test_draws_without_a_class_do_not_count():
    rated = [(np.array([0.2, 0.9]), np.array([False, True])), *[(np.array([0.1]), np.array([False]))] * 4]
    found = estimate(drawn_aucs(rated, range(5)))
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_few_units_have_no_interval():
    found = estimate(drawn_aucs(rated_pieces(6), [0, 0, 1, 1, 2, 2]))
    assert 0.5 < found.value < 1.0
    assert math.isnan(found.low)
    assert "(" not in found.text
    assert Estimate(value=0.9, low=0.8, high=0.95).text == "0.900 (0.800 to 0.950)"
    assert math.isnan(estimate(drawn_aucs([], [])).value)


def test_gains_are_of_the_same_draws():
    rated = rated_pieces(10)
    noise = [(np.random.default_rng(5).normal(size=len(labels)), labels) for _, labels in rated]
    aucs, gains = judge({"ours": (rated, rated), "same": (rated, rated), "noise": (noise, noise)}, range(10))
    assert list(aucs) == ["ours", "same", "noise"]
    assert set(gains) == {"same", "noise"}
    assert gains["same"][0] == Estimate(value=0.0, low=0.0, high=0.0)
    assert gains["noise"][1].value == pytest.approx(aucs["ours"][1].value - aucs["noise"][1].value)
    assert gains["noise"][0].low > 0.0


def piece(number, slide, patient=""):
    return Piece(name=f"p{number}", slide=Path(slide), annotation=None, box=None, fold=0, patient=patient)


@pytest.mark.parametrize(
    ("slides", "patients", "units", "words"),
    [
        ("abcdee", [""] * 6, [0, 1, 2, 3, 4, 4], "5 slides"),
        ("abcde", "vwxyy", [0, 1, 2, 3, 3], "4 patients"),
        ("abcde", "xxxyy", [0, 1, 2, 3, 4], "5 slides"),
        ("aaaab", "xxxxy", [0, 1, 2, 3, 4], "5 pieces"),
        ("ab", "xy", [0, 1], "2 pieces"),
    ],
)
def test_patients_are_drawn_again_then_slides_then_pieces(slides, patients, units, words):
    pieces = [piece(*given) for given in zip(range(len(slides)), slides, patients, strict=True)]
    assert units_of(pieces) == (units, words)
