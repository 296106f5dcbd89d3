import json
from dataclasses import replace

import pytest
from rich.console import Console

import voxelocity
from voxelocity.planning import make_plan
from voxelocity.recipes.demo import compare, plain
from voxelocity.recipes.demo.compare import fast_overrides, run_demo
from voxelocity.recipes.demo.phantom import make_phantoms


def test_both_sides_get_the_same_network_batch_patch_optimiser_and_split(tmp_path):
    settings = plain.PlainSettings()
    dataset = make_phantoms(tmp_path / "phantoms", num_cases=8, scale=0.15)
    training, held_out, _ = plain.read_cases(dataset, settings)
    overrides = fast_overrides(settings, num_training=len(training))
    planned = make_plan(voxelocity.open(dataset), device="cpu", overrides=overrides)
    plan = planned.plan
    assert plan.train.validate_every_steps == 6, "two epochs of six cases, two a batch"
    assert plan.network.widths == settings.channels
    assert plan.network.strides == tuple((s, s, s) for s in settings.strides)
    assert plan.data.batch_size == settings.images_per_batch * settings.patches_per_image
    assert plan.data.patch.shape_voxel == plan.window.shape_voxel == settings.patch_voxel
    assert plan.optimizer.learning_rate == settings.learning_rate
    assert plan.data.prepare.intensity.low == settings.window_hu[0]
    split = planned.cases.split(settings.fold)
    assert [str(ref.images[0].resolve()) for ref in split.validation] == [case["image"] for case in held_out]
    assert len(split.training) == len(training)


@pytest.mark.slow
def test_the_demo_trains_both_sides_and_shows_them_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_PHANTOM_SCALE", 0.25)
    monkeypatch.setattr(compare, "_NUM_PHANTOMS", 6)
    settings = replace(plain.PlainSettings(), target_dice=0.01, num_workers=0, epochs_per_validation=1)
    result = run_demo(tmp_path / "demo", seed=0, console=Console(quiet=True), settings=settings)
    plainly, fast = result.runs
    assert plainly.seconds_to_target > 0
    assert fast.seconds_to_target > 0
    page = result.page.read_text()
    assert "plain PyTorch + MONAI" in page
    assert "Voxelocity" in page
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert record["target_dice"] == 0.01
    assert [run["label"] for run in record["runs"]] == [plainly.label, fast.label]
