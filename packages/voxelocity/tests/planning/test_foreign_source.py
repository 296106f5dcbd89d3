"""What a training takes over from models of nnU-Net and bundles: networks as data, spacings, intensities."""

import json

import numpy as np
import pytest
import torch
from infer.models.test_bundle import (
    CROPPED,
    INVERSE,
    SIGMOID,
    SPACED,
    THRESHOLD,
    TURNED,
    UNET,
    WINDOWED,
    config,
    network_of,
)
from infer.models.test_bundle import save as save_bundle
from infer.models.test_bundle_kinds import LABEL_MAP, NEAREST
from infer.models.test_nnunet import plans
from infer.models.test_nnunet import save as save_nnunet
from monai.networks import nets

import voxelocity as vx
from voxelocity.infer import open_model
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.models.bundle_network import ShapedNetwork
from voxelocity.planning.foreign_source import foreign_source
from voxelocity.step import build_network
from voxelocity.training.source_model import SourceModel
from voxelocity_observe.core.errors import InputError

PREFIX = "data.prepare."
SHAPE = {key: value for key, value in UNET.items() if key != "_target_"} | {"out_channels": 3}


@pytest.fixture
def nnunet(tmp_path):
    return foreign_source(open_model(save_nnunet(tmp_path / "results") / "fold_0"))


def test_nnunets_axes_are_turned_to_ours(nnunet, tmp_path):
    # nnU-Net has (z, y, x).
    assert nnunet.patch == (12, 16, 8)
    assert nnunet.keys[f"{PREFIX}spacing_mm"] == [1.2, 1.0, 3.5]
    assert nnunet.keys[f"{PREFIX}orientation"] == "keep"
    assert nnunet.network.strides == ((2, 2, 1), (2, 2, 2))
    assert nnunet.network.divisor == (4, 4, 2)
    theirs = open_model(tmp_path / "results" / "fold_0").network
    ours = build_network(nnunet.network, num_channels=1, num_classes=3, seed=0).eval()
    ours.load_state_dict(dict(nnunet.weights), strict=False)
    image = torch.randn(1, 1, 12, 16, 8)
    torch.testing.assert_close(
        ours(image).permute(0, 1, 4, 3, 2), theirs(image.permute(0, 1, 4, 3, 2)), atol=1e-4, rtol=1e-4
    )


def test_nnunets_intensities_are_those_of_its_plan(nnunet, tmp_path):
    found = {key.rpartition(".")[2]: value for key, value in nnunet.keys.items() if ".intensity." in key}
    assert found == {"mode": "window", "low": -100.0, "high": 220.0, "mean": 40.0, "std": 60.0}
    described = plans(configuration={"normalization_schemes": ["RescaleTo01Normalization"]})
    other = foreign_source(open_model(save_nnunet(tmp_path / "other", described=described) / "fold_0"))
    assert not [key for key in other.keys if ".intensity." in key]
    assert other.notes == ("it normalizes by RescaleTo01Normalization, so our rule chooses",)


def test_several_folds_are_no_single_network(tmp_path):
    folder = save_nnunet(tmp_path / "results", folds=(0, 1))
    with pytest.raises(InputError, match=r"holds several networks, .* name the folder of one fold, such as fold_0"):
        foreign_source(open_model(folder))


def test_a_bundle_gives_its_network_spacing_and_window(tmp_path):
    folder = save_bundle(tmp_path / "bundle", config(TURNED, WINDOWED, CROPPED, SPACED))
    found = foreign_source(open_model(folder))
    assert dict(found.network.architecture) == {
        "class": "UNet", "spatial_dims": 3, "channels": [4, 8], "strides": [2], "norm": "batch",
    }  # fmt: skip
    assert found.network.norm == "batch"
    assert found.patch == (16, 12, 8)
    assert {key.removeprefix(PREFIX): value for key, value in found.keys.items()} == {
        "orientation": "RAS", "crop": "nonzero", "spacing_mm": [1.3, 1.0, 2.1], "intensity.mode": "window",
        "intensity.low": -100.0, "intensity.high": 200.0, "intensity.mean": -100.0, "intensity.std": 300.0,
    }  # fmt: skip
    network = build_network(found.network, num_channels=1, num_classes=3, seed=0)
    network.load_state_dict(dict(found.weights))


@pytest.mark.parametrize(("to", "values"), [((-1.0, 1.0), (-1.0, 0.0, 1.0)), ((None, None), (0.0, 0.5, 1.0))])
def test_a_window_scales_as_the_bundle_does(to, values, tmp_path):
    scaled = {**WINDOWED, "b_min": to[0], "b_max": to[1]}
    found = foreign_source(open_model(save_bundle(tmp_path / "bundle", config(TURNED, scaled)))).keys
    mean, std = (found[f"{PREFIX}intensity.{key}"] for key in ("mean", "std"))
    np.testing.assert_allclose((np.array([-100.0, 50.0, 200.0]) - mean) / std, values, atol=1e-6)


