"""The recipe of brain tumors: BraTS folders described, phantoms, scores by two rules, and a training."""

import io
import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from rich.console import Console

from shared.recipe_call import call_of
from voxelocity.core.volume import Grid
from voxelocity.data.source import open_cases
from voxelocity.planning import make_plan
from voxelocity.step import LossConfig
from voxelocity.step import build_loss as our_loss
from voxelocity_lab.bench.race.job import LIMITS, script_job
from voxelocity_lab.bench.race.monai_script import ScriptSettings, _as_tuple, build_loss, build_network, build_optimizer
from voxelocity_lab.recipes.brain import recipe
from voxelocity_lab.recipes.brain.dataset import REGIONS, describe_brains
from voxelocity_lab.recipes.brain.phantom import draw_brain, make_brains
from voxelocity_observe.core.errors import ConfigError, DatasetError, OutputError

SETS = {
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
    "data.patch.shape_voxel": [16, 16, 16],
    "data.batch_size": 2,
    "data.cache.tier": "memory",
    "planner.measure": "never",
    "precision.compute": "float32",
    "train.steps": 10,
    "window.shape_voxel": [16, 16, 16],
}


def write_case(root, name, endings, values=(0, 1, 2, 4)):
    folder = root / name
    folder.mkdir(parents=True)
    for ending in endings:
        image = np.resize(values, (6, 7, 8)) if "seg" in ending else np.ones((6, 7, 8))
        nib.save(nib.Nifti1Image(image.astype(np.int16), np.eye(4)), folder / f"{name}{ending}.nii.gz")


@pytest.mark.parametrize(
    ("endings", "enhancing"),
    [
        (("_flair", "_t1", "_t1ce", "_t2", "_seg"), 4),
        (("_flair", "_t1", "_t1c", "_t2", "_seg_auto_fused"), 4),
        (("-t2f", "-t1n", "-t1c", "-t2w", "-seg"), 3),
    ],
)
def test_folders_of_the_challenge_are_described_whatever_the_year(endings, enhancing, tmp_path):
    for number in range(2):
        write_case(tmp_path / "data", f"BraTS_{number}", endings, values=(0, 1, 2, enhancing))
        # As an archive from a Mac leaves it.
        (tmp_path / "data" / f"BraTS_{number}" / f"._BraTS_{number}{endings[0]}.nii.gz").write_bytes(b"Mac OS X")
    cases = open_cases(describe_brains(tmp_path / "data", tmp_path / "described"))
    assert cases.channels == ("FLAIR", "T1", "T1Gd", "T2")
    whole, core, bright = REGIONS
    assert cases.regions == {whole: (1, 2, enhancing), core: (1, enhancing), bright: (enhancing,)}
    assert cases.region_values == (2, 1, enhancing)
    assert [path.name for path in cases.refs[0].images] == [f"BraTS_0{ending}.nii.gz" for ending in endings[:4]]


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"neither a dataset\.json nor folders of cases"):
        describe_brains(tmp_path, tmp_path / "out")
    write_case(tmp_path / "a", "x", ("_flair", "_t1", "_t2", "_seg"))
    with pytest.raises(DatasetError, match=r"x has 0 files of the contrast T1Gd, .* t1ce or t1c or t1gd; .*x_flair"):
        describe_brains(tmp_path / "a", tmp_path / "out")
    write_case(tmp_path / "b", "x", ("_flair", "_t1", "_t1ce", "_t2"))
    with pytest.raises(DatasetError, match=r"x has 0 labels \(\*seg\*"):
        describe_brains(tmp_path / "b", tmp_path / "out")
    write_case(tmp_path / "c", "x", ("_flair", "_t1", "_t1ce", "_t2", "_seg"), values=(0, 1, 2, 7))
    with pytest.raises(DatasetError, match=r"values \[0, 1, 2, 7\]; BraTS has 1, 2 and 4"):
        describe_brains(tmp_path / "c", tmp_path / "out")


