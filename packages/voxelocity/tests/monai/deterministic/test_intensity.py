from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import NormalizeIntensity, NormalizeIntensityd, ScaleIntensityRange, ScaleIntensityRanged

from shared.examples import examples
from voxelocity.monai.deterministic import faster, why_not

DTYPES = st.sampled_from([torch.float32, torch.float32, torch.int16, torch.float64])
NUMBERS = st.one_of(st.integers(-200, 200), st.floats(-300, 300))


@settings(max_examples=examples(200))
@given(
    a_min=NUMBERS,
    width=st.floats(0.5, 500),
    b_min=st.one_of(st.none(), NUMBERS),
    b_max=st.one_of(st.none(), NUMBERS),
    clip=st.booleans(),
    out=st.sampled_from([np.float32, None, np.float64, np.int16]),
    dtype=DTYPES,
    as_view=st.booleans(),
)
def test_scaled_ranges_are_those_of_monai_to_the_last_bit(
    assert_same, make_image, copied, a_min, width, b_min, b_max, clip, out, dtype, as_view
):
    image = make_image((2, 5, 4, 7), None, dtype)[:, 1:] if as_view else make_image((2, 5, 4, 7), None, dtype)
    transform = ScaleIntensityRange(a_min, a_min + width, b_min, b_max, clip and (b_min, b_max) != (None, None), out)
    kept = copied(image)
    assert_same(faster(transform)(image), transform(copied(image)))
    assert_same(image, kept)


def test_clipping_without_bounds_is_left_to_monai_which_refuses_it(make_image):
    transform = ScaleIntensityRange(0, 1, None, None, clip=True)
    assert faster(transform) is None
    with pytest.raises((RuntimeError, ValueError)):
        transform(make_image((1, 4, 5, 6)))


@settings(max_examples=examples(200))
@given(
    nonzero=st.booleans(),
    channel_wise=st.booleans(),
    subtrahend=st.sampled_from([None, 12, -3.5]),
    divisor=st.sampled_from([None, 12, 0, 0.7]),
    offset=st.sampled_from([0.0, 1e4]),
    constant=st.booleans(),
    empty=st.booleans(),
    out=st.sampled_from([np.float32, None]),
    dtype=DTYPES,
    as_view=st.booleans(),
    seed=st.integers(0, 99),
)
def test_normalized_images_are_those_of_monai(
    assert_same, make_image, copied, nonzero, channel_wise, subtrahend, divisor, offset, constant, empty, out, dtype,
    as_view, seed,
):  # fmt: skip
    image = make_image((2, 5, 6, 7), None, dtype, seed)
    if offset and dtype.is_floating_point:
        image = image + offset
    image[:, :2] = 0
    if constant:
        image[1, 2:] = 3
    if empty:
        image[0] = 0
    if as_view:
        image = image[:, :, 1:, 2:]
    given_ = [[part] * 2 if channel_wise and part is not None else part for part in (subtrahend, divisor)]
    transform = NormalizeIntensity(*given_, nonzero=nonzero, channel_wise=channel_wise, dtype=out)
    kept, theirs = copied(image), transform(copied(image))
    ours = faster(transform)(image)
    # MONAI's mean and deviation are summed in float32; ours in float64.
    assert_same(ours, theirs, rtol=2e-5, atol=2e-5 * max(1.0, float(theirs.abs().max())))
    if dtype == torch.float32:
        assert_same(image, kept)


def test_the_dictionary_forms_change_their_keys_alone(assert_same, make_image, copied):
    item = {"image": make_image((2, 4, 5, 6)), "other": make_image((2, 4, 5, 6)), "id": 1}
    for transform in (
        ScaleIntensityRanged("image", -57, 164, 0.0, 1.0, clip=True),
        NormalizeIntensityd(["image", "none"], nonzero=True, channel_wise=True, allow_missing_keys=True),
    ):
        ours = faster(transform)(copied(item))
        assert_same(ours, transform(copied(item)), rtol=1e-5, atol=1e-5)
        assert_same(ours["other"], item["other"])


def test_nan_stays_nan(make_image):
    image = make_image((1, 2, 2, 2))
    image[0, 0, 0, 0] = float("nan")
    assert torch.isnan(faster(ScaleIntensityRange(0, 1, 0, 1, clip=True))(image)).sum() == 1


def test_a_wrong_number_of_channels_is_reported_by_monai(make_image):
    transform = NormalizeIntensity([1, 2, 3], channel_wise=True)
    with pytest.raises(ValueError, match="img has 2 channels, but subtrahend has 3 components"):
        faster(transform)(make_image((2, 3, 3, 3)))


def test_what_is_left_to_monai_is_reported_in_words():
    assert why_not(ScaleIntensityRanged("a", 3, 3)) == "a_min and a_max are both 3"
    assert why_not(ScaleIntensityRange(np.float32(1), 3)) == "a_min=np.float32(1.0) is not a plain number"
    assert why_not(NormalizeIntensity(np.zeros(3))) == (
        "subtrahend is neither a plain number nor a list of one per channel"
    )
    assert why_not(NormalizeIntensityd("a", divisor=2, channel_wise=True)) == (
        "divisor=2 is one number although channel_wise=True"
    )
