"""Classes merged by `classes.merge`: plan, run, predictions, evaluation and resume agree."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

from voxelocity.data.source import open_cases
from voxelocity.infer import load_model

MERGE = 'classes.merge={"all of it": ["ball", 2]}'


@pytest.fixture
def merged(own_msd, tiny_sets, voxelocity, tmp_path):
    """A short run that learns ball and core as one."""
    run = tmp_path / "run"
    arguments = ["train", own_msd, "-o", run, "--device", "cpu", *tiny_sets, "--set", "train.steps=6", "--set", MERGE]
    told = voxelocity(*arguments)
    assert told.status == 0, told.err
    return run, arguments


def test_a_run_of_merged_classes_is_predicted_evaluated_and_resumed(merged, own_msd, voxelocity, tmp_path):
    run, arguments = merged
    _, spec = load_model(run)
    assert (dict(spec.labels), spec.num_outputs) == ({0: "background", 1: "all of it"}, 2)
    assert spec.merged == {1: {1: "ball", 2: "core"}}
    assert spec.stored_values == (0, (1, 2))
    assert "all of it (ball+core)" in (run / "report.html").read_text()
    scores = {case["case_id"]: case["dice"] for case in json.loads((run / "scores.json").read_text())["cases"]}
    assert all(set(dice) == {"all of it"} for dice in scores.values())
    scans, out = [ref.images[0] for ref in open_cases(own_msd).split(0).validation], tmp_path / "predictions"
    assert voxelocity("predict", run, *scans, "-o", out, "--device", "cpu").status == 0
    assert set(np.unique(nib.load(out / scans[0].name).get_fdata())) <= {0, 1}
    # The truth has both classes, and so do those that it declares; the table of predictions or the run says otherwise.
    for options in ([], ["--labels", run]):
        judged = tmp_path / f"judged{len(options)}"
        told = voxelocity("evaluate", out, own_msd, "-o", judged, *options)
        assert told.status == 0, told.err
        found = json.loads((judged / "evaluation.json").read_text())["classes"]
        assert found["all of it"]["mean_dice"] == pytest.approx(
            np.mean([dice["all of it"] for dice in scores.values()])
        )
        assert ("all of it: 1, 2" in (judged / "evaluation.html").read_text()) == (not options)
    told = voxelocity("train", "--resume", run, "--full-validation", "--device", "cpu")
    assert told.status == 0, told.err
    told = voxelocity(*arguments[:-2], "--resume", "--full-validation", "--set", 'classes.merge={"ball": ["core"]}')
    assert told.status != 0
    assert "classes.merge" in told.err


def test_the_plan_shows_merged_classes_and_names_unknown_ones(own_msd, tiny_sets, voxelocity):
    told = voxelocity("plan", own_msd, "--device", "cpu", *tiny_sets, "--set", MERGE)
    assert told.status == 0, told.err
    assert "all of it (ball+core)" in told.out
    told = voxelocity("plan", own_msd, "--device", "cpu", *tiny_sets, "--set", 'classes.merge={"x": ["bal"]}')
    assert told.status == 2
    assert "'bal' is not a class; did you mean 'ball'?" in told.err
