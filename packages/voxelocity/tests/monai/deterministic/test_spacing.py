from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import Invertd, Spacing, Spacingd
from monai.transforms.spatial.array import SpatialResample

from shared.examples import examples
from shared.raising import raising
from voxelocity.monai.deterministic import faster, why_not

pytestmark = pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid:UserWarning")
STEPS = st.sampled_from([0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0])
DTYPES = [torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64]


@st.composite
def scenes(draw):
    return {
        "shape": (draw(st.integers(1, 3)), *draw(st.tuples(*[st.integers(1, 11)] * 3))),
        "steps": draw(st.tuples(STEPS, STEPS, STEPS)),
        "order": draw(st.permutations([0, 1, 2])),
        "flips": draw(st.tuples(*[st.booleans()] * 3)),
        "angle": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "seed": draw(st.integers(0, 99)),
    }


@st.composite
def arguments(draw):
    align_corners = draw(st.booleans())
    return {
        "pixdim": draw(st.lists(STEPS, min_size=1, max_size=3)),
        "mode": draw(st.sampled_from(["bilinear", "nearest"])),
        "padding_mode": draw(st.sampled_from(["border", "zeros", "reflection"])),
        "align_corners": align_corners,
        "dtype": draw(st.sampled_from([np.float64, np.float64, np.float32, None])),
        "diagonal": draw(st.sampled_from([False, False, True])),
        # Without align_corners MONAI warns of it.
        "scale_extent": align_corners and draw(st.booleans()),
        "recompute_affine": draw(st.booleans()),
        "min_pixdim": draw(st.sampled_from([None, 0.9])),
        "max_pixdim": draw(st.sampled_from([None, 1.6])),
    }


def _image(make_image, make_affine, scene):
    affine = make_affine(scene["steps"], scene["order"], scene["flips"], scene["angle"])
    return make_image(scene["shape"], affine, scene["dtype"], scene["seed"])


@settings(max_examples=examples(160))
@given(scene=scenes(), options=arguments())
def test_results_are_those_of_monai(assert_same, make_affine, make_image, copied, scene, options):
    image = _image(make_image, make_affine, scene)
    transform = Spacing(**options)
    kept = copied(image)
    try:
        theirs = transform(copied(image))
    except (RuntimeWarning, ValueError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            faster(transform)(image)
        return
    ours = faster(transform)(image)
    # The sum of eight products is rounded to float32 once here and in MONAI, in float64 or in the user's float32.
    is_linear = options["mode"] == "bilinear"
    relative = 1e-12 if options["dtype"] is np.float64 else 4e-6
    assert_same(
        ours,
        theirs,
        rtol=2.4e-7 if is_linear else 0.0,
        atol=float(image.abs().max()) * relative if is_linear else 0.0,
    )
    assert_same(image, kept)


@settings(max_examples=examples(60))
@given(num=st.integers(1, 40), old=STEPS, new=STEPS, align=st.booleans(), flip=st.booleans())
def test_labels_are_equal_where_samples_fall_between_two_voxels(make_image, make_affine, num, old, new, align, flip):
    label = make_image((1, num, 3, 7), make_affine((old, old, 1), flips=(flip, 0, flip)), torch.float32)
    transform = Spacing((new, new, new), mode="nearest", align_corners=align)
    assert torch.equal(faster(transform)(label), transform(label))


def test_a_label_of_turned_axes_keeps_to_monai_where_rounding_decides(make_image, make_affine):
    affine = make_affine((0.5, 1.2, 0.5), order=(1, 0, 2), angle=0.3)
    label = make_image((1, 1, 6, 1), affine, torch.uint8)
    label[0, 0, :, 0] = torch.tensor([0, 4, 3, 2, 1, 0])
    transform = Spacing([1.5], mode="nearest")
    assert faster(transform)(label).flatten().tolist() == transform(label).flatten().tolist()


@pytest.mark.parametrize("angle", [0.0, 0.3])
def test_a_volume_whose_axes_keep_their_directions_never_reaches_monai(make_image, make_affine, monkeypatch, angle):
    image = make_image((2, 7, 8, 9), make_affine((1, 1.3, 2.1), (1, 0, 2), (1, 0, 1), angle))
    fast = faster(Spacing((0.9, 1.7, 1.1)))
    monkeypatch.setattr(SpatialResample, "__call__", raising(AssertionError("MONAI was asked")))
    assert len(fast(image)) == 2
    with pytest.raises(AssertionError, match="MONAI was asked"):
        faster(Spacing((0.9, 1.7, 1.1), diagonal=True))(make_image((1, 5, 5, 5), make_affine(angle=0.5)))


def test_a_dictionary_keeps_its_other_keys_and_is_inverted_by_monai(make_image, make_affine, assert_same, copied):
    affine = make_affine((0.8, 0.8, 2.5), flips=(1, 1, 0))
    item = {
        "image": make_image((1, 12, 11, 6), affine),
        "label": make_image((1, 12, 11, 6), affine, torch.uint8),
        "id": "case",
    }
    transform = Spacingd(["image", "label", "none"], (1.5, 1.5, 2), mode=("bilinear", "nearest", "nearest"),
                         ensure_same_shape=True, allow_missing_keys=True)  # fmt: skip
    ours, theirs = faster(transform)(copied(item)), transform(copied(item))
    assert_same(ours, theirs, rtol=2.4e-7, atol=1e-9)
    assert_same(transform.inverse(ours), transform.inverse(theirs), rtol=1e-6, atol=1e-4)
    again = faster(transform)(copied(item))
    back = Invertd("image", transform, orig_keys="image", nearest_interp=True)
    assert back({"image": again["image"]})["image"].shape == item["image"].shape


def test_an_image_without_metadata_and_one_of_two_axes_are_left_to_monai(make_image, assert_same, copied):
    transform = Spacing((2.0, 2.0, 2.0))
    with pytest.warns(UserWarning, match="assuming affine to be identity"):
        ours = faster(transform)(torch.ones(1, 4, 4, 4))
    assert ours.shape == (1, 2, 2, 2)
    flat = make_image((1, 9, 8), np.eye(3))
    assert_same(faster(transform)(copied(flat)), transform(flat))


def test_what_is_left_to_monai_is_reported_in_words():
    assert why_not(Spacing((1, 1, 1), mode=3, padding_mode="nearest")) == "mode=3 is neither 'bilinear' nor 'nearest'"
    assert why_not(Spacingd("a", (1, 1, 1), padding_mode="wrap")) == (
        "padding_mode='wrap' is not one of 'zeros', 'border', 'reflection'"
    )
    assert why_not(Spacingd("a", (1, 1, 1), lazy=True)) == "it is evaluated lazily (lazy=True)"
    assert faster(Spacing((1, 1, 1), mode=3)) is None
