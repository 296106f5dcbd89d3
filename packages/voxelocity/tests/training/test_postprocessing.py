"""Of which classes the largest component is kept, and that scores and predictions say the same."""

from __future__ import annotations

from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from rich.console import Console

import voxelocity as vx
from voxelocity.infer import load_model, predict_files
from voxelocity.metrics import case_score
from voxelocity.report import read_run
from voxelocity.training import train
from voxelocity.training.postprocessing import largest_alone, settle

NAMES = ("background", "organ", "lesion", "absent")
SPEC = SimpleNamespace(labels=dict(enumerate(NAMES)), class_names=NAMES, stored_values=range(4), ignored=None)


def scan(case_id, truth):
    return SimpleNamespace(case_id=case_id, label=truth, grid=SimpleNamespace(steps_mm=np.eye(3)))


def collected(*pairs, surface=True):
    """What is settled after these pairs of truth and prediction."""
    pairs_of_scores = []
    for number, (truth, prediction) in enumerate(pairs):
        score = case_score(
            f"{number}", prediction, truth, NAMES, (1.0, 1.0, 1.0), tolerance_mm=3.0 if surface else None
        )
        pairs_of_scores.append((score, largest_alone(score, scan(f"{number}", truth), prediction, SPEC)))
    return [score for score, _ in pairs_of_scores], settle(pairs_of_scores)


def volumes():
    """An organ with a false speck, and two lesions of which both are true."""
    truth = np.zeros((16, 12, 10), np.uint8)
    truth[2:8, 2:8, 2:8] = 1
    truth[10, 2:5, 2], truth[14, 2:4, 2] = 2, 2
    prediction = truth.copy()
    prediction[12:14, 9:11, 7:9] = 1
    return truth, prediction


def test_a_class_keeps_its_largest_component_where_the_mean_dice_rises():
    truth, prediction = volumes()
    before, final = collected((truth, prediction), (truth, truth))
    assert list(final.keep_largest) == ["organ"]
    old, new = final.keep_largest["organ"]
    assert old == pytest.approx((2 * 216 / (2 * 216 + 8) + 1) / 2)
    assert new == 1.0
    assert [score.case_id for score in final.scores] == ["0", "1"]
    assert final.scores[0].dice == {"organ": 1.0, "lesion": 1.0, "absent": None}
    assert final.scores[0].hd95_mm == {"organ": 0.0, "lesion": 0.0, "absent": None}
    assert final.scores[0].nsd == {"organ": 1.0, "lesion": 1.0, "absent": None}
    assert final.scores[0].prediction_ml == final.scores[0].truth_ml
    assert final.scores[1] == before[1]


def test_scores_are_those_of_the_cleaned_predictions_for_chosen_classes_alone():
    truth, prediction = volumes()
    prediction[10, 2, 2] = 0
    _, final = collected((truth, prediction))
    cleaned = prediction.copy()
    cleaned[12:14, 9:11, 7:9] = 0
    assert final.scores == [case_score("0", cleaned, truth, NAMES, (1.0, 1.0, 1.0))]


def test_nothing_is_kept_back_where_it_does_not_help():
    truth, _ = volumes()
    before, final = collected((truth, truth))
    assert not final.keep_largest
    assert final.scores == before
    # A true part is lost in one case, a false one of the same size in the other.
    extra = truth.copy()
    extra[0, 11, 9], extra[0, 11, 8] = 2, 2
    assert not collected((truth, extra), (truth, truth))[1].keep_largest


def test_cases_without_surfaces_stay_without_them():
    truth, prediction = volumes()
    _, final = collected((truth, prediction), surface=False)
    assert final.scores[0].dice["organ"] == 1.0
    assert (final.scores[0].hd95_mm, final.scores[0].nsd) == ({}, {})


@pytest.fixture
def with_decoys(own_msd):
    """The tiny data set; the cases of fold 0 have a bright cube in a corner, which is no ball."""
    for index in (0, 3):
        file = own_msd / "imagesTr" / f"case_{index}.nii.gz"
        image = nib.load(file)
        voxels = np.asarray(image.dataobj).copy()
        voxels[:4, :4, :4] = 180
        nib.save(nib.Nifti1Image(voxels, image.affine), file)
    return own_msd


def test_predictions_of_a_run_are_those_that_its_scores_are_of(with_decoys, tiny_plan, tmp_path):
    run, cases = tmp_path / "run", vx.open(with_decoys)
    plan = {**tiny_plan, "train.steps": 40, "optimizer.learning_rate": 0.02}
    train(cases, run, overrides=plan, device="cpu", console=Console(quiet=True))
    _, spec = load_model(run)
    facts = read_run(run)
    assert spec.keep_largest == tuple(facts.keep_largest)
    assert spec.keep_largest, "the decoys were not taken for balls"
    scans = [with_decoys / "imagesTr" / f"{score.case_id}.nii.gz" for score in facts.scores]
    found = {}
    for postprocess in (True, False):
        out = tmp_path / f"{postprocess}"
        predict_files(run, scans, out, device=torch.device("cpu"), num_threads=1, postprocess=postprocess)
        found[postprocess] = vx.evaluate(out, with_decoys).scores
    assert found[True] == facts.scores
    for name, (old, new) in facts.keep_largest.items():
        assert np.mean([score.dice[name] for score in found[False]]) == pytest.approx(old)
        assert np.mean([score.dice[name] for score in found[True]]) == pytest.approx(new)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Predictions keep only the largest component" in page
    assert "This was chosen on the cases that are scored here" in page
    assert "--no-postprocess" in page


def test_cases_that_were_trained_on_prove_nothing(with_decoys, tiny_plan, tmp_path):
    run = tmp_path / "run"
    train(vx.open(with_decoys), run, fold="all", overrides=tiny_plan, device="cpu", console=Console(quiet=True))
    assert load_model(run)[1].keep_largest == ()
    assert not read_run(run).keep_largest
