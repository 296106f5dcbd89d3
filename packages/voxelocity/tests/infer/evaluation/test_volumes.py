"""Prediction and truth of merged classes: values and names of what they stand for count as one."""

from __future__ import annotations

import numpy as np
import pytest

from voxelocity.core.volume import Grid
from voxelocity.data.decode import write_scan
from voxelocity.infer.evaluation.volumes import read_pair


@pytest.mark.parametrize("has_masks", [True, False])
def test_what_a_merged_class_stands_for_is_found_by_value_and_by_name(tmp_path, has_masks):
    label = np.random.default_rng(0).integers(0, 4, (5, 6, 7)).astype(np.uint8)
    grid, truth = Grid.of(label.shape, np.eye(4)), tmp_path / "truth"
    write_scan(tmp_path / "prediction.nii.gz", (label == 3).astype(np.uint8), grid)
    truth.mkdir()
    for value, name in ((1, "left"), (2, "right"), (3, "other")):
        write_scan(truth / f"{name}.nii.gz", (label == value).astype(np.uint8), grid)
    write_scan(tmp_path / "truth.nii.gz", label, grid)
    pair = read_pair(
        tmp_path / "prediction.nii.gz",
        truth if has_masks else tmp_path / "truth.nii.gz",
        labels={0: "background", 1: "both", 3: "other"},
        merged={1: {1: "left", 2: "right"}},
        scan=None,
        note=lambda kind, text: pytest.fail(text),
    )
    assert pair.class_names == ("background", "both", "other")
    assert np.array_equal(pair.truth, np.array([0, 1, 1, 2])[label])
    assert np.array_equal(pair.prediction, label == 3)
