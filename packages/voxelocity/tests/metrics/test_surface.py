"""Surface distance in millimeters: known answers, MONAI's numbers, and a plain reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from monai.metrics import compute_hausdorff_distance
from scipy import ndimage

from shared.examples import examples
from voxelocity.metrics import case_score, surface
from voxelocity.metrics.surface import SurfaceDistance, surface_distances

SPACING_MM = (0.8, 1.0, 2.5)


def box(shape, start, stop):
    volume = np.zeros(shape, np.uint8)
    volume[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = 1
    return volume


def hd95_per_class_mm(prediction, truth, **arguments):
    found = surface_distances(prediction, truth, **arguments)
    return tuple(None if distance is None else distance.hd95_mm for distance in found)


def monai_mm(prediction, truth):
    hot = [torch.from_numpy(np.stack([v == 0, v == 1])[None].astype(np.float32)) for v in (prediction, truth)]
    return float(compute_hausdorff_distance(hot[0], hot[1], percentile=95, spacing=SPACING_MM))


def uncropped_mm(prediction, truth, spacing_mm):
    """By distance transforms of the whole volume."""
    surfaces = [v.astype(bool) & ~ndimage.binary_erosion(v) for v in (prediction == 1, truth == 1)]
    to_prediction, to_truth = (ndimage.distance_transform_edt(~s, sampling=spacing_mm) for s in surfaces)
    return max(np.percentile(to_truth[surfaces[0]], 95), np.percentile(to_prediction[surfaces[1]], 95))


@pytest.mark.parametrize(("axis", "expected_mm"), [(0, 3 * 0.8), (1, 3 * 1.0), (2, 3 * 2.5)])
def test_distance_of_two_single_voxels_is_in_millimeters_of_each_axis(axis, expected_mm):
    truth, prediction = np.zeros((2, 9, 9, 9), np.uint8)
    truth[4, 4, 4] = 1
    prediction[tuple(4 + 3 * (a == axis) for a in range(3))] = 1
    assert hd95_per_class_mm(prediction, truth, num_classes=2, steps_mm=SPACING_MM) == pytest.approx((expected_mm,))
    assert hd95_per_class_mm(truth, truth, num_classes=2, steps_mm=SPACING_MM) == (0.0,)


def test_class_that_is_empty_on_either_side_has_no_distance():
    truth = box((6, 6, 6), (1, 1, 1), (3, 3, 3))
    empty = np.zeros_like(truth)
    for prediction, reference in ((empty, truth), (truth, empty), (empty, empty)):
        assert hd95_per_class_mm(prediction, reference, num_classes=2, steps_mm=SPACING_MM) == (None,)


def test_classes_are_measured_apart():
    truth, prediction = np.zeros((2, 10, 10, 10), np.uint8)
    truth[1, 1, 1], truth[8, 8, 8] = 1, 3
    prediction[2, 1, 1], prediction[8, 8, 7] = 1, 3
    distances = hd95_per_class_mm(prediction, truth, num_classes=5, steps_mm=(1.0, 1.0, 3.0))
    assert distances == (1.0, None, 3.0, None)


@pytest.mark.parametrize("at_border", [False, True])
def test_distance_equals_monai(at_border):
    rng = np.random.default_rng(3)
    noise = ndimage.gaussian_filter(rng.standard_normal((2, 24, 20, 16)), (0, 2, 2, 2))
    truth, prediction = (noise > np.quantile(noise, 0.8)).astype(np.uint8)
    if not at_border:
        inside = box(truth.shape, (1, 1, 1), (23, 19, 15))
        truth, prediction = truth * inside, prediction * inside
    ours = hd95_per_class_mm(prediction, truth, num_classes=2, steps_mm=SPACING_MM)[0]
    assert ours == pytest.approx(monai_mm(prediction, truth), abs=1e-5)


@settings(max_examples=examples(60))
@given(
    pair=hnp.arrays(np.uint8, (2, 5, 4, 6), elements=st.integers(0, 1)).filter(lambda v: v[0].any() and v[1].any()),
    spacing_mm=st.tuples(*[st.floats(0.2, 6.0)] * 3),
)
def test_cropping_changes_nothing(pair, spacing_mm):
    truth, prediction = np.pad(pair, ((0, 0), (3, 0), (0, 4), (2, 2)))
    ours = hd95_per_class_mm(prediction, truth, num_classes=2, steps_mm=spacing_mm)
    assert ours == pytest.approx((uncropped_mm(prediction, truth, spacing_mm),), abs=1e-9)


def test_of_a_surface_that_is_many_times_the_other_a_part_is_measured_and_that_is_reported(monkeypatch):
    truth = np.zeros((40, 40, 40), np.uint8)
    truth[18:22, 18:22, 18:22] = 1
    noise = (np.random.default_rng(0).random(truth.shape) < 0.3).astype(np.uint8)
    arguments = {"num_classes": 2, "steps_mm": (1.0, 1.0, 1.0)}
    (exact,) = surface_distances(noise, truth, **arguments)
    assert not exact.is_estimated
    monkeypatch.setattr(surface, "_MANY_POINTS", 1000)
    (estimated,) = surface_distances(noise, truth, **arguments)
    assert estimated.is_estimated
    assert estimated.hd95_mm == pytest.approx(exact.hd95_mm, rel=0.05)
    score = case_score("x", noise, truth, ("background", "a"), (1.0, 1.0, 1.0))
    assert score.hd95_estimated == ("a",)
    (good,) = surface_distances(np.roll(truth, 1, axis=0), truth, **arguments)
    assert good == SurfaceDistance(hd95_mm=1.0, nsd=1.0)


@pytest.mark.parametrize(("tolerance_mm", "share"), [(0.0, 0.0), (0.79, 0.0), (0.8, 1.0), (5.0, 1.0)])
def test_surfaces_are_equal_within_the_tolerance(tolerance_mm, share):
    truth, prediction = box((12, 9, 9), (4, 4, 4), (5, 6, 6)), box((12, 9, 9), (5, 4, 4), (6, 6, 6))
    arguments = {"num_classes": 2, "steps_mm": SPACING_MM, "tolerance_mm": tolerance_mm}
    (found,) = surface_distances(prediction, truth, **arguments)
    assert found.nsd == share


def test_each_voxel_of_both_surfaces_counts_once_in_the_normalized_surface_distance():
    truth, prediction = np.zeros((2, 20, 5, 5), np.uint8)
    truth[2:4, 2, 2] = 1
    prediction[3:9, 2, 2] = 1
    arguments = {"num_classes": 2, "steps_mm": (1.0, 1.0, 1.0)}
    (found,) = surface_distances(prediction, truth, tolerance_mm=1.0, **arguments)
    assert found.nsd == pytest.approx((2 + 2) / (2 + 6))
