import numpy as np
import pytest
from scipy import stats

from voxelocity.data.augment.noise import normal_of, philox, standard_normal

ALL_OCTAVES = np.unique(np.geomspace(1, 2**31 - 1, 200_000).astype(np.uint32) | np.uint32(1))
"""Words of positive numbers, from the largest number to the smallest."""


def test_words_are_those_of_the_published_generator():
    # Random123's known answer for philox4x32-7 with counter and key zero.
    words = philox(0, 0, np.zeros(1, np.uint64))[:, 0]
    assert [f"{word:08x}" for word in words.tolist()] == ["5f6fb709", "0d893f64", "4f121f81", "4f730a48"]


def test_numbers_are_standard_normal():
    numbers = standard_normal(7, 0, 1_000_000).astype(np.float64)
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert numbers.mean() == pytest.approx(0.0, abs=0.004)
    assert numbers.std() == pytest.approx(1.0, abs=0.003)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.004


def test_every_word_gives_the_normal_quantile_of_its_probability():
    numbers = normal_of(ALL_OCTAVES).astype(np.float64)
    assert np.abs(numbers - stats.norm.isf(ALL_OCTAVES * 2.0**-32)).max() < 2e-5
    assert (np.diff(numbers) <= 0).all()
    assert (normal_of(ALL_OCTAVES | np.uint32(2**31)) == -numbers).all()
    assert normal_of(np.array([0, 2**31], np.uint32)) == pytest.approx([6.2303, -6.2303], abs=1e-4)


def test_tails_are_as_heavy_as_those_of_a_normal_distribution():
    # The words of numbers beyond a limit are the odd ones up to the largest of them.
    for limit in (3.0, 4.0, 4.5, 5.0, 6.0):
        share = (float(ALL_OCTAVES[normal_of(ALL_OCTAVES) > limit].max()) + 1.0) * 2.0**-32
        assert share == pytest.approx(stats.norm.sf(limit), rel=0.1 if limit == 6.0 else 1e-3)
    drawn = np.abs(standard_normal(3, 0, 4_000_000))
    assert drawn.max() > 4.5
    for limit in (3.0, 3.67, 4.0):
        expected = 2 * stats.norm.sf(limit) * drawn.size
        assert abs(np.count_nonzero(drawn > limit) - expected) < 4 * np.sqrt(expected)


def test_numbers_have_millions_of_values():
    # Words of the octave that has the most of all numbers and the fewest values for them.
    words = np.arange(2**30, 2**31, 2**9, dtype=np.uint32)
    assert np.unique(normal_of(words)).size == words.size == 2**21
    assert np.unique(standard_normal(11, 0, 1_000_000)).size > 950_000


def test_seed_and_channel_matter_and_the_length_does_not():
    assert (standard_normal(7, 0, 100) == standard_normal(7, 0, 5000)[:100]).all()
    for seed, channel in ((8, 0), (7, 1), (7 + 2**40, 0)):
        assert abs(np.corrcoef(standard_normal(7, 0, 9999), standard_normal(seed, channel, 9999))[0, 1]) < 0.05
