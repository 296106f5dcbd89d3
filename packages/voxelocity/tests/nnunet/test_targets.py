"""The end of nnU-Net's chain for a whole batch. Stand-ins have the classes of its transforms; needs no nnU-Net."""

from types import SimpleNamespace

import pytest
import torch

from voxelocity.nnunet.targets import ChainEnd, take_end

SHAPE = (8, 12, 4)


def transform(name, *, package="batchgeneratorsv2", **attributes):
    return type(name, (SimpleNamespace,), {"__module__": f"{package}.transforms"})(**attributes)


def regions(*labels, channel=0):
    tensors = [torch.tensor(region) for region in labels]
    return transform("ConvertSegmentationToRegionsTransform", regions=tensors, channel_in_seg=channel)


def scales(*factors):
    return transform("DownsampleSegForDSTransform", ds_scales=list(factors))


MASK = transform("MaskImageTransform", apply_to_channels=[1], channel_idx_in_seg=0, set_outside_to=0)
REMOVAL = transform("RemoveLabelTransform", label_value=-1, set_to=0, segmentation_channels=None)
OTHER = transform("MoveSegAsOneHotToDataTransform")
HALF = scales((1, 1, 1), (0.5, 0.5, 0.5))


def label_of(num_labels=1):
    return torch.randint(-1, 4, (2, num_labels, *SHAPE), dtype=torch.int16)


def stored(label):
    return (label + 1).to(torch.uint8)


def picked(label, shape):
    return torch.nn.functional.interpolate(label.float(), shape, mode="nearest-exact").to(label.dtype)


def test_a_whole_end_makes_masks_regions_and_scales():
    left, label, image = [MASK, REMOVAL, regions([1.0, 2.0], [2.0]), HALF], label_of(), torch.ones(2, 2, *SHAPE)
    end = take_end(left, SHAPE)
    assert left == []
    end.mask(image, stored(label))
    assert torch.equal(image[:, 0], torch.ones(2, *SHAPE))
    assert torch.equal(image[:, 1] == 0, label[:, 0] == -1)
    wanted = torch.cat([(label == 1) | (label == 2), label == 2], dim=1)
    whole, half = end.targets(stored(label))
    assert torch.equal(whole, wanted)
    assert torch.equal(half, picked(wanted, (4, 6, 2)))


@pytest.mark.parametrize("removes", [False, True])
def test_labels_stay_those_of_nnunet(removes):
    end, label = take_end([*([REMOVAL] if removes else []), HALF], SHAPE), label_of(2)
    # As a feed has them: each label whole.
    kept = stored(label).transpose(0, 1).contiguous().transpose(0, 1)
    found = end.targets(kept)
    wanted = label.clamp_min(0) if removes else label
    assert all(target.is_contiguous() and target.dtype == torch.int16 for target in found)
    assert torch.equal(found[0], wanted)
    assert torch.equal(found[1], picked(wanted, (4, 6, 2)))


def test_without_deep_supervision_there_is_one_target():
    end = take_end([REMOVAL], SHAPE)
    assert end == ChainEnd(removes=True)
    assert len(end.targets(stored(label_of()))) == 1


def test_flat_patches_have_scales_of_two_axes():
    left = [scales((1, 1), (0.5, 0.25))]
    assert take_end(left, (1, 12, 4)).scales == ((1, 12, 4), (1, 6, 1))
    assert left == []


@pytest.mark.parametrize(
    "kept",
    [
        [OTHER, HALF],
        [scales((1, 1, 1), (0.4, 0.5, 0.5))],
        [regions([1.0], [300.0]), HALF],
        [regions([1.0], channel=1), HALF],
        [regions([1.0], [2.0]), OTHER],
        [transform("DownsampleSegForDSTransform", package="somebodys", ds_scales=[(1, 1, 1)])],
    ],
)
def test_what_is_not_known_is_left_to_nnunet_with_all_that_follows(kept):
    left = [MASK, REMOVAL, *kept]
    assert take_end(left, SHAPE) == ChainEnd(masked=(1,), removes=True)
    assert left == kept
