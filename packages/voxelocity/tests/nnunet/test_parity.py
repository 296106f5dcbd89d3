"""Boxes, draws, foreground and intensities of our batches are nnU-Net's; ranges that were changed show."""

import numpy as np
import pytest

from nnunet_parity import PLANTED, SMALLEST_P, catches, compare

pytest.importorskip("batchgeneratorsv2.transforms.utils.compose", reason="nnU-Net's transforms")
from .own_chain import FakeDataset, FakeLoader, nnunet_chain
from .test_feed import feed_of

SETS = {
    "isotropic": ((12, 16, 10), (17, 21, 16), {}, 1.0),
    "in planes": ((4, 16, 12), (4, 22, 19), {"in_planes": True}, 1.0),
    "regions and an ignored label": ((12, 16, 10), (17, 21, 16), {"regions": [(1, 2), 2, 3]}, 500.0),
}


def loader_of(name):
    patch, crop, settings, contrast = SETS[name]
    dataset = FakeDataset([(20, 31, 24), (14, 22, 18), (33, 26, 29)], has_ignored="ignored" in name)
    for image, *_ in dataset._cases.values():
        image *= np.float32(contrast)
    return FakeLoader(dataset, nnunet_chain(patch, **settings), crop=crop, patch=patch)


@pytest.mark.parametrize("name", SETS)
def test_batches_are_drawn_as_nnunet_draws_them(name):
    found = compare(loader_of(name), feed_of, num_batches=60)
    assert found["differing"] == []
    assert found["num_batches_drawn_otherwise"] == 0, "by nnU-Net's own objects, and by our draws in their place"
    assert found["num_patches"] == 120
    assert found["num_exact"] > 60
    assert len(found["equal"]) == 3 + 1 + 9 + 4, "boxes, foreground, each draw, what goes in"
    assert found["label_share_of_unmoved_patches"] == 0.0
    assert found["label_share"] < 1e-3
    assert min(found["num_noise_voxels"]) > 5000
    assert found["p_of_noise_a_tenth_stronger"] < SMALLEST_P


def test_a_range_that_is_a_tenth_wider_shows():
    found = catches(loader_of("isotropic"), feed_of, num_batches=60)
    assert list(found) == list(PLANTED)
    for planted, differing in found.items():
        kind = planted.partition(" ")[0]
        assert any(kind in name for name in differing), f"{planted}: {differing}"
        assert any(name.startswith("our ") for name in differing), f"{planted}: {differing}"
