"""Volume and mean intensity of each class, as TotalSegmentator writes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from voxelocity.core.volume import Grid, Volume
from voxelocity.data.pipeline.class_names import find_class_names
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.statistics import class_statistics, write_label_files


def spec_with(**fields):
    labels = {0: "background", 3: "liver", 5: "tumor", 6: "never"}
    return PredictionSpec.parse(
        {
            "channels": ["CT"],
            "labels": labels,
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
            **fields,
        }
    )


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_volume_is_in_cubic_millimeters_and_intensity_a_mean(dtype):
    rng = np.random.default_rng(0)
    image = rng.integers(-900, 900, (2, 40, 50, 30)).astype(dtype)
    classes = rng.integers(0, 3, image.shape[1:]).astype(np.uint8)
    scan = Volume(case_id="a", image=image, label=None, grid=Grid.of(classes.shape, np.diag([2.0, 3.0, 0.5, 1.0])))
    found = json.loads(class_statistics(scan, classes, spec_with()))
    assert list(found) == ["liver", "tumor", "never"]
    assert found["never"] == {"volume": 0.0, "intensity": 0.0}
    for index, name in enumerate(("liver", "tumor"), start=1):
        assert found[name]["volume"] == pytest.approx(3.0 * (classes == index).sum())
        assert found[name]["intensity"] == pytest.approx(image[0][classes == index].mean(dtype=float), abs=1e-3)
    regions = {"whole": [1, 2], "core": [2]}
    whole = json.loads(class_statistics(scan, classes, spec_with(regions=regions, region_order=[1, 2])))["whole"]
    assert whole["volume"] == pytest.approx(found["liver"]["volume"] + found["tumor"]["volume"])


def test_label_files_have_the_names_of_the_values(tmp_path):
    write_label_files(tmp_path, spec_with())
    for name in ("labels.label", "labels.ctbl"):
        assert find_class_names(tmp_path, [name], [], [3, 5, 6])[0] == {3: "liver", 5: "tumor", 6: "never"}
