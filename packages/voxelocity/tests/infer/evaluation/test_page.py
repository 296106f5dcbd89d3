from __future__ import annotations

import csv
import json

import pytest
from infer.evaluation.conftest import PREDICTED, save

from shared.page import Page, assert_accessible, assert_golden, assert_safe
from voxelocity.infer.evaluation import evaluate, write_evaluation


@pytest.fixture
def evaluation(folders, tmp_path, monkeypatch):
    """Two folds, with a case that cannot be compared, a missing one and one too many; paths are relative."""
    monkeypatch.chdir(tmp_path)
    predictions, truth = folders
    for case in ("d", "e"):
        save(truth, {case: PREDICTED["a"]})
    save(predictions, {"d": PREDICTED["a"][:-1], "x": PREDICTED["a"]})
    (predictions / "notes.txt").write_text("")
    (tmp_path / "fold_1").mkdir()
    (predictions / "c.nii.gz").rename(tmp_path / "fold_1" / "c.nii.gz")
    return evaluate(["predicted", "fold_1"], "raw/labelsTr")


def test_the_page_reads_as_agreed(evaluation, tmp_path):
    write_evaluation(evaluation, tmp_path / "out")
    page = Page((tmp_path / "out" / "evaluation.html").read_text(encoding="utf-8"))
    assert_safe(page)
    assert_accessible(page)
    assert_golden(page, "evaluation")


def test_figures_are_the_same_as_json_and_as_a_table(evaluation, tmp_path):
    write_evaluation(evaluation, tmp_path / "out")
    plain = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    with (tmp_path / "out" / "evaluation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert plain["format"] == "voxelocity evaluation"
    assert plain["missing"] == ["e"]
    assert plain["extra"] == ["predicted/x.nii.gz"]
    assert list(plain["refused"]) == ["d"]
    assert plain["nsd_tolerance_mm"] == 3.0
    assert [(row["case"], row["class"]) for row in rows] == [(c, name) for c in "abc" for name in ("organ", "tumor")]
    figures = {case["case_id"]: case for case in plain["cases"]}
    for row in rows:
        of_class = figures[row["case"]]["classes"][row["class"]]
        for key in ("dice", "hd95_mm", "nsd", "truth_ml", "difference_ml", "difference_share"):
            assert row[key] == ("" if of_class[key] is None else str(of_class[key]))
    missed = figures["c"]["classes"]["tumor"]
    assert (missed["difference_share"], missed["hd95_mm"], missed["nsd"]) == (-1.0, None, 0.0)
    assert figures["b"]["classes"]["tumor"]["difference_share"] is None
