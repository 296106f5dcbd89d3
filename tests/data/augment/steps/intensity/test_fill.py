"""Boxes filled: compiled and plain torch agree, and both do what the step says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.augment.steps.intensity.fill import Fill, fill


def _boxes(*boxes: tuple[tuple[int, int, int], tuple[int, int, int]]) -> np.ndarray:
    return np.array(boxes, np.int64).reshape(-1, 2, 3)


@given(
    seed=st.integers(0, 999),
    is_outside=st.booleans(),
    with_noise=st.booleans(),
    limits=st.sampled_from([(1.5, None), (-1.0, 3.0), (None, None)]),
)
def test_both_engines_fill_the_same(
    seed: int, is_outside: bool, with_noise: bool, limits: tuple[float | None, float | None]
) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 7, 3)
    places = np.sort(rng.integers(0, shape + 1, (int(rng.integers(0, 4)), 2, 3)), axis=1)
    patch = torch.from_numpy(rng.normal(size=(2, *shape)).astype(np.float32))
    size = int(np.prod(places[:, 1] - places[:, 0], axis=1).sum())
    noise = rng.random(patch.numel() if is_outside else 2 * size) if with_noise else None
    step = Fill(boxes=places, is_outside=is_outside, low=limits[0], high=limits[1], noise=noise)
    one, other = patch.clone(), patch.clone()
    fill(one, step)
    fill(other, step, engine="torch")
    # A product and a sum may be one operation in compiled loops.
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    is_boxed = np.zeros(shape, bool)
    for start, stop in places:
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
    fill(patch, step, engine=engine)  # type: ignore[arg-type]
    assert patch.flatten().tolist() == [10, 11, 0, 12, 14, 0, 0, 15, 0]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_the_own_range_is_that_before_the_first_box(engine: str) -> None:
    patch = torch.tensor([1.0, 5.0, 9.0]).view(1, 3, 1, 1)
    step = Fill(boxes=_boxes(((2, 0, 0), (3, 1, 1)), ((0, 0, 0), (1, 1, 1))), low=None, noise=np.array([0.0, 1.0]))
    fill(patch, step, engine=engine)  # type: ignore[arg-type]
    assert patch.flatten().tolist() == [9, 5, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_own_range_that_is_not_finite_is_refused(value: float) -> None:
    patch = torch.tensor([1.0, value]).view(1, 2, 1, 1)
    step = Fill(boxes=_boxes(((0, 0, 0), (1, 1, 1))), low=None, noise=np.array([0.5]))
    with pytest.raises(OverflowError, match=r"should be filled from the patch's own range, which is .* give the range"):
        fill(patch, step)
