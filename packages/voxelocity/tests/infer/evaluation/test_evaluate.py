"""Scores of predictions on disk: known answers, the values of MONAI and nnU-Net, and everything that has none."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from infer.evaluation.conftest import PREDICTED, SPACING_MM, TRUTH, VALUES, save
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_surface_dice

import voxelocity
from voxelocity.core.scan_formats import format_names
from voxelocity.infer.evaluation import evaluate, pool_runs
from voxelocity.infer.evaluation.page import evaluation_document
from voxelocity_observe.core.errors import InputError


def by_case(evaluation):
    return {score.case_id: score for score in evaluation.scores}


def test_every_case_has_its_scores_and_volumes_under_the_names_of_the_data_set(folders):
    evaluation = evaluate(*folders, tolerance_mm=1.0)
    assert evaluation.labels_from.endswith("raw/dataset.json")
    scores = by_case(evaluation)
    assert list(scores) == ["a", "b", "c"]
    organ, tumor = 6 * 6 * 4 - 8, 8
    shifted = 2 * (5 * 6 * 4 - 8) / (2 * organ)
    assert scores["a"].dice == {"organ": pytest.approx(shifted), "tumor": 1.0}
    assert scores["a"].hd95_mm == {"organ": pytest.approx(1.0), "tumor": 0.0}
    assert scores["a"].nsd == {"organ": 1.0, "tumor": 1.0}
    assert scores["b"].dice == {"organ": 1.0, "tumor": None}
    assert scores["b"].nsd == {"organ": 1.0, "tumor": None}
    assert scores["c"].dice == {"organ": 1.0, "tumor": 0.0}
    assert scores["c"].hd95_mm == {"organ": 0.0, "tumor": None}
    assert scores["c"].nsd == {"organ": 1.0, "tumor": 0.0}
    assert scores["c"].truth_ml["tumor"] == pytest.approx(tumor * 3.0 / 1000)
    assert scores["c"].prediction_ml["tumor"] == 0.0


def test_dice_and_surface_figures_are_those_of_monai(folders, tmp_path):
    rng = np.random.default_rng(1)
    noise = torch.from_numpy(rng.standard_normal((2, 1, 24, 22, 20)).astype(np.float32))
    smooth = torch.nn.functional.avg_pool3d(noise, 5, stride=1, padding=2)
    truth, predicted = (smooth[:, 0] > 0.05).numpy().astype(np.uint8)
    save(tmp_path / "p", {"x": predicted})
    save(tmp_path / "t", {"x": truth})
    for tolerance_mm in (0.9, 1.6, 2.1):
        (score,) = evaluate(tmp_path / "p", tmp_path / "t", tolerance_mm=tolerance_mm).scores
        hot = [torch.from_numpy(np.stack([v == 0, v == 1])[None].astype(np.float32)) for v in (predicted, truth)]
        nsd = compute_surface_dice(*hot, class_thresholds=[tolerance_mm], spacing=SPACING_MM)
        assert score.nsd["class 1"] == pytest.approx(float(nsd), abs=1e-6)
    assert 0.2 < score.nsd["class 1"] < 1.0
    assert score.dice["class 1"] == pytest.approx(float(compute_dice(*hot, include_background=False)), abs=1e-6)
    hd95 = compute_hausdorff_distance(*hot, percentile=95, spacing=SPACING_MM)
    assert score.hd95_mm["class 1"] == pytest.approx(float(hd95), abs=1e-5)


def test_dice_is_that_of_nnunet_for_every_class_and_case(folders):
    nnunet = pytest.importorskip("nnunetv2.evaluation.evaluate_predictions")
    reader = pytest.importorskip("nnunetv2.imageio.simpleitk_reader_writer").SimpleITKIO()
    predictions, truth = folders
    for case, score in by_case(evaluate(predictions, truth)).items():
        files = (str(truth / f"{case}.nii.gz"), str(predictions / f"{case}.nii.gz"))
        theirs = nnunet.compute_metrics(*files, reader, [3, 7])["metrics"]
        for value, name in list(VALUES.items())[1:]:
            ours, expected = score.dice[name], theirs[value]["Dice"]
            assert (ours is None) == np.isnan(expected)
            assert ours is None or ours == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("form", ["model.json", "dataset.json", "mapping"])
def test_a_run_a_data_set_or_a_file_names_the_classes(folders, tmp_path, form):
    predictions, truth = folders
    folder = tmp_path / "names"
    folder.mkdir()
    labels = {str(value): name.upper() for value, name in VALUES.items()}
    file = folder / ("names.json" if form == "mapping" else form)
    file.write_text(json.dumps(labels if form == "mapping" else {"labels": labels}))
    found = evaluate(predictions, truth, labels=file if form == "mapping" else folder)
    assert list(found.scores[0].dice) == ["ORGAN", "TUMOR"]
    assert found.labels_from == str(file)


def test_values_that_nothing_declares_are_classes_in_all_cases(folders, tmp_path):
    predictions, truth = folders
    (truth.parent / "dataset.json").unlink()
    evaluation = evaluate(predictions, truth)
    assert evaluation.labels_from == ""
    assert {tuple(score.dice) for score in evaluation.scores} == {("class 3", "class 7")}
    assert by_case(evaluation)["b"].dice == {"class 3": 1.0, "class 7": None}
    assert by_case(evaluation)["b"].truth_ml["class 7"] == 0.0


def test_the_truth_may_be_a_data_set(tiny_msd, tmp_path):
    shutil.copytree(tiny_msd / "labelsTr", tmp_path / "p")
    (tmp_path / "p" / "case_5.nii.gz").unlink()
    evaluation = voxelocity.evaluate(tmp_path / "p", tiny_msd)
    assert [score.mean_dice for score in evaluation.scores] == [1.0] * 5
    assert evaluation.missing == ("case_5",)
    assert list(evaluation.scores[0].dice) == ["ball", "core"]


def test_means_of_what_a_model_has_not_seen_stand_next_to_those_of_all(folders):
    table = folders[0] / "predictions.csv"
    table.write_text("file,division\na.nii.gz,trained on\nb.nii.gz,held out\nz.nii.gz,trained on\n")
    found = evaluate(*folders)
    assert found.trained_on == {"a"}
    plain = evaluation_document(found).to_plain()
    # Organ 1 in both; tumor 0 in one, and in neither truth nor prediction of the other.
    assert plain["mean_dice_not_trained_on"] == 0.5
    assert [case["division"] for case in plain["cases"]] == ["trained on", "held out", ""]
    assert "1 of which the model was trained on; 0.500 over the other 2." in evaluation_document(found).verdict
    # Nor is there a mean of cases that were not trained on, if the training was too short for any.
    short = evaluation_document(replace(found, unlearned={"RUN": "it made no step"}))
    assert short.values["mean_dice_not_trained_on"] is None
    assert short.values["num_trained_on"] == 1
    assert "1 of 3 cases were trained on." in short.notices
    (folders[1] / "extra.nii.gz").write_bytes((folders[1] / "a.nii.gz").read_bytes())
    assert (
        "over 3 of 4 cases, 1 of which the model was trained on; 0.500 over the other 2."
        in evaluation_document(evaluate(*folders)).verdict
    )
    (folders[1] / "extra.nii.gz").unlink()
    table.write_text("file,division\n" + "".join(f"{case}.nii.gz,trained on\n" for case in "abc"))
    document = evaluation_document(evaluate(*folders))
    assert document.verdict.endswith("over 3 cases, all of which the model was trained on.")
    assert document.notices[0].endswith("none was held out.")
    for damaged in (b"file\na.nii.gz\n", b"\xff\xfe,,\n1", b""):
        table.write_bytes(damaged)
        assert evaluation_document(evaluate(*folders)).verdict.endswith("over 3 cases.")


def test_what_has_no_counterpart_is_listed(folders):
    predictions, truth = folders
    (predictions / "b.nii.gz").rename(predictions / "z.nii.gz")
    for name in ("predictions.csv", "predictions.html", "evaluation.csv", "evaluation.json", "notes.txt"):
        (predictions / name).write_text("case\n")
    evaluation = evaluate(predictions, truth)
    assert [score.case_id for score in evaluation.scores] == ["a", "c"]
    assert evaluation.missing == ("b",)
    assert evaluation.extra == (str(predictions / "z.nii.gz"),)
    assert evaluation.others == (str(predictions / "notes.txt"),)


def test_a_case_that_cannot_be_compared_does_not_stop_the_others(folders):
    predictions, truth = folders
    save(predictions, {"a": PREDICTED["a"][:-1]})
    save(predictions, {"b": PREDICTED["b"] * 2})
    evaluation = evaluate(predictions, truth)
    assert [score.case_id for score in evaluation.scores] == ["c"]
    assert "a.nii.gz has (11, 10, 8); resample the latter onto the grid of the former" in evaluation.refused["a"]
    assert "6 (64 voxels)" in evaluation.refused["b"]
    assert "declared are 0, 3, 7" in evaluation.refused["b"]
    save(predictions, PREDICTED, affine=np.diag([1.0, 2.0, 1.6, 1.0]))
    with pytest.raises(InputError, match=r"no case can be compared: .* lie up to 0\.7 mm apart"):
        evaluate(predictions, truth)


def test_files_that_hold_no_class_are_refused(tmp_path):
    folders = [save(tmp_path / name, {"a": TRUTH["a"] * 0}) for name in ("p", "t")]
    with pytest.raises(InputError, match=r"no class can be scored: .* the background; name the classes with labels="):
        evaluate(*folders)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such name")
def test_a_name_that_no_page_can_show_is_refused(folders):
    (folders[0] / "a.nii.gz").rename(folders[0] / os.fsdecode(b"caf\xe9.nii.gz"))
    with pytest.raises(InputError, match=r"caf\\udce9.nii.gz' is not UTF-8.*rename it"):
        evaluate(*folders)


def test_folds_are_pooled_and_a_case_counts_once(folders, tmp_path):
    predictions, truth = folders
    one = save(tmp_path / "fold_0", {"a": PREDICTED["a"]})
    two = save(tmp_path / "fold_1", {name: PREDICTED[name] for name in ("b", "c")}, ending=".nii")
    pooled = evaluate([one, two], truth)
    assert pooled.scores == evaluate(predictions, truth).scores
    assert pooled.folders == {"a": str(one), "b": str(two), "c": str(two)}
    with pytest.raises(
        InputError, match=r"cases that are predicted in two folders.*'a' \(.*fold_0/a.nii.gz and .*predicted"
    ):
        evaluate([one, two, predictions], truth)
    save(two, {"b": PREDICTED["b"]})
    with pytest.raises(InputError, match=r"b\.nii and .*b\.nii\.gz are both case 'b'"):
        evaluate(two, truth)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, t: (p / "nowhere", t), "nowhere does not exist"),
        (lambda p, t: (p, t / "nowhere"), "nowhere does not exist"),
        (lambda p, t: (p / "a.nii.gz", t), "a.nii.gz is not a folder"),
        (lambda p, t: (t.parent, t), f"holds no {format_names()} file"),
        (lambda p, t: ([], t), "no folder of predictions was given"),
    ],
)
def test_folders_that_cannot_be_used_are_named(folders, change, words):
    with pytest.raises(InputError, match=words):
        evaluate(*change(*folders))


def test_a_folder_without_permission_is_named(folders, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match=r"labelsTr cannot be read .Permission denied.; check its permissions"):
        evaluate(*folders)


def test_options_that_cannot_be_used_are_named(folders, tmp_path):
    with pytest.raises(InputError, match=r"tolerance_mm=-1\): give a number of mm from 0"):
        evaluate(*folders, tolerance_mm=-1)
    with pytest.raises(InputError, match=r"declares no classes; name the folder of a finished run"):
        evaluate(*folders, labels=tmp_path)
    save(tmp_path / "other", {"x": TRUTH["a"]})
    with pytest.raises(InputError, match=r"no prediction has a truth of the same name: .*x\.nii\.gz"):
        evaluate(tmp_path / "other", folders[1])


def run(folder, cases, *, classes=("background", "organ"), status="run_finished", unlearned="", **dataset):
    """The folder of a run with these scores."""
    folder.mkdir()
    record = {"dataset": {"classes": list(classes), "held_out": True, "num_validation": len(cases), **dataset}}
    (folder / "run.yaml").write_text(json.dumps(record))
    finish = {"seconds": 1.0, "step": 1, "mean_dice": 0.5, "num_images": 1, "images_per_s": 1.0, "wait_share": 0.0}
    finish["unlearned"] = unlearned
    (folder / "events.jsonl").write_text(
        json.dumps({"event": status, "time_s": 1.0, "budget_s": None, **finish}) + "\n"
    )
    scores = [{"case_id": case, "dice": {"organ": dice}, "nsd": {"organ": 1.0}} for case, dice in cases.items()]
    (folder / "scores.json").write_text(json.dumps({"cases": scores}))
    return folder


def test_runs_are_pooled_from_their_final_validations(tmp_path):
    runs = [run(tmp_path / "f0", {"b": 0.5}), run(tmp_path / "f1", {"a": 0.7}, num_validation=2)]
    pooled = pool_runs(runs)
    assert [(score.case_id, score.dice["organ"]) for score in pooled.scores] == [("a", 0.7), ("b", 0.5)]
    assert pooled.folders == {"a": str(runs[1]), "b": str(runs[0])}
    assert len(pooled.notices) == 1
    # The other one was broken, or took more time than the run had.
    assert "f1 validated 1 of 2 cases; the warnings in its report say why" in pooled.notices[0]


def test_a_headline_of_a_part_of_the_cases_says_so(folders, tmp_path):
    runs = [run(tmp_path / "f0", {"b": 0.5}), run(tmp_path / "f1", {"a": 0.7}, num_validation=2)]
    assert evaluation_document(pool_runs(runs)).verdict == "Mean foreground Dice 0.600 over 2 of 3 cases."
    predictions, truth = folders
    (predictions / "c.nii.gz").unlink()
    assert evaluation_document(evaluate(predictions, truth)).verdict.endswith(" over 2 of 3 cases.")
    # Two of five folds.
    folds = [run(tmp_path / f"g{case}", {case: 0.5}, num_training=4) for case in "ab"]
    assert (
        "0.500 over 2 cases; these runs did not hold out the other 3" in evaluation_document(pool_runs(folds)).verdict
    )
    other = run(tmp_path / "h", {"c": 0.5}, num_training=4, path="/elsewhere")
    pooled = pool_runs([*folds, other])
    assert "validated on 2 data sets" in pooled.notices[0]
    assert pooled.num_not_held_out == 0


def test_networks_that_learned_nothing_have_no_headline(folders, tmp_path):
    good, bad = run(tmp_path / "f0", {"b": 0.5}), run(tmp_path / "f1", {"a": 0.7}, unlearned="it made no step")
    document = evaluation_document(pool_runs([good, bad]))
    assert "No score over 2 cases" in document.verdict
    assert f"{bad} has no score: it made no step." in document.notices
    assert document.values["mean_dice"] is document.values["mean_hd95_mm"] is None
    assert document.values["unlearned"] == {str(bad): "it made no step"}
    assert document.cards[0].value == "n/a"
    # Predictions of such a run, which names the classes.
    labels = {str(value): name for value, name in VALUES.items()}
    (bad / "dataset.json").write_text(json.dumps({"labels": {name: int(value) for value, name in labels.items()}}))
    (bad / "scores.json").write_text(json.dumps({"unlearned": "it made no step", "cases": []}))
    assert "No score over 3 cases" in evaluation_document(evaluate(*folders, labels=bad)).verdict


def test_predictions_carry_the_mark_of_a_network_that_learned_nothing_and_their_own_folder_says_it(folders, tmp_path):
    predictions, truth = folders
    table = "file,division,unlearned\na.nii.gz,trained on,it made no step\nb.nii.gz,held out,it made no step\n"
    (predictions / "predictions.csv").write_text(table)
    document = evaluation_document(evaluate(predictions, truth))
    assert "No score over 3 cases" in document.verdict
    assert f"{predictions} has no score: it made no step." in document.notices
    (division,) = [section.blocks[0] for section in document.sections if section.title == "Trained on, and not"]
    assert {row[2:] for row in division.rows} == {("n/a", "n/a")}
    # The row of a case that now lies in another folder says nothing about it.
    second = tmp_path / "second"
    second.mkdir()
    (predictions / "a.nii.gz").rename(second / "a.nii.gz")
    found = evaluate([predictions, second], truth)
    assert (found.trained_on, [*found.unlearned]) == (frozenset(), [str(predictions)])


def test_a_step_that_was_chosen_on_the_scored_cases_is_said_of_pooled_runs(tmp_path):
    runs = [run(tmp_path / "f0", {"b": 0.5}), run(tmp_path / "f1", {"a": 0.7})]
    assert pool_runs(runs).notices == ()
    for folder, by_all in zip(runs, ("no class", "organ"), strict=True):
        events = (folder / "events.jsonl").read_text()
        chosen = {"event": "keep_largest", "time_s": 0.5, "classes": {"organ": [0.4, 0.5]}}
        (folder / "events.jsonl").write_text(json.dumps(chosen) + "\n" + events)
        (notice,) = pool_runs(runs).notices
        assert "the largest component of organ. Each run chose that on the cases that it is scored on" in notice
        assert f"does it for {by_all} only" in notice


def test_runs_that_cannot_be_pooled_are_named(tmp_path):
    first = run(tmp_path / "f0", {"a": 0.5})
    with pytest.raises(InputError, match=r"cases that were validated by two runs.*'a' \(.*f0 and .*f1"):
        pool_runs([first, run(tmp_path / "f1", {"a": 0.5})])
    with pytest.raises(InputError, match=r"f2 has the classes liver, .*f0 has organ"):
        pool_runs([first, run(tmp_path / "f2", {"b": 0.5}, classes=("background", "liver"))])
    with pytest.raises(InputError, match=r"f3 is unfinished .*voxelocity train --resume"):
        pool_runs([first, run(tmp_path / "f3", {"b": 0.5}, status="other")])
    seen = pool_runs([run(tmp_path / "f4", {"b": 0.5}, held_out=False)])
    assert "validated on the cases it was trained on" in seen.notices[0]


def test_a_folder_of_labels_may_hold_its_dataset_json_and_a_flat_data_set_its_images(folders, tmp_path):
    predictions, truth = folders
    (truth.parent / "dataset.json").rename(truth / "dataset.json")
    for name in ("predictions.csv", "evaluation.csv"):
        (truth / name).write_text("case,file\n")
    assert list(evaluate(predictions, truth).scores[0].dice) == ["organ", "tumor"]
    flat = save(tmp_path / "flat", {"a_label": TRUTH["a"], "a": PREDICTED["a"]})
    (flat / "cases.csv").write_text("image,label\na.nii.gz,a_label.nii.gz\n")
    found = evaluate(predictions, flat)
    assert [(score.case_id, score.dice["class 7"]) for score in found.scores] == [("a", 1.0)]
    assert found.extra == tuple(str(predictions / f"{case}.nii.gz") for case in "bc")


def test_a_prediction_may_have_another_format_than_its_truth(folders):
    sitk = pytest.importorskip("SimpleITK")
    predictions, truth = folders
    expected = evaluate(predictions, truth).scores
    file = predictions / "a.nii.gz"
    sitk.WriteImage(sitk.ReadImage(str(file)), str(predictions / "a.nrrd"))
    file.unlink()
    assert evaluate(predictions, truth).scores == expected


def test_a_prediction_in_another_order_of_axes_is_turned_onto_its_truth_and_that_is_noted(folders):
    predictions, truth = folders
    expected = evaluate(predictions, truth)
    for name in ("a", "b"):
        image = nib.load(predictions / f"{name}.nii.gz")
        codes = nib.orientations.axcodes2ornt("PIL")
        turned = image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(image.affine), codes))
        nib.save(nib.Nifti1Image(np.asarray(turned.dataobj), turned.affine), predictions / f"{name}.nii.gz")
    found = evaluate(predictions, truth)
    assert [(score.dice, score.hd95_mm) for score in found.scores] == [
        (score.dice, score.hd95_mm) for score in expected.scores
    ]
    (notice,) = found.notices
    assert notice.startswith(
        "2 of 3 cases, such as 'a': the truth and the prediction (a.nii.gz) have the same voxel positions"
    )
    assert "as PIL; the latter is reoriented" in notice


def test_predictions_that_nibabel_saved_from_floats_have_the_scores_of_whole_numbers(folders):
    predictions, truth = folders
    expected = evaluate(predictions, truth)
    for name in ("a", "b", "c"):
        image = nib.load(predictions / f"{name}.nii.gz")
        nib.save(nib.Nifti1Image(image.get_fdata(), image.affine, image.header), predictions / f"{name}.nii.gz")
    found = evaluate(predictions, truth)
    assert [score.dice for score in found.scores] == [score.dice for score in expected.scores]
    assert not found.refused
