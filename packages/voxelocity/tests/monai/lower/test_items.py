"""Types, devices, and which values an item has: what MONAI returns, and nothing is finished where that can wait."""

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
from shared.lowered import assert_equal, both, metadata_tracked
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.items import is_exact
from voxelocity.monai.lower.pending import PendingTensor, finish

LOWERINGS = lowerings(exact_noise=True)
KEYS = ("image", "label")
FLIP = mt.Flipd(KEYS, 0)
DTYPES = [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
LINKS = st.sampled_from(["cast", "ensure", "tensor", "flip", "pad", "drop"])


def _link(name: str, dtype: torch.dtype) -> Any:
    made: dict[str, Any] = {
        "cast": lambda: mt.CastToTyped(KEYS, dtype),
        "ensure": lambda: mt.EnsureTyped(KEYS, dtype=(dtype, None)),
        "tensor": lambda: mt.ToTensord(KEYS, dtype=dtype),
        "flip": lambda: mt.Flipd(KEYS, 0),
        "pad": lambda: mt.SpatialPadd(KEYS, (6, 6, 6), value=1.5),
        "drop": lambda: mt.RandCoarseDropoutd(KEYS, 1, (2, 2, 2), fill_value=2.5, prob=1.0).set_random_state(0),
    }
    return made[name]()


@given(
    chain=st.lists(st.tuples(LINKS, st.sampled_from(DTYPES)), min_size=1, max_size=5),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    kind=st.sampled_from(["meta", "tensor"]),
)
def test_casts_anywhere_in_a_chain_equal_monais(chain: list[tuple[str, torch.dtype]], dtype: Any, kind: str) -> None:
    item = item_of(0, shape=(5, 4, 3), dtype=dtype, kind=kind)
    assert_equal(*both([_link(*link) for link in chain], item))


@pytest.mark.parametrize("kind", ["meta", "tensor", "array"])
@pytest.mark.parametrize("track_meta", [True, False, None])
@pytest.mark.parametrize("data_type", ["tensor", "numpy"])
def test_ensured_types_equal_monais(kind: str, track_meta: bool | None, data_type: str) -> None:
    item = item_of(0, shape=(5, 4, 3), kind=kind) | {"spacing": [1, 2.5], "age": 4}
    ensure = mt.EnsureTyped((*KEYS, "spacing", "age"), data_type, track_meta=track_meta, device="cpu")
    for chain in ([ensure], [mt.Flipd(KEYS, 1), ensure], [mt.Flipd(KEYS, 1), ensure, mt.Flipd(KEYS, 1)]):
        assert_equal(*both(chain, item))


@pytest.mark.parametrize("track_meta", [True, None])
def test_tensors_equal_monais_and_the_items_own_keep_their_history(track_meta: bool | None) -> None:
    item = item_of(0, shape=(5, 4, 3))
    item["image"] = mt.Flip(0)(item["image"])
    to_tensor = mt.ToTensord(KEYS, dtype=torch.float64, track_meta=track_meta)
    for chain in ([to_tensor], [mt.Flipd(KEYS, 1), to_tensor]):
        theirs, ours = both(chain, item)
        found = finish(ours)
        assert_equal(theirs, found)
        assert len(item["image"].applied_operations) == 1
        if isinstance(found["image"], MetaTensor) and len(chain) == 2:
            assert found["image"].applied_operations == []


def test_plain_tensors_with_a_history_in_the_item_are_left_to_monai() -> None:
    plain = mt.ToTensord(KEYS, track_meta=False)
    assert LOWERINGS[mt.ToTensord].why_not(plain).startswith("track_meta=False: ")
    theirs, ours = both([mt.Flip(1), mt.ToTensor(track_meta=False)], item_of(0, shape=(5, 4, 3))["image"])
    assert type(theirs) is type(finish(ours)) is torch.Tensor
    assert torch.equal(theirs, finish(ours))


def test_array_forms_equal_monais() -> None:
    image = item_of(0, shape=(5, 4, 3))["image"]
    flip = mt.Flip(0)
    for transform in (
        mt.CastToType(np.float64),
        mt.EnsureType(dtype=torch.float16),
        mt.ToTensor(dtype=torch.int16),
        mt.ToDevice("cpu"),
        mt.ToDevice("cpu", dtype=torch.float64),
        mt.Identity(),
    ):
        theirs = transform(flip(image))
        assert_equal(theirs, LOWERINGS[type(transform)].apply(transform, LOWERINGS[mt.Flip].apply(flip, image)))


def test_arrays_stay_arrays_and_what_is_no_tensor_is_refused_by_to_device_as_in_monai() -> None:
    item = item_of(0, shape=(5, 4, 3), kind="array")
    assert_equal(*both([mt.CastToTyped(KEYS, np.float64)], item))
    with pytest.raises(ValueError, match="img must be PyTorch Tensor"):
        LOWERINGS[mt.ToDeviced].apply(mt.ToDeviced(KEYS, "cpu"), item)


def test_common_casts_make_nothing_before_the_end() -> None:
    chain = [
        mt.Flipd(KEYS, 0),
        mt.EnsureTyped(KEYS, dtype=torch.float32, device="cpu"),
        mt.ToDeviced(KEYS, "cpu"),
        mt.ToTensord(KEYS),
    ]
    item = item_of(0, shape=(5, 4, 3), dtype=np.int16)
    _, ours = both(chain, item)
    for key in KEYS:
        assert isinstance(ours[key], PendingTensor)
        assert ours[key].source.data_ptr() == item[key].data_ptr()
        assert finish(ours)[key].dtype == torch.float32


def test_a_type_is_exact_where_it_holds_every_value() -> None:
    others = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16):
        if dtype.is_floating_point:
            limits = torch.finfo(dtype)
            values = torch.tensor([limits.max, limits.tiny, 1 + limits.eps], dtype=dtype)
        else:
            whole = torch.iinfo(dtype)
            values = torch.tensor([whole.min, whole.max, whole.max - 1], dtype=dtype)
        for other in others:
            assert not is_exact(dtype, other) or torch.equal(values.to(other).to(dtype), values), (dtype, other)
    assert all(is_exact(torch.bool, other) for other in others)
    assert not is_exact(torch.int64, torch.float64)
    assert not is_exact(torch.float32, torch.int64)
    assert not is_exact(torch.float16, torch.bfloat16)
    assert is_exact(torch.uint8, torch.float16)
    assert is_exact(torch.int32, torch.float64)
    assert not is_exact(torch.uint8, torch.int8)


