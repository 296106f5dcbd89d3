"""Crops about voxels: the centers that MONAI draws, with each way of finding the voxels."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.transforms.utils import map_binary_to_indices, map_classes_to_indices

from parity.case import item_of
from shared.lowered import check_lowered_alike
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import PendingTensor, finish

LOWERINGS = lowerings(exact_noise=True)
KEYS = ("image", "label")
SIZES = st.lists(st.integers(-1, 9), min_size=3, max_size=3)


@st.composite
def _items(draw: Any) -> dict[str, Any]:
    return item_of(
        draw(st.integers(0, 99)),
        shape=draw(st.lists(st.integers(2, 9), min_size=2, max_size=3)),
        num_channels=draw(st.integers(1, 2)),
        dtype=draw(st.sampled_from([np.uint8, np.int16, np.float32])),
        label_dtype=draw(st.sampled_from([np.uint8, np.int16, np.float32, np.float64])),
        num_classes=draw(st.integers(2, 3)),
        kind=draw(st.sampled_from(["meta", "tensor", "array"])),
    )


def _check(transform: Any, item: dict[str, Any]) -> Any:
    """As MONAI does it, its warnings and its refusals among that."""
    with warnings.catch_warnings(record=True) as options:
        warnings.simplefilter("always")
        try:
            copy.deepcopy(transform)(copy.deepcopy(item))
        except ValueError as error:
            refusal = _with_plain_shapes(error)
        else:
            num = len([warning for warning in options if warning.category is UserWarning])
            found = check_lowered_alike(transform, item)
            assert len([warning for warning in options if warning.category is UserWarning]) == 3 * num
            return found
    state = transform.R.get_state()[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError) as ours:
            LOWERINGS[type(transform)].apply(transform, item)
    assert _with_plain_shapes(ours.value) == refusal
    assert transform.R.get_state()[2] == state
    return None


def _with_plain_shapes(error: ValueError) -> str:
    return str(error).replace("torch.Size([", "(").replace("])", ")")


@given(
    item=_items(),
    sizes=SIZES,
    weights=st.sampled_from([(1, 1), (3, 1), (0, 1), (1, 0)]),
    threshold=st.sampled_from([0, 50.0, 200.0]),
    with_image=st.booleans(),
    allow_smaller=st.booleans(),
    indices=st.sampled_from(["none", "array", "tensor", "list"]),
    seed=st.integers(0, 99),
)
def test_crops_about_foreground_and_background_equal_monais(
    item: dict[str, Any],
    sizes: list[int],
    weights: tuple[int, int],
    threshold: float,
    with_image: bool,
    allow_smaller: bool,
    indices: str,
    seed: int,
) -> None:
    transform = mt.RandCropByPosNegLabeld(
        (*KEYS, "mask"),
        "label",
        sizes[: item["image"].ndim - 1],
        *weights,
        num_samples=3,
        image_key="image" if with_image else None,
        image_threshold=threshold,
        fg_indices_key="foreground",
        bg_indices_key="background",
        allow_smaller=allow_smaller,
        allow_missing_keys=True,
    ).set_random_state(seed)
    if indices != "none":
        made = map_binary_to_indices(np.asarray(item["label"]))
        kinds = {"array": np.asarray, "tensor": torch.from_numpy, "list": np.ndarray.tolist}
        item |= {name: kinds[indices](value) for name, value in zip(("foreground", "background"), made, strict=True)}
    _check(transform, item)


@given(
    item=_items(),
    sizes=SIZES,
    ratios=st.sampled_from([None, [1, 2, 1], [0, 0, 1], [0.5, 0.25, 0.25], [1, 1], [1, -1, 1]]),
    with_image=st.booleans(),
    allow_smaller=st.booleans(),
    has_indices=st.booleans(),
    at_most=st.sampled_from([None, 3]),
    is_one_hot=st.booleans(),
    seed=st.integers(0, 99),
)
def test_crops_about_classes_equal_monais(
    item: dict[str, Any],
    sizes: list[int],
    ratios: list[float] | None,
    with_image: bool,
    allow_smaller: bool,
    has_indices: bool,
    at_most: int | None,
    is_one_hot: bool,
    seed: int,
) -> None:
    if is_one_hot:
        is_array = isinstance(item["label"], np.ndarray)
        item["label"] = (np if is_array else torch).concatenate([item["label"] == number for number in range(3)])
    transform = mt.RandCropByLabelClassesd(
        KEYS,
        "label",
        sizes[: item["image"].ndim - 1],
        ratios,
        num_classes=3,
        num_samples=3,
        image_key="image" if with_image else None,
        image_threshold=10.0,
        indices_key="indices" if has_indices else None,
        allow_smaller=allow_smaller,
        max_samples_per_class=at_most,
    ).set_random_state(seed)
    if has_indices:
        item["indices"] = map_classes_to_indices(np.asarray(item["label"]), 3)
    _check(transform, item)


@given(item=_items(), sizes=SIZES, seed=st.integers(0, 99), is_empty=st.booleans(), is_signed=st.booleans())
def test_crops_by_weight_equal_monais(
    item: dict[str, Any], sizes: list[int], seed: int, is_empty: bool, is_signed: bool
) -> None:
    sizes = sizes[: item["image"].ndim - 1]
    item["weights"] = item["image"][:1] * (0.0 if is_empty else 1.0) - (20.0 if is_signed else 0.0)
    transform = mt.RandWeightedCropd(KEYS, "weights", sizes, num_samples=3).set_random_state(seed)
    before = np.asarray(item["weights"]).copy()
    assert _check(transform, item) is not None
    assert np.array_equal(before, item["weights"])


def test_array_forms_equal_monais() -> None:
    item = item_of(1, shape=(9, 8, 7))
    image, label = item["image"], item["label"]
    for transform in (
        mt.RandCropByPosNegLabel((4, 4, 4), label=label, num_samples=4, image=image, image_threshold=30.0),
        mt.RandCropByPosNegLabel((4, 4, 4), label=label, fg_indices=[5, 50], bg_indices=np.arange(9), num_samples=4),
        mt.RandCropByLabelClasses((4, 4, 4), label=label, num_classes=3, num_samples=4),
        mt.RandWeightedCrop((4, 4, 4), 4, weight_map=image),
    ):
        found = check_lowered_alike(transform.set_random_state(2), image)
        assert len(found) == 4
        assert found[3].meta["patch_index"] == 3


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (mt.RandCropByPosNegLabel((2, 2)), "label must be provided."),
        (mt.RandCropByPosNegLabel((2, 2), fg_indices=[0], bg_indices=[1]), "to get the spatial shape"),
        (mt.RandCropByLabelClasses((2, 2)), "label must not be None."),
        (mt.RandCropByLabelClasses((2, 2), label=torch.zeros(1, 4, 4)), "must provide ``num_classes``"),
        (mt.RandWeightedCrop((2, 2)), "weight map must be provided"),
    ],
)
def test_what_monai_cannot_draw_is_refused_in_its_words(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LOWERINGS[type(transform)].apply(transform, torch.zeros(1, 4, 4))


def test_an_image_of_other_sides_than_the_label_is_refused_and_not_read_beyond_its_end() -> None:
    item = item_of(1, shape=(9, 8, 7)) | {"image": torch.zeros(1, 2, 2, 2)}
    transform = mt.RandCropByPosNegLabeld(KEYS, "label", (2, 2, 2), image_key="image")
    with pytest.raises(RuntimeError, match="must match the size"):
        LOWERINGS[type(transform)].apply(transform, item)


def test_a_label_that_was_cropped_before_is_looked_at_after_the_crop() -> None:
    item = item_of(1, shape=(12, 11, 10))
    chain = [
        mt.RandSpatialCropd(KEYS, (6, 5, 4), random_size=False).set_random_state(4),
        mt.RandCropByPosNegLabeld(KEYS, "label", (3, 3, 3), num_samples=5).set_random_state(5),
    ]
    first, second = copy.deepcopy(chain)
    theirs = second(first(copy.deepcopy(item)))
    drawn = LOWERINGS[type(chain[1])].apply(chain[1], LOWERINGS[type(chain[0])].apply(chain[0], item))
    for expected, actual in zip(theirs, finish(drawn), strict=True):
        for key in KEYS:
            assert torch.equal(expected[key].as_tensor(), actual[key].as_tensor())
            torch.testing.assert_close(expected[key].affine, actual[key].affine)
            assert expected[key].meta["crop_center"] == actual[key].meta["crop_center"]


def test_samples_take_image_and_label_from_the_same_place_by_the_same_step() -> None:
    item = item_of(1, shape=(12, 11, 10))
    transform = mt.RandCropByPosNegLabeld(KEYS, "label", (3, 3, 3), num_samples=2)
    for sample in LOWERINGS[type(transform)].apply(transform, item):
        assert isinstance(sample["image"], PendingTensor)
        assert sample["image"].steps[0] is sample["label"].steps[0]


def test_lazy_crops_are_not_lowered() -> None:
    transform = mt.RandCropByPosNegLabeld(KEYS, "label", (3, 3, 3), lazy=True)
    assert LOWERINGS[type(transform)].why_not(transform).startswith("lazy=True: ")
