"""Crops and pads whose place depends on sizes alone: the same voxels, types, metadata and draws as MONAI's."""

from __future__ import annotations

import copy
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor

from parity.case import item_of
from shared.lowered import assert_equal, both, check_lowered_alike, metadata_tracked
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish

LOWERINGS = lowerings(exact_noise=True)
KEYS = ("image", "label")
ITEMS = st.builds(
    item_of,
    st.integers(0, 99),
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    num_channels=st.integers(1, 3),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    label_dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    kind=st.sampled_from(["meta", "tensor", "array"]),
)
SIZES = st.lists(st.integers(-1, 12), min_size=3, max_size=3)
FILLS = st.sampled_from([{}, {"value": 7}, {"value": 0.5}, {"constant_values": 3.0}])


def _sized(item: dict[str, Any], values: list[Any]) -> list[Any]:
    return values[: item["image"].ndim - 1]


@given(item=ITEMS, sizes=SIZES, starts=st.lists(st.integers(-3, 8), min_size=3, max_size=3), by=st.integers(0, 3))
def test_given_and_central_crops_equal_monais(
    item: dict[str, Any], sizes: list[int], starts: list[int], by: int
) -> None:
    sizes, starts = _sized(item, sizes), _sized(item, starts)
    ends = [start + abs(size) for start, size in zip(starts, sizes, strict=True)]
    slices = [slice(start, None if start < 0 else end) for start, end in zip(starts, ends, strict=True)]
    transform = [
        mt.SpatialCropd(KEYS, roi_center=ends, roi_size=[abs(size) for size in sizes]),
        mt.SpatialCropd(KEYS, roi_start=starts, roi_end=ends),
        mt.SpatialCropd(KEYS, roi_slices=slices[: 1 + by % 2]),
        mt.CenterSpatialCropd(KEYS, sizes),
    ][by]
    check_lowered_alike(transform, item)
    check_lowered_alike(transform.cropper, item["image"])


@given(item=ITEMS, scales=st.lists(st.floats(0.1, 1.5), min_size=3, max_size=3))
def test_crops_by_scale_equal_monais(item: dict[str, Any], scales: list[float]) -> None:
    scales = _sized(item, scales)
    check_lowered_alike(mt.CenterScaleCropd(KEYS, scales), item)
    check_lowered_alike(mt.CenterScaleCrop(scales), item["image"])
    for random_center in (False, True):
        transform = mt.RandScaleCropd(KEYS, scales, random_center=random_center).set_random_state(3)
        check_lowered_alike(transform, item)
    growing = mt.RandScaleCropd(KEYS, 0.3, 0.9, random_size=True).set_random_state(4)
    check_lowered_alike(growing, item)
    check_lowered_alike(mt.RandScaleCrop(0.3, 0.9, random_size=True).set_random_state(4), item["image"])


@given(item=ITEMS, sizes=SIZES, random_center=st.booleans(), random_size=st.booleans(), seed=st.integers(0, 99))
def test_random_crops_equal_monais(
    item: dict[str, Any], sizes: list[int], random_center: bool, random_size: bool, seed: int
) -> None:
    if random_size:
        sizes = [min(size, side) for size, side in zip(sizes, item["image"].shape[1:], strict=False)]
    settings_ = {"random_center": random_center, "random_size": random_size}
    sizes = _sized(item, sizes)
    check_lowered_alike(mt.RandSpatialCropd(KEYS, sizes, **settings_).set_random_state(seed), item)
    check_lowered_alike(mt.RandSpatialCrop(sizes, **settings_).set_random_state(seed), item["image"])
    several = mt.RandSpatialCropSamplesd(KEYS, sizes, num_samples=3, **settings_).set_random_state(seed)
    assert len(check_lowered_alike(several, item)) == 3
    array = mt.RandSpatialCropSamples(sizes, 2, **settings_).set_random_state(seed)
    check_lowered_alike(array, item["image"])


