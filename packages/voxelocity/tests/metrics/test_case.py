"""Scores of a case and of several."""

import nibabel
import numpy as np
import pytest

from voxelocity.core.records import CaseScore
from voxelocity.metrics import case_score, summarize
from voxelocity_observe.core.errors import DatasetError, ScanError

NAMES = ("background", "organ", "tumour")
SPACING_MM = (1.0, 1.0, 2.0)


def volumes():
    truth, prediction = np.zeros((2, 6, 6, 6), np.uint8)
    truth[1:3, 1, 1] = 1
    prediction[2:4, 1, 1] = 1
    return prediction, truth


def test_score_names_the_foreground_classes_alone():
    prediction, truth = volumes()
    score = case_score("case_1", prediction, truth, NAMES, SPACING_MM)
    assert score == CaseScore(
        case_id="case_1",
        dice={"organ": 0.5, "tumour": None},
        hd95_mm={"organ": pytest.approx(0.95), "tumour": None},
        nsd={"organ": 1.0, "tumour": None},
        truth_ml={"organ": pytest.approx(0.004), "tumour": 0.0},
        prediction_ml={"organ": pytest.approx(0.004), "tumour": 0.0},
    )
    assert score.mean_dice == 0.5


def test_surface_distance_can_be_left_out():
    prediction, truth = volumes()
    score = case_score("case_1", prediction, truth, NAMES, SPACING_MM, tolerance_mm=None)
    assert score.hd95_mm == {}
    assert score.dice == {"organ": 0.5, "tumour": None}


def test_distances_and_volumes_are_those_of_a_grid_whose_axes_are_not_at_right_angles():
    """As of a tilted gantry: each slice is shifted along y."""
    truth, prediction = np.zeros((2, 4, 9, 9), np.uint8)
    truth[2, 4, 4], prediction[2, 4, 7] = 1, 1
    steps = np.array([[0.5, 0.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 2.0]])
    for turn in (np.eye(3), np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]):
        score = case_score("tilted", prediction, truth, NAMES, turn @ steps)
        assert score.truth_ml["organ"] == pytest.approx(0.5 * 0.5 * 2.0 / 1e3)
        assert score.hd95_mm["organ"] == pytest.approx(3.0 * 5.0**0.5)
        assert score.nsd["organ"] == 0.0


def test_wrong_input_is_named_with_its_case():
    prediction, truth = volumes()
    with pytest.raises(ScanError, match=r"metrics: case 'case_1': .*the truth holds class index 1, .* 1 classes"):
        case_score("case_1", prediction, truth, NAMES[:1], SPACING_MM)
    with pytest.raises(ScanError, match=r"case 'case_1': .*differ in shape"):
        case_score("case_1", prediction[1:], truth, NAMES, SPACING_MM)
    with pytest.raises(ScanError, match=r"case 'case_1': .*spacings positive"):
        case_score("case_1", prediction, truth, NAMES, (0.0, 1.0, 1.0))


def test_a_network_that_finds_nothing_scores_zero_whatever_lies_outside_the_field_of_view():
    names = ("background", *(f"class {index}" for index in range(1, 105)))
    truth = np.zeros((4, 5, 6), np.uint8)
    truth.flat[:10] = range(1, 11)
    score = case_score("cropped", np.zeros_like(truth), truth, names, SPACING_MM)
    assert score.mean_dice == 0.0
    assert sum(dice is None for dice in score.dice.values()) == 94
    summary = summarize([score, case_score("empty", truth * 0, truth * 0, names, SPACING_MM)])
    assert summary.mean_dice == 0.0
    assert summary.dice["class 10"] == 0.0
    assert summary.dice["class 11"] is None


def test_the_mean_is_over_cases_first_and_then_over_the_classes_that_are_there():
    scores = [
        CaseScore(case_id="a", dice={"organ": 0.8, "tumour": 0.2, "cyst": None}),
        CaseScore(case_id="b", dice={"organ": 0.6, "tumour": None, "cyst": None}),
        CaseScore(case_id="c", dice={"organ": None, "tumour": None, "cyst": None}),
    ]
    assert [score.mean_dice for score in scores] == [0.5, 0.6, None]
    summary = summarize(scores)
    assert summary.dice == {"organ": pytest.approx(0.7), "tumour": 0.2, "cyst": None}
    assert summary.mean_dice == pytest.approx(0.45)
    assert summarize(scores[2:]).mean_dice is None


def test_no_scores_cannot_be_summarized():
    with pytest.raises(DatasetError, match="no score to summarize; the validation set needs at least one case"):
        summarize([])


@pytest.mark.data
def test_real_label_scores_perfectly_against_itself_and_by_one_voxel_when_shifted(real_data):
    file = nibabel.load(real_data / "hippocampus" / "labelsTr" / "hippocampus_001.nii.gz")
    truth = np.asanyarray(file.dataobj).astype(np.uint8)
    names = ("background", "anterior", "posterior")
    itself = case_score("hippocampus_001", truth, truth, names, (1.0, 1.0, 1.0))
    assert (itself.mean_dice, set(itself.hd95_mm.values())) == (1.0, {0.0})
    shifted = case_score("hippocampus_001", np.roll(truth, 1, axis=1), truth, names, (1.0, 1.0, 1.0))
    assert 0.7 < shifted.mean_dice < 0.95
    assert set(shifted.hd95_mm.values()) == {1.0}
