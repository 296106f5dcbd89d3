"""The places that nnU-Net draws of classes."""

import numpy as np
import pytest

from voxelocity.nnunet.preprocess.labels import sample_places


def as_nnunet_draws(label, classes):
    """nnU-Net's `_sample_foreground_locations`, class by class."""
    rng = np.random.RandomState(1234)
    found = {}
    for part in classes:
        values = part if isinstance(part, tuple) else (part,)
        places = np.concatenate([np.argwhere(label[None] == value) for value in values])
        if len(places) == 0:
            found[part] = []
            continue
        num = max(min(10_000, len(places)), int(np.ceil(len(places) * 0.01)))
        found[part] = places[rng.choice(len(places), num, replace=False)]
    return found


@pytest.mark.parametrize(
    "classes",
    [[1, 2, 3], [(1, 2), 2, (2,)], [1, 2, (-1, 0, 1, 2)], [5, (4, 6), 1]],
    ids=["plain", "regions", "ignore", "absent"],
)
def test_places_are_those_that_nnunet_draws(classes):
    label = np.random.default_rng(2).integers(-1, 4, (40, 41, 30)).astype(np.int16)
    found, wanted = sample_places(label, classes), as_nnunet_draws(label, classes)
    assert list(found) == list(wanted)
    for part, places in wanted.items():
        assert np.array_equal(found[part], places), part
        assert len(places) == 0 or (found[part].dtype, found[part].shape[1]) == (np.int64, 4)
    assert any(len(places) > 9_000 for places in found.values())


def test_of_large_classes_a_hundredth_is_kept():
    label = np.ones((110, 110, 100), np.int16)
    assert len(sample_places(label, [1])[1]) == 12_100
