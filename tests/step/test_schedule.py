import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.step import ScheduleConfig, learning_rate_at


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    config = ScheduleConfig(warmup_share=0.1, decay="poly", poly_power=0.9)
    assert learning_rate_at(0.05, peak=2.0, config=config) == pytest.approx(1.0)
    assert learning_rate_at(0.1, peak=2.0, config=config) == 2.0
    assert learning_rate_at(0.55, peak=2.0, config=config) == pytest.approx(2.0 * 0.5**0.9)
    assert learning_rate_at(1.0, peak=2.0, config=config) == 0.0


def test_cosine_is_at_half_in_the_middle_and_constant_stays():
    middle = 0.5
    assert learning_rate_at(middle, peak=1.0, config=ScheduleConfig(warmup_share=0.0, decay="cosine")) == pytest.approx(
        0.5
    )
    assert learning_rate_at(1.0, peak=1.0, config=ScheduleConfig(decay="constant")) == 1.0


@given(progress=st.floats(-1, 2), decay=st.sampled_from(["poly", "cosine", "constant"]))
def test_the_rate_stays_between_zero_and_peak(progress, decay):
    assert 0.0 <= learning_rate_at(progress, peak=0.3, config=ScheduleConfig(decay=decay)) <= 0.3
