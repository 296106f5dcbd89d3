from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import Orientation, Orientationd

from shared.examples import examples
from voxelocity.monai.deterministic import faster, why_not

CODES = ["".join(code) for axes in itertools.permutations(["LR", "PA", "IS"]) for code in itertools.product(*axes)]


@settings(max_examples=examples(200))
@given(
    shape=st.tuples(st.integers(1, 3), *[st.integers(1, 7)] * 3),
    order=st.permutations([0, 1, 2]),
    flips=st.tuples(*[st.booleans()] * 3),
    angle=st.sampled_from([0.0, 0.4]),
    codes=st.sampled_from([*CODES, None]),
    dtype=st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64]),
    space=st.sampled_from(["RAS", "LPS"]),
    channels_last=st.booleans(),
)
def test_results_are_those_of_monai(
    assert_same, make_image, make_affine, copied, shape, order, flips, angle, codes, dtype, space, channels_last
):
    image = make_image(shape, make_affine((1, 2, 3), order, flips, angle), dtype)
    if channels_last:
        image = image.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    image.meta["space"] = space
    transform = Orientation(codes, as_closest_canonical=codes is None, labels=None)
    kept = copied(image)
    ours, theirs = faster(transform)(image), transform(copied(image))
    assert_same(ours, theirs)
    assert_same(image, kept)
    assert_same(transform.inverse(ours), transform.inverse(theirs))


def test_the_dictionary_form_turns_each_key(assert_same, make_image, make_affine, copied):
    affine = make_affine((1, 2, 3), (2, 0, 1), (1, 0, 1))
    item = {"image": make_image((2, 4, 5, 6), affine), "label": make_image((1, 4, 5, 6), affine, torch.uint8), "n": 1}
    transform = Orientationd(["image", "label"], "RAS", labels=None)
    ours, theirs = faster(transform)(copied(item)), transform(copied(item))
    assert_same(ours, theirs)
    assert_same(transform.inverse(ours), transform.inverse(theirs))


def test_the_result_shares_no_memory_with_the_image(make_image):
    image = make_image((1, 1, 1, 4), np.diag([-1.0, 1, 1, 1]))
    turned = faster(Orientation("RAS", labels=None))(image)
    turned += 1
    assert not torch.equal(turned.as_tensor(), image.as_tensor())


def test_errors_are_those_of_monai(make_image):
    with pytest.raises(ValueError, match="axcodes must match data_array spatially"):
        faster(Orientation("RA", labels=None))(make_image((1, 2, 2, 2)))


def test_lazy_transforms_are_left_to_monai():
    assert why_not(Orientation("RAS", labels=None, lazy=True)) == "it is evaluated lazily (lazy=True)"
    assert why_not(Orientationd("a", "RAS", labels=None, lazy=True)) == "it is evaluated lazily (lazy=True)"
