import numpy as np
import pytest
from scipy import stats

from voxelocity.data.augment.noise import QUANTILES, philox, standard_normal


def test_words_are_those_of_the_published_generator():
    # Random123's known answer for philox4x32-10 with counter and key zero.
    words = philox(0, 0, np.zeros(1, np.uint64))[:, 0]
    assert [f"{word:08x}" for word in words.tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_numbers_are_standard_normal():
    numbers = standard_normal(7, 0, 200_000).astype(np.float64)
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert numbers.mean() == pytest.approx(0.0, abs=0.01)
    assert numbers.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
    assert QUANTILES.astype(np.float64).std() == pytest.approx(1.0, abs=1e-6)


def test_seed_and_channel_matter_and_the_length_does_not():
    assert (standard_normal(7, 0, 100) == standard_normal(7, 0, 5000)[:100]).all()
    for seed, channel in ((8, 0), (7, 1), (7 + 2**40, 0)):
        assert abs(np.corrcoef(standard_normal(7, 0, 9999), standard_normal(seed, channel, 9999))[0, 1]) < 0.05
