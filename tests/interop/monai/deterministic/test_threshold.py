from __future__ import annotations

import numpy as np
import pytest
from monai.transforms.utils import is_positive

from voxelocity.interop.monai.deterministic.threshold import threshold_of


def above_air(x):
    return x > -900


def test_a_comparison_with_a_number_is_recognized():
    assert threshold_of(is_positive) == 0
    assert threshold_of(lambda x: x > 0) == 0
    assert threshold_of(lambda image: image > 0.5) == 0.5
    assert threshold_of(above_air) == -900


LIMIT = 3


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x >= 0,
        lambda x: x < 0,
        lambda x: x > LIMIT,
        lambda x: x + 1 > 0,
        lambda x, y=1: x > 0,
        lambda x: (x > 0) & (x > 1),
        lambda x: x > True,
        np.isfinite,
    ],
)
def test_anything_else_is_not(select):
    assert threshold_of(select) is None