@pytest.mark.parametrize("kind", ["meta", "tensor", "array"])
def test_without_tracking_crops_come_as_plain_tensors_like_monais(kind: str) -> None:
    item = item_of(0, shape=(7, 5, 4), kind=kind)
    several = mt.RandSpatialCropSamplesd(("image",), (3, 3, 3), 2, random_size=False).set_random_state(1)
    with metadata_tracked(False):
        found = check_lowered_alike(several, item)
    assert type(found[0]["image"]) is torch.Tensor


@pytest.mark.parametrize("kind", ["meta", "tensor", "array"])
def test_each_sample_has_its_own_copy_of_what_is_not_cropped(kind: str) -> None:
    item = item_of(0, shape=(7, 5, 4), kind=kind) | {"ids": [1, 2], "points": np.arange(6.0)}
    transform = mt.RandSpatialCropSamplesd(("image",), (3, 3, 3), 2, random_size=False).set_random_state(1)
    check_lowered_alike(transform, item)
    one, other = finish(LOWERINGS[type(transform)].apply(transform, item))
    for key in ("label", "points"):
        before = copy.deepcopy(other[key])
        one[key][:] = 9
        assert np.array_equal(before, other[key])
        assert not np.any(np.asarray(item[key]) == 9)
    one["ids"].append(3)
    assert other["ids"] == item["ids"] == [1, 2]


def test_a_copy_that_is_cropped_later_is_never_made_and_is_dressed_as_monai_would() -> None:
    item = item_of(0, shape=(7, 5, 4), kind="tensor")
    chain = [
        mt.RandSpatialCropSamplesd(("image",), (3, 3, 3), 2, random_size=False).set_random_state(1),
        mt.CenterSpatialCropd(("label",), (3, 3, 3)),
    ]
    theirs = [chain[1](sample) for sample in copy.deepcopy(chain[0])(copy.deepcopy(item))]
    ours = [LOWERINGS[type(chain[1])].apply(chain[1], s) for s in LOWERINGS[type(chain[0])].apply(chain[0], item)]
    assert all(pending["label"].source.data_ptr() == item["label"].data_ptr() for pending in ours)
    for expected, actual in zip(theirs, finish(ours), strict=True):
        assert type(expected["label"]) is type(actual["label"]) is MetaTensor
        assert torch.equal(expected["label"].as_tensor(), actual["label"].as_tensor())


@pytest.mark.parametrize("shape", [(5,), (4, 3, 3, 2)])
def test_images_of_one_or_four_axes_go_through_monais_own(shape: tuple[int, ...]) -> None:
    image = torch.arange(float(np.prod(shape))).reshape(1, *shape)
    transform = mt.RandSpatialCrop((2,) * len(shape), random_size=False).set_random_state(0)
    check_lowered_alike(transform, image)


def test_a_size_beyond_the_largest_is_refused_as_monai_refuses_it() -> None:
    transform = mt.RandSpatialCropd(("image",), (9, 9, 9), random_size=True)
    with pytest.raises(ValueError, match="larger than max ROI size"):
        LOWERINGS[type(transform)].apply(transform, item_of(0, shape=(4, 4, 4)))


def test_lazy_crops_and_boxes_from_the_item_are_not_lowered_and_say_why() -> None:
    lazy = mt.RandSpatialCropd(("image",), (2, 2, 2), lazy=True)
    assert LOWERINGS[type(lazy)].why_not(lazy).startswith("lazy=True: ")
    named = mt.SpatialCropd(("image",), roi_start="first", roi_end="last")
    assert LOWERINGS[type(named)].why_not(named) == "its box is in the item"


def test_a_missing_key_is_reported_as_by_monai_and_may_be_allowed() -> None:
    item = item_of(0, shape=(4, 4, 4))
    transform = mt.CenterSpatialCropd(("image", "mask"), (2, 2, 2))
    with pytest.raises(KeyError, match="Key `mask` of transform `CenterSpatialCropd` was missing"):
        LOWERINGS[type(transform)].apply(transform, item)
    check_lowered_alike(mt.CenterSpatialCropd(("image", "mask"), (2, 2, 2), allow_missing_keys=True), item)


