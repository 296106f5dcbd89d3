"""Runs that start from a model: what they take over, which scores are marked, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
import yaml
from infer.models.test_bundle import SPACED, TURNED
from infer.models.test_bundle import config as bundle
from infer.models.test_bundle import save as save_bundle
from infer.models.test_nnunet import save as save_nnunet
from rich.console import Console
from safetensors.torch import load_file

import voxelocity as vx
from voxelocity.infer import load_model, save_model
from voxelocity.report import read_run
from voxelocity.report.summary import judged_text
from voxelocity.step import build_network
from voxelocity.training import train
from voxelocity.training.exposure import find_exposed
from voxelocity.training.run_folder import EXPOSED
from voxelocity.training.source_model import SourceModel, _sha256, source_of_fold
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.events import read_events

# So small that a step changes no weight that is worth mentioning.
HARDLY = {"train.steps": 1, "optimizer.learning_rate": 1e-9, "data.cache.tier": "memory"}


@pytest.fixture(scope="module")
def source(tiny_msd, tiny_plan, tmp_path_factory):
    """A finished run of another spacing than that of the data, with a window that no rule chooses."""
    out = tmp_path_factory.mktemp("source") / "run"
    plan = {**tiny_plan, "train.steps": 2, "data.prepare.spacing_mm": [1.5, 1.5, 1.5], "network.norm": "batch"}
    train(vx.open(tiny_msd), out, overrides=plan, device="cpu", console=Console(quiet=True))
    return out


@pytest.fixture
def tune(source, tiny_msd, tmp_path):
    def call(cases=tiny_msd, out=tmp_path / "tuned", start_from=source, **options):
        options = {"overrides": HARDLY, **options}
        return train(
            vx.open(cases), out, start_from=start_from, device="cpu", console=Console(quiet=True), **options
        ).folder

    return call


def test_a_run_starts_from_the_weights_and_the_plan_of_another(tune, source):
    tuned = tune()
    before, after = load_file(source / "model.safetensors"), load_file(tuned / "model.safetensors")
    learned = [name for name in before if "running" not in name and "tracked" not in name]
    for name in learned:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-6)
    plans = [yaml.safe_load((run / "run.yaml").read_text())["plan"] for run in (source, tuned)]
    assert plans[0]["network"] == plans[1]["network"]
    assert plans[1]["network"]["norm"] == "batch"
    assert plans[1]["data"]["prepare"]["spacing_mm"] == [1.5, 1.5, 1.5]
    assert plans[1]["window"]["shape_voxel"] == plans[1]["data"]["patch"]["shape_voxel"] == [16, 16, 16]
    reasons = {choice.key: choice.reason for choice in read_run(tuned).choices}
    for key in ("data.prepare.spacing_mm", "data.patch.shape_voxel", "network.norm"):
        assert reasons[key] == f"taken from {source}, which this run starts from"
    assert reasons["train.steps"].startswith("set by you")
    assert "parameters taken over (100.0%); classes taken over: ball, core" in reasons["start"]
    (event,) = [event for event in read_events(tuned / "events.jsonl") if event["event"] == "start"]
    assert event["folder"] == str(source.resolve())


def test_a_plan_shows_what_a_run_would_take_over(tune, source, tiny_msd, voxelocity, tmp_path):
    planned = vx.plan(vx.open(tiny_msd), start_from=source, overrides=HARDLY, device="cpu")
    keys = {choice.key: (choice.value, choice.reason) for choice in planned.choices}
    tuned = {choice.key: (choice.value, choice.reason) for choice in read_run(tune()).choices}
    for key in ("start", "network.norm", "data.prepare.spacing_mm", "data.patch.shape_voxel"):
        assert keys[key] == tuned[key]
    shown = voxelocity("plan", tiny_msd, "--from", source, "--map", "core=ball", "--device", "cpu").succeeded().out
    assert "100.0%" in shown
    assert "core (from ball)" in " ".join(shown.split())
    assert "trained on 2 of the 2 cases" in voxelocity("plan", tiny_msd, "--from", source, "--fold", 1).err
    two = voxelocity("plan", tiny_msd, "--from", source, "--from", "scratch")
    assert two.status == 2
    assert "a plan is made for one model" in two.err


def test_classes_of_other_names_are_initialized_unless_the_user_maps_them(tune, own_msd, source, tmp_path):
    description = json.loads((own_msd / "dataset.json").read_text())
    description["labels"]["2"] = "kernel"
    (own_msd / "dataset.json").write_text(json.dumps(description))
    text = {}
    for name, options in (("initialized", {}), ("mapped", {"start_map": ["kernel=core"]})):
        tuned = tune(own_msd, out=tmp_path / name, **options)
        text[name] = next(choice.reason for choice in read_run(tuned).choices if choice.key == "start")
        last = [load_file(run / "model.safetensors")["model.2.conv.weight"] for run in (source, tuned)]
        # A transposed convolution, whose second dimension is that of the classes.
        torch.testing.assert_close(last[1][:, :2], last[0][:, :2], rtol=1e-5, atol=1e-6)
        assert torch.allclose(last[1][:, 2], last[0][:, 2], rtol=1e-5, atol=1e-6) is (name == "mapped")
    assert "classes initialized: kernel (the model also has core)" in text["initialized"]
    assert "kernel (from core)" in text["mapped"]
    with pytest.raises(ConfigError, match=r"the model has no channel or class cor, .* background, ball, core"):
        tune(own_msd, out=tmp_path / "wrong", start_map=["kernel=cor"])
    with pytest.raises(ConfigError, match="also give --from"):
        tune(own_msd, out=tmp_path / "wrong", start_map=["kernel=core"], start_from=None)


def test_another_network_of_the_user_takes_the_layers_that_fit(tune, source):
    plan = {**HARDLY, "network.widths": [4, 12]}
    reasons = {choice.key: choice.reason for choice in read_run(tune(overrides=plan)).choices}
    assert reasons["network.widths"] == f"set by you; {source}, which this run starts from, has (4, 8)"
    assert "layers are initialized, because no layer has this name and shape" in reasons["start"]
    share = float(reasons["start"].partition("taken over (")[2].partition("%")[0])
    assert 0.0 < share < 100.0


def test_the_way_down_is_held_for_a_share_of_the_run(tune, source, tmp_path):
    plan = {**HARDLY, "train.steps": 4, "optimizer.learning_rate": 0.01, "optimizer.weight_decay": 0.1}
    before = load_file(source / "model.safetensors")
    for share, is_held in ((0.99, True), (0.5, False)):
        tuned = tune(out=tmp_path / str(share), overrides={**plan, "schedule.frozen_share": share})
        after = load_file(tuned / "model.safetensors")
        assert torch.equal(after["model.0.conv.weight"], before["model.0.conv.weight"]) is is_held
        assert not torch.equal(after["model.2.conv.weight"], before["model.2.conv.weight"])
    with pytest.raises(ConfigError, match=r"frozen_share=0.5 would hold random weights; name a model"):
        tune(out=tmp_path / "none", start_from=None, overrides={**plan, "schedule.frozen_share": 0.5})


def test_what_a_run_was_trained_on_is_not_held_out_from_one_that_starts_from_it(tune, source, tiny_msd, tmp_path):
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out .*give fold=0,"):
        tune(fold=1)
    assert not (tmp_path / "tuned" / "events.jsonl").exists()
    first, second = tune(fold=0), tmp_path / "second"
    # Also by a run in between.
    with pytest.raises(InputError, match="was trained on 2 of the 2 cases"):
        tune(fold=1, start_from=first, out=second)
    tune(fold="all", start_from=first, out=second)


def test_a_model_keeps_what_the_run_that_it_started_from_was_trained_on(tune, own_msd, source, tmp_path):
    before = load_model(source)[1].division
    for path in [*own_msd.glob("*/case_*.nii.gz")]:
        path.rename(path.with_name(path.name.replace("case", "other")))
    text = (own_msd / "dataset.json").read_text()
    (own_msd / "dataset.json").write_text(text.replace("case_", "other_"))
    after = load_model(tune(own_msd))[1].division
    assert {name.partition("_")[0] for name in after.training} == {"case", "other"}
    assert before.training.items() <= after.training.items()
    assert before.held_out.items() < after.held_out.items()
    # Also where the run is continued after its first checkpoint, and whatever became of the model since.
    tuned = tmp_path / "tuned"
    for name in ("model.safetensors", "model.json", "scores.json", "events.jsonl"):
        (tuned / name).unlink()
    source.rename(source.with_name("moved"))
    try:
        tune(own_msd, start_from=None, resume=True, overrides={})
    finally:
        source.with_name("moved").rename(source)
    assert load_model(tuned)[1].division == after


def marks_of(tuned):
    """The marked cases of a run, by its scores and its page, and what its log says of them."""
    facts = read_run(tuned)
    stored = json.loads((tuned / "scores.json").read_text())["cases"]
    marked = {case["case_id"]: case[EXPOSED] for case in stored if EXPOSED in case}
    assert dict(facts.dataset.exposed) == marked
    page = (tuned / "report.html").read_text()
    assert all(f"{case_id} *" in page for case_id in marked)
    assert ("may have learned from" in page) is bool(marked)
    return marked, [text for text in facts.warnings if "may have learned from" in text]


def test_a_copy_of_the_data_set_is_refused_and_scores_of_other_files_of_the_same_names_are_marked(tune, own_msd):
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out"):
        tune(own_msd, fold=1)
    for path in (own_msd / "imagesTr").iterdir():
        image = nib.load(path)
        nib.save(nib.Nifti1Image(np.round(image.get_fdata()).astype(np.float32), image.affine), path)
    tuned = tune(own_msd, fold=1)
    marked, (text,) = marks_of(tuned)
    assert marked == dict.fromkeys(("case_1", "case_4"), "it was trained on a case with this name")
    assert "may have learned from 2 of the 2 held-out cases (case_1, case_4: it was trained on a case" in text
    assert judged_text(read_run(tuned)) == "2 held-out cases, 2 of them marked"
    # It may not stand for them later.
    assert not load_model(tuned)[1].division.held_out.keys() & marked


def test_a_model_that_does_not_keep_its_cases_is_judged_by_its_record(tune, source, own_msd, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(source, old)
    spec = json.loads((old / "model.json").read_text())
    (old / "model.json").write_text(json.dumps({**spec, "division": None}))
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out .*give fold=0,"):
        tune(fold=1, start_from=old)
    marked, _ = marks_of(tune(own_msd, fold=1, start_from=old))
    assert marked.keys() == {"case_1", "case_4"}
    assert marks_of(tune(start_from=old, out=tmp_path / "clean")) == ({}, [])
    (old / "run.yaml").unlink()
    marked, _ = marks_of(tune(start_from=old, out=tmp_path / "from old"))
    assert marked == dict.fromkeys(("case_0", "case_3"), "it does not record its training cases")


def test_each_fold_starts_from_its_own_fold_where_there_is_one(source, tmp_path):
    folds = tmp_path / "folds"
    shutil.copytree(source, folds / "fold_0")
    assert source_of_fold(folds, 0) == folds / "fold_0"
    assert source_of_fold(folds, 1) == folds
    assert source_of_fold(source, 0) == source


def test_a_run_that_was_stopped_starts_from_the_same_weights(tune, source, tiny_msd, tmp_path):
    copied = shutil.copytree(source, tmp_path / "copied")
    whole = tune(start_from=copied)
    begun = shutil.copytree(whole, tmp_path / "begun")
    for name in ("model.safetensors", "model.json", "scores.json", "events.jsonl"):
        (begun / name).unlink()
    shutil.rmtree(begun / "checkpoints")
    tune(out=begun, start_from=None, resume=True, overrides={})
    weights = [json.loads((run / "model.json").read_text())["weights_sha256"] for run in (whole, begun)]
    assert weights[0] == weights[1]
    (begun / "events.jsonl").unlink()
    shutil.rmtree(begun / "checkpoints")
    with pytest.raises(InputError, match=r"was started from .*copied, not from .*source"):
        tune(out=begun, resume=True, overrides={})
    with pytest.raises(ConfigError, match=r"was started with none; leave it out"):
        tune(out=begun, start_from=copied, start_map=["core=ball"], resume=True, overrides={})
    spec = load_model(copied)[1]
    save_model(copied, build_network(spec.network, num_channels=1, num_classes=3, seed=5), spec)
    with pytest.raises(InputError, match=r"copied has other weights than when .*begun was started from it"):
        tune(out=begun, start_from=None, resume=True, overrides={})


def test_what_cannot_be_combined_is_refused_before_anything_is_written(tune, source, tmp_path):
    with pytest.raises(ConfigError, match="2 widths need 1 strides, not 2"):
        tune(overrides={**HARDLY, "network.strides": [[2, 2, 2]] * 2})
    other = {"network.name": "dynunet", "network.widths": [5, 7, 9], "network.strides": [[2, 2, 2]] * 2}
    with pytest.raises(InputError, match=r"no layer of .*run fits the network dynunet of this run"):
        tune(overrides={**HARDLY, **other, "data.patch.shape_voxel": [16, 16, 16]})
    with pytest.raises(InputError, match=r"holds no model.json, so no model was finished there"):
        tune(start_from=tmp_path)
    with pytest.raises(InputError, match=r"start_from=... and out=... both name .*source"):
        tune(out=source, overwrite=True)
    assert not (tmp_path / "tuned").exists()
    assert (source / "model.json").exists()


def test_a_data_set_with_another_channel_and_class_is_trained(tune, own_msd, source):
    description = json.loads((own_msd / "dataset.json").read_text())
    description["labels"]["3"] = "shell"
    description["modality"]["1"] = "T2"
    (own_msd / "dataset.json").write_text(json.dumps(description))
    for file in (own_msd / "imagesTr").iterdir():
        image = nib.load(file)
        voxels = np.asarray(image.dataobj)
        nib.save(nib.Nifti1Image(np.stack([voxels, voxels], axis=-1), image.affine), file)
    tuned = tune(own_msd)
    text = next(choice.reason for choice in read_run(tuned).choices if choice.key == "start")
    assert "channel T2 is new and starts with 0.1 times the mean of the earlier ones" in text
    assert "classes taken over: ball, core; classes initialized: shell" in text
    before, after = load_file(source / "model.safetensors"), load_file(tuned / "model.safetensors")
    assert after["model.0.conv.weight"].shape[1] == 2
    expected = torch.cat([before["model.0.conv.weight"], 0.1 * before["model.0.conv.weight"]], 1)
    torch.testing.assert_close(after["model.0.conv.weight"], expected, rtol=1e-5, atol=1e-6)
    assert load_model(tuned)[1].channels == ("MRI", "T2")


@pytest.mark.parametrize("kind", ["nnU-Net", "MONAI bundle"])
def test_a_run_starts_from_a_model_of_another_toolkit_and_is_used_without_it(kind, tune, tiny_scan, tmp_path):
    if kind == "nnU-Net":
        folder = save_nnunet(tmp_path / "results", labels={"background": 0, "core": 1, "ball": 2}, folds=(0, 1))
    else:
        folder = save_bundle(tmp_path / "bundle", bundle(TURNED, SPACED), classes=("background", "core", "ball"))
    tuned = tune(start_from=folder, fold=1, overrides={**HARDLY, "data.prepare.spacing_mm": [1, 1, 1]})
    facts, record = read_run(tuned), yaml.safe_load((tuned / "run.yaml").read_text())
    reason = next(choice.reason for choice in facts.choices if choice.key == "start")
    assert "parameters taken over (100.0%); channel MRI continues CT; classes taken over: ball, core" in reason
    assert record["plan"]["network"]["name"] == "foreign"
    # Of several folds, the one of the same number.
    place = folder / "fold_1" if kind == "nnU-Net" else folder
    assert record["start"]["folder"] == str(place.resolve())
    marked, _ = marks_of(tuned)
    assert marked == dict.fromkeys(("case_1", "case_4"), "it does not record its training cases")
    (tuned / "events.jsonl").unlink()
    shutil.rmtree(folder)
    network, spec = load_model(tuned)
    assert spec.class_names == ("background", "ball", "core")
    assert network(torch.zeros(1, 1, *spec.window.shape_voxel)).shape[1] == 3


def test_cases_that_nnunet_held_out_are_known_by_its_predictions(tmp_path, tiny_msd):
    folder = save_nnunet(tmp_path / "results", folds=(0, 1))
    for fold, names in ((0, ("case_0", "case_5")), (1, ("case_1", "case_2"))):
        (folder / f"fold_{fold}" / "validation").mkdir()
        for name in (*(f"{name}.nii.gz" for name in names), "summary.json"):
            (folder / f"fold_{fold}" / "validation" / name).touch()
    source = SourceModel.open(folder, overrides={}, out=tmp_path, fold=0)
    # 0 and 3 are held out: one of them by this fold of nnU-Net too, nothing is known of the other.
    assert find_exposed(source, vx.open(tiny_msd), 0) == {"case_3": "it does not record its training cases"}
    assert find_exposed(source, vx.open(tiny_msd), 1) == {
        "case_1": "it was trained on a case with this name", "case_4": "it does not record its training cases",
    }  # fmt: skip
    described = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**described, "numTraining": 4}))
    assert find_exposed(source, vx.open(tiny_msd), 0) == {}
    assert find_exposed(source, vx.open(tiny_msd), "all") == {}


def test_cases_of_nnunet_whose_names_have_points_are_told_apart(tmp_path, own_msd):
    """Names such as UIDs of DICOM, which differ behind the first point."""
    for path in [*own_msd.glob("*Tr/case_*")]:
        path.rename(path.with_name(path.name.replace("case_", "1.2.840.")))
    description = (own_msd / "dataset.json").read_text()
    (own_msd / "dataset.json").write_text(description.replace("case_", "1.2.840."))
    folder = save_nnunet(tmp_path / "results", folds=(0,))
    (folder / "fold_0" / "validation").mkdir()
    for name in ("1.2.840.0.nii.gz", "1.2.840.0.npz", "1.2.840.0.pkl"):
        (folder / "fold_0" / "validation" / name).touch()
    source = SourceModel.open(folder / "fold_0", overrides={}, out=tmp_path, fold=0)
    exposed = find_exposed(source, vx.open(own_msd), 0)
    assert exposed == {"1.2.840.3": "it does not record its training cases"}


def test_weights_of_any_type_have_a_checksum_of_their_bytes():
    halves = {"scale": torch.tensor(0.5, dtype=torch.bfloat16), "weight": torch.ones(2, 3, dtype=torch.bfloat16)}
    changed = {**halves, "scale": torch.tensor(0.25, dtype=torch.bfloat16)}
    assert len({_sha256(weights) for weights in (halves, changed)}) == 2
    assert _sha256({"": torch.ones(3)}) == hashlib.sha256(np.ones(3, np.float32).tobytes()).hexdigest()


def test_a_checkpoint_stands_for_its_folder_and_other_files_are_refused(tmp_path):
    folder = save_nnunet(tmp_path / "results")
    save_nnunet(folder, name="checkpoint_best.pth")
    fold = folder / "fold_0"
    found = SourceModel.open(fold / "checkpoint_final.pth", overrides={}, out=tmp_path)
    assert found.folder == fold
    assert found.weights_sha256 == SourceModel.open(fold, overrides={}, out=tmp_path).weights_sha256
    for name, said in (
        ("checkpoint_best.pth", "also holds checkpoint_final.pth"),
        ("../plans.json", "is a file; --from takes"),
    ):
        with pytest.raises(InputError, match=said):
            SourceModel.open(fold / name, overrides={}, out=tmp_path)
