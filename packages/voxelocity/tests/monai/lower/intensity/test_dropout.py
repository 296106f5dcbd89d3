"""Coarse dropout: the same holes and the same noise as MONAI's."""

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
from shared.lowered import check_lowered_alike, metadata_tracked
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.steps import Crop, Fill

LOWERINGS = lowerings(exact_noise=True)
KEYS = ("image", "label")
TOLERANCE = 1e-6  # numpy's sums may be fused with its products or not


@given(
    shape=st.lists(st.integers(1, 8), min_size=2, max_size=3),
    dtypes=st.tuples(*[st.sampled_from([np.uint8, np.int16, np.float32, np.float64])] * 2),
    num_channels=st.integers(1, 3),
    kind=st.sampled_from(["meta", "tensor", "array"]),
    size=st.integers(-1, 5),
    holes=st.integers(1, 3),
    more=st.tuples(st.sampled_from([None, 2]), st.sampled_from([None, 6])),
    fill=st.sampled_from([None, 0, 2.5, (1.0, 5.0), (5, 1)]),
    is_dropout=st.booleans(),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_dropout_equals_monais(
    shape: list[int],
    dtypes: tuple[Any, Any],
    num_channels: int,
    kind: str,
    size: int,
    holes: int,
    more: tuple[int | None, int | None],
    fill: Any,
    is_dropout: bool,
    prob: float,
    seed: int,
) -> None:
    item = item_of(seed, shape=shape, num_channels=num_channels, dtype=dtypes[0], label_dtype=dtypes[1], kind=kind)
    settings_ = {
        "spatial_size": size,
        "dropout_holes": is_dropout,
        "fill_value": fill,
        "max_holes": None if more[0] is None else holes + more[0],
        "max_spatial_size": None if more[1] is None or size < 1 else [max(size, min(more[1], n)) for n in shape],
        "prob": prob,
    }
    if settings_["max_spatial_size"]:
        settings_["spatial_size"] = [min(size, n) for n in shape]
    transform = mt.RandCoarseDropoutd(KEYS, holes, **settings_).set_random_state(seed)
    check_lowered_alike(transform, item, TOLERANCE)
    transform = mt.RandCoarseDropout(holes, **settings_).set_random_state(seed)
    check_lowered_alike(transform, item["image"], TOLERANCE)


def test_labels_are_filled_exactly() -> None:
    item = item_of(0, shape=(7, 6, 5))
    transform = mt.RandCoarseDropoutd(KEYS, 3, 3, fill_value=0, prob=1.0).set_random_state(0)
    found = check_lowered_alike(transform, item)
    assert (np.asarray(found["label"]) != np.asarray(item["label"])).any()


def test_the_item_that_was_given_is_not_written_into_as_monai_does() -> None:
    for dtype in (np.float32, np.uint8):
        item = item_of(0, shape=(7, 6, 5), dtype=dtype)
        before = np.asarray(item["image"]).copy()
        transform = mt.RandCoarseDropoutd(KEYS, 3, 3, fill_value=0, prob=1.0)
        finish(LOWERINGS[type(transform)].apply(transform, item))
        assert np.array_equal(before, item["image"])
        transform(item)
        assert not np.array_equal(before, item["image"])


def test_the_range_of_the_image_is_that_after_the_moves_before() -> None:
    image = torch.zeros(1, 8, 8, 8)
    image[:, :4] = torch.rand(1, 4, 8, 8) + 1
    crop, drop = mt.SpatialCrop(roi_start=(0, 0, 0), roi_end=(4, 8, 8)), mt.RandCoarseDropout(2, 3, prob=1.0)
    drop.set_random_state(0)
    theirs = copy.deepcopy(drop)(crop(image.clone()))
    pending = LOWERINGS[mt.Flip].apply(mt.Flip(()), image)
    pending.add(Crop(start=(0, 0, 0), shape=(4, 8, 8)))
    ours = finish(LOWERINGS[mt.RandCoarseDropout].apply(drop, pending))
    assert isinstance(pending.steps[-1], Crop)
    torch.testing.assert_close(ours.as_tensor(), theirs.as_tensor(), rtol=TOLERANCE, atol=0)
    assert float(ours.min()) >= 1


def test_a_float_image_is_filled_with_the_other_steps() -> None:
    drop = mt.RandCoarseDropout(2, 3, prob=1.0)
    pending = LOWERINGS[mt.RandCoarseDropout].apply(drop, torch.rand(1, 8, 8, 8))
    assert isinstance(pending.steps[-1], Fill)


@pytest.mark.parametrize("value", ["many", (0.0, float("inf"))])
def test_values_that_are_no_number_and_no_range_are_not_lowered(value: Any) -> None:
    for transform in (
        mt.RandCoarseDropout(1, 2, fill_value=value),
        mt.RandCoarseDropoutd(KEYS, 1, 2, fill_value=value),
    ):
        assert LOWERINGS[type(transform)].why_not(transform).endswith("is neither a number nor a finite range")


def test_without_tracking_results_are_plain_tensors() -> None:
    transform = mt.RandCoarseDropoutd(KEYS, 3, 3, prob=1.0).set_random_state(0)
    with metadata_tracked(False):
        found = check_lowered_alike(transform, item_of(0, shape=(7, 6, 5)), TOLERANCE)
    assert type(found["image"]) is torch.Tensor
