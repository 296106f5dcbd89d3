"""DICOM SEG against values, and against each other: the classes are those of the same names."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from shared.dicom_series import write_series
from voxelocity.core import staging
from voxelocity.data.decode import read_header, write_scan, write_segmentation
from voxelocity.infer.evaluation import evaluate
from voxelocity_observe.core.errors import InputError

SHAPE_ZYX = (6, 20, 16)
LABELS = {0: "background", 3: "organ", 7: "tumor"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two series, with predictions as DICOM SEG and the truth as values and as DICOM SEG."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("study")
    values = np.array(sorted(LABELS), np.uint8)
    for name in ("out", "raw/labelsTr", "values"):
        (folder / name).mkdir(parents=True)
    for case in ("a", "b"):
        series = folder / "set" / case / "CT"
        write_series(series, np.zeros(SHAPE_ZYX, np.int16), name=case)
        header = read_header(series)
        truth = rng.integers(0, 3, header.grid.shape).astype(np.uint8)
        predicted = np.where(rng.random(header.grid.shape) < 0.2, 0, truth).astype(np.uint8)
        write_segmentation(folder / "out" / f"{case}.dcm", predicted, header, ["Organ", "Tumor"])
        write_segmentation(folder / "set" / case / "seg.dcm", truth, header, ["organ", "tumor"])
        write_scan(folder / "values" / f"{case}.nii.gz", values[predicted], header.grid)
        write_scan(folder / "raw" / "labelsTr" / f"{case}.nii.gz", values[truth], header.grid)
    return folder


class Study:
    """A copy of them."""

    def __init__(self, folder):
        self.folder, self.predictions, self.truth = folder, folder / "out", folder / "raw" / "labelsTr"

    def declare(self, labels=LABELS):
        text = json.dumps({"labels": {name: value for value, name in labels.items()}})
        (self.folder / "raw" / "dataset.json").write_text(text)

    def table(self):
        rows = [f"{case},{case}/CT,{case}/seg.dcm" for case in ("a", "b")]
        (self.folder / "set" / "cases.csv").write_text("\n".join(["case,image,label", *rows]) + "\n")
        return self.folder / "set"


@pytest.fixture
def study(written, tmp_path):
    return Study(shutil.copytree(written, tmp_path / "study"))


def test_segments_have_the_scores_of_the_same_classes_as_values(study):
    study.declare()
    named, expected = (
        evaluate(predictions, study.truth) for predictions in (study.predictions, study.folder / "values")
    )
    assert named.scores == expected.scores
    assert [score.case_id for score in named.scores] == ["a", "b"]
    assert 0.8 < named.scores[0].dice["tumor"] < 0.95


def test_values_are_compared_with_segments_as_truth(study):
    study.declare()
    swapped = evaluate(study.truth, study.predictions, labels=study.folder / "raw")
    expected = evaluate(study.predictions, study.truth)
    assert [score.dice for score in swapped.scores] == [score.dice for score in expected.scores]


def test_segments_on_both_sides_lie_on_the_scan_that_the_data_set_lists(study):
    study.declare()
    expected = evaluate(study.predictions, study.truth).scores
    found = evaluate(study.predictions, study.table(), labels=study.folder / "raw").scores
    assert [score.dice for score in found] == [score.dice for score in expected]
    assert found[0].hd95_mm == pytest.approx(expected[0].hd95_mm)


def test_segments_on_a_server_are_brought_here(study, monkeypatch):
    monkeypatch.setattr(staging, "_stages", {})
    expected = evaluate(study.predictions, study.table()).scores
    files = [study.folder / "set" / case / "seg.dcm" for case in ("a", "b")]
    contents = {file: file.rename(study.folder / f"{file.parent.name}.content") for file in files}
    for file in files:
        file.touch()
    staging.register(study.folder / "set", lambda path, is_whole: contents.get(path, path))
    assert evaluate(study.predictions, study.table()).scores == expected


def test_names_that_nothing_declares_are_classes_of_their_own(study):
    found = evaluate(study.predictions, study.table())
    assert list(found.scores[0].dice) == ["Organ", "Tumor"]
    study.declare()
    assert list(found.scores[0].dice.values()) == list(evaluate(study.predictions, study.truth).scores[0].dice.values())


def test_segments_on_both_sides_need_a_scan(study):
    with pytest.raises(InputError, match=r"without the grid of their scan; as the truth, name a data set that lists"):
        evaluate(study.predictions, study.predictions)


def test_names_beside_values_need_a_declaration(study):
    with pytest.raises(InputError, match=r"Organ, Tumor.*has values; say with labels=\.\.\. which is which"):
        evaluate(study.predictions, study.truth)


def test_other_names_are_refused_with_those_that_were_found(study):
    study.declare({0: "background", 3: "liver", 7: "spleen"})
    with pytest.raises(InputError, match=r"none of the classes liver, spleen is among its structures \(Organ, Tumor\)"):
        evaluate(study.predictions, study.truth)


def test_a_slice_of_a_scan_is_not_a_segmentation(study):
    study.declare()
    (study.predictions / "a.dcm").write_bytes(next((study.folder / "set" / "a" / "CT").iterdir()).read_bytes())
    found = evaluate(study.predictions, study.truth)
    assert "neither SEG nor RTSTRUCT" in found.refused["a"]
    assert [score.case_id for score in found.scores] == ["b"]
