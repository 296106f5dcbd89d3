"""More classes than a byte holds, from label files to scores."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

from voxelocity.data.source import open_cases
from voxelocity.infer import load_model


def parcels(folder, num_classes):
    """Ball and core become two of this many classes; the others are small blocks in a corner of each scan."""
    description = json.loads((folder / "dataset.json").read_text())
    values = [0, *range(1000, 1000 + num_classes - 1)]
    description["labels"] = {str(value): f"parcel {value}" if value else "background" for value in values}
    (folder / "dataset.json").write_text(json.dumps(description))
    for path in sorted((folder / "labelsTr").iterdir()):
        file = nib.load(path)
        label = np.array([0, values[1], values[-1]])[np.asarray(file.dataobj)]
        corner = label[:4]
        corner[...] = np.resize(values[2:-1], corner.shape)
        nib.save(nib.Nifti1Image(label.astype(np.uint16), file.affine), path)
    return values


@pytest.mark.parametrize("num_classes", [300, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_many_classes_are_trained_predicted_and_evaluated(own_msd, tiny_sets, voxelocity, tmp_path, num_classes):
    values, run, out = parcels(own_msd, num_classes), tmp_path / "run", tmp_path / "predictions"
    keys = ("train.steps=4", "data.prepare.spacing_mm=[1.3, 1.0, 1.0]", "augment.label_interpolation=vote")
    steps = [part for key in (*keys[:2], f"data.{keys[2]}") for part in ("--set", key)]
    told = voxelocity("train", own_msd, "-o", run, "--device", "cpu", *tiny_sets, *steps)
    assert told.status == 0, told.err
    _, spec = load_model(run)
    assert spec.num_outputs == num_classes
    scores = {case["case_id"]: case["dice"] for case in json.loads((run / "scores.json").read_text())["cases"]}
    scans = [ref.images[0] for ref in open_cases(own_msd).split(0).validation]
    told = voxelocity("predict", run, *scans, "-o", out, "--device", "cpu")
    assert told.status == 0, told.err
    found = np.asarray(nib.load(out / scans[0].name).dataobj)
    assert found.dtype == np.uint16
    assert {*np.unique(found).tolist()} <= {*values}
    assert voxelocity("evaluate", out, own_msd, "-o", tmp_path / "judged").status == 0
    judged = json.loads((tmp_path / "judged" / "evaluation.json").read_text())["classes"]
    name = f"parcel {values[1]}"
    assert judged[name]["mean_dice"] == pytest.approx(np.mean([dice[name] for dice in scores.values()]), abs=1e-6)