def test_what_a_bundle_does_otherwise_is_said(tmp_path):
    steps = ({**WINDOWED, "clip": False}, {"_target_": "ScaleIntensityd", "keys": "@keys"})
    found = foreign_source(open_model(save_bundle(tmp_path / "bundle", config(TURNED, *steps))))
    assert found.notes == (
        "its ScaleIntensityRanged keeps intensities beyond -100 to 200, which are clipped here",
        "its ScaleIntensityd has no counterpart here",
    )
    statistics = {"_target_": "NormalizeIntensityd", "keys": ["image"], "nonzero": True}
    keys = foreign_source(open_model(save_bundle(tmp_path / "second", config(TURNED, statistics)))).keys
    assert keys[f"{PREFIX}intensity.mode"] == "zscore"
    assert keys[f"{PREFIX}intensity.nonzero_only"] is True
    two = {"weights": nets.UNet(**{**SHAPE, "in_channels": 2}).state_dict(), "num_channels": 2}
    for is_own, notes in ((True, ()), (False, ("takes all channels as one, and here each is scaled by itself",))):
        values = config(TURNED, {**statistics, "channel_wise": is_own}, network={**UNET, "in_channels": 2})
        found = foreign_source(open_model(save_bundle(tmp_path / f"{is_own}", values, **two)))
        assert found.notes == tuple(f"its NormalizeIntensityd {text}" for text in notes)
    for stages, is_otherwise in (((CROPPED, statistics), False), ((statistics, CROPPED), True)):
        notes = foreign_source(
            open_model(save_bundle(tmp_path / f"crop {is_otherwise}", config(TURNED, *stages)))
        ).notes
        assert any("CropForegroundd keeps what is above 0 once scaled" in note for note in notes) is is_otherwise


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"_target_": "UNETR"}, ("for one patch size", "SegResNet, SegResNetDS, SwinUNETR", "voxelocity predict")),
        ({"_target_": "DiNTS"}, ("network.name=dints with network.paths",)),
        ({"_target_": "FlexibleUNet"}, ("which cannot be fine-tuned here: its encoder comes",)),
        ({"_target_": "MedNeXt"}, ("its levels, which the rules of a plan need, are not described",)),
        ({"spatial_dims": 2}, ("a 2-D network", "start from a 3-D model")),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(next(iter(value.values()))),
)
def test_networks_that_no_training_can_continue_say_why_and_what_can(tmp_path, changed, facts):
    model = open_model(save_bundle(tmp_path / "bundle", config(TURNED)))
    path = model.folder / "configs" / "inference.json"
    values = json.loads(path.read_text())
    values["network_def"] |= changed
    path.write_text(json.dumps(values))
    with pytest.raises(InputError) as refused:
        foreign_source(model)
    assert all(fact in str(refused.value) for fact in facts), refused.value


OVERLAPPING = config(TURNED, SPACED, post=(SIGMOID, THRESHOLD, NEAREST, LABEL_MAP))
CHOSEN = {**LABEL_MAP, "func": "$lambda x: torch.where(x[[1]] > 0, 4, 0)"}


@pytest.mark.parametrize(
    ("described", "classes"),
    [
        (OVERLAPPING, ("edema", "core", "ball")),
        (config(TURNED, SPACED, post=(SIGMOID, THRESHOLD, NEAREST, CHOSEN)), ("edema", "ball", "core")),
        (config(TURNED, SPACED, post=(SIGMOID, INVERSE, THRESHOLD), num_classes=1), ("ball",)),
    ],
    ids=["every channel, in another order", "one of three", "one and the background"],
)
def test_a_run_continues_every_channel_whatever_the_bundle_makes_of_them(tmp_path, described, classes):
    folder = save_bundle(tmp_path / "bundle", described, classes=classes, weights=network_of(len(classes)).state_dict())
    theirs = open_model(folder).network
    assert isinstance(theirs, ShapedNetwork)
    source = SourceModel.open(folder, overrides={})
    spec = PredictionSpec.parse(
        {
            "channels": ["CT"], "labels": {0: "background", 1: "ball", 2: "core"},
            "window": {"shape_voxel": [16, 12, 8]}, "precision": {"compute": "float32"},
        },
        where="a test",
    )  # fmt: skip
    ours = build_network(source.network, num_channels=1, num_classes=3, seed=5)
    done = source.take_over(ours, source.network, spec)
    assert (done.initialized, done.moved) == ((), ())
    image = torch.randn(1, 1, 16, 12, 8)
    with torch.no_grad():
        found, expected = ours.eval()(image), theirs.network.eval()(image)
    kept = [name for name in spec.class_names if name in classes]
    assert f"classes taken over: {', '.join(kept)}" in done.text()
    for name in kept:
        torch.testing.assert_close(found[:, spec.class_names.index(name)], expected[:, classes.index(name)])


def test_windows_of_whole_scans_leave_the_patch_to_the_rules(tmp_path, tiny_msd):
    described = config(TURNED, SPACED, roi_size=[-1, -1, -1])
    folder = save_bundle(tmp_path / "bundle", described)
    assert foreign_source(open_model(folder)).patch == (0, 0, 0)
    planned = vx.plan(vx.open(tiny_msd), start_from=folder, device="cpu", overrides={"train.steps": 1})
    patch = next(choice for choice in planned.choices if choice.key == "data.patch.shape_voxel")
    assert min(patch.value) > 0
    assert str(folder) not in patch.reason
