import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.examples import examples
from voxelocity.monai.steps.smooth import smoothed


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 1000), shape=st.tuples(*[st.integers(1, 12)] * 3), radius=st.integers(0, 14))
def test_fields_are_smoothed_as_plain_torch_does_it(seed, shape, radius):
    rng = np.random.default_rng(seed)
    fields = rng.normal(size=(3, *shape)).astype(np.float32)
    half = rng.random(radius + 1)
    kernel = np.concatenate([half[:0:-1], half]).astype(np.float32)
    kernel /= kernel.sum()
    before = fields.copy()
    np.testing.assert_allclose(smoothed(fields, kernel), smoothed(fields, kernel, engine="torch"), atol=1e-5)
    np.testing.assert_array_equal(fields, before)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_beyond_the_border_lie_zeros(engine):
    made = smoothed(np.ones((1, 3, 1, 5), np.float32), np.float32([0.25, 0.5, 0.25]), engine=engine)
    wanted = np.float32([0.75, 1.0, 0.75])[:, None] * np.float32([0.75, 1.0, 1.0, 1.0, 0.75]) * 0.5
    np.testing.assert_allclose(made[0, :, 0], wanted, atol=1e-6)
