import json
from dataclasses import replace

import pytest
from rich.console import Console

import voxelocity
from voxelocity.planning import make_plan
from voxelocity.recipes.demo import compare, monai_script
from voxelocity.recipes.demo.compare import DemoResult, plan_overrides, run_demo
from voxelocity.recipes.demo.monai_script import ScriptSettings
from voxelocity.recipes.demo.phantom import make_phantoms
from voxelocity.report import LabelledRun


def test_all_sides_get_the_same_network_batch_patch_optimizer_augmentation_and_split(tmp_path):
    settings = ScriptSettings()
    dataset = make_phantoms(tmp_path / "phantoms", num_cases=8, scale=0.15)
    training, held_out, names = monai_script.read_cases(dataset, settings)
    overrides = plan_overrides(settings, num_training=len(training))
    planned = make_plan(voxelocity.open(dataset), device="cpu", overrides=overrides)
    plan = planned.plan
    assert plan.train.validate_every_steps == 6, "two epochs of six cases, two a batch"
    assert plan.network.widths == settings.channels
    assert plan.network.strides == tuple((s, s, s) for s in settings.strides)
    assert plan.data.batch_size == settings.images_per_batch * settings.patches_per_image
    assert plan.data.patch.shape_voxel == plan.window.shape_voxel == settings.patch_voxel
    assert plan.data.prepare.intensity.low == settings.window_hu[0]
    split = planned.cases.split(settings.fold)
    assert [str(ref.images[0].resolve()) for ref in split.validation] == [case["image"] for case in held_out]
    assert len(split.training) == len(training)

    net = monai_script.UNet(spatial_dims=3, in_channels=1, out_channels=4, channels=(4, 8), strides=(2,), norm="batch")
    decayed, kept = monai_script.build_optimizer(net, settings).param_groups
    assert plan.optimizer.learning_rate == decayed["lr"] == kept["lr"]
    assert (0.9, plan.optimizer.second_momentum) == decayed["betas"] == kept["betas"]
    assert (plan.optimizer.weight_decay, 0.0) == (decayed["weight_decay"], kept["weight_decay"])
    assert plan.optimizer.clip_norm == settings.clip_norm

    ours = plan.data.augment
    theirs = {type(transform).__name__: transform for transform in monai_script.augmentation(settings, len(names))}
    assert set(theirs) == {"RandCropByLabelClassesd", "RandAffined", "RandGaussianNoised", "RandScaleIntensityd",
                           "RandShiftIntensityd", "RandAdjustContrastd"}  # fmt: skip
    changing = {name for name, value in ours.model_dump().items() if name.endswith("_probability") and value not in
                (0.0, (0.0, 0.0, 0.0))}  # fmt: skip
    assert changing == {f"{kind}_probability" for kind in
                        ("affine", "noise", "intensity_scale", "intensity_shift", "gamma")}  # fmt: skip
    assert theirs["RandAffined"].prob == ours.affine_probability
    assert theirs["RandGaussianNoised"].prob == ours.noise_probability
    assert theirs["RandScaleIntensityd"].prob == ours.intensity_scale_probability
    assert theirs["RandShiftIntensityd"].prob == ours.intensity_shift_probability
    assert theirs["RandAdjustContrastd"].prob == ours.gamma_probability


@pytest.mark.slow
def test_the_demo_trains_every_side_with_every_seed_and_shows_them_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_PHANTOM_SCALE", 0.25)
    monkeypatch.setattr(compare, "_NUM_PHANTOMS", 6)
    settings = replace(ScriptSettings(), target_dice=0.01, num_workers=0, epochs_per_validation=1)
    result = run_demo(tmp_path / "demo", seed=0, console=Console(quiet=True), settings=settings)
    assert [side[0].label for side in result.sides] == ["MONAI, fast recipe", "MONAI, plain script", "Voxelocity"]
    assert all(run.seconds_to_target > 0 and run.peak_host_bytes > 0 and run.stages for run in result.runs)
    page = result.page.read_text()
    assert all(run.label in page for run in result.runs)
    assert "n = 1" in page
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert record["target_dice"] == 0.01
    assert record["seconds_to_target"] == {run.label: [run.seconds_to_target] for run in result.runs}


def test_the_median_over_the_seeds_stands_with_its_range_and_with_what_was_not_reached(tmp_path):
    runs = tuple(LabelledRun(label="ours", seconds_to_target=seconds) for seconds in (40.0, None, 30.0))
    result = DemoResult(sides=(runs,), target_dice=0.9, page=tmp_path / "demo.html")
    assert result.seed_table.rows == [["ours", "40 s", "30 s to 40 s", "2 of 3", "40 s", "not reached", "30 s"]]
    assert (
        DemoResult(sides=((runs[1], runs[1], runs[0]),), target_dice=0.9, page=tmp_path).runs[0].seconds_to_target
        is None
    )