def test_phantoms_have_three_nested_classes_and_some_lack_one(tmp_path):
    cases = open_cases(make_brains(tmp_path, 5, scale=0.15))
    found = [set(np.unique(nib.load(ref.label).get_fdata())) for ref in cases]
    assert found == [{0, 1, 2}, *[{0, 1, 2, 3}] * 3, {0, 1, 2}]
    assert nib.load(cases.refs[0].images[0]).shape == (36, 36, 23)
    before = (tmp_path / "imagesTr" / "brain_001_0002.nii.gz").read_bytes()
    make_brains(tmp_path / "again", 2, scale=0.15)
    assert (tmp_path / "again" / "imagesTr" / "brain_001_0002.nii.gz").read_bytes() == before
    with pytest.raises(OutputError, match="delete it or name another folder"):
        make_brains(tmp_path, 5, scale=0.1)
    with pytest.raises(ConfigError, match=r"scale 2 in slices of 1 mm, 5 of them: use a scale"):
        make_brains(tmp_path / "large", 5, scale=2.0)


def test_phantoms_of_thick_slices_cover_the_same_head(tmp_path):
    (thick, _) = open_cases(make_brains(tmp_path, 2, scale=0.2, slice_mm=3.0))
    label = nib.load(thick.label)
    assert label.shape == (48, 48, 16)
    assert label.header.get_zooms() == (5.0, 5.0, 15.0)


def test_gliomas_are_irregular_vary_in_size_and_have_no_threshold(tmp_path):
    grid, sizes, best = Grid.of((80, 80, 52), np.diag([3.0, 3.0, 3.0, 1.0])), [], []
    for number in range(1, 6):
        channels, classes = draw_brain(grid, number)
        brain = channels[0] > 0
        # Skulls are stripped, and slices at both ends are blank.
        assert not brain[..., [0, -1]].any()
        assert not classes[~brain].any()
        assert all(((image > 0) == brain).all() for image in channels)
        whole = classes > 0
        sizes.append(whole.sum())
        # A ball of this volume has a smaller surface, counted in faces of voxels.
        surface = sum(np.count_nonzero(np.diff(whole, axis=axis)) for axis in range(3))
        assert surface > 1.1 * 1.5 * (36.0 * np.pi) ** (1 / 3) * whole.sum() ** (2 / 3)
        # The contrasts of a tumor go together: bright in FLAIR and in T2.
        flair, t2 = (np.median(channels[index][whole]) - np.median(channels[index][brain]) for index in (0, 3))
        assert flair > 0 < t2
        cuts = [channels[0] > np.percentile(channels[0][brain], percent) for percent in (80, 90, 95, 97)]
        best.append(max(2.0 * (cut & whole).sum() / (cut.sum() + whole.sum()) for cut in cuts))
    assert max(sizes) > 2.0 * min(sizes)
    assert np.mean(best) < 0.75


def test_a_class_in_neither_counts_by_the_challenges_rule_alone():
    table = recipe.score_table([{"whole": 0.8, "rim": None}, {"whole": 0.6, "rim": 0.5}, {"whole": 0.7, "rim": None}])
    assert table.rows == [("whole", "0.700", "0.700", "0"), ("rim", "0.500", "0.833", "2")]
    assert recipe.score_table([{"rim": None}]).rows == [("rim", "n/a", "1.000", "1")]


