from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from voxelocity.data.prepare import interpolate
from voxelocity.data.prepare.interpolate import resample_label, sample_along, sample_positions
from voxelocity.data.prepare.native_resample import resample_label_compiled


@given(num_before=st.integers(1, 50), num_after=st.integers(1, 50), step=st.floats(0.1, 10))
def test_positions_share_the_center_and_stay_inside(num_before: int, num_after: int, step: float) -> None:
    positions = sample_positions(num_before, num_after, step)
    assert len(positions) == num_after
    assert positions.min() >= 0
    assert positions.max() <= num_before - 1
    assert np.allclose(positions + positions[::-1], num_before - 1)


def test_halving_looks_between_pairs_of_voxels() -> None:
    assert sample_positions(8, 4, 2.0).tolist() == [0.5, 2.5, 4.5, 6.5]
    assert sample_positions(4, 8, 0.5).tolist() == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]


@given(
    shape=st.tuples(*[st.integers(1, 9)] * 4),
    order=st.permutations([0, 1, 2, 3]),
    axis=st.integers(0, 3),
    flip=st.booleans(),
    dtype=st.sampled_from(["f4", "i2", "u1", "f8", "i4"]),
    long_line=st.sampled_from([1, 1 << 12]),
    seed=st.integers(0, 99),
)
def test_values_are_those_of_numpy_in_any_order_in_memory(shape, order, axis, flip, dtype, long_line, seed) -> None:
    rng = np.random.default_rng(seed)
    array = np.ascontiguousarray((rng.random(shape) * 200).astype(dtype).transpose(order)).transpose(np.argsort(order))
    array = array[::-1, :, ::-1] if flip else array
    positions = rng.uniform(0, array.shape[axis] - 1, rng.integers(1, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpolate, "_LONG_LINE_VALUES", long_line)
        patch.setattr(interpolate, "_PIECE_VALUES", 16)
        sampled = sample_along(array, positions, axis)
    at = np.arange(array.shape[axis])
    wanted = np.apply_along_axis(lambda line: np.interp(positions, at, line), axis, array.astype(np.float64))
    assert sampled.dtype == np.float32
    assert np.allclose(sampled, wanted, rtol=1e-5, atol=1e-4)


def test_order_in_memory_is_kept() -> None:
    array = np.zeros((1, 6, 5, 4), np.float32).transpose(0, 3, 2, 1)
    sampled = sample_along(array, np.array([0.5, 1.5]), 2)
    assert sampled.shape == (1, 4, 2, 6)
    assert sampled.strides[1:] == (4, 16, 32)


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


@pytest.mark.parametrize("resample", [resample_label, resample_label_compiled])
@pytest.mark.parametrize(
    ("line", "at", "found"),
    [
        ([0, 1], [0.5], [0]),
        ([2, 1], [0.5], [1]),
        ([0, 1, 2, 2], [0.2, 1.4, 1.6], [0, 1, 2]),
    ],
    ids=["background wins a tie", "the lower class wins a tie", "next to a larger class"],
)
def test_the_class_between_two_voxels_is_known(resample, line, at, found) -> None:
    label = np.array(line, np.uint8).reshape(-1, 1, 1)
    assert resample(label, (np.array(at), np.zeros(1), np.zeros(1))).ravel().tolist() == found


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "step"), [("totalseg_ct/label_auto.nii.gz", 0.8), ("spine_mri/label_vert.nii.gz", 2.1)]
)
def test_real_labels_of_many_classes(load, name: str, step: float) -> None:
    folder = f"small_ct_mr_samples/{name.split('/')[0]}"
    label = load(f"{folder}/image.nii.gz", f"small_ct_mr_samples/{name}").label[20:60, 10:40]
    _assert_agrees(label, tuple(sample_positions(n, round(n / step), step) for n in label.shape))


@pytest.mark.parametrize("resample", [resample_label, resample_label_compiled])
def test_labels_of_many_classes_are_resampled_as_those_of_few(resample):
    label = np.random.default_rng(0).integers(0, 4, (6, 7, 8)).astype(np.uint8)
    positions = tuple(sample_positions(n, n + 3, 0.7) for n in label.shape)
    values = np.array([0, 300, 4_000, 65_534], np.uint16)
    found = resample(values[label], positions)
    assert found.dtype == np.uint16
    assert np.array_equal(found, values[resample(label, positions)])
