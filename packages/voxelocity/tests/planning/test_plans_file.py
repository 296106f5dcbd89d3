"""nnU-Net's plans as keys of ours: what is taken over, what is said of the rest, what is refused."""

import json

import pytest
from nnunet.preprocess.small_raw import write_plans, write_raw

from voxelocity.core.requests.train import TrainRequest
from voxelocity.data.source import open_cases
from voxelocity.planning import SharedKeys, make_plan
from voxelocity.planning.plans_file import plans_keys
from voxelocity_observe.core.errors import ConfigError, InputError

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
_BEGINNING = '{"transpose_forward": [0, 1, 2], "configurations":'


def plans_of(folder, *, architecture=None, **changes):
    keys = {**ARCHITECTURE["arch_kwargs"], **(architecture or {})}
    configuration = {"architecture": {**ARCHITECTURE, "arch_kwargs": keys}, **changes.pop("configuration", {})}
    write_plans(folder, configuration=configuration, **changes)
    return folder / "nnUNetPlans.json"


def keys_of(path, *, num_channels=1):
    return plans_keys(path, num_channels=num_channels)[0]


def test_spacing_patch_batch_intensities_and_network_are_taken_over(tmp_path):
    path = plans_of(tmp_path, spacing=(3.0, 1.0, 0.5), patch=(8, 24, 16))
    found, reasons = plans_keys(path, num_channels=1)
    assert reasons == dict.fromkeys(found, "from nnUNetPlans.json")
    # The plans turn (z, y, x) into (z, x, y).
    assert found["data.prepare.spacing_mm"] == [1.0, 0.5, 3.0]
    assert found["data.patch.shape_voxel"] == found["window.shape_voxel"] == [24, 16, 8]
    assert found["data.batch_size"] == 2
    assert (found["data.prepare.intensity.mode"], found["data.prepare.intensity.low"]) == (
        "window",
        -20.5,
    )
    assert found["network.widths"] == [8, 12, 16]


def test_a_plan_of_ours_has_them_with_the_file_as_the_reason(tmp_path):
    raw = write_raw(tmp_path / "raw", num=4)
    path = plans_of(tmp_path / "plans")
    measured = SharedKeys(values={"data.batch_size": 7, "precision.compute": "float32"}, reason="as in the other folds")
    overrides = {"data.batch_size": 3, "train.steps": 5}
    planned = make_plan(open_cases(raw), device="cpu", plans=str(path), shared=measured, overrides=overrides)
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
    path = plans_of(tmp_path, architecture=architecture)
    with pytest.warns(UserWarning, match="the network of .* has ") as said:
        found = keys_of(path)
    assert [fact in str(warning.message) for warning in said] == [True]
    assert found["network.strides"] == [[2, 2, 2], [2, 2, 2]]


def test_another_configuration_is_named_behind_the_file(tmp_path):
    path = plans_of(tmp_path)
    plans = json.loads(path.read_text())
    plans["configurations"]["3d_lowres"] = {"inherits_from": "3d_fullres", "spacing": [4.0, 4.0, 4.0]}
    path.write_text(json.dumps(plans))
    assert keys_of(path.with_name(f"{path.name}:3d_lowres"))["data.prepare.spacing_mm"] == [4.0, 4.0, 4.0]
    with pytest.raises(InputError, match="has no configuration '3d_none'"):
        keys_of(path.with_name(f"{path.name}:3d_none"))
    with pytest.raises(InputError, match="2d is 2-D, but training here is 3-D"):
        keys_of(path.with_name(f"{path.name}:2d"))


def test_channels_of_different_normalizations_are_refused(tmp_path):
    path = plans_of(tmp_path, channels=("CT", "PET"))
    with pytest.raises(InputError, match=r"normalizes its channels by CTNormalization, ZScoreNormalization; .* one of"):
        keys_of(path, num_channels=2)
    with pytest.raises(InputError, match=r"is for 2 channels, and this data set has 1: .* another"):
        keys_of(path, num_channels=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read .* with --plans$"),
        ('{"configurations": ', "is damaged .*, or copy the file again"),
        ("[]", "is damaged"),
        ("{}", "transpose_forward"),
        (f'{_BEGINNING} {{"3d_fullres": {{"inherits_from": "3d_fullres"}}}}}}', "itself"),
        (f'{_BEGINNING} {{"3d_fullres": {{"patch_size": "big"}}}}}}', "patch_size"),
    ],
)
def test_files_that_are_no_plans_are_refused_by_name(content, said, tmp_path):
    path = tmp_path / "nnUNetPlans.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=f"^plan: .*nnUNetPlans.json.*{said}"):
        keys_of(path)


