"""The parity table: every case is equal, and what is not would show."""

from __future__ import annotations

from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch

from voxelocity.interop.monai.lower import Lowering, Sketch
from voxelocity.interop.monai.parity_cases import ParityCase, item_of
from voxelocity.interop.monai.parity_table import cases, row_of

ALL = list(cases())


def _small(seed: int) -> dict[str, Any]:
    return item_of(seed, shape=(6, 5, 4))


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda n: f"{ALL[n][0].transform.__name__}-{n}")
def test_each_case_is_as_equal_as_the_table_promises(number: int) -> None:
    case, lowering = ALL[number]
    row = row_of(case, lowering, num_draws=1)
    assert (row.words, row.num_label_voxels) == ("", 0)
    assert row.largest <= row.tolerance
    assert row.keys


def test_a_difference_is_told_with_the_labels_counted() -> None:
    def wrong(transform: Any, data: dict[str, Any]) -> dict[str, Any]:
        label = data["label"].clone()
        label[0, 0] = 9
        return {**data, "image": Sketch.of(data["image"] + 50), "label": label}

    case = ParityCase(transform=mt.Identityd, arguments={"keys": "image"}, item=_small)
    row = row_of(case, Lowering(apply=wrong), num_draws=2)
    assert row.num_label_voxels == 2 * 5 * 4
    assert row.largest == 9 / 2
    assert row.keys == ("image", "label")
    assert row.words == ""


def test_what_differs_beside_the_voxels_is_told_in_words() -> None:
    case = ParityCase(transform=mt.Flipd, arguments={"keys": "image", "spatial_axis": 0}, item=_small)
    row = row_of(case, Lowering(apply=lambda transform, data: {**data, "image": data["image"].flip(1)}), num_draws=1)
    assert row.words.startswith("affines ")
    assert (row.transform, row.arguments, row.num_draws) == ("Flipd", "spatial_axis=0", 1)


def test_a_case_that_cannot_be_lowered_is_refused() -> None:
    case = ParityCase(transform=mt.SpatialPadd, arguments={"keys": "image", "spatial_size": 4}, item=_small)
    lowering = Lowering(apply=lambda transform, data: data, why_not=lambda transform: "never")
    with pytest.raises(ValueError, match=r"SpatialPadd\(spatial_size=4\) is not lowered: never"):
        row_of(case, lowering, num_draws=1)


def test_items_are_of_the_seed_and_of_the_kind_that_is_asked_for() -> None:
    one, same, other = item_of(1, shape=(3, 4)), item_of(1, shape=(3, 4)), item_of(2, shape=(3, 4))
    assert torch.equal(one["image"].as_tensor(), same["image"].as_tensor())
    assert torch.equal(one["image"].affine, same["image"].affine)
    assert not torch.equal(one["image"].as_tensor(), other["image"].as_tensor())
    array = item_of(1, shape=(3, 4), num_channels=2, dtype=np.int16, label_dtype=np.float64, kind="array")
    assert (array["image"].dtype, array["image"].shape) == (np.int16, (2, 3, 4))
    assert (array["label"].dtype, array["label"].shape) == (np.float64, (1, 3, 4))
    assert type(item_of(1, shape=(3, 4), kind="tensor")["image"]) is torch.Tensor
