import numpy as np

from voxelocity.core.rng import generator


def test_equal_keys_give_equal_numbers():
    a = generator(3, stage="patch", epoch=1, case=2, draw=4).random(100)
    b = generator(3, stage="patch", epoch=1, case=2, draw=4).random(100)
    np.testing.assert_array_equal(a, b)


def test_every_part_of_the_key_changes_the_numbers():
    base = {"stage": "patch", "epoch": 1, "case": 2, "draw": 3}
    keys = [(0, base), (1, base)] + [(0, base | {name: 9 if name != "stage" else "order"}) for name in base]
    first = [generator(seed, **key).integers(2**62) for seed, key in keys]
    assert len(set(first)) == len(first)


def test_large_seeds_are_told_apart_in_every_stage():
    first = {generator(2**60 + extra, stage=stage).integers(2**62) for extra in (0, 1) for stage in ("order", "patch")}
    assert len(first) == 4
