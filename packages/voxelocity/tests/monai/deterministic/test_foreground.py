from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import CropForeground, CropForegroundd, FgBgToIndices, FgBgToIndicesd
from monai.transforms.utils import is_positive

from shared.examples import examples
from voxelocity.monai.deterministic import faster, why_not
from voxelocity.monai.deterministic.foreground import threshold_of


@settings(max_examples=examples(250))
@given(
    shape=st.tuples(st.integers(1, 3), *[st.integers(1, 9)] * 3),
    num_spots=st.integers(0, 4),
    select=st.sampled_from([None, lambda x: x > 0.25, lambda x: x > -2]),
    one_channel=st.booleans(),
    margin=st.sampled_from([0, 2, (1, 0, 3)]),
    allow_smaller=st.booleans(),
    k_divisible=st.sampled_from([1, 4, (2, 3, 0)]),
    mode=st.sampled_from(["constant", "edge"]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.uint8]),
    as_view=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_cropped_volume_is_that_of_monai(
    assert_same, make_image, copied, shape, num_spots, select, one_channel, margin, allow_smaller, k_divisible, mode,
    dtype, as_view, seed,
):  # fmt: skip
    image = make_image(shape, np.diag([1.0, 2, 3, 1]), dtype) * 0
    rng = np.random.default_rng(seed)
    for _ in range(num_spots):
        image[tuple(int(rng.integers(n)) for n in shape)] = 1
    if as_view:
        image = image.permute(0, 3, 1, 2)
    options = {} if select is None else {"select_fn": select}
    transform = CropForeground(
        **options, channel_indices=[-1] if one_channel else None, margin=margin, allow_smaller=allow_smaller,
        k_divisible=k_divisible, return_coords=True, mode=mode,
    )  # fmt: skip
    kept = copied(image)
    ours, theirs = faster(transform)(image), transform(copied(image))
    assert_same(ours, theirs)
    assert_same(image, kept)
    assert_same(transform.inverse(ours[0]), transform.inverse(theirs[0]))


def test_the_dictionary_form_crops_all_keys_by_one_source(assert_same, make_image, copied):
    image = make_image((1, 8, 9, 7)) * 0 - 1
    image[0, 2:5, 3:4, 1:6] = 1
    item = {"image": image, "label": make_image((1, 8, 9, 7), dtype=torch.uint8), "id": "a"}
    transform = CropForegroundd(["image", "label"], "image", margin=1, end_coord_key=None)
    ours, theirs = faster(transform)(copied(item)), transform(copied(item))
    assert ours["image"].shape == (1, 5, 3, 7)
    assert ours["foreground_start_coord"].tolist() == [1, 2, 0]
    assert_same(ours, theirs)
    assert_same(transform.inverse(ours), transform.inverse(theirs))


def test_nan_is_no_foreground(make_image):
    image = make_image((1, 3, 3, 3)) * 0
    image[0, 0, 0, 0], image[0, 1, 1, 1] = float("nan"), 1
    assert faster(CropForeground())(image).shape == (1, 1, 1, 1)


@pytest.mark.parametrize("options", [{"margin": -1}, {"channel_indices": 4}])
def test_errors_are_those_of_monai(make_image, options):
    transform = CropForeground(**options)
    with pytest.raises((ValueError, IndexError)) as theirs:
        transform(make_image((1, 3, 3, 3)))
    with pytest.raises(type(theirs.value)) as ours:
        faster(transform)(make_image((1, 3, 3, 3)))
    assert str(ours.value) == str(theirs.value)


def test_which_crops_are_left_to_monai_is_reported_in_words():
    assert why_not(CropForegroundd("a", "a", select_fn=lambda x: x != 0)) == (
        "its select_fn is not `x > number`, so the whole mask is needed"
    )
    assert why_not(CropForeground(lazy=True)) == "it is evaluated lazily (lazy=True)"
    assert why_not(CropForegroundd("a", "a", lazy=True)) == "it is evaluated lazily (lazy=True)"


@settings(max_examples=examples(200))
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    num_channels=st.integers(1, 3),
    num_image_channels=st.integers(0, 2),
    dtype=st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.bool]),
    image_dtype=st.sampled_from([torch.float32, torch.float32, torch.int16]),
    threshold=st.sampled_from([0.0, 0.1, -20]),
    unravelled=st.booleans(),
    as_view=st.booleans(),
    seed=st.integers(0, 99),
)
def test_indices_are_those_of_monai(
    assert_same, make_image, copied, shape, num_channels, num_image_channels, dtype, image_dtype, threshold,
    unravelled, as_view, seed,
):  # fmt: skip
    label = make_image((num_channels, *shape), np.diag([1.0, 2, 3, 1]), torch.int16, seed) > 2
    label = label.to(dtype)
    image = make_image((num_image_channels, *shape), None, image_dtype, seed + 1) if num_image_channels else None
    if as_view:
        label = label.permute(0, 3, 1, 2)
        image = None if image is None else image.permute(0, 3, 1, 2)
    transform = FgBgToIndices(threshold, tuple(label.shape[1:]) if unravelled else None)
    try:
        theirs = transform(copied(label), copied(image))
    except IndexError as error:
        # MONAI cannot unravel an empty list.
        with pytest.raises(IndexError, match=str(error)):
            faster(transform)(label, image)
        return
    assert_same(faster(transform)(copied(label), copied(image)), theirs)


def test_the_dictionary_form_of_indices_adds_its_keys(assert_same, make_image, copied):
    item = {"image": make_image((1, 4, 5, 6)), "label": make_image((1, 4, 5, 6), dtype=torch.uint8)}
    for key in ("image", None):
        transform = FgBgToIndicesd("label", image_key=key, fg_postfix="_in")
        ours = faster(transform)(copied(item))
        assert list(ours) == ["image", "label", "label_in", "label_bg_indices"]
        assert_same(ours, transform(copied(item)))


def test_which_indices_are_left_to_monai_is_reported_in_words():
    transform = FgBgToIndicesd("label", image_threshold=torch.tensor(1.0))
    assert why_not(transform) == "image_threshold=tensor(1.) is not a plain number"


def above_air(x):
    return x > -900


def test_a_comparison_with_a_number_is_recognized():
    assert threshold_of(is_positive) == 0
    assert threshold_of(lambda x: x > 0) == 0
    assert threshold_of(lambda image: image > 0.5) == 0.5
    assert threshold_of(above_air) == -900


LIMIT = 3


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x >= 0,
        lambda x: x < 0,
        lambda x: x > LIMIT,
        lambda x: x + 1 > 0,
        lambda x, y=1: x > 0,
        lambda x: (x > 0) & (x > 1),
        lambda x: x > True,
        np.isfinite,
    ],
)
def test_anything_else_is_not(select):
    assert threshold_of(select) is None
