"""Whether a transform draws numbers is told from its class and from what it holds."""

import random

import monai.transforms as mt
import numpy as np
import pytest
import torch

from voxelocity.diagnosis.recorder.randomness import may_differ


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (mt.Spacingd("image", (1, 1, 1)), False),
        (mt.RandAffined("image", prob=1.0), True),
        (mt.Compose([mt.ScaleIntensityd("image")]), False),
        (mt.Compose([mt.ScaleIntensityd("image"), mt.Compose([mt.RandFlipd("image")])]), True),
        (mt.OneOf([mt.ScaleIntensityd("image")]), True),
        (lambda item: item, False),
        (abs, False),
    ],
)
def test_of_monai(transform, expected):
    assert may_differ(transform) is expected


def test_of_torchio():
    tio = pytest.importorskip("torchio")
    assert may_differ(tio.Flip(flip_probability=0.5))
    assert not may_differ(tio.Flip(axes=0))
    assert may_differ(tio.Affine(degrees=(-10, 10)))
    assert not may_differ(tio.Affine(degrees=10))
    assert not may_differ(tio.ZNormalization())
    assert may_differ(tio.ZNormalization(p=0.5))
    assert not may_differ(tio.Compose([tio.ZNormalization()]))
    assert may_differ(tio.Compose([tio.ZNormalization(), tio.Noise(std=0.1)]))


def test_of_torchio_1_by_its_base():
    class RandomTransform:
        pass

    class AnyName(RandomTransform):
        pass

    assert may_differ(AnyName())


class Fixed:
    def __init__(self):
        self.size = (4, 4, 4)

    def __call__(self, item):
        return item[: self.size[0]]


class Drawing(Fixed):
    """Draws in a method that its call uses."""

    def offset(self):
        return np.random.default_rng().integers(0, 4)

    def __call__(self, item):
        return item[self.offset() :]


class OfADrawing(Drawing):
    pass


def noisy(item):
    return [voxel + torch.randn(1) for voxel in item]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Fixed(), False),
        (Drawing(), True),
        (OfADrawing(), True),
        (noisy, True),
        (lambda item: (lambda: random.random())(), True),
        (lambda item: torch.nn.functional.grid_sample(item, item), False),
        (mt.Lambda(noisy), True),
        (mt.Lambdad(("image", "label"), [abs, noisy]), True),
        (mt.Lambdad("image", abs), False),
    ],
)
def test_own_code_is_told_by_the_names_it_uses(transform, expected):
    assert [may_differ(transform) for _ in range(2)] == [expected, expected]


def test_a_chain_that_holds_itself_is_answered():
    class Chain:
        transforms = ()

    chain = Chain()
    chain.transforms = [chain]
    assert may_differ(chain) is False
