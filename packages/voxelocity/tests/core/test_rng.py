import numpy as np

from voxelocity.core.rng import first_words, generator


def test_equal_keys_give_equal_numbers():
    a = generator(3, stage="patch", epoch=1, case=2, draw=4).random(100)
    b = generator(3, stage="patch", epoch=1, case=2, draw=4).random(100)
    np.testing.assert_array_equal(a, b)


def test_every_part_of_the_key_changes_the_numbers():
    base = {"stage": "patch", "epoch": 1, "case": 2, "draw": 3}
    keys = [(0, base), (1, base)] + [(0, base | {name: 9 if name != "stage" else "order"}) for name in base]
    first = [generator(seed, **key).integers(2**62) for seed, key in keys]
    assert len(set(first)) == len(first)


def test_large_seeds_are_distinguished_in_every_stage():
    first = {generator(2**60 + extra, stage=stage).integers(2**62) for extra in (0, 1) for stage in ("order", "patch")}
    assert len(first) == 4


def test_first_words_are_those_that_the_generators_begin_with():
    keys = [(0, 0, 0), (3, 2, 1), (2**40, 5, 7), (0, 0, 0)]
    words = first_words(2**63 - 1, stage="augment", keys=keys, num_words=11)
    for row, (epoch, case, draw) in zip(words, keys, strict=True):
        rng = generator(2**63 - 1, stage="augment", epoch=epoch, case=case, draw=draw)
        np.testing.assert_array_equal(row, rng.bit_generator.random_raw(11))
    np.testing.assert_array_equal(first_words(2**63 - 1, stage="augment", keys=keys[1:2], num_words=5)[0], words[1, :5])
