"""A run's network in a results folder of nnU-Net: the same logits, and what nnU-Net has no counterpart for."""

import json
import re

import numpy as np
import pytest
import torch

from shared.small_predictor import scans, small_spec
from voxelocity.core.requests.export import ExportRequest
from voxelocity.infer import open_model, predict_files, save_model
from voxelocity.nnunet import export as exporting
from voxelocity.nnunet.export import export_nnunet
from voxelocity.step import build_network
from voxelocity_observe.core.errors import ExportError, InputError, OutputError

CPU = torch.device("cpu")
LEVELS = {
    "equal axes": [[2, 2, 2], [2, 2, 2]],
    "thick slices": [[2, 2, 1], [2, 2, 1], [2, 2, 2]],
    "one axis last": [[2, 2, 2], [1, 2, 2], [1, 1, 1]],
}


def save_run(folder, *, strides=LEVELS["equal axes"], network=None, **changes):
    widths = [4, 6, 8, 10][: len(strides) + 1]
    spec = small_spec(
        **{
            "channels": ["CT", "PET"],
            "labels": {0: "background", 1: "ball", 2: "core"},
            "network": {"name": "dynunet", "widths": widths, "strides": strides, **(network or {})},
            "prepare": {"spacing_mm": [1.0, 1.5, 2.0], "crop": "nonzero", "orientation": "keep"},
            "window": {"shape_voxel": [16, 8, 24], "mirror_axes": [0, 2]},
            **changes,
        }
    )
    folder.mkdir()
    built = build_network(spec.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=2)
    save_model(folder, built, spec)
    return spec


def export(folder, out, **changes):
    said = []
    difference = export_nnunet(ExportRequest(run=folder, out=out, to="nnunet", **changes), note=said.append)
    return difference, said


@pytest.mark.parametrize("name", LEVELS)
def test_the_folder_gives_the_logits_of_the_run(name, tmp_path):
    save_run(tmp_path / "run", strides=LEVELS[name])
    difference, said = export(tmp_path / "run", tmp_path / "out")
    assert difference < 1e-5
    assert [text for text in said if "crops" in text] == []
    assert {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")} == {
        "plans.json",
        "dataset.json",
        "fold_0/checkpoint_final.pth",
    }
    plans = json.loads((tmp_path / "out" / "plans.json").read_text())["configurations"]["3d_fullres"]
    assert (plans["patch_size"], plans["spacing"]) == ([24, 8, 16], [2.0, 1.5, 1.0]), "(z, y, x)"
    assert open_model(tmp_path / "out").spec.window.mirror_axes == (0, 2)


def test_intensities_and_classes_mean_the_same_in_both(tmp_path):
    prepare = {"spacing_mm": [1.0, 1.0, 1.0], "crop": "nonzero"}
    intensity = {"mode": "window", "low": -2.0, "high": 1.5}
    save_run(tmp_path / "run", channels=["CT"], prepare={**prepare, "intensity": intensity},
             window={"shape_voxel": [16, 8, 8]})  # fmt: skip
    export(tmp_path / "run", tmp_path / "out")
    (scan,) = scans(tmp_path, 1, shape=(16, 8, 8))
    before, after = (
        predict_files(tmp_path / model, [scan.images[0]], tmp_path / f"of_{model}", device=CPU, num_threads=1)[0]
        for model in ("run", "out")
    )
    assert before.num_voxels == after.num_voxels
    assert len(set(before.num_voxels.values()) - {0}) > 0
    description = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert description["labels"] == {"background": 0, "ball": 1, "core": 2}


def test_overlapping_classes_are_nnunets_regions(tmp_path):
    save_run(tmp_path / "run", region_order=[1, 2], regions={"whole": [1, 2], "core": [2]})
    assert export(tmp_path / "run", tmp_path / "out")[0] < 1e-5
    description = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert description["labels"] == {"background": 0, "whole": [1, 2], "core": [2]}
    assert description["regions_class_order"] == [1, 2]