def test_a_network_that_is_no_description_is_refused(tmp_path):
    with pytest.raises(InputError, match="arch_kwargs"):
        keys_of(plans_of(tmp_path, configuration={"architecture": {"arch_kwargs": [[]]}}))


def test_plans_and_a_model_to_start_from_exclude_each_other():
    with pytest.raises(ConfigError, match=r"plans='p.json', start_from='run'.*uses its network"):
        TrainRequest.of_call({"plans": "p.json", "start_from": "run"}, out="out")


def test_each_command_that_plans_takes_them(tmp_path, voxelocity):
    raw, path = write_raw(tmp_path / "raw"), plans_of(tmp_path / "plans")
    shown = voxelocity("plan", str(raw), "--plans", str(path), "--device", "cpu", "--json")
    assert shown.status == 0, shown.err
    planned = json.loads(shown.out)
    assert planned["plan"]["data"]["patch"]["shape_voxel"] == [16, 16, 8]
    for command in (["plan"], ["train", "-o", str(tmp_path / "run")], ["tune", "-o", str(tmp_path / "tune")]):
        ended = voxelocity(*command, str(raw), "--plans", str(path.with_name("none.json")))
        assert ended.status == 2
        assert "none.json cannot be read" in ended.err
        assert "with --plans" in ended.err
    with pytest.raises(InputError, match=r"none.json cannot be read .* with plans=..."):
        make_plan(open_cases(raw), plans=path.with_name("none.json"))


def test_plans_that_nnunets_own_planner_made_are_taken(tmp_path, monkeypatch):
    api = pytest.importorskip("nnunetv2.experiment_planning.plan_and_preprocess_api", reason="nnU-Net's planner")
    raw, made = write_raw(tmp_path / "raw"), tmp_path / "preprocessed" / "Dataset901_Small"
    made.mkdir(parents=True)
    monkeypatch.setenv("nnUNet_raw", str(raw.parent))
    monkeypatch.setenv("nnUNet_preprocessed", str(made.parent))
    facts = dict.fromkeys(("max", "mean", "median", "min", "percentile_00_5", "percentile_99_5", "std"), 60.0)
    # Of scans so large that the planner adds a network of low resolution.
    fingerprint = {
        "spacings": [[1.0, 0.8, 0.8]] * 3,
        "shapes_after_crop": [[400, 512, 512]] * 3,
        "foreground_intensity_properties_per_channel": {"0": facts},
        "median_relative_size_after_cropping": 1.0,
    }
    (made / "dataset_fingerprint.json").write_text(json.dumps(fingerprint))
    api.plan_experiments([901])
    plans = json.loads((made / "nnUNetPlans.json").read_text())["configurations"]
    # A level of stride 1 along an axis, where nnU-Net has kernels of 3 voxels and DynUNet of 1.
    with pytest.warns(UserWarning, match="kernels"):
        fine, low = (keys_of(made / f"nnUNetPlans.json:{name}") for name in ("3d_fullres", "3d_lowres"))
    assert low["data.prepare.spacing_mm"] == plans["3d_lowres"]["spacing"][::-1]
    spacings = zip(low["data.prepare.spacing_mm"], fine["data.prepare.spacing_mm"], strict=True)
    assert all(coarse > usual for coarse, usual in spacings)
    assert low["network.widths"] == plans["3d_lowres"]["architecture"]["arch_kwargs"]["features_per_stage"]
    with pytest.raises(InputError, match="3d_cascade_fullres is the second stage of a cascade"):
        keys_of(made / "nnUNetPlans.json:3d_cascade_fullres")
