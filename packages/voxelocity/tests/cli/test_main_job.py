from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest


def write_nifti(path, array, affine, orientation="RAS"):
    """Writes a RAS array with its axes turned, so that each voxel stays where it is in space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array, affine)
    target = nib.orientations.axcodes2ornt(orientation)
    turned = image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(affine), target))
    assert "".join(nib.aff2axcodes(turned.affine)) == orientation
    nib.save(turned, path)


def dice_of(prediction, truth, value):
    one, other = prediction == value, truth == value
    return 2 * (one & other).sum() / (one.sum() + other.sum()) if one.any() or other.any() else 1.0


def check_predictions(scores, predictions, scans, labels, classes):
    """Each prediction lies on its scan's grid and scores what the run said."""
    for case in scores:
        name = f"{case['case_id']}.nii.gz"
        found, scan, truth = (nib.load(folder / name) for folder in (predictions, scans, labels))
        assert found.shape == scan.shape
        np.testing.assert_allclose(found.affine, scan.affine, atol=1e-4)
        assert found.get_data_dtype().kind in "ui"
        voxels, expected = np.asarray(found.dataobj), np.asarray(truth.dataobj)
        assert set(np.unique(voxels)) <= {0, *classes.values()}
        for class_name, value in classes.items():
            assert dice_of(voxels, expected, value) == pytest.approx(case["dice"][class_name], abs=1e-3)


def cases_of(run):
    return json.loads((run / "scores.json").read_text())["cases"]


def test_plan_as_json_gives_every_choice_with_its_reason(voxelocity, tiny_msd):
    told = voxelocity("plan", tiny_msd, "--device", "cpu", "--json", "--set", "train.steps=7").succeeded()
    record = json.loads(told.out)
    assert record["dataset"]["num_cases"] == 6
    assert record["plan"]["train"]["steps"] == 7
    reasons = {choice["key"]: choice["reason"] for choice in record["choices"]}
    assert all(reasons.values())
    assert "set by you" in reasons["train.steps"]
    assert "1 x 1 x 1 mm" in reasons["data.prepare.spacing_mm"]


def test_plan_for_a_person_shows_the_data_and_the_choices(voxelocity, tiny_msd):
    told = voxelocity("plan", tiny_msd, "--device", "cpu").succeeded()
    assert "Tiny" in told.out
    assert "data.patch.shape_voxel" in told.out


def test_a_plan_that_was_stored_trains_the_same_plan_again(voxelocity, tiny_msd, finished_run):
    told = voxelocity("plan", tiny_msd, "--device", "cpu", "--json", "--config", finished_run / "run.yaml").succeeded()
    again = json.loads(told.out)["plan"]
    assert again["network"] == {**again["network"], "name": "unet", "widths": [4, 8]}
    assert again["train"]["steps"] == 40


@pytest.mark.draws
def test_train_and_predict_through_the_command_line_agree(voxelocity, tiny_msd, tiny_sets, tmp_path):
    run, out = tmp_path / "run", tmp_path / "predictions"
    more = ("--set", "train.steps=40", "--set", "optimizer.learning_rate=0.02")
    trained = voxelocity("train", tiny_msd, "-o", run, "--device", "cpu", "--fold", 1, *tiny_sets, *more).succeeded()
    assert trained.err == ""
    scores = cases_of(run)
    assert [case["case_id"] for case in scores] == ["case_1", "case_4"]
    mean = np.mean([dice for case in scores for dice in case["dice"].values()])
    assert mean > 0.1, "otherwise agreement would prove little"
    assert f"Mean foreground Dice {mean:.3f} on 2 held-out cases after" in trained.out
    assert trained.out.splitlines()[-1].endswith(
        f"see {run / 'report.html'}; next: voxelocity predict {run} SCANS -o OUT"
    )
    page = (run / "report.html").read_text()
    assert f"{mean:.3f}" in page

    predicted = voxelocity("predict", run, tiny_msd / "imagesTr", "-o", out, "--device", "cpu").succeeded()
    assert "predicted 6 scans" in predicted.out
    names = {path.name for path in (tiny_msd / "imagesTr").iterdir()}
    assert {path.name for path in out.iterdir()} == {*names, "predictions.csv", "predictions.html"}
    check_predictions(scores, out, tiny_msd / "imagesTr", tiny_msd / "labelsTr", {"ball": 1, "core": 2})


