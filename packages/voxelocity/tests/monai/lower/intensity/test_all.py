"""Every lowered intensity transform against MONAI's, both forms, drawn arguments, images and dtypes."""

# ruff: noqa: E501
# The table of transforms has one line for each.

import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from monai.data.meta_tensor import MetaTensor

from parity.compare import compare
from shared.lowered import metadata_tracked
from voxelocity.monai.lower import PendingTensor, lowerings
from voxelocity.monai.lower.pending import finish

LOWERINGS = lowerings(exact_noise=True)
TOLERANCE = 1e-5
"""Largest difference, as a share of the largest absolute value of MONAI's result."""
SPIKE_TOLERANCE = 1e-4
"""A spike's size is exp of a logarithm that MONAI takes in float32, and its phase that of one frequency of many."""
DTYPES = (torch.uint8, torch.int16, torch.float32, torch.float64)


def of(**strategies: Any) -> Any:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in strategies.items()}
    )


# Subnormal numbers have as little as one bit, to which no relative tolerance applies.
some = functools.partial(st.floats, allow_nan=False, allow_subnormal=False, width=32)
flag = st.booleans()
prob = st.sampled_from([0.0, 0.5, 1.0])
dtype = st.sampled_from([np.float32, None, torch.float32])
sigma = st.tuples(some(0.25, 1.0), some(1.0, 2.5))
approx = st.sampled_from(["erf", "sampled", "scalespace"])
bound = st.none() | some(-2, 2)
sharpen = of(prob=prob, sigma1_x=sigma, sigma2_y=sigma | some(0.125, 0.25), alpha=st.tuples(some(1, 5), some(5, 30)))
spikes = st.none() | st.tuples(some(3, 4), some(4, 6))
holes = of(
    prob=prob,
    holes=st.integers(1, 3),
    spatial_size=st.integers(1, 4),
    max_holes=st.none() | st.integers(4, 5),
    max_spatial_size=st.none() | st.integers(5, 6),
)

PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "RandScaleIntensity": (mt.RandScaleIntensity, mt.RandScaleIntensityd, of(factors=some(-0.875, 2), prob=prob, channel_wise=flag, dtype=dtype)),
    "RandShiftIntensity": (mt.RandShiftIntensity, mt.RandShiftIntensityd, of(offsets=some(0, 20), prob=prob, channel_wise=flag, safe=flag)),
    "ShiftIntensity": (mt.ShiftIntensity, mt.ShiftIntensityd, of(offset=some(-20, 20), safe=flag)),
    "RandStdShiftIntensity": (mt.RandStdShiftIntensity, mt.RandStdShiftIntensityd, of(factors=some(0, 2), prob=prob, nonzero=flag, channel_wise=flag, dtype=dtype)),
    "StdShiftIntensity": (mt.StdShiftIntensity, mt.StdShiftIntensityd, of(factor=some(-2, 2), nonzero=flag, channel_wise=flag)),
    "RandScaleIntensityFixedMean": (mt.RandScaleIntensityFixedMean, mt.RandScaleIntensityFixedMeand, of(factors=some(0, 2), prob=prob, channel_wise=flag, fixed_mean=flag, preserve_range=flag)),
    "RandAdjustContrast": (mt.RandAdjustContrast, mt.RandAdjustContrastd, of(gamma=st.tuples(some(0.25, 1), some(1, 4.5)), prob=prob, invert_image=flag, retain_stats=flag)),
    "AdjustContrast": (mt.AdjustContrast, mt.AdjustContrastd, of(gamma=some(0.25, 4), invert_image=flag, retain_stats=flag)),
    "RandHistogramShift": (mt.RandHistogramShift, mt.RandHistogramShiftd, of(num_control_points=st.integers(3, 12) | st.just((3, 9)), prob=prob)),
    "RandGaussianNoise": (mt.RandGaussianNoise, mt.RandGaussianNoised, of(prob=prob, mean=some(-2, 2), std=some(0, 2), sample_std=flag, dtype=dtype)),
    "RandRicianNoise": (mt.RandRicianNoise, mt.RandRicianNoised, of(prob=prob, mean=some(-2, 2), std=some(0, 2), sample_std=flag, channel_wise=flag, relative=flag)),
    "NormalizeIntensity": (mt.NormalizeIntensity, mt.NormalizeIntensityd, of(nonzero=flag, channel_wise=flag, dtype=dtype)),
    "NormalizeIntensity, given": (mt.NormalizeIntensity, mt.NormalizeIntensityd, of(subtrahend=bound, divisor=st.none() | some(0, 4, allow_subnormal=False), nonzero=flag)),
    "ScaleIntensity": (mt.ScaleIntensity, mt.ScaleIntensityd, of(minv=bound, maxv=bound, factor=some(-0.5, 2), channel_wise=flag, dtype=dtype)),
    "ScaleIntensityRange": (mt.ScaleIntensityRange, mt.ScaleIntensityRanged, of(a_min=some(-5, -1) | st.integers(-5, -1), a_max=some(1, 5), b_min=bound, b_max=bound, clip=flag, dtype=dtype)),
    "ScaleIntensityRangePercentiles": (mt.ScaleIntensityRangePercentiles, mt.ScaleIntensityRangePercentilesd, of(lower=some(0, 30), upper=some(60, 100), b_min=bound, b_max=bound, clip=flag, relative=flag, channel_wise=flag)),
    "ThresholdIntensity": (mt.ThresholdIntensity, mt.ThresholdIntensityd, of(threshold=some(-2, 2), above=flag, cval=some(-3, 3))),
    "RandGaussianSmooth": (mt.RandGaussianSmooth, mt.RandGaussianSmoothd, of(prob=prob, sigma_x=sigma, sigma_y=sigma, sigma_z=sigma, approx=approx)),
    "GaussianSmooth": (mt.GaussianSmooth, mt.GaussianSmoothd, of(sigma=some(0, 3), approx=approx)),
    "RandGaussianSharpen": (mt.RandGaussianSharpen, mt.RandGaussianSharpend, sharpen),
    "GaussianSharpen": (mt.GaussianSharpen, mt.GaussianSharpend, of(sigma1=some(0.25, 3), sigma2=some(0.25, 3), alpha=some(0, 30))),
    "RandBiasField": (mt.RandBiasField, mt.RandBiasFieldd, of(prob=prob, degree=st.integers(1, 5), coeff_range=st.just((-0.3, 0.3)), dtype=dtype)),
    "RandGibbsNoise": (mt.RandGibbsNoise, mt.RandGibbsNoised, of(prob=prob, alpha=st.tuples(some(0, 0.5), some(0.5, 1)))),
    "GibbsNoise": (mt.GibbsNoise, mt.GibbsNoised, of(alpha=some(0, 1))),
    "RandKSpaceSpikeNoise": (mt.RandKSpaceSpikeNoise, mt.RandKSpaceSpikeNoised, of(prob=prob, intensity_range=spikes, channel_wise=flag)),
    "RandCoarseShuffle": (mt.RandCoarseShuffle, mt.RandCoarseShuffled, holes),
}  # fmt: skip


