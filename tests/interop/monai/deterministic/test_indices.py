from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import FgBgToIndices, FgBgToIndicesd

from voxelocity.interop.monai.deterministic import faster, why_not


@settings(max_examples=200)
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


def test_the_dictionary_form_adds_its_keys(assert_same, make_image, copied):
    item = {"image": make_image((1, 4, 5, 6)), "label": make_image((1, 4, 5, 6), dtype=torch.uint8)}
    for key in ("image", None):
        transform = FgBgToIndicesd("label", image_key=key, fg_postfix="_in")
        ours = faster(transform)(copied(item))
        assert list(ours) == ["image", "label", "label_in", "label_bg_indices"]
        assert_same(ours, transform(copied(item)))


def test_what_is_left_to_monai_is_told_in_words():
    transform = FgBgToIndicesd("label", image_threshold=torch.tensor(1.0))
    assert why_not(transform) == "image_threshold=tensor(1.) is not a plain number"
