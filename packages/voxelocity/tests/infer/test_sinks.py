"""From logits to classes: overlapping classes, and logits interpolated in place of probabilities."""

import numpy as np
import pytest
import torch

from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity.infer import PredictionSpec, Predictor

# Values 0, 1, 2 and 4 in files, so that class indices and values differ.
CHANNELS = ((3.0, 1.0), (3.0, -1.0), (-2.0, -1.0))
LABELS = {0: "background", 1: "whole", 2: "core", 4: "enhancing"}


class Blobs(torch.nn.Module):
    """Logits that depend on the intensity alone, so that windows and blending change nothing."""

    def forward(self, windows):
        return torch.cat([windows * scale + shift for scale, shift in CHANNELS], dim=1)


class Spec(PredictionSpec):
    spacing_mm: tuple[float, float, float]

    def preparation(self):
        return Preparation(
            PrepareConfig.parse({"intensity": {"mode": "none"}, "spacing_mm": self.spacing_mm, "dtype": "float32"})
        )


def predict(volume, *, spacing_mm, labels=LABELS, **more):
    spec = Spec.parse(
        {
            "channels": ["MR"],
            "labels": labels,
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
            "spacing_mm": spacing_mm,
            **more,
        }
    )
    return Predictor(Blobs().eval(), spec, spec.preparation(), device=torch.device("cpu")).predict(volume)


def scan(values=None):
    values = np.random.default_rng(0).standard_normal((12, 9, 10)) if values is None else values
    image = np.asarray(values, np.float32)[np.newaxis]
    return Volume(case_id="x", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_overlapping_classes_are_written_in_their_order(order):
    volume = scan()
    expected = np.zeros(volume.grid.shape, np.uint8)
    for (scale, shift), index in zip(CHANNELS, order, strict=True):
        expected[1.0 / (1.0 + np.exp(-(volume.image[0] * scale + shift).astype(np.float64))) > 0.5] = index
    found = predict(volume, spacing_mm=(1.0, 1.0, 1.0), region_order=order)
    assert np.array_equal(found, expected)
    assert set(np.unique(found)) == {0, 1, 2, 3}


def test_overlapping_classes_of_a_resampled_scan_are_those_of_interpolated_logits():
    # 7 voxels of 1 mm become 4 of 2 mm at every second voxel; the logits of the first region are 3 * value + 1.
    volume = scan(np.array([-3, 0, -1, 0, 0, 0, 3.0]).reshape(7, 1, 1))
    found = predict(volume, spacing_mm=(2.0, 1.0, 1.0), region_order=(1, 2, 3), labels=LABELS)
    values = np.interp(np.arange(7) / 2, np.arange(4), [-3, -1, 0, 3])
    expected = np.zeros(7, np.uint8)
    for (scale, shift), index in zip(CHANNELS, (1, 2, 3), strict=True):
        expected[values * scale + shift > 0] = index
    assert found.ravel().tolist() == expected.tolist()


def test_a_model_says_whether_logits_or_probabilities_are_interpolated():
    # Prepared are two voxels, at 1 and 5 of the scan's; classes a and c differ by 8 in the one and -2 in the other.
    volume = scan(np.array([0, 1.2, 0, 0, 0, -0.8, 0]).reshape(7, 1, 1))
    labels = {0: "a", 1: "b", 2: "c"}
    logits = predict(volume, spacing_mm=(4.0, 1.0, 1.0), labels=labels, restored="logits")
    probabilities = predict(volume, spacing_mm=(4.0, 1.0, 1.0), labels=labels)
    assert logits.ravel().tolist() == [0, 0, 0, 0, 0, 2, 2]
    assert probabilities.ravel().tolist() == [0, 0, 0, 0, 2, 2, 2]