@st.composite
def images(draw: Callable[..., Any]) -> torch.Tensor:
    """(c, *spatial), with zeros in it, of any dtype, now and then a MetaTensor."""
    shape = draw(st.lists(st.integers(2, 9), min_size=2, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(draw(st.sampled_from([0.0, 2.0])), 2.0, (draw(st.integers(1, 3)), *shape))
    values[rng.random(values.shape) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    kind = draw(st.sampled_from(DTYPES))
    values = np.clip(10 * values, 0 if kind is torch.uint8 else -200, 200) if not kind.is_floating_point else values
    image = torch.from_numpy(values).to(kind)
    return MetaTensor(image, affine=torch.diag(torch.tensor([2.0, 3.0, 1.0, 1.0]))) if draw(flag) else image


def agree(transform: Any, data: Any, tolerance: float) -> None:
    """Both give the same, or fail with the same kind of error."""
    lowering = LOWERINGS[type(transform)]
    assert not lowering.why_not(transform)
    if "R" not in vars(transform) and hasattr(transform, "set_random_state"):
        # Until then all transforms share one generator, from which both sides would draw alternately.
        transform.set_random_state(5)
    try:
        copy.deepcopy(transform)(copy.deepcopy(data))
    except Exception as error:
        with pytest.raises(type(error)):
            finish(lowering.apply(copy.deepcopy(transform), data))
        return
    _, _, differences = compare(transform, lowering, data)
    for difference in differences:
        assert not difference.words, difference
        assert difference.largest == 0 or difference.largest <= tolerance * difference.scale, difference


@pytest.mark.parametrize("num_channels", [1, 3, 7])
def test_equal_channels_of_one_value_have_no_deviation(num_channels: int) -> None:
    image = torch.full((num_channels, 4, 5, 6), 7.0)
    for transform in (mt.NormalizeIntensity(subtrahend=3.0), mt.NormalizeIntensity(subtrahend=3.0, nonzero=True)):
        agree(transform, image, TOLERANCE)


def test_an_infinite_voxel_leaves_no_deviation_to_shift_by() -> None:
    image = torch.arange(1.0, 25.0).reshape(1, 2, 3, 4)
    image[0, 0, 0, 1] = torch.inf
    for nonzero in (False, True):
        agree(mt.StdShiftIntensity(0.5, nonzero=nonzero), image, TOLERANCE)


@pytest.mark.parametrize("name", PAIRS)
# Of each transform, the cases of `parity` have the dictionary form too.
@pytest.mark.parametrize("form", ["array", pytest.param("dictionary", marks=pytest.mark.nightly)])
@settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_a_lowered_transform_gives_what_monai_gives(name: str, form: str, data: st.DataObject) -> None:
    array, dictionary, arguments = PAIRS[name]
    drawn = data.draw(arguments)
    image = data.draw(images())
    if form == "array":
        transform, given_data = array(**drawn), image
    else:
        transform = dictionary(keys=("image", "other", "missing"), allow_missing_keys=True, **drawn)
        other = (image.as_tensor() if isinstance(image, MetaTensor) else image).to(data.draw(st.sampled_from(DTYPES)))
        given_data = {"image": image, "other": other.abs(), "name": "case"}
    if hasattr(transform, "set_random_state"):
        transform.set_random_state(data.draw(st.integers(0, 2**31)))
    with metadata_tracked(data.draw(flag)):
        agree(transform, given_data, SPIKE_TOLERANCE if "Spike" in name else TOLERANCE)


@pytest.mark.parametrize("name", PAIRS)
def test_float32_images_are_lowered_and_not_handed_to_monai(name: str) -> None:
    array, _, _ = PAIRS[name]
    required = {
        "ShiftIntensity": {"offset": 1.0}, "StdShiftIntensity": {"factor": 0.5}, "AdjustContrast": {"gamma": 2.0},
        "RandScaleIntensity": {"factors": 0.5}, "RandShiftIntensity": {"offsets": 0.5}, "GaussianSmooth": {},
        "RandStdShiftIntensity": {"factors": 0.5}, "ScaleIntensityRange": {"a_min": -57, "a_max": 164, "b_min": 0, "b_max": 1},
        "ScaleIntensityRangePercentiles": {"lower": 5, "upper": 95, "b_min": 0, "b_max": 1}, "ThresholdIntensity": {"threshold": 0.5},
        "RandCoarseShuffle": {"holes": 2, "spatial_size": 2}, "RandScaleIntensityFixedMean": {"factors": 0.5},
    }  # fmt: skip
    transform = array(**required.get(name, {}), **({"prob": 1.0} if name.startswith("Rand") else {}))
    image = torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    pending = LOWERINGS[array].apply(transform, image)
    assert isinstance(pending, PendingTensor)
    assert pending.source.data_ptr() == image.data_ptr()
    assert pending.steps
    before = image.clone()
    assert not torch.equal(finish(pending), image)
    assert torch.equal(image, before), "the source was changed"


def test_each_class_that_is_lowered_is_compared_with_monais() -> None:
    compared = {form for array, dictionary, _ in PAIRS.values() for form in (array, dictionary)}
    lowered = {kind for kind in LOWERINGS if kind.__module__.startswith("monai.transforms.intensity")}
    assert lowered - compared == {mt.ScaleIntensityFixedMean, mt.RandCoarseDropout, mt.RandCoarseDropoutd}


@pytest.mark.parametrize("per_channel", [False, True])
def test_scaling_about_the_mean_without_chance_gives_what_monai_gives(per_channel: bool) -> None:
    image = torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    agree(mt.ScaleIntensityFixedMean(factor=0.7, preserve_range=True, channel_wise=per_channel), image, TOLERANCE)


@pytest.mark.parametrize("channels", [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_keys_with_different_channels_give_what_monai_gives(channels: tuple[int, int]) -> None:
    data = {key: torch.randn(c, 6, 5, 4) for key, c in zip("ab", channels, strict=True)}
    for transform in (
        mt.RandGaussianNoised("ab", prob=1.0),
        mt.RandScaleIntensityd("ab", 0.5, prob=1.0, channel_wise=True),
        mt.RandShiftIntensityd("ab", 0.5, prob=1.0, channel_wise=True),
        mt.RandKSpaceSpikeNoised("ab", prob=1.0),
        mt.RandBiasFieldd("ab", prob=1.0),
    ):
        agree(transform, data, SPIKE_TOLERANCE)


@pytest.mark.parametrize("factor", [None, 3.0, np.float32(2.5)])
@pytest.mark.parametrize("kind", [torch.float32, torch.int16])
def test_a_factor_of_the_metadata_scales_the_shift(factor: Any, kind: torch.dtype) -> None:
    data = {"image": (10 * torch.randn(2, 5, 4, 3)).to(kind), "image_meta_dict": {"std": factor}}
    agree(mt.RandShiftIntensityd("image", 2.0, factor_key="std", prob=1.0), data, TOLERANCE)
    agree(mt.RandShiftIntensityd("image", 2.0, factor_key="std", prob=1.0, channel_wise=True), data, TOLERANCE)
    agree(mt.ShiftIntensityd("image", 2.0, factor_key="std"), data, TOLERANCE)


def test_images_of_many_chunks_give_what_monai_gives() -> None:
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.normal(3, 1, (2, 41, 37, 33)).astype(np.float32))
    for transform in (
        mt.NormalizeIntensity(nonzero=True, channel_wise=True),
        mt.AdjustContrast(2.5, invert_image=True, retain_stats=True),
        mt.ScaleIntensityRangePercentiles(1, 99, 0, 1, clip=True),
        mt.RandHistogramShift(prob=1.0),
        mt.GaussianSmooth([3.0, 0.3, 12.0]),
        mt.RandGibbsNoise(prob=1.0, alpha=(0.5, 0.9)),
        mt.RandBiasField(prob=1.0),
        mt.RandRicianNoise(prob=1.0, relative=True),
    ):
        agree(transform, image, TOLERANCE)


def test_a_chain_of_steps_gives_what_monai_gives() -> None:
    chain = [
        mt.ScaleIntensityRanged("image", -1.0, 4.0, 0.0, 1.0, clip=True),
        mt.RandScaleIntensityd("image", 0.3, prob=1.0),
        mt.RandShiftIntensityd("image", 0.3, prob=1.0),
        mt.RandAdjustContrastd("image", prob=1.0, retain_stats=True),
        mt.RandGaussianSmoothd("image", prob=1.0),
        mt.NormalizeIntensityd("image"),
    ]
    for seed, transform in enumerate(chain):
        if hasattr(transform, "set_random_state"):
            transform.set_random_state(seed)
    theirs = ours = {"image": torch.randn(1, 20, 18, 16, generator=torch.Generator().manual_seed(0))}
    for transform in copy.deepcopy(chain):
        theirs = transform(copy.deepcopy(theirs))
    for transform in chain:
        ours = LOWERINGS[type(transform)].apply(transform, ours)
    gap = (finish(ours)["image"] - theirs["image"]).abs().max()
    assert gap <= TOLERANCE * theirs["image"].abs().max()


@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.filterwarnings("ignore:.*single value:UserWarning", "ignore:Divide by zero:Warning")
def test_images_of_a_single_value_give_what_monai_gives(value: float) -> None:
    image = torch.full((2, 4, 5, 3), value)
    for transform in (
        mt.ScaleIntensity(minv=2.0, maxv=5.0),
        mt.ScaleIntensity(minv=None, maxv=5.0),
        mt.NormalizeIntensity(nonzero=True),
        mt.NormalizeIntensity(channel_wise=True),
        mt.AdjustContrast(0.7),
        mt.AdjustContrast(0.7, retain_stats=True),
        mt.RandHistogramShift(prob=1.0),
        mt.ScaleIntensityRange(1.0, 1.0, 0.0, 1.0),
        mt.ScaleIntensityRangePercentiles(5, 95, 0.5, 1, clip=True),
        mt.StdShiftIntensity(0.5, nonzero=True),
        mt.RandKSpaceSpikeNoise(prob=1.0, intensity_range=(3, 4)) if value == 0 else mt.GibbsNoise(0.5),
    ):
        agree(transform, image, TOLERANCE)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (mt.RandScaleIntensityd("image", 0.1, dtype=np.float64), "it returns .*float64.*; leave dtype at float32"),
        (mt.NormalizeIntensity(dtype=np.float16), "it returns .*float16"),
        (mt.NormalizeIntensity(subtrahend=np.zeros((1, 4, 4))), "its subtrahend is an array of 3 axes, and only a num"),
        (mt.NormalizeIntensityd("i", divisor=3.0, channel_wise=True), "its divisor .* 0 axes, and only a number for e"),
    ],
)
def test_what_cannot_be_lowered_says_why(transform: Any, words: str) -> None:
    assert re.search(words, LOWERINGS[type(transform)].why_not(transform))


def test_numbers_for_each_channel_are_subtracted_and_divided_by() -> None:
    image = torch.randn(3, 5, 4, 3)
    for subtrahend, divisor in (([1.0, 2, 3], None), (None, np.array([1.0, 0.0, 2.0])), (np.ones(3), [2, 2, 0])):
        for nonzero in (False, True):
            agree(mt.NormalizeIntensity(subtrahend, divisor, nonzero, channel_wise=True), image, TOLERANCE)
    agree(mt.NormalizeIntensity([1.0, 2.0], channel_wise=True), image, TOLERANCE)


def test_sigmas_that_do_not_fit_the_axes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sigma \(1.0, 2.0\) is not one number for each of 3 spatial axes"):
        LOWERINGS[mt.GaussianSmooth].apply(mt.GaussianSmooth([1.0, 2.0]), torch.zeros(1, 4, 4, 4))


def test_spike_ranges_that_do_not_fit_the_channels_are_refused() -> None:
    transform = mt.RandKSpaceSpikeNoise(prob=1.0, intensity_range=((1, 2), (3, 4)))
    with pytest.raises(RuntimeError, match=r"intensity_range has 2 pairs \(low, high\) for 3 channels"):
        LOWERINGS[mt.RandKSpaceSpikeNoise].apply(transform, torch.zeros(3, 4, 4, 4))


def test_a_key_that_is_missing_is_refused() -> None:
    transform = mt.RandScaleIntensityd("image", 0.1, prob=1.0)
    with pytest.raises(KeyError, match="image"):
        LOWERINGS[mt.RandScaleIntensityd].apply(transform, {"label": torch.zeros(1, 4, 4, 4)})


def test_a_divisor_too_small_to_be_turned_over_divides_as_monai_does() -> None:
    item = {"image": torch.tensor([0.0, 1e-39, 1.0, -2.0]).reshape(1, 2, 2, 1)}
    transform = mt.NormalizeIntensityd("image", subtrahend=0.0, divisor=1e-39)
    theirs, ours, _ = compare(transform, LOWERINGS[mt.NormalizeIntensityd], item)
    assert torch.equal(theirs["image"], ours["image"])
