"""What follows from the losses of a range test."""

from __future__ import annotations

import itertools
import math

import pytest

from voxelocity.tuning.learning_rate import LEAST_RATE, MOST_RATE, judge, learning_rates


def test_rates_grow_by_one_factor_between_the_ends():
    rates = learning_rates(7)
    assert (rates[0], rates[-1]) == (LEAST_RATE, pytest.approx(MOST_RATE))
    factors = [after / before for before, after in itertools.pairwise(rates)]
    assert factors == pytest.approx([10.0] * 6)


def test_a_tenth_of_the_rate_at_the_least_loss_is_chosen():
    rates = learning_rates(400)
    # A valley with its floor at 1e-2, falling fastest at about 1e-3.
    losses = [2.0 - math.exp(-((math.log10(rate) + 2.0) ** 2)) + (0.0 if rate < 0.1 else rate) for rate in rates]
    test = judge(rates, losses)
    assert test.least == pytest.approx(1e-2, rel=0.1)
    assert test.chosen == pytest.approx(test.least / 10.0, rel=0.1)
    assert test.steepest < test.least
    assert f"{test.least:.1e}" in test.reason


def test_on_a_plateau_the_rate_of_the_fastest_fall_is_chosen():
    rates = learning_rates(300)
    # As with Muon: a fall at 1e-2, then next to nothing up to the largest rate.
    losses = [2.0 / (1.0 + rate / 1e-2) - 1e-3 * rate for rate in rates]
    test = judge(rates, losses)
    assert test.least == pytest.approx(MOST_RATE, rel=0.2)
    assert test.chosen == pytest.approx(test.steepest, rel=0.1)
    assert 5e-3 < test.chosen < 2e-2


def test_a_loss_that_only_rises_chooses_nothing():
    rates = learning_rates(100)
    test = judge(rates, [1.0 + number for number in range(100)])
    assert test.chosen is None
    assert "did not fall" in test.reason
