"""nnU-Net's plans as keys of ours: what is taken over, what is said of the rest, what is refused."""

import json

import pytest

from voxelocity.data.source import open_cases
from voxelocity.nnunet.plan_keys import shared_keys
from voxelocity.planning import SharedKeys, make_plan
from voxelocity.training.folds import _joined
from voxelocity_observe.core.errors import InputError

from .preprocess.small_raw import write_plans, write_raw

ARCHITECTURE = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 3,
        "features_per_stage": [8, 12, 16],
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [2, 2, 2],
        "n_conv_per_stage_decoder": [2, 2],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
        "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    },
}


def plans_of(folder, *, architecture=None, **changes):
    keys = {**ARCHITECTURE["arch_kwargs"], **(architecture or {})}
    configuration = {"architecture": {**ARCHITECTURE, "arch_kwargs": keys}, **changes.pop("configuration", {})}
    write_plans(folder, configuration=configuration, **changes)
    return folder / "nnUNetPlans.json"


def keys_of(path, *, num_channels=1):
    said = []
    return shared_keys(path, num_channels=num_channels, warn=said.append), said


def test_spacing_patch_batch_intensities_and_network_are_taken_over(tmp_path):
    path = plans_of(tmp_path, spacing=(3.0, 1.0, 0.5), patch=(8, 24, 16))
    found, said = keys_of(path)
    assert said == []
    assert found.reason == "from nnUNetPlans.json"
    # The plans turn (z, y, x) into (z, x, y).
    assert found.values["data.prepare.spacing_mm"] == [1.0, 0.5, 3.0]
    assert found.values["data.patch.shape_voxel"] == found.values["window.shape_voxel"] == [24, 16, 8]
    assert found.values["data.batch_size"] == 2
    assert (found.values["data.prepare.intensity.mode"], found.values["data.prepare.intensity.low"]) == (
        "window",
        -20.5,
    )
    assert found.values["network.widths"] == [8, 12, 16]


def test_a_plan_of_ours_has_them_with_the_file_as_the_reason(tmp_path):
    raw = write_raw(tmp_path / "raw", num=4)
    found, _ = keys_of(plans_of(tmp_path / "plans"))
    planned = make_plan(open_cases(raw), device="cpu", shared=found, overrides={"data.batch_size": 3, "train.steps": 5})
    plan, reasons = planned.plan, {choice.key: choice.reason for choice in planned.choices}
    assert plan.data.patch.shape_voxel == (16, 16, 8)
    assert plan.data.prepare.spacing_mm == (1.0, 1.1, 1.5)
    assert plan.network.strides == ((2, 2, 2), (2, 2, 2))
    assert plan.network.stem_stride == (1, 1, 1)
    assert plan.data.prepare.intensity.std == 33.25
    assert reasons["data.prepare.spacing_mm"] == reasons["network.widths"] == "from nnUNetPlans.json"
    assert plan.data.batch_size == 3
    assert reasons["data.batch_size"].startswith("set by you")


@pytest.mark.parametrize(
    ("architecture", "fact"),
    [
        ({"n_conv_per_stage": [2, 3, 2]}, "convolutions [2, 3, 2]"),
        ({"n_conv_per_stage": [], "n_blocks_per_stage": [1, 3, 4]}, "residual blocks [1, 3, 4]"),
        ({"kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]]}, "kernels [[3, 3, 1], [3, 3, 3], [3, 3, 3]]"),
    ],
)
def test_what_the_network_has_otherwise_is_said(architecture, fact, tmp_path):
    found, said = keys_of(plans_of(tmp_path, architecture=architecture))
    assert len(said) == 1
    assert fact in said[0]
    assert found.values["network.strides"] == [[2, 2, 2], [2, 2, 2]]


def test_another_configuration_is_named_behind_the_file(tmp_path):
    path = plans_of(tmp_path)
    plans = json.loads(path.read_text())
    plans["configurations"]["3d_lowres"] = {"inherits_from": "3d_fullres", "spacing": [4.0, 4.0, 4.0]}
    path.write_text(json.dumps(plans))
    assert keys_of(path.with_name(f"{path.name}:3d_lowres"))[0].values["data.prepare.spacing_mm"] == [4.0, 4.0, 4.0]
    with pytest.raises(InputError, match="has no configuration '3d_none'"):
        keys_of(path.with_name(f"{path.name}:3d_none"))
    with pytest.raises(InputError, match="patch_size"):
        keys_of(path.with_name(f"{path.name}:2d"))


def test_channels_of_different_normalizations_are_refused(tmp_path):
    path = plans_of(tmp_path, channels=("CT", "PET"))
    with pytest.raises(InputError, match=r"normalizes its channels by CTNormalization, ZScoreNormalization; .* one of"):
        keys_of(path, num_channels=2)
    with pytest.raises(InputError, match="2 normalization_schemes"):
        keys_of(path, num_channels=1)


def test_train_hands_them_to_its_run(tmp_path, voxelocity, monkeypatch):
    raw, path, given = write_raw(tmp_path / "raw"), plans_of(tmp_path / "plans"), []

    def run_training(cases, request, context):
        given.append(context.shared)
        raise InputError("stopped before the training")

    monkeypatch.setattr("voxelocity.training.run_training", run_training)
    ended = voxelocity("train", str(raw), "-o", str(tmp_path / "run"), "--plans", str(path))
    assert ended.status == 2
    assert "stopped before the training" in ended.err
    assert given == [keys_of(path)[0]]


def test_folds_share_them_with_what_the_first_one_measured():
    given = SharedKeys(values={"data.batch_size": 2, "data.prepare.crop": "nonzero"}, reason="from nnUNetPlans.json")
    measured = SharedKeys(values={"data.batch_size": 4, "precision.compute": "float32"}, reason="as in the other folds")
    joined = _joined(given, measured)
    assert joined.values == {"data.batch_size": 2, "data.prepare.crop": "nonzero", "precision.compute": "float32"}
    assert _joined(None, measured) is measured
    assert _joined(given, None) is given
