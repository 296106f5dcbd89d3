from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from voxelocity.data.prepare.interpolate import sample_positions
from voxelocity.data.prepare.numba_resample import resample_label_compiled
from voxelocity.data.prepare.resample_label import resample_label

BOTH = pytest.mark.parametrize("resample", [resample_label, resample_label_compiled])


def _shares(label: np.ndarray, positions) -> np.ndarray:
    """Slow reference: the interpolated indicator of every class, (k, x, y, z)."""
    at = np.meshgrid(*positions, indexing="ij")
    return np.stack(
        [ndimage.map_coordinates((label == k).astype(float), at, order=1) for k in range(int(label.max()) + 1)]
    )


def _assert_agrees(label: np.ndarray, positions) -> None:
    shares = _shares(label, positions)
    for resample in (resample_label, resample_label_compiled):
        resampled = resample(label, positions)
        assert resampled.dtype == np.uint8
        chosen = np.take_along_axis(shares, resampled[np.newaxis].astype(int), 0)[0]
        assert np.allclose(chosen, shares.max(0), atol=1e-5)
        top_two = np.sort(shares, axis=0)[-2:]
        clear = top_two[-1] - top_two[0] > 1e-5 if len(shares) > 1 else np.ones(resampled.shape, bool)
        assert np.array_equal(resampled[clear], shares.argmax(0)[clear])


@given(
    shape=st.tuples(*[st.integers(1, 9)] * 3),
    new_shape=st.tuples(*[st.integers(1, 14)] * 3),
    num_classes=st.integers(1, 6),
    order=st.permutations([0, 1, 2]),
    seed=st.integers(0, 999),
)
def test_each_voxel_takes_the_class_of_the_largest_share(shape, new_shape, num_classes, order, seed: int) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, num_classes, shape).astype(np.uint8) * (rng.random(shape) < 0.4)
    label = np.ascontiguousarray(label.transpose(order)).transpose(np.argsort(order))[::-1]
    _assert_agrees(label, tuple(sample_positions(n, m, n / m) for n, m in zip(shape, new_shape, strict=True)))


@BOTH
def test_background_wins_a_tie_with_one_class(resample) -> None:
    label = np.array([0, 1], np.uint8).reshape(2, 1, 1)
    positions = (np.array([0.5]), np.zeros(1), np.zeros(1))
    assert resample(label, positions).item() == 0


@BOTH
def test_lower_class_wins_a_tie_of_two(resample) -> None:
    label = np.array([2, 1], np.uint8).reshape(2, 1, 1)
    assert resample(label, (np.array([0.5]), np.zeros(1), np.zeros(1))).item() == 1


@BOTH
def test_foreground_can_win_against_a_larger_class_beside_the_background(resample) -> None:
    label = np.array([0, 1, 2, 2], np.uint8).reshape(4, 1, 1)
    assert resample(label, (np.array([0.2, 1.4, 1.6]), np.zeros(1), np.zeros(1))).ravel().tolist() == [0, 1, 2]


def test_label_without_foreground_stays_empty() -> None:
    positions = tuple(sample_positions(4, 6, 4 / 6) for _ in range(3))
    assert not resample_label(np.zeros((4, 4, 4), np.uint8), positions).any()


@pytest.mark.data
@pytest.mark.parametrize("name", ["totalseg_ct/label_auto.nii.gz", "spine_mri/label_vert.nii.gz"])
@pytest.mark.parametrize("step", [0.8, 2.1])
def test_real_labels_of_many_classes(load, name: str, step: float) -> None:
    folder = f"small_ct_mr_samples/{name.split('/')[0]}"
    label = load(f"{folder}/image.nii.gz", f"small_ct_mr_samples/{name}").label[20:60, 10:40]
    _assert_agrees(label, tuple(sample_positions(n, round(n / step), step) for n in label.shape))
