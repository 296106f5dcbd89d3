"""Intensity steps: the compiled loops against plain torch, and both against what they say."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voxelocity.data.augment.noise import standard_normal
from voxelocity.monai.steps.intensity.change import change
from voxelocity.monai.steps.intensity.change_device import change_on_device
from voxelocity.monai.steps.intensity.field import (
    Bias,
    Blur,
    Fill,
    LowPass,
    Noise,
    Rician,
    Shuffle,
    Spike,
    Spikes,
)
from voxelocity.monai.steps.intensity.pointwise import Clip, Curve, Linear, Power, Threshold
from voxelocity.monai.steps.intensity.statistic import (
    Contrast,
    HistogramShift,
    IntensityStep,
    PercentileRange,
    RelativeRician,
    RescaleRange,
    ScaleAboutMean,
    Standardize,
    StdShift,
    percentiles,
)

TOLERANCE = 1e-5
"""Of one engine from the other, as a share of the largest absolute value."""
CHANNELS = 2
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


RICIAN = Rician(fields=(77, 77), mean=floats(0.1, 0.2), std=floats(0.3, 0.4))
WEIGHTS = (floats(0.1, 0.2, 0.3, 0.2, 0.1), floats(0.25, 0.5, 0.25), floats(1.0))
STEPS: dict[str, IntensityStep] = {
    "linear": Linear(scale=floats(2, -1), shift=floats(1, 3)),
    "linear about a center": Linear(scale=floats(2, -1), shift=floats(1, 3), center=floats(5, 6)),
    "linear but for zeros": Linear(scale=floats(2, -1), shift=floats(1, 3), keeps_zero=True),
    "clip": Clip(low=floats(-1, -np.inf), high=floats(np.inf, 0.5)),
    "above": Threshold(bound=0.5, keeps_above=True, fill=-3.0),
    "below": Threshold(bound=0.5, keeps_above=False, fill=-3.0),
    "power": Power(low=-20.0, divisor=40.0, gamma=1.7, span=40.0),
    "power of zero": Power(low=0.0, divisor=20.0, gamma=0.0, span=20.0),
    "curve": Curve(low=-1.0, high=2.0, values=floats(0, 3, -1, 5)),
    "std shift": StdShift(factor=0.5, per_channel=False, nonzero=True),
    "standardize": Standardize(subtract=None, divide=None, per_channel=True, nonzero=True),
    "standardize, given": Standardize(subtract=floats(1, 2), divide=None, per_channel=False, nonzero=False),
    "stretch": RescaleRange(low=-1.0, high=3.0, per_channel=True),
    "about the mean": ScaleAboutMean(factor=floats(2, 0.5), keeps_mean=True, keeps_range=True, per_channel=True),
    "contrast": Contrast(gamma=0.7, is_inverted=False, keeps_moments=False),
    "contrast, inverted": Contrast(gamma=2.3, is_inverted=True, keeps_moments=True),
    "histogram": HistogramShift(points=np.array([0.0, 0.1, 0.8, 1.0])),
    "percentiles": PercentileRange(lower=5, upper=95, low=0.0, high=1.0, clips=True, per_channel=False),
    "noise": Noise(field=2**62 + 12345, std=0.5),
    "shared noise": Noise(field=7, std=0.5, is_shared=True),
    "rician": RICIAN,
    "relative rician": RelativeRician(rician=RICIAN, per_channel=True),
    "bias": Bias(coefficients=np.random.default_rng(0).uniform(-0.3, 0.3, (3, 4, 2)).astype(np.float32)),
    "blur": Blur(weights=WEIGHTS),
    "wide blur": Blur(weights=(np.full(41, 0.02, np.float32), np.full(41, 0.02, np.float32), WEIGHTS[0])),
    "sharpen": Blur(weights=WEIGHTS, alpha=10.0),
    "low pass": LowPass(radius=2.5),
    "spikes": Spikes(
        spikes=(
            Spike(channel=1, place=(0, 1, 0), log_magnitude=4.0),
            Spike(channel=0, place=(1, 0, 0), log_magnitude=2.0, is_relative=True),
        )
    ),
}


def patch_of(shape: tuple[int, int, int], seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    values = rng.normal(1.0, 2.0, (CHANNELS, *shape)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = 0.0
    return torch.from_numpy(values)


def changed(patch: torch.Tensor, *steps: IntensityStep, engine: str = "auto") -> torch.Tensor:
    out = patch.clone()
    change(out, steps, engine=engine)
    return out


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=10)
@given(shape=st.tuples(st.integers(2, 17), st.integers(2, 17), st.integers(1, 17)), seed=st.integers(0, 2**32 - 1))
def test_compiled_loops_agree_with_torch(name: str, shape: tuple[int, int, int], seed: int) -> None:
    patch = patch_of(shape, seed)
    fast, plain = changed(patch, STEPS[name]), changed(patch, STEPS[name], engine="torch")
    gap = (fast - plain).abs().max() / plain.abs().max().clamp(min=1e-30)
    assert gap <= TOLERANCE
    assert torch.isfinite(fast).all()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("shape", [(9, 8, 7), (2, 17, 1)])
def test_what_runs_on_a_device_agrees_with_torch_by_torchs_own_operations(name: str, shape: tuple[int, ...]) -> None:
    patch = patch_of(shape)
    check_on_device(patch, name, uses_kernels=False)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", STEPS)
def test_what_runs_on_a_device_agrees_with_torch_by_tritons_kernels(name: str) -> None:
    for shape in ((9, 8, 7), (11, 13, 17)):
        check_on_device(patch_of(shape), name, uses_kernels=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", STEPS)
def test_no_step_on_a_device_waits_for_it(name: str) -> None:
    patch = patch_of((9, 8, 7)).cuda()
    for is_warm in (False, True):
        torch.cuda.set_sync_debug_mode("error" if is_warm else "default")
        try:
            change(patch, [STEPS[name]])
        finally:
            torch.cuda.set_sync_debug_mode("default")


def check_on_device(patch: torch.Tensor, name: str, *, uses_kernels: bool) -> None:
    made = patch.cuda() if torch.cuda.is_available() and not IS_INTERPRETED else patch.clone()
    change_on_device(made, [STEPS[name]], uses_kernels=uses_kernels)
    plain = changed(patch, STEPS[name], engine="torch")
    gap = (made.cpu() - plain).abs().max() / plain.abs().max().clamp(min=1e-30)
    assert gap <= TOLERANCE


def test_boxes_on_a_device_are_filled_as_by_torch() -> None:
    rng = np.random.default_rng(2)
    boxes = np.array([[[0, 1, 2], [3, 4, 5]], [[2, 2, 2], [5, 6, 7]]])
    patch = patch_of((6, 7, 8))
    num = 2 * int((boxes[:, 1] - boxes[:, 0]).prod(axis=1).sum())
    for values in (
        {"low": 3.0},
        {"low": -1.0, "high": 2.0, "noise": rng.random(num)},
        {"low": None, "noise": rng.random(num)},
        {"low": 1.0, "is_outside": True},
        {"low": None, "is_outside": True, "noise": rng.random(patch.numel())},
    ):
        step = Fill(boxes=boxes, **values)
        made = patch.clone()
        change_on_device(made, [step], uses_kernels=False)
        assert torch.equal(made, changed(patch, step, engine="torch"))


def test_every_step_changes_the_patch() -> None:
    patch = patch_of((9, 8, 7))
    assert [name for name, step in STEPS.items() if torch.equal(changed(patch, step), patch)] == []


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_steps_that_wait_for_each_other_are_those_made_one_by_one(engine: str) -> None:
    patch = patch_of((20, 21, 22))
    steps = [STEPS[name] for name in ("linear", "clip", "stretch", "linear but for zeros", "contrast", "blur", "above")]
    together, one_by_one = changed(patch, *steps, engine=engine), patch
    for step in steps:
        one_by_one = changed(one_by_one, step, engine=engine)
    assert torch.allclose(together, one_by_one, atol=1e-5)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_pointwise_steps_do_what_they_say(engine: str) -> None:
    patch = torch.tensor([-2.0, 0.0, 1.0, 3.0]).expand(CHANNELS, 1, 1, 4).contiguous()

    def first(step: IntensityStep) -> list[float]:
        return changed(patch, step, engine=engine)[0, 0, 0].tolist()

    assert first(STEPS["linear"]) == [-3.0, 1.0, 3.0, 7.0]
    assert first(STEPS["linear about a center"]) == [-13.0, -9.0, -7.0, -3.0]
    assert first(STEPS["linear but for zeros"]) == [-3.0, 0.0, 3.0, 7.0]
    assert first(STEPS["clip"]) == [-1.0, 0.0, 1.0, 3.0]
    assert first(STEPS["above"]) == [-3.0, -3.0, 1.0, 3.0]
    assert first(STEPS["below"]) == [-2.0, 0.0, -3.0, -3.0]
    assert first(Power(low=-2.0, divisor=5.0, gamma=2.0, span=5.0)) == pytest.approx([-2.0, -1.2, -0.2, 3.0], abs=1e-6)
    assert first(STEPS["curve"]) == pytest.approx([0.0, 3.0, -1.0, 5.0])


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_voxel_that_is_no_number_makes_statistics_none(engine: str) -> None:
    patch = patch_of((4, 4, 4))
    patch[0, 1, 2, 3] = np.nan
    for name in ("std shift", "standardize", "stretch", "contrast", "histogram", "percentiles"):
        assert changed(patch, STEPS[name], engine=engine)[0].isnan().any(), name
    assert changed(patch, STEPS["clip"], engine=engine).isnan().sum() == 1


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_channel_of_zeros_alone_has_no_statistics_and_stays(engine: str) -> None:
    patch = patch_of((4, 4, 4))
    patch[0] = 0.0
    for step in (STEPS["standardize"], StdShift(factor=1.0, per_channel=True, nonzero=True)):
        out = changed(patch, step, engine=engine)
        assert torch.equal(out[0], patch[0])
        assert not torch.equal(out[1], patch[1])


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_noise_is_that_of_its_seed(engine: str) -> None:
    patch = torch.zeros(CHANNELS, 13, 17, 19)
    out = changed(patch, Noise(field=99, std=2.0), engine=engine)
    for channel in range(CHANNELS):
        expected = 2.0 * standard_normal(99, channel, 13 * 17 * 19)
        assert np.allclose(out[channel].numpy().ravel(), expected, atol=1e-6)


def test_a_field_that_is_given_is_added() -> None:
    patch, field = patch_of((5, 6, 7)), patch_of((5, 6, 7), seed=1)
    assert torch.equal(changed(patch, Noise(field=field.numpy(), std=1.0)), patch + field)


def test_the_voxels_of_a_box_are_shuffled_and_no_others() -> None:
    patch = patch_of((5, 6, 7))
    orders = np.stack([np.random.default_rng(channel).permutation(12) for channel in range(CHANNELS)])
    out = changed(patch, Shuffle(start=(1, 2, 3), shape=(2, 3, 2), orders=orders))
    box = (slice(1, 3), slice(2, 5), slice(3, 5))
    for channel in range(CHANNELS):
        assert torch.equal(out[channel][box].ravel(), patch[channel][box].ravel()[torch.from_numpy(orders[channel])])
    out[(slice(None), *box)] = patch[(slice(None), *box)]
    assert torch.equal(out, patch)


def test_a_patch_that_is_not_dense_is_changed_in_place() -> None:
    patch = patch_of((5, 6, 7)).permute(0, 3, 2, 1)
    expected = changed(patch.contiguous(), STEPS["blur"], STEPS["contrast"])
    change(patch, [STEPS["blur"], STEPS["contrast"]])
    assert torch.equal(patch, expected)


def test_a_spike_sets_the_magnitude_of_one_frequency_and_of_its_mirror_image() -> None:
    patch = patch_of((8, 6, 5))
    out = changed(patch, Spikes(spikes=(Spike(channel=0, place=(5, 1, 3), log_magnitude=6.0),)))
    before, after = (torch.fft.fftshift(torch.fft.fftn(image[0].double())) for image in (patch, out))
    moved = ((after - before).abs() > 1e-3).nonzero().tolist()
    assert moved == [[3, 5, 1], [5, 1, 3]]
    assert torch.equal(out[1], patch[1])


@pytest.mark.parametrize("per_channel", [False, True])
def test_percentiles_are_those_of_torch(per_channel: bool) -> None:
    patch = patch_of((11, 12, 13))
    found = percentiles(patch, (0, 3, 50, 99.5, 100), per_channel=per_channel)
    for channel in range(CHANNELS):
        values = patch[channel] if per_channel else patch
        expected = torch.quantile(values.ravel(), torch.tensor([0, 0.03, 0.5, 0.995, 1.0]))
        assert np.allclose(found[channel], expected, rtol=0, atol=1e-6)


def test_percentiles_of_many_voxels_are_those_of_numpy() -> None:
    patch = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 101, 100, 100)).astype(np.float32))
    found = percentiles(patch, (2, 97.3), per_channel=True)
    assert np.allclose(found[0], np.percentile(patch.numpy(), (2, 97.3)), rtol=0, atol=1e-6)


def _boxes(*boxes: tuple[tuple[int, int, int], tuple[int, int, int]]) -> np.ndarray:
    return np.array(boxes, np.int64).reshape(-1, 2, 3)


@given(
    seed=st.integers(0, 999),
    is_outside=st.booleans(),
    with_noise=st.booleans(),
    limits=st.sampled_from([(1.5, None), (-1.0, 3.0), (None, None)]),
)
def test_both_engines_fill_the_same_boxes(
    seed: int, is_outside: bool, with_noise: bool, limits: tuple[float | None, float | None]
) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 7, 3)
    positions = np.sort(rng.integers(0, shape + 1, (int(rng.integers(0, 4)), 2, 3)), axis=1)
    patch = torch.from_numpy(rng.normal(size=(2, *shape)).astype(np.float32))
    size = int(np.prod(positions[:, 1] - positions[:, 0], axis=1).sum())
    noise = rng.random(patch.numel() if is_outside else 2 * size) if with_noise else None
    step = Fill(boxes=positions, is_outside=is_outside, low=limits[0], high=limits[1], noise=noise)
    one, other = patch.clone(), patch.clone()
    change(one, [step])
    change(other, [step], engine="torch")
    # A product and a sum may be one operation in compiled loops.
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    is_boxed = np.zeros(shape, bool)
    for start, stop in positions:
        is_boxed[tuple(map(slice, start, stop))] = True
    is_kept = torch.from_numpy(is_boxed if is_outside else ~is_boxed)
    assert torch.equal(one[:, is_kept], patch[:, is_kept])


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_boxes_are_filled_in_order_each_with_its_noise(engine: str) -> None:
    patch = torch.zeros(1, 3, 3, 1)
    step = Fill(
        boxes=_boxes(((0, 0, 0), (2, 2, 1)), ((1, 1, 0), (3, 2, 1))),
        low=10.0,
        high=20.0,
        noise=np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    )
    change(patch, [step], engine=engine)
    assert patch.flatten().tolist() == [10, 11, 0, 12, 14, 0, 0, 15, 0]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_the_own_range_is_that_before_the_first_box(engine: str) -> None:
    patch = torch.tensor([1.0, 5.0, 9.0]).view(1, 3, 1, 1)
    step = Fill(boxes=_boxes(((2, 0, 0), (3, 1, 1)), ((0, 0, 0), (1, 1, 1))), low=None, noise=np.array([0.0, 1.0]))
    change(patch, [step], engine=engine)
    assert patch.flatten().tolist() == [9, 5, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_own_range_that_is_not_finite_is_refused(value: float) -> None:
    patch = torch.tensor([1.0, value]).view(1, 2, 1, 1)
    step = Fill(boxes=_boxes(((0, 0, 0), (1, 1, 1))), low=None, noise=np.array([0.5]))
    with pytest.raises(OverflowError, match=r"should be filled from the patch's own range, which is .* give the range"):
        change(patch, [step])