REFUSED = {
    "network": ({"network": {"name": "unet"}}, "network unet"),
    "stem": ({"network": {"stem_stride": [2, 2, 2]}}, "stem_stride (2, 2, 2)"),
    "residual": ({"network": {"num_res_units": 1}}, "residual blocks"),
    "spacing": ({"prepare": {}}, "spacing_mm keep"),
    "labels": ({"labels": {0: "background", 4: "ball", 2: "core"}}, "labels [0, 2, 4]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nnunet_cannot_say_is_refused_in_words(name, tmp_path):
    changes, fact = REFUSED[name]
    save_run(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=re.escape(fact)):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_nnunet_does_otherwise_is_said(tmp_path):
    save_run(tmp_path / "run", prepare={"spacing_mm": [1.0, 1.0, 1.0]},
             window={"shape_voxel": [16, 8, 24], "overlap": 0.25}, keep_largest=["core"])  # fmt: skip
    _, said = export(tmp_path / "run", tmp_path / "out")
    text = " ".join(said)
    assert "where they have a border of zeros" in text
    assert "Gaussian" not in text
    assert "counts zeros" not in text
    assert "-step_size 0.75" in text
    assert "largest components of core" in text


def test_other_weights_of_windows_and_zeros_left_out_are_said(tmp_path):
    save_run(tmp_path / "run", window={"shape_voxel": [16, 8, 24], "blend": "uniform"},
             prepare={"spacing_mm": [1.0, 1.0, 1.0], "intensity": {"nonzero_only": True}})  # fmt: skip
    _, said = export(tmp_path / "run", tmp_path / "out")
    text = " ".join(said)
    assert "weights windows by a Gaussian of 1/8 of their edge" in text
    assert "counts zeros inside a scan in its z-score" in text


def test_an_export_is_replaced_only_if_asked_and_kept_only_if_it_is_right(tmp_path, monkeypatch):
    save_run(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    with pytest.raises(OutputError, match="out is there; --overwrite replaces an earlier export only"):
        export(tmp_path / "run", tmp_path / "out")
    export(tmp_path / "run", tmp_path / "out", overwrite=True)
    with pytest.raises(OutputError, match="run is there and was not written by this command"):
        export(tmp_path / "run", tmp_path / "run", overwrite=True)
    monkeypatch.setattr(exporting, "_widened", lambda weight, kernel: weight.flip(2))
    with pytest.raises(ExportError, match=r"differ from the run's by .* so nothing was written"):
        export(tmp_path / "run", tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize("given", [{"cases": 3}, {"device": "cpu"}])
def test_options_of_other_exports_are_refused(given, tmp_path):
    (name,) = given
    with pytest.raises(InputError, match=rf"--{name} has no effect with --to nnunet, .*; leave it out"):
        export(tmp_path / "run", tmp_path / "out", **given)


def test_results_of_nnunets_own_training_are_never_replaced(tmp_path):
    save_run(tmp_path / "run")
    trained = tmp_path / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    (trained / "fold_0").mkdir(parents=True)
    (trained / "fold_0" / "checkpoint_final.pth").write_bytes(b"weeks")
    (trained / "plans.json").write_text(json.dumps({"dataset_name": "Dataset004_Hippocampus"}))
    with pytest.raises(OutputError, match=r"is there and was not written by this command; .*: choose another folder"):
        export(tmp_path / "run", trained, overwrite=True)
    assert (trained / "fold_0" / "checkpoint_final.pth").read_bytes() == b"weeks"


def test_nnunets_own_predictor_reads_the_folder_and_gives_the_logits_of_the_run(tmp_path):
    pytest.importorskip("nnunetv2", reason="nnU-Net v2")
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    save_run(tmp_path / "run", strides=LEVELS["thick slices"], window={"shape_voxel": [16, 8, 4]})
    export(tmp_path / "run", tmp_path / "out")
    predictor = nnUNetPredictor(device=CPU, allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(tmp_path / "out"), (0,))
    noise = torch.randn(1, 2, 16, 8, 4, generator=torch.Generator().manual_seed(1))
    ours = open_model(tmp_path / "run").network
    with torch.no_grad():
        theirs = predictor.network.eval()(noise.permute(0, 1, 4, 3, 2)).permute(0, 1, 4, 3, 2)
        np.testing.assert_allclose(theirs, ours(noise), rtol=0, atol=1e-4)


def test_the_command_says_how_nnunet_predicts_with_the_folder(tmp_path, voxelocity):
    save_run(tmp_path / "run")
    ended = voxelocity("export", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--to", "nnunet")
    assert ended.status == 0, ended.err
    assert "nnUNetv2_predict_from_modelfolder" in ended.out
    assert (tmp_path / "out" / "fold_0" / "checkpoint_final.pth").is_file()
