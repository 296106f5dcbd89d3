"""Pads with a constant: the same voxels, types and metadata as MONAI's."""

from __future__ import annotations

import copy
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parity.case import item_of
from shared.lowered import check_lowered_alike
from voxelocity.interop.monai.difference import differences_of
from voxelocity.interop.monai.lower.crop.by_size import LOWERINGS as CROPS
from voxelocity.interop.monai.lower.crop.pad import LOWERINGS
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.items.cast import LOWERINGS as CASTS
from voxelocity.interop.monai.lower.spatial.turn import LOWERINGS as TURNS

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
NUMBERS = st.lists(st.integers(-1, 12), min_size=3, max_size=3)
FILLS = st.sampled_from([{}, {"value": 7}, {"value": 0.5}, {"constant_values": 3.0}])


@given(item=ITEMS, numbers=NUMBERS, fill=FILLS, method=st.sampled_from(["symmetric", "end"]))
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
        check_lowered_alike(transform, LOWERINGS, item)
        check_lowered_alike(transform.padder, LOWERINGS, item["image"])


@pytest.mark.parametrize("to_pad", [[(0, 0), (1, 2), (3, 0), (0, 4)], [(0, 0), (2, 1)], [(0, 0), (-2, 1), (3, -1)]])
def test_pads_that_are_given_equal_monais(to_pad: list[tuple[int, int]]) -> None:
    item = item_of(0, shape=(7, 6, 5))
    check_lowered_alike(mt.Pad(to_pad), LOWERINGS, item["image"])
    check_lowered_alike(mt.Padd(KEYS, mt.Pad(to_pad, value=2)), LOWERINGS, item)


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
        check_lowered_alike(transform, LOWERINGS, image)


def test_a_pad_after_a_crop_is_filled_and_does_not_show_what_the_crop_left_out() -> None:
    item = item_of(0, shape=(9, 9, 9))
    chain = [
        mt.RandSpatialCropd(KEYS, (4, 4, 4), random_size=False).set_random_state(0),
        mt.SpatialPadd(KEYS, (6, 6, 6), value=5),
        mt.Flipd(KEYS, 0),
    ]
    lowerings = {**CROPS, **LOWERINGS, **TURNS}
    theirs, ours = copy.deepcopy(item), item
    for transform in copy.deepcopy(chain):
        theirs = transform(theirs)
    for transform in chain:
        ours = lowerings[type(transform)].apply(transform, ours)
    assert not [d for d in differences_of(theirs, finish(ours)) if d.words or d.largest]


@pytest.mark.parametrize("value", [0.5, -1000.0, float("nan")])
def test_a_pad_after_a_cast_is_filled_in_the_type_of_the_cast(value: float) -> None:
    item = item_of(0, shape=(5, 4, 3), dtype=np.uint8)
    chain = [mt.Flipd(KEYS, 0), mt.CastToTyped(("image",), np.float32), mt.SpatialPadd(("image",), 7, value=value)]
    lowerings = {**CASTS, **LOWERINGS, **TURNS}
    theirs, ours = copy.deepcopy(item), item
    for transform in chain:
        theirs = transform(theirs)
        ours = lowerings[type(transform)].apply(transform, ours)
    assert finish(ours)["image"].dtype == torch.float32
    assert not [d for d in differences_of(theirs, finish(ours)) if d.words or d.largest]


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
