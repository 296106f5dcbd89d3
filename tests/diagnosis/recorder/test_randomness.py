"""Whether a transform draws numbers is told from its class and from what it holds."""

import monai.transforms as mt
import pytest

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


def test_a_chain_that_holds_itself_is_answered():
    class Chain:
        transforms = ()

    chain = Chain()
    chain.transforms = [chain]
    assert may_differ(chain) is False
