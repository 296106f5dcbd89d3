"""Which values an item has: nothing is finished for it."""

from __future__ import annotations

import copy
from typing import Any

import monai.transforms as mt
import pytest
import torch

from parity.case import item_of
from voxelocity.interop.monai.difference import differences_of
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.items.keys import LOWERINGS
from voxelocity.interop.monai.lower.sketch import Sketch
from voxelocity.interop.monai.lower.spatial.turn import LOWERINGS as TURNS

KEYS = ("image", "label")
FLIP = mt.Flipd(KEYS, 0)


@pytest.mark.parametrize(
    "transform",
    [
        mt.Identityd(KEYS),
        mt.DeleteItemsd(("label", "meta.size")),
        mt.DeleteItemsd(("^la",), use_re=True),
        mt.SelectItemsd(KEYS),
        mt.FlattenSubKeysd("meta", prefix="m"),
        mt.CopyItemsd((*KEYS, "meta"), times=2),
        mt.CopyItemsd("image", names="copy"),
    ],
)
@pytest.mark.parametrize("kind", ["meta", "tensor", "array"])
def test_items_have_the_values_that_monai_leaves_them_and_no_voxel_is_touched(transform: Any, kind: str) -> None:
    item = item_of(0, shape=(5, 4, 3), kind=kind) | {"meta": {"size": 3, "by": [1]}}
    theirs = transform(FLIP(copy.deepcopy(item)))
    ours = LOWERINGS[type(transform)].apply(transform, TURNS[mt.Flipd].apply(FLIP, item))
    assert isinstance(ours["image"], Sketch)
    assert not [d for d in differences_of(theirs, finish(ours)) if d.words or d.largest]
    theirs, ours = transform(copy.deepcopy(item)), LOWERINGS[type(transform)].apply(transform, item)
    assert not [d for d in differences_of(theirs, finish(ours)) if d.words or d.largest]


def test_a_copy_goes_its_own_way() -> None:
    transform = mt.CopyItemsd(("image", "meta"), names=("copy", "words"))
    item = item_of(0, shape=(5, 4, 3)) | {"meta": ["a"]}
    ours = LOWERINGS[type(transform)].apply(transform, TURNS[mt.Flipd].apply(FLIP, item))
    again = mt.Flipd("copy", 0)
    ours = finish(TURNS[mt.Flipd].apply(again, ours))
    assert torch.equal(ours["copy"].as_tensor(), item["image"].as_tensor())
    assert torch.equal(ours["image"].as_tensor(), item["image"].as_tensor().flip(1))
    ours["words"].append("b")
    assert item["meta"] == ["a"]


def test_a_name_that_is_taken_is_refused() -> None:
    transform = mt.CopyItemsd("image", names="label")
    with pytest.raises(KeyError, match="the item has a 'label' already, so 'image' cannot be copied there"):
        LOWERINGS[type(transform)].apply(transform, item_of(0, shape=(5, 4, 3)))
