"""What a pending tensor tells of where its voxels lie: affine and spacing as MONAI's transforms leave them."""

from __future__ import annotations

import copy
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from monai.data.meta_tensor import MetaTensor

from voxelocity.monai.lower import PendingTensor, lowerings
from voxelocity.monai.lower.pending import finish


def scan() -> MetaTensor:
    """With a "pixdim" that its affine does not agree with, so that a spacing that is computed again shows."""
    voxels = torch.rand(1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    affine = torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0]))
    return MetaTensor(voxels, affine=affine, meta={"pixdim": np.ones(8, np.float32)})


@pytest.mark.parametrize(
    ("transform", "is_reported"),
    [
        (mt.Flip(0), True),
        (mt.Rotate90(k=4), True),
        (mt.CenterSpatialCrop(8), True),
        (mt.SpatialPad(8), True),
        (mt.Resize((8, 8, 8)), True),
        (mt.RandAffine(prob=0.0), True),
        (mt.RandRotate(prob=0.0), False),
        (mt.RandZoom(prob=0.0), False),
        (mt.Rand3DElastic((1, 2), (1, 2), prob=1.0), False),
        (mt.RandSimulateLowResolution(prob=1.0), False),
        (mt.ScaleIntensity(), False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bool) else "",
)
def test_the_spacing_is_computed_again_by_those_transforms_by_which_monai_does(
    transform: Any, is_reported: bool
) -> None:
    theirs = copy.deepcopy(transform)(scan())
    ours = finish(lowerings(exact_noise=True)[type(transform)].apply(transform, scan()))
    np.testing.assert_allclose(ours.meta["pixdim"], theirs.meta["pixdim"], rtol=1e-6)
    assert (ours.meta["pixdim"][1] == 2.0) == is_reported


def test_a_crop_before_a_deformation_is_reported() -> None:
    chain = [mt.CenterSpatialCrop(6), mt.Rand3DElastic((1, 2), (1, 2), prob=1.0)]
    pending: Any = scan()
    for transform in chain:
        pending = lowerings(exact_noise=True)[type(transform)].apply(transform, pending)
    made = finish(pending)
    assert made.meta["pixdim"][1:4].tolist() == [2.0, 3.0, 4.0]
    assert made.affine[:3, 3].tolist() == [2.0, 3.0, 4.0]


def test_what_is_moved_without_a_step_has_its_affine_moved() -> None:
    pending = PendingTensor.of(scan())
    shift = np.eye(4)
    shift[0, 3] = 5.0
    pending.relocate(shift)
    assert finish(pending).affine[0, 3] == 10.0
