"""Spatial and intensity steps of one patch, made together."""

import numpy as np
import pytest
import torch

from voxelocity.monai.steps import Flip, IntensityStep, Linear, PatchTask, run
from voxelocity.monai.steps.intensity.pointwise import Clip

ONE, TWO = np.float32([1.0]), np.float32([2.0])


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("steps", [(), (Flip(axes=(True, False, False)),)], ids=["alone", "after a flip"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Linear(scale=TWO, shift=ONE), [1.0, 3.0, 5.0]),
        (Linear(scale=TWO, shift=ONE, center=ONE), [-1.0, 1.0, 3.0]),
        (Linear(scale=TWO, shift=ONE, keeps_zero=True), [0.0, 3.0, 5.0]),
        (Clip(low=ONE, high=ONE), [1.0, 1.0, 1.0]),
    ],
    ids=["plain", "about a center", "but for zeros", "clip"],
)
def test_the_first_change_of_intensities_is_made_whole(engine, steps, change: IntensityStep, expected):
    source = torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1, 1)
    out = torch.empty_like(source)
    run([PatchTask(source=source, steps=(*steps, change), out=out)], engine=engine)
    assert out.flatten().tolist() == (expected[::-1] if steps else expected)