@given(item=ITEMS, numbers=SIZES, fill=FILLS, method=st.sampled_from(["symmetric", "end"]))
def test_pads_and_crops_to_a_size_equal_monais(
    item: dict[str, Any], numbers: list[int], fill: dict[str, float], method: str
) -> None:
    numbers = numbers[: item["image"].ndim - 1]
    for transform in (
        mt.SpatialPadd(KEYS, numbers, method=method, **fill),
        mt.ResizeWithPadOrCropd(KEYS, numbers, method=method, **fill),
        mt.BorderPadd(KEYS, numbers, **fill),
        mt.DivisiblePadd(KEYS, numbers, method=method, **fill),
    ):
        check_lowered_alike(transform, item)
        check_lowered_alike(transform.padder, item["image"])


@pytest.mark.parametrize("to_pad", [[(0, 0), (1, 2), (3, 0), (0, 4)], [(0, 0), (2, 1)], [(0, 0), (-2, 1), (3, -1)]])
def test_pads_that_are_given_equal_monais(to_pad: list[tuple[int, int]]) -> None:
    item = item_of(0, shape=(7, 6, 5))
    check_lowered_alike(mt.Pad(to_pad), item["image"])
    check_lowered_alike(mt.Padd(KEYS, mt.Pad(to_pad, value=2)), item)


@pytest.mark.parametrize("value", [300, float("nan"), -1.5])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_values_that_the_type_cannot_hold_come_out_or_are_refused_as_from_monai(value: float, dtype: Any) -> None:
    image = item_of(0, shape=(5, 4, 3), dtype=dtype)["image"]
    transform = mt.SpatialPad((7, 7, 7), value=value)
    try:
        transform(copy.deepcopy(image))
    except (ValueError, OverflowError, RuntimeWarning) as error:
        with pytest.raises(type(error)):
            LOWERINGS[type(transform)].apply(transform, image)
    else:
        check_lowered_alike(transform, image)


def test_a_pad_after_a_crop_is_filled_and_does_not_show_what_the_crop_left_out() -> None:
    item = item_of(0, shape=(9, 9, 9))
    chain = [
        mt.RandSpatialCropd(KEYS, (4, 4, 4), random_size=False).set_random_state(0),
        mt.SpatialPadd(KEYS, (6, 6, 6), value=5),
        mt.Flipd(KEYS, 0),
    ]
    assert_equal(*both(chain, item))


@pytest.mark.parametrize("value", [0.5, -1000.0, float("nan")])
def test_a_pad_after_a_cast_is_filled_in_the_type_of_the_cast(value: float) -> None:
    item = item_of(0, shape=(5, 4, 3), dtype=np.uint8)
    chain = [mt.Flipd(KEYS, 0), mt.CastToTyped(("image",), np.float32), mt.SpatialPadd(("image",), 7, value=value)]
    theirs, ours = both(chain, item)
    assert finish(ours)["image"].dtype == torch.float32
    assert_equal(theirs, ours)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (mt.SpatialPadd(KEYS, 4, mode="reflect"), "mode='reflect': only padding with a constant is lowered"),
        (mt.SpatialPadd(KEYS, 4, mode=["constant", "edge"]), "mode='edge': only padding with a constant is lowered"),
        (mt.SpatialPad(4, mode="wrap"), "mode='wrap': only padding with a constant is lowered"),
        (mt.ResizeWithPadOrCrop(4, mode="edge"), "mode='edge': only padding with a constant is lowered"),
        (mt.ResizeWithPadOrCropd(KEYS, 4, stat_length=1), "stat_length: arguments of torch's or numpy's pad"),
        (mt.SpatialPad(4, constant_values=((1, 2),)), "pads with ((1, 2),): only one number for all sides is lowered"),
        (mt.Pad([(1, 0), (0, 0)]), "pads the channels"),
        (mt.SpatialPad(4, lazy=True), "lazy=True: "),
        (mt.Padd(KEYS, type("MyPad", (mt.SpatialPad,), {})(4)), "its padder is a MyPad, which is not known"),
    ],
)
def test_pads_that_are_not_lowered_say_why(transform: Any, reason: str) -> None:
    assert LOWERINGS[type(transform)].why_not(transform).startswith(reason)
