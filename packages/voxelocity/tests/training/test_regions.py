"""Overlapping classes from nnU-Net's description to scores: each is learned and judged by itself."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch

import voxelocity as vx
from shared.limits import HANGS_S
from shared.ranks import finish, start_ranks
from voxelocity.core.region import Region
from voxelocity.data.source import open_cases
from voxelocity.infer import load_model
from voxelocity.infer.sinks import ClassMap
from voxelocity.metrics import case_score


@pytest.fixture
def regions(own_msd):
    """Balls with a core, as overlapping classes: everything, and the core alone."""
    description = json.loads((own_msd / "dataset.json").read_text())
    listed = {
        entry["image"].removeprefix("imagesTr/")[:6]: {"images": [entry["image"]], "label": entry["label"]}
        for entry in description["training"]
    }
    (own_msd / "dataset.json").write_text(
        json.dumps(
            {
                "channel_names": {"0": "MRI"},
                "labels": {"background": 0, "whole": [1, 2], "core": 2},
                "regions_class_order": [1, 2],
                "file_ending": ".nii.gz",
                "dataset": listed,
            }
        )
    )
    return own_msd


def test_regions_are_trained_scored_predicted_and_evaluated_by_name(regions, tiny_sets, voxelocity, tmp_path):
    run, out = tmp_path / "run", tmp_path / "predictions"
    steps = ["--set", "train.steps=60", "--set", "optimizer.learning_rate=0.01"]
    told = voxelocity("train", regions, "-o", run, "--device", "cpu", *tiny_sets, *steps)
    assert told.status == 0, told.err
    network, spec = load_model(run)
    assert spec.regions == {"whole": (1, 2), "core": (2,)}
    assert spec.region_order == (1, 2)
    assert network(torch.zeros(1, 1, 16, 16, 16)).shape[1] == 2
    scores = {case["case_id"]: case["dice"] for case in json.loads((run / "scores.json").read_text())["cases"]}
    assert all(set(dice) == {"whole", "core"} for dice in scores.values())
    assert max(dice["whole"] for dice in scores.values()) > 0.5, "learned"
    assert "whole (1+2)" in (run / "report.html").read_text()
    scans = [ref.images[0] for ref in open_cases(regions).split(0).validation]
    assert voxelocity("predict", run, *scans, "-o", out, "--device", "cpu").status == 0
    assert set(np.unique(nib.load(out / scans[0].name).get_fdata())) <= {0, 1, 2}
    for labels in (regions, run):
        judged = tmp_path / f"by_{labels.name}"
        told = voxelocity("evaluate", out, regions / "labelsTr", "-o", judged, "--labels", labels)
        assert told.status == 0, told.err
        found = json.loads((judged / "evaluation.json").read_text())["classes"]
        for name in ("whole", "core"):
            assert found[name]["mean_dice"] == pytest.approx(np.mean([dice[name] for dice in scores.values()]))


def test_nnunet_reads_the_same_from_the_description_and_draws_the_same(regions):
    handling = pytest.importorskip("nnunetv2.utilities.label_handling.label_handling")
    description = json.loads((regions / "dataset.json").read_text())
    theirs = handling.LabelManager(description["labels"], description["regions_class_order"])
    cases = open_cases(regions)
    assert [tuple(np.atleast_1d(region)) for region in theirs.foreground_regions] == [*cases.regions.values()]
    logits = np.random.default_rng(0).normal(size=(2, 5, 6, 7)).astype(np.float32)
    drawn = ClassMap((5, 6, 7), region_order=cases.region_order)
    drawn.take(torch.from_numpy(logits), None, Region(start=(0, 0, 0), stop=(5, 6, 7)))
    wanted = theirs.convert_probabilities_to_segmentation(1.0 / (1.0 + np.exp(-logits)))
    assert np.array_equal(np.array(cases.label_values)[drawn.result()], wanted)


def test_two_ranks_learn_regions_as_one(regions, tiny_sets, voxelocity, tmp_path):
    values = ("train.steps=3", "data.cache.tier=disk", "optimizer.name=sgd", "data.batch_size=4")
    steps = [part for value in values for part in ("--set", value)]
    arguments = ["train", str(regions), "--device", "cpu", *tiny_sets, *steps]
    assert voxelocity(*arguments, "-o", tmp_path / "one").status == 0
    ended = finish(start_ranks(2, [*arguments, "-o", str(tmp_path / "two")], memory=tmp_path), timeout_s=HANGS_S)
    assert [status for status, _, _ in ended] == [0, 0], ended
    one, two = (load_model(tmp_path / name)[0].state_dict() for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_voxels_without_a_known_class_are_neither_learned_nor_scored(own_msd, tiny_sets, voxelocity, tmp_path):
    description = json.loads((own_msd / "dataset.json").read_text())
    description["labels"] = {"0": "background", "1": "ball", "2": "core", "5": "ignore"}
    (own_msd / "dataset.json").write_text(json.dumps(description))
    for path in (own_msd / "labelsTr").iterdir():
        file = nib.load(path)
        label = np.asarray(file.dataobj).copy()
        label[:, : label.shape[1] // 2] = 5
        nib.save(nib.Nifti1Image(label, file.affine), path)
    run, out = tmp_path / "run", tmp_path / "predictions"
    told = voxelocity("train", own_msd, "-o", run, "--device", "cpu", *tiny_sets, "--set", "train.steps=6")
    assert told.status == 0, told.err
    _, spec = load_model(run)
    assert (spec.ignore_value, spec.num_outputs) == (5, 3)
    cases = open_cases(own_msd)
    scans = [ref.images[0] for ref in cases.split(0).validation]
    assert voxelocity("predict", run, *scans, "-o", out, "--device", "cpu").status == 0
    scores = {case["case_id"]: case for case in json.loads((run / "scores.json").read_text())["cases"]}
    for scan in scans:
        prediction = np.asarray(nib.load(out / scan.name).dataobj)
        truth = np.asarray(nib.load(own_msd / "labelsTr" / scan.name).dataobj)
        half = truth.shape[1] // 2
        alone = case_score(
            "a", *(x[:, half:].astype(np.uint8) for x in (prediction, truth)), spec.class_names, (1, 1, 1)
        )
        case = scores[scan.name.removesuffix(".nii.gz")]
        assert case["dice"] == pytest.approx(alone.dice)
        assert case["truth_ml"] == pytest.approx(alone.truth_ml)
    assert voxelocity("evaluate", out, own_msd, "-o", tmp_path / "judged").status == 0
    found = json.loads((tmp_path / "judged" / "evaluation.json").read_text())["classes"]
    assert found["ball"]["mean_dice"] == pytest.approx(np.mean([case["dice"]["ball"] for case in scores.values()]))
    with vx.Feed(cases, vx.plan(cases, overrides={"data.patch.foreground_share": 1.0}).plan.data, device="cpu") as feed:
        assert next(feed).label.max() <= 3


def test_a_run_is_not_continued_with_other_regions(regions, tiny_sets, voxelocity, tmp_path):
    arguments = ["train", regions, "-o", tmp_path / "run", "--device", "cpu", *tiny_sets, "--set", "train.steps=2"]
    assert voxelocity(*arguments).status == 0
    shutil.rmtree(tmp_path / "run" / "model.json", ignore_errors=True)
    path = regions / "dataset.json"
    path.write_text(path.read_text().replace('[1, 2], "core": 2', '[1, 2], "core": 1'))
    told = voxelocity("train", "--resume", tmp_path / "run", "--full-validation")
    assert told.status == 2
    assert "regions" in told.err


def test_regions_are_scored_as_masks_of_their_own():
    numbers = np.random.default_rng(0)
    prediction, truth = numbers.integers(0, 3, (2, 8, 9, 10)).astype(np.uint8)
    names, spacing = ("background", "rest", "core"), (1.0, 1.0, 2.0)
    both = case_score("a", prediction, truth, names, spacing, regions={"whole": (1, 2), "core": (2,)})
    for name, indices in (("whole", (1, 2)), ("core", (2,))):
        masks = [np.isin(classes, indices).astype(np.uint8) for classes in (prediction, truth)]
        alone = case_score("a", *masks, ("background", name), spacing)
        for part in ("dice", "hd95_mm", "nsd", "truth_ml", "prediction_ml"):
            assert getattr(both, part)[name] == getattr(alone, part)[name], part
