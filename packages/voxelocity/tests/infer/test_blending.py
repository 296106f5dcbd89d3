"""What windows weigh, and what their weights sum up to."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data.utils import compute_importance_map
from scipy.ndimage import gaussian_filter

from voxelocity.data.patch import axis_starts
from voxelocity.infer.blending import importance, weight_sums

CPU = torch.device("cpu")


@pytest.mark.parametrize(("shape", "sigma_scale"), [((7,), 0.2), ((8, 5), (0.125, 0.5)), ((6, 4, 9), 0.125)])
def test_importance_is_monais_on_any_number_of_axes(shape, sigma_scale):
    ours = importance(shape, "gaussian", sigma_scale, CPU)
    assert torch.equal(ours, compute_importance_map(shape, mode="gaussian", sigma_scale=sigma_scale))
    assert torch.equal(importance(shape, "uniform", sigma_scale, CPU), torch.ones(shape))


@pytest.mark.parametrize("shape", [(7,), (16, 9), (24, 32, 20)])
def test_weights_of_nnunet_are_its_gaussian_in_float16(shape):
    peak = np.zeros(shape)
    peak[tuple(n // 2 for n in shape)] = 1
    expected = gaussian_filter(peak, [n / 8 for n in shape], 0, mode="constant", cval=0)
    expected = (expected / (expected.max() / 10)).astype(np.float16)
    expected[expected == 0] = expected[expected > 0].min()
    found = importance(shape, "nnunet", 0.125, CPU)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.astype(np.float32), rtol=1e-3, atol=6e-8)
    assert float(found.min()) > 0


@settings(max_examples=30)
@given(
    axes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6), st.floats(0, 0.8)), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_weight_sums_are_those_of_adding_window_after_window(axes, seed):
    shape = tuple(max(n, side) for n, side, _ in axes)
    window = tuple(side for _, side, _ in axes)
    starts = [axis_starts(n, side, share) for n, (_, side, share) in zip(shape, axes, strict=True)]
    weights = torch.from_numpy(np.random.default_rng(seed).random(window))
    expected = torch.zeros(shape, dtype=torch.float64)
    for corner in itertools.product(*starts):
        expected[tuple(slice(a, a + n) for a, n in zip(corner, window, strict=True))] += weights
    torch.testing.assert_close(weight_sums(weights, starts, shape), expected, rtol=1e-12, atol=0.0)
