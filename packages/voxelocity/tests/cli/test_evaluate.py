"""`voxelocity evaluate`: what it prints, writes and ends with."""

from __future__ import annotations

import shutil

from shared.refused import assert_refused


def test_predictions_are_compared_with_a_data_set(voxelocity, tiny_msd, tmp_path):
    shutil.copytree(tiny_msd / "labelsTr", tmp_path / "p")
    ended = voxelocity("evaluate", tmp_path / "p", tiny_msd, "-o", tmp_path / "out", "--tolerance", "1").succeeded()
    assert "Mean foreground Dice 1.000 over 6 cases" in ended.out
    assert "NSD (1 mm)" in ended.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "evaluation.csv", "evaluation.html", "evaluation.json",
    ]  # fmt: skip


def test_a_case_that_cannot_be_compared_shows_in_the_status(voxelocity, tiny_msd, tmp_path):
    shutil.copytree(tiny_msd / "labelsTr", tmp_path / "p")
    (tmp_path / "p" / "case_2.nii.gz").write_bytes(b"")
    ended = voxelocity("evaluate", tmp_path / "p", tiny_msd / "labelsTr", "-o", tmp_path / "out")
    assert ended.status == 1
    assert "1 case could not be compared" in ended.out
    assert "case_2.nii.gz:thefileisempty" in "".join(ended.out.split()), "lines break anywhere in a long path"
    assert "over 5 of 6 cases" in ended.out


def test_a_finished_run_is_pooled_without_a_truth(voxelocity, finished_run, tmp_path):
    ended = voxelocity("evaluate", finished_run, "-o", tmp_path / "out").succeeded()
    assert "over 2 cases" in ended.out
    ended = voxelocity("evaluate", finished_run, "-o", tmp_path / "out", "--tolerance", "2")
    assert_refused(ended, "--tolerance 2.0 is for folders of predictions")
    ended = voxelocity("evaluate", finished_run, tmp_path, "-o", tmp_path / "out")
    assert_refused(ended, f"{finished_run} is a run and {tmp_path} is none")
    assert_refused(voxelocity("evaluate", tmp_path, "-o", tmp_path / "out"), "name the predictions, then the truth")
