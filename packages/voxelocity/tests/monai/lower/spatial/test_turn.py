"""Flips and quarter turns: the same voxels, affines and draws as MONAI's."""

from __future__ import annotations

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

LOWERINGS = lowerings(exact_noise=True)
KEYS = ("image", "label")
ITEMS = st.builds(
    item_of,
    st.integers(0, 99),
    shape=st.lists(st.integers(1, 7), min_size=2, max_size=3),
    num_channels=st.integers(1, 3),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    label_dtype=st.sampled_from([np.uint8, np.float64]),
    kind=st.sampled_from(["meta", "tensor", "array"]),
)
PROBS = st.sampled_from([0.0, 0.5, 1.0])


@given(item=ITEMS, axis=st.sampled_from([None, 0, 1, -1, (0, 1), (-1, 0)]), prob=PROBS, seed=st.integers(0, 99))
def test_flips_equal_monais(item: dict[str, Any], axis: Any, prob: float, seed: int) -> None:
    check_lowered_alike(mt.Flipd(KEYS, axis), item)
    check_lowered_alike(mt.Flip(axis), item["image"])
    check_lowered_alike(mt.RandFlipd(KEYS, prob, axis).set_random_state(seed), item)
    check_lowered_alike(mt.RandFlip(prob, axis).set_random_state(seed), item["image"])
    check_lowered_alike(mt.RandAxisFlipd(KEYS, prob).set_random_state(seed), item)
    check_lowered_alike(mt.RandAxisFlip(prob).set_random_state(seed), item["image"])


@given(
    item=ITEMS,
    axes=st.sampled_from([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (-1, 0), (-2, -1)]),
    k=st.integers(-3, 5),
    max_k=st.integers(1, 3),
    prob=PROBS,
    seed=st.integers(0, 99),
)
def test_quarter_turns_equal_monais(
    item: dict[str, Any], axes: tuple[int, int], k: int, max_k: int, prob: float, seed: int
) -> None:
    if item["image"].ndim == 3:
        axes = (axes[0] % 2, 1 - axes[0] % 2)
    check_lowered_alike(mt.Rotate90d(KEYS, k, axes), item)
    check_lowered_alike(mt.Rotate90(k, axes), item["image"])
    check_lowered_alike(mt.RandRotate90d(KEYS, prob, max_k, axes).set_random_state(seed), item)
    check_lowered_alike(mt.RandRotate90(prob, max_k, axes).set_random_state(seed), item["image"])


@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["meta", "tensor", "array"])
def test_without_tracking_results_are_plain_tensors(kind: str, prob: float) -> None:
    item = item_of(0, shape=(4, 5, 3), kind=kind)
    with metadata_tracked(False):
        for transform in (mt.RandFlipd(KEYS, prob), mt.RandRotate90d(KEYS, prob), mt.RandAxisFlipd(KEYS, prob)):
            found = check_lowered_alike(transform.set_random_state(0), item)
            assert type(found["image"]) is torch.Tensor


def test_the_item_that_was_given_stays_as_it_is() -> None:
    item = item_of(0, shape=(4, 5, 3))
    before = item["image"].as_tensor().clone()
    transform = mt.Flipd(KEYS, 0)
    once = LOWERINGS[type(transform)].apply(transform, item)
    twice = LOWERINGS[type(transform)].apply(transform, once)
    assert torch.equal(finish(once)["image"].as_tensor(), before.flip(1))
    assert torch.equal(finish(twice)["image"].as_tensor(), before)
    finish(once)["image"][:] = 0
    assert torch.equal(item["image"].as_tensor(), before)


@pytest.mark.parametrize("transform", [mt.Flip((0, 0)), mt.Flip(5), mt.Rotate90(1, (1, 1))])
def test_axes_that_monai_refuses_are_refused_as_it_does(transform: Any) -> None:
    image = torch.zeros(1, 4, 4, 4)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as theirs:
        transform(image)
    with pytest.raises(type(theirs.value)) as ours:
        LOWERINGS[type(transform)].apply(transform, image)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("seed", range(6))
def test_the_axis_is_drawn_from_as_many_as_monai_takes_the_image_to_have(seed: int) -> None:
    # Of an array to which the channel was added later, MONAI forgets the last axis.
    image = mt.EnsureChannelFirst(channel_dim="no_channel")(np.random.default_rng(0).random((3, 4, 5)))
    assert image.spatial_ndim == 2
    turned = check_lowered_alike(mt.Flip(0), image)
    assert finish(LOWERINGS[mt.Flip].apply(mt.Flip(0), image)).spatial_ndim == turned.spatial_ndim == 2
    check_lowered_alike(mt.RandAxisFlip(1.0).set_random_state(seed), image)
    check_lowered_alike(mt.RandAxisFlipd("image", 1.0).set_random_state(seed), {"image": image})


def test_a_missing_first_key_draws_nothing_as_in_monai() -> None:
    item = item_of(0, shape=(4, 5, 3))
    transform = mt.RandAxisFlipd(("mask",), 1.0, allow_missing_keys=True).set_random_state(0)
    check_lowered_alike(transform, item)


def test_image_and_label_are_moved_by_the_same_step() -> None:
    transform = mt.RandRotate90d(KEYS, 1.0).set_random_state(0)
    moved = LOWERINGS[type(transform)].apply(transform, item_of(0, shape=(4, 4, 3)))
    assert moved["image"].steps[0] is moved["label"].steps[0]


def test_lazy_moves_are_not_lowered() -> None:
    for transform in (mt.RandFlipd(KEYS, lazy=True), mt.Rotate90(lazy=True)):
        assert LOWERINGS[type(transform)].why_not(transform).startswith("lazy=True: ")