def test_without_tracking_casts_come_as_plain_tensors() -> None:
    with metadata_tracked(False):
        assert_equal(*both([mt.Flipd(KEYS, 0), mt.EnsureTyped(KEYS)], item_of(0, shape=(5, 4, 3))))


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
    ours = LOWERINGS[type(transform)].apply(transform, LOWERINGS[mt.Flipd].apply(FLIP, item))
    assert isinstance(ours["image"], PendingTensor)
    assert_equal(theirs, ours)
    assert_equal(transform(copy.deepcopy(item)), LOWERINGS[type(transform)].apply(transform, item))


def test_a_copy_goes_its_own_way() -> None:
    transform = mt.CopyItemsd(("image", "meta"), names=("copy", "words"))
    item = item_of(0, shape=(5, 4, 3)) | {"meta": ["a"]}
    ours = LOWERINGS[type(transform)].apply(transform, LOWERINGS[mt.Flipd].apply(FLIP, item))
    again = mt.Flipd("copy", 0)
    ours = finish(LOWERINGS[mt.Flipd].apply(again, ours))
    assert torch.equal(ours["copy"].as_tensor(), item["image"].as_tensor())
    assert torch.equal(ours["image"].as_tensor(), item["image"].as_tensor().flip(1))
    ours["words"].append("b")
    assert item["meta"] == ["a"]


def test_a_name_that_is_taken_is_refused() -> None:
    transform = mt.CopyItemsd("image", names="label")
    with pytest.raises(KeyError, match="the item already has a key 'label', so 'image' cannot be copied there"):
        LOWERINGS[type(transform)].apply(transform, item_of(0, shape=(5, 4, 3)))