def test_a_run_may_be_in_the_current_folder(brains, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(recipe._cases(call_of(brains, Path(".")))) == 5


def test_scans_named_as_in_the_challenge_are_trained_on_predicted_and_scored_by_both_rules(brains, tmp_path):
    endings = ("_flair", "_t1", "_t1ce", "_t2")
    for label in sorted((brains / "labelsTr").iterdir()):
        name = label.name.removesuffix(".nii.gz")
        (tmp_path / "data" / name).mkdir(parents=True)
        for channel, ending in enumerate(endings):
            scan = brains / "imagesTr" / f"{name}_{channel:04d}.nii.gz"
            scan.rename(tmp_path / "data" / name / f"{name}{ending}.nii.gz")
        label.rename(tmp_path / "data" / name / f"{name}_seg.nii.gz")
    said = io.StringIO()
    call = call_of(tmp_path / "data", tmp_path / "run", console=Console(file=said, width=200), overrides=SETS)
    recipe.train(call)
    recipe.predict(call)
    assert "Dice by BraTS' rule" in said.getvalue()
    held_out = (tmp_path / "run" / "held_out.csv").read_text().splitlines()
    assert held_out[0] == "case,image_0,image_1,image_2,image_3"
    for case in json.loads((tmp_path / "run" / "scores.json").read_text())["cases"]:
        assert tuple(case["dice"]) == REGIONS
        assert (tmp_path / "run" / "predictions" / f"{case['case_id']}.nii.gz").is_file()
    # Scores of cases that the model does not count as held out are not shown as such.
    model = json.loads((tmp_path / "run" / "model.json").read_text())
    model["division"]["held_out"] = {}
    (tmp_path / "run" / "model.json").write_text(json.dumps(model))
    said.truncate(0)
    recipe.predict(call)
    assert "were not in the data of the training" in said.getvalue()
    assert "Dice by BraTS' rule" not in said.getvalue()


def test_monais_script_trains_the_same_network_with_the_same_loss_and_optimizer(brains):
    cases = open_cases(brains)
    planned = make_plan(cases, overrides={**LIMITS, **recipe.KEYS, **SETS, "window.overlap": 0.25,
                                          "data.augment.ramp_epochs": 0, "network.stem_stride": [1, 1, 1],
                                          "optimizer.average_decay": 0.0})  # fmt: skip
    job = script_job(planned, recipe="fast", target_dice=0.5, budget_s=10.0, epochs_per_validation=1)
    lists = {key: job.pop(key) for key in ("training", "held_out")}
    settings = ScriptSettings(**lists, **{key: _as_tuple(value) for key, value in job.items()})
    assert settings.regions == ((1, 2, 3), (1, 3), (3,))
    network = build_network(settings, 4)
    logits, label = network(torch.rand(1, 4, 16, 16, 16)), torch.randint(4, (1, 1, 16, 16, 16))
    masks = torch.cat([torch.isin(label, torch.tensor(region)) for region in settings.regions], dim=1).float()
    ours = our_loss(LossConfig(name="dice_focal"), regions=settings.regions)(logits, label[:, 0].to(torch.uint8))
    torch.testing.assert_close(build_loss(settings)(logits, masks), ours, rtol=1e-5, atol=1e-6)
    assert type(build_optimizer(network, settings)).__name__ == "Novograd"


def as_challenge(brains, folder, *, has_labels=True):
    """Phantoms under the names of the challenge, as links to files elsewhere."""
    for label in sorted((brains / "labelsTr").iterdir()):
        name = label.name.removesuffix(".nii.gz")
        (folder / name).mkdir(parents=True)
        for channel, ending in enumerate(("_flair", "_t1", "_t1ce", "_t2")):
            scan = brains / "imagesTr" / f"{name}_{channel:04d}.nii.gz"
            (folder / name / f"{name}{ending}.nii.gz").symlink_to(scan)
        if has_labels:
            (folder / name / f"{name}_seg.nii.gz").symlink_to(label)
    return folder


def test_scans_of_other_data_need_no_labels_and_those_of_the_run_are_known_through_links(brains, tmp_path):
    own = as_challenge(brains, tmp_path / "data")
    call = call_of(own, tmp_path / "run", overrides=SETS)
    recipe.train(call)
    assert recipe._origin(call) == own
    recipe.predict(call)
    assert len(list((tmp_path / "run" / "predictions").glob("*.nii.gz"))) == 1, "what was held out"
    other = as_challenge(brains, tmp_path / "other", has_labels=False)
    recipe.predict(call_of(other, tmp_path / "run"))
    assert len(list((tmp_path / "run" / "predicted_other" / "predictions").glob("*.nii.gz"))) == 5


def test_a_refused_command_leaves_the_description_of_the_run(brains, tmp_path):
    own = as_challenge(brains, tmp_path / "data")
    call = call_of(own, tmp_path / "run")
    recipe._cases(call)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(f"dataset:\n  path: {tmp_path / 'run-data'}\n")
    before = (tmp_path / "run-data" / "dataset.json").read_bytes()
    other = as_challenge(brains, tmp_path / "other")
    (other / "brain_000").rename(other / "another")
    with pytest.raises(ConfigError, match=r"run-data describes the cases of a run, and .*other has others; choose ano"):
        recipe.train(call_of(other, tmp_path / "run", resume=True))
    assert (tmp_path / "run-data" / "dataset.json").read_bytes() == before


def test_phantoms_are_drawn_next_to_the_run_and_a_target_ends_the_training(tmp_path):
    call = call_of(Path("phantoms:0.1:5"), tmp_path / "run", overrides=SETS, target_dice=0.001)
    recipe.train(call)
    assert len(open_cases(tmp_path / "run-phantoms")) == 5
    assert "target_dice: 0.001" in (tmp_path / "run" / "run.yaml").read_text()
    files = sorted((tmp_path / "run-phantoms" / "labelsTr").iterdir())
    times = [path.stat().st_mtime_ns for path in files]
    recipe.predict(call)
    assert [path.stat().st_mtime_ns for path in files] == times
    with pytest.raises(ConfigError, match=r"predicts as it was trained, but got window.overlap=0\.75 where 0\.6 is st"):
        recipe.predict(replace(call, overrides={"window.overlap": 0.75}))


def test_parts_of_tumors_in_a_decathlon_data_set_become_regions(tmp_path):
    task, entries = tmp_path / "Task01_BrainTumour", []
    for part in ("imagesTr", "labelsTr"):
        (task / part).mkdir(parents=True)
    for number in range(2):
        nib.save(nib.Nifti1Image(np.ones((6, 7, 8, 4), np.int16), np.eye(4)), task / f"imagesTr/B_{number}.nii.gz")
        label = np.resize([0, 1, 2, 3], (6, 7, 8)).astype(np.uint8)
        nib.save(nib.Nifti1Image(label, np.eye(4)), task / f"labelsTr/B_{number}.nii.gz")
        entries.append({"image": f"./imagesTr/B_{number}.nii.gz", "label": f"./labelsTr/B_{number}.nii.gz"})
    names = ("background", "edema", "non-enhancing tumor", "enhancing tumour")
    channels = ("FLAIR", "T1w", "t1gd", "T2w")
    description = {
        "name": "BRATS",
        "modality": {str(number): name for number, name in enumerate(channels)},
        "labels": {str(value): name for value, name in enumerate(names)},
        "training": entries,
    }
    (task / "dataset.json").write_text(json.dumps(description))
    cases = open_cases(describe_brains(task, tmp_path / "described"))
    whole, core, bright = REGIONS
    assert cases.regions == {whole: (1, 2, 3), core: (2, 3), bright: (3,)}
    assert cases.region_values == (1, 2, 3)
    assert cases.channels == channels
    assert [path.name for path in cases.refs[1].images] == ["B_1.nii.gz"]
    # So do folds that the data set declares.
    held_out = {"B_0": 1, "B_1": 0}
    splits = [{"train": [name for name in held_out if held_out[name] != fold],
               "val": [name for name in held_out if held_out[name] == fold]} for fold in range(2)]  # fmt: skip
    (task / "splits_final.json").write_text(json.dumps(splits))
    assert {ref.case_id: ref.fold for ref in open_cases(describe_brains(task, tmp_path / "split"))} == held_out
    # What already has regions stays.
    assert describe_brains(tmp_path / "described", tmp_path / "again") == tmp_path / "described"
