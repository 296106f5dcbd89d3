"""Runs that start from the network of a finished one: what they take over, and what is refused."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

import voxelocity as vx
from voxelocity.infer import load_model, save_model
from voxelocity.report import read_run
from voxelocity.step import build_network
from voxelocity.training import train
from voxelocity.training.source_run import SourceRun, source_run_of_fold
from voxelocity_observe.core.errors import ConfigError, InputError

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
    assert reasons["data.prepare.spacing_mm"] == f"as in {source}, whose weights this run starts from"
    assert reasons["train.steps"].startswith("set by you")
    assert not [text for text in read_run(tuned).warnings if "initialized again" in text]


def test_other_classes_and_channels_begin_with_new_first_and_last_layers(source):
    start = SourceRun.open(source, overrides={}, out=source.parent)
    new = build_network(start.spec.network, num_channels=2, num_classes=4, seed=9)
    fresh = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    said = []
    start.copy_into(new, class_names=("background", "a", "b", "c"), channels=("T1", "T2"), say=said.append)
    (text,) = said
    assert "1 channel and 3 classes, and are initialized again" in text
    again = text.partition("again: ")[2].split(", ")
    for name, tensor in new.state_dict().items():
        expected = fresh[name] if name in again else start.network.state_dict()[name]
        assert torch.equal(tensor, expected), name
    first, *_, last = fresh
    assert first in again
    assert last in again
    assert len(again) < len(fresh) / 2


def test_classes_of_other_names_are_pointed_out(tune, own_msd):
    description = json.loads((own_msd / "dataset.json").read_text())
    description["labels"]["2"] = "kernel"
    (own_msd / "dataset.json").write_text(json.dumps(description))
    (text,) = [text for text in read_run(tune(own_msd)).warnings if "taken over in this order" in text]
    assert "background, ball, core" in text
    assert "background, ball, kernel" in text


def test_channels_and_outputs_that_mean_something_else_are_pointed_out(source):
    start = SourceRun.open(source, overrides={}, out=source.parent)
    said = []
    names, network = start.spec.class_names, copy.deepcopy(start.network)
    start.copy_into(network, class_names=names, channels=("PET",), regions=("whole", "core", "rim"), say=said.append)
    first, last = said
    assert "channels PET; the weights of the first layer" in first
    assert "the classes of" in last
    assert "the overlapping regions whole, core, rim; the weights of the last layer" in last
    regions = {"regions": {"whole": (1, 2), "core": (2,), "rim": (1,)}, "region_order": (1, 2, 1)}
    of_regions = replace(start, spec=start.spec.model_copy(update=regions))
    said.clear()
    of_regions.copy_into(network, class_names=names, channels=start.spec.channels, say=said.append)
    (last,) = said
    assert "the overlapping regions of" in last
    assert (
        f"are ball, core, ball, those of this data set the classes {', '.join(names)}; the weights of the last" in last
    )
    said.clear()
    named = ("whole", "core", "rim")
    of_regions.copy_into(network, class_names=names, channels=start.spec.channels, regions=named, say=said.append)
    assert said == []
    of_regions.copy_into(network, class_names=names, regions=named, say=said.append)
    assert "those of this data set the channels without names" in said[0]


def test_what_a_run_was_trained_on_is_not_held_out_from_one_that_starts_from_it(tune, source, tiny_msd, tmp_path):
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out .*give fold=0,"):
        tune(fold=1)
    assert not (tmp_path / "tuned" / "events.jsonl").exists()
    first, second = tune(fold=0), tmp_path / "second"
    # Also by a run in between.
    with pytest.raises(InputError, match="was trained on 2 of the 2 cases"):
        tune(fold=1, start_from=first, out=second)
    tune(fold="all", start_from=first, out=second)


def test_a_model_keeps_what_the_run_that_it_started_from_was_trained_on(tune, own_msd, source):
    before = load_model(source)[1].division
    for path in [*own_msd.glob("*/case_*.nii.gz")]:
        path.rename(path.with_name(path.name.replace("case", "other")))
    text = (own_msd / "dataset.json").read_text()
    (own_msd / "dataset.json").write_text(text.replace("case_", "other_"))
    after = load_model(tune(own_msd))[1].division
    assert {name.partition("_")[0] for name in after.training} == {"case", "other"}
    assert before.training.items() <= after.training.items()
    assert before.held_out.items() < after.held_out.items()


def test_a_copy_of_the_data_set_is_refused_and_other_files_of_the_same_names_are_a_reason_to_warn(tune, own_msd):
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out"):
        tune(own_msd, fold=1)
    for path in (own_msd / "imagesTr").iterdir():
        image = nib.load(path)
        nib.save(nib.Nifti1Image(np.round(image.get_fdata()).astype(np.float32), image.affine), path)
    with pytest.warns(UserWarning, match=r"cases with the names of 2 of the 2 cases that are held out"):
        tune(own_msd, fold=1)


def test_a_model_that_does_not_keep_its_cases_is_judged_by_its_record(tune, source, own_msd, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(source, old)
    spec = json.loads((old / "model.json").read_text())
    (old / "model.json").write_text(json.dumps({**spec, "division": None}))
    with pytest.raises(InputError, match=r"was trained on 2 of the 2 cases that would be held out .*give fold=0,"):
        tune(fold=1, start_from=old)
    with pytest.warns(UserWarning, match=r"cases with the names of 2 of the 2 cases that are held out"):
        tune(own_msd, fold=1, start_from=old)
    (old / "run.yaml").unlink()
    with pytest.warns(UserWarning, match="does not say which cases it was trained on"):
        tune(start_from=old, out=tmp_path / "from old")


def test_each_fold_starts_from_its_own_fold_where_there_is_one(source, tmp_path):
    folds = tmp_path / "folds"
    shutil.copytree(source, folds / "fold_0")
    assert source_run_of_fold(folds, 0) == folds / "fold_0"
    assert source_run_of_fold(folds, 1) == folds
    assert source_run_of_fold(source, 0) == source
    assert source_run_of_fold(None, 0) is None


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
    spec = load_model(copied)[1]
    save_model(copied, build_network(spec.network, num_channels=1, num_classes=3, seed=5), spec)
    with pytest.raises(InputError, match=r"copied has other weights than when .*begun was started from it"):
        tune(out=begun, start_from=None, resume=True, overrides={})


def test_what_cannot_be_combined_is_refused_before_anything_is_written(tune, source, tmp_path):
    with pytest.raises(ConfigError, match=r"network.widths=\[8, 16\] does not fit the weights .* has \[4, 8\]"):
        tune(overrides={**HARDLY, "network.widths": [8, 16]})
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
    (text,) = [text for text in read_run(tuned).warnings if "initialized again" in text]
    again = text.partition("again: ")[2].split(", ")
    before, after = load_file(source / "model.safetensors"), load_file(tuned / "model.safetensors")
    same = [name for name in before if name not in again and "running" not in name and "tracked" not in name]
    assert same
    for name in same:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-6)
    assert load_model(tuned)[1].channels == ("MRI", "T2")