def test_thick_slices_in_odd_orientations_come_back_on_their_own_grid(
    voxelocity, tiny_scan, tiny_sets, tmp_path, monkeypatch
):
    data, run, out = tmp_path / "data", tmp_path / "run", tmp_path / "predictions"
    spacing_mm = (1.0, 1.0, 2.5)
    affine = np.diag([*spacing_mm, 1.0])
    affine[:3, 3] = (-30.0, 12.5, 100.0)
    entries = []
    for index, orientation in enumerate(("PIR", "LAS", "RAS", "PIR", "LAS", "RAS")):
        image, label = tiny_scan(index, shape=(20, 22, 8), spacing_mm=spacing_mm)
        names = {"image": f"imagesTr/case_{index}.nii.gz", "label": f"labelsTr/case_{index}.nii.gz"}
        write_nifti(data / names["image"], image, affine, orientation)
        write_nifti(data / names["label"], label, affine, orientation)
        entries.append({**names, "fold": int(index > 1)})
    description = {"channel_names": {"0": "MRI"}, "labels": {"0": "background", "1": "ball", "2": "core"}}
    (data / "dataset.json").write_text(json.dumps({**description, "training": entries}))
    more = ("--set", "data.prepare.spacing_mm=[1,1.1,1.25]", "--set", "train.steps=40")
    more = (*more, "--set", "optimizer.learning_rate=0.02")
    voxelocity("train", data, "-o", run, "--device", "cpu", *tiny_sets, *more).succeeded()
    scores = cases_of(run)
    assert [case["case_id"] for case in scores] == ["case_0", "case_1"]
    assert min(case["dice"]["ball"] for case in scores) > 0.3, "a turned or shifted prediction would miss the ball"
    predicted = voxelocity("predict", run, data / "imagesTr" / "case_0.nii.gz", data / "imagesTr" / "case_1.nii.gz",
                           "-o", out, "--device", "cpu")  # fmt: skip
    assert predicted.status == 0, predicted.err
    check_predictions(scores, out, data / "imagesTr", data / "labelsTr", {"ball": 1, "core": 2})


def test_a_table_whose_labels_are_0_7_and_200_gets_these_values_back(voxelocity, tiny_scan, tiny_sets, tmp_path):
    data, run, out = tmp_path / "data", tmp_path / "run", tmp_path / "predictions"
    lines = ["image,label,case,fold"]
    for index in range(6):
        image, label = tiny_scan(index)
        write_nifti(data / "scans" / f"case_{index}.nii.gz", image, np.eye(4))
        write_nifti(data / "masks" / f"case_{index}.nii.gz", np.array([0, 7, 200], np.uint8)[label], np.eye(4))
        lines.append(f"scans/case_{index}.nii.gz,masks/case_{index}.nii.gz,case_{index},{index % 3}")
    (data / "cases.csv").write_text("\n".join(lines))
    more = ("--set", "train.steps=40", "--set", "optimizer.learning_rate=0.02")
    voxelocity("train", data / "cases.csv", "-o", run, "--device", "cpu", *tiny_sets, *more).succeeded()
    voxelocity("predict", run, data / "scans", "-o", out, "--device", "cpu").succeeded()
    check_predictions(cases_of(run), out, data / "scans", data / "masks", {"label_7": 7, "label_200": 200})
    found = {int(value) for path in out.glob("*.nii.gz") for value in np.unique(np.asarray(nib.load(path).dataobj))}
    assert found >= {0, 7}, "otherwise no class was predicted at all"


def test_the_report_can_be_made_again(voxelocity, finished_run, tmp_path):
    page = tmp_path / "again.html"
    told = voxelocity("report", finished_run, "-o", page).succeeded()
    assert told.out.strip() == str(page)
    scores = [dice for case in cases_of(finished_run) for dice in case["dice"].values()]
    assert f"{np.mean(scores):.3f}" in page.read_text()
    before = (finished_run / "report.html").read_text()
    assert voxelocity("report", finished_run).status == 0
    assert len((finished_run / "report.html").read_text()) == pytest.approx(len(before), rel=0.1)


def lines_before_training(text):
    lines = text.splitlines()
    return lines[: next(i for i, line in enumerate(lines) if line.startswith("prepared ")) + 1]


def test_few_lines_come_before_the_first_bar_and_all_choices_with_verbose(voxelocity, tiny_msd, tiny_sets, tmp_path):
    asked = ("train", tiny_msd, "--device", "cpu", *tiny_sets, "--set", "train.steps=1")
    lines = lines_before_training(voxelocity(*asked, "-o", tmp_path / "short").succeeded().out)
    assert len(lines) <= 12
    assert [line.split()[0] for line in lines[1:8]] == [
        "data", "patch", "network", "batch", "precision", "cache", "time",
    ]  # fmt: skip
    told = voxelocity(*asked, "-o", tmp_path / "all", "--verbose").succeeded().out
    assert "data.patch.shape_voxel" in told
    assert "CHANGES THE RESULTS" in told
    assert "data.patch.shape_voxel" not in "".join(lines)
