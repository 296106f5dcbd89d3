"""With a MONAI that was not compared, and with one that lacks what would be read, transforms stay MONAI's."""

import monai
import monai.transforms as mt
import pytest
import torch

from voxelocity.monai import compared
from voxelocity.monai.chain import compile
from voxelocity.monai.compared import COMPARED_VERSIONS, why_not_readable


@pytest.fixture
def newer_monai(monkeypatch):
    monkeypatch.setattr(monai, "__version__", "1.7.0")
    compared._warn_once.cache_clear()
    yield
    compared._warn_once.cache_clear()


def chain():
    return mt.Compose([mt.EnsureTyped("a"), mt.ScaleIntensityRanged("a", 0, 1, 0, 2), mt.RandFlipd("a", 0.5)])


def test_the_installed_monai_was_compared():
    assert monai.__version__ in COMPARED_VERSIONS
    assert {row.how for row in compile(chain()).plan().rows[1:]} == {"engine"}


def test_a_monai_that_was_not_compared_runs_its_own_transforms_and_is_reported_once(newer_monai):
    with pytest.warns(UserWarning, match=r"MONAI 1\.7\.0 was not compared .*only 1\.6\.1.*newer voxelocity"):
        fast = compile(chain())
    assert [(row.how, row.reason) for row in fast.plan().rows] == [("MONAI", "MONAI 1.7.0 was not compared")] * 3
    assert not fast.chain.is_lowered
    item, theirs = {"a": torch.rand(1, 4, 5, 6)}, chain()
    ours = compile(chain())
    for transform in (ours, theirs):
        transform.set_random_state(3)
    assert torch.equal(ours(item)["a"], theirs(item)["a"])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: mt.RandZoomd("a", prob=1.0), "_zoom"),
        (lambda: mt.RandSpatialCrop((2, 2, 2)), "_size"),
        (lambda: mt.RandFlip(1.0), "_do_transform"),
        (lambda: mt.LoadImaged("a"), "_loader"),
    ],
)
def test_a_transform_without_a_private_name_that_is_read_stays_monais(make, name):
    whole, bare = make(), make()
    for holder in (bare, *vars(bare).values()):
        vars(holder).pop(name, None) if hasattr(holder, "__dict__") else None
    assert why_not_readable(whole) == ""
    assert f"has no {name}" in why_not_readable(bare)
    assert [f"has no {name}" in row.reason for row in compile(mt.Compose([bare])).plan().rows] == [True]
