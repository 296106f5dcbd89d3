"""Results folders of nnU-Net v2, made by hand: what is read, what is refused, and that labels are nnU-Net's."""

import json
import os
import re

import nibabel as nib
import numpy as np
import pytest
import torch

from voxelocity.core.volume import Grid, Volume
from voxelocity.infer import Predictor, open_model
from voxelocity.step.nnunet_network import Architecture, PlannedUNet
from voxelocity_observe.core.errors import InputError

CPU = torch.device("cpu")
ARCHITECTURE = {
    "n_stages": 3,
    "features_per_stage": [4, 6, 8],
    "conv_op": "torch.nn.modules.conv.Conv3d",
    "kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
    "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
    "n_conv_per_stage": [2, 1, 2],
    "n_conv_per_stage_decoder": [1, 2],
    "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
    "norm_op_kwargs": {"eps": 1e-5, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
}
FLAT = {
    **ARCHITECTURE,
    "conv_op": "torch.nn.modules.conv.Conv2d",
    "kernel_sizes": [[3, 3], [3, 3], [3, 3]],
    "strides": [[1, 1], [2, 2], [2, 1]],
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
}
CLASSES = "dynamic_network_architectures.architectures.unet."
LABELS = {"background": 0, "liver": 1, "spleen": 2}
REGIONS = {"background": 0, "whole": [1, 2], "core": [2]}


def plans(**changes):
    configuration = {
        "preprocessor_name": "DefaultPreprocessor",
        "patch_size": [8, 16, 12],
        "spacing": [3.5, 1.0, 1.2],
        "normalization_schemes": ["CTNormalization"],
        "use_mask_for_norm": [False],
        "resampling_fn_data": "resample_data_or_seg_to_shape",
        "resampling_fn_data_kwargs": {"is_seg": False, "order": 3, "order_z": 0, "force_separate_z": None},
        "resampling_fn_seg": "resample_data_or_seg_to_shape",
        "resampling_fn_seg_kwargs": {"is_seg": True, "order": 1, "order_z": 0, "force_separate_z": None},
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None},
        "architecture": {
            "network_class_name": CLASSES + "PlainConvUNet",
            "arch_kwargs": ARCHITECTURE,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
    }
    facts = {"mean": 40.0, "std": 60.0, "percentile_00_5": -100.0, "percentile_99_5": 220.0}
    return {
        "dataset_name": "Dataset001_x",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {"0": facts},
        "configurations": {"3d_fullres": {**configuration, **changes.pop("configuration", {})}},
        **changes,
    }


def weights_of(network, *, is_planar=False):
    """As nnU-Net names them: layers of a block twice, and the encoder once more in the decoder."""
    weights = network.state_dict()
    if is_planar:
        weights = {name: tensor.squeeze(2) if tensor.dim() == 5 else tensor for name, tensor in weights.items()}
    again = {re.sub(r"\.conv\.(?=\w+$)", ".all_modules.0.", name): tensor for name, tensor in weights.items()}
    inside = {f"decoder.{name}": tensor for name, tensor in weights.items() if name.startswith("encoder.")}
    return {**weights, **again, **inside}


def save(folder, *, folds=(0,), name="checkpoint_final.pth", labels=LABELS, order=None, described=None, **checkpoint):
    described = plans() if described is None else described
    described_network = checkpoint.pop("network", {})
    configuration = checkpoint.pop("configuration", "3d_fullres")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plans.json").write_text(json.dumps(described))
    dataset = {"channel_names": {"0": "CT"}, "labels": labels, "file_ending": ".nii.gz"}
    if order:
        dataset["regions_class_order"] = order
    (folder / "dataset.json").write_text(json.dumps(dataset))
    for fold in folds:
        seed = 10 if fold == "all" else fold
        network = trained(seed=seed, num_classes=len(order or labels), **described_network)
        content = {
            "network_weights": weights_of(
                network, is_planar=described_network.get("architecture", {}).get("conv_op") == FLAT["conv_op"]
            ),
            "optimizer_state": {"state": {}, "param_groups": [{"lr": 0.01}]},
            "grad_scaler_state": None,
            "logging": {"mean_fg_dice": [np.float64(0.5), np.float32(0.25)], "epoch_end_timestamps": [1.5]},
            "_best_ema": np.float64(0.5),
            "current_epoch": 3,
            "init_args": {"plans": described, "configuration": configuration, "fold": fold, "device": CPU},
            "trainer_name": "nnUNetTrainer",
            "inference_allowed_mirroring_axes": (0, 2),
            **checkpoint,
        }
        (folder / f"fold_{fold}").mkdir(exist_ok=True)
        torch.save(content, folder / f"fold_{fold}" / name)
    return folder


def trained(*, seed, num_classes, architecture=ARCHITECTURE, num_channels=1):
    """A network whose logits are far apart, so that few voxels are close to a tie."""
    torch.manual_seed(seed)
    plan = Architecture.parse(architecture)
    network = PlannedUNet(plan, num_channels=num_channels, num_classes=num_classes).eval()
    torch.nn.init.normal_(network.decoder.seg_layers[-1].weight, std=3.0)
    return network


def phantom(seed=0, shape=(30, 26, 14), spacing=(0.9, 1.3, 4.0)):
    rng = np.random.default_rng(seed)
    places = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    image = np.where((places**2).sum(0) < 0.6, 80.0, -900.0) + rng.normal(0, 20, shape)
    image[:3] = 0
    return Volume(
        case_id="x", image=image[np.newaxis].astype(np.int16), label=None, grid=Grid.of(shape, np.diag([*spacing, 1]))
    )


def labels_of(model, scan):
    indices = Predictor(model.network, model.spec, model.preparation, device=CPU).predict(scan)
    return np.array(model.spec.label_values)[indices]


def test_a_folder_is_read_as_its_files_describe_it(tmp_path):
    model = open_model(save(tmp_path / "m"))
    spec = model.spec
    assert spec.labels == {0: "background", 1: "liver", 2: "spleen"}
    assert (spec.channels, spec.region_order, spec.restored) == (("CT",), (), "logits")
    assert (spec.window.shape_voxel, spec.window.overlap) == ((8, 16, 12), 0.5)
    assert (spec.window.spread, spec.window.blend, spec.window.mirror_axes) == ("even", "nnunet", (0, 2))
    assert (model.preparation.axes, model.preparation.spacing_mm) == ((2, 1, 0), (3.5, 1.0, 1.2))
    assert model.doubts == ()
    image = torch.rand(1, 1, 8, 16, 12)
    assert torch.equal(model.network(image), trained(seed=0, num_classes=3)(image))


def test_regions_are_drawn_in_the_order_of_their_classes(tmp_path):
    spec = open_model(save(tmp_path / "m", labels=REGIONS, order=[1, 2])).spec
    assert spec.labels == {0: "background", 1: "rest of whole", 2: "core"}
    assert (spec.region_order, spec.num_outputs) == ((1, 2), 2)
    assert spec.scored == {"whole": (1, 2), "core": (2,)}, "masks and statistics are of whole regions"


def test_regions_that_are_drawn_with_values_of_no_label_have_no_known_parts(tmp_path):
    spec = open_model(save(tmp_path / "m", labels=REGIONS, order=[5, 2])).spec
    assert spec.labels == {0: "background", 2: "core", 5: "rest of whole"}
    assert (spec.region_order, spec.regions) == ((2, 1), {})


def test_several_folds_are_averaged_and_one_can_be_named(tmp_path):
    folder = save(tmp_path / "m", folds=(0, 2, "all"))
    image = torch.rand(1, 1, 8, 16, 12)
    one, other = (trained(seed=seed, num_classes=3)(image) for seed in (0, 2))
    torch.testing.assert_close(open_model(folder).network(image), (one + other) / 2)
    assert torch.equal(open_model(folder / "fold_2").network(image), other)
    only = save(tmp_path / "n", folds=("all",))
    assert torch.equal(open_model(only).network(image), trained(seed=10, num_classes=3)(image))


def test_plans_of_earlier_releases_are_understood(tmp_path):
    earlier = {
        "UNet_class_name": "PlainConvUNet",
        "UNet_base_num_features": 4,
        "unet_max_num_features": 6,
        "n_conv_per_stage_encoder": [2, 1, 2],
        "n_conv_per_stage_decoder": [1, 2],
        "conv_kernel_sizes": ARCHITECTURE["kernel_sizes"],
        "pool_op_kernel_sizes": ARCHITECTURE["strides"],
        "architecture": None,
    }
    folder = save(tmp_path / "m", described=plans(configuration=earlier))
    widths = {**ARCHITECTURE, "features_per_stage": [4, 6, 6]}
    network = PlannedUNet(Architecture.parse(widths), num_channels=1, num_classes=3).eval()
    checkpoint = torch.load(folder / "fold_0" / "checkpoint_final.pth", weights_only=False)
    torch.save({**checkpoint, "network_weights": weights_of(network)}, folder / "fold_0" / "checkpoint_final.pth")
    image = torch.rand(1, 1, 8, 16, 12)
    assert torch.equal(open_model(folder).network(image), network(image))


def test_configurations_inherit(tmp_path):
    described = plans()
    described["configurations"]["3d_lowres"] = {"inherits_from": "3d_fullres", "patch_size": [4, 8, 8]}
    model = open_model(save(tmp_path / "m", described=described, init_args={"configuration": "3d_lowres"}))
    assert model.spec.window.shape_voxel == (4, 8, 8)


def test_a_training_that_did_not_finish_and_a_strange_trainer_are_doubts(tmp_path):
    model = open_model(save(tmp_path / "m", name="checkpoint_best.pth", trainer_name="MyTrainer"))
    assert "its training did not finish, and checkpoint_best.pth is used" in model.doubts[0]
    assert "was trained by MyTrainer" in model.doubts[1]
    for end in ("_4000epochs_NoMirroring", "Voxelocity", "VoxelocityFast_250epochs", "_onlyMirror01_1500ep", "CELoss"):
        usual = open_model(save(tmp_path / end, trainer_name=f"nnUNetTrainer{end}"))
        assert usual.doubts == (), end
    other = open_model(save(tmp_path / "o", trainer_name="nnUNetTrainerMine"))
    assert "was trained by nnUNetTrainerMine, which is not a standard nnU-Net trainer" in other.doubts[0]


def with_key(**changes):
    return {"described": plans(**changes)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (with_key(configuration={"previous_stage": "3d_lowres"}), "the plans have no configuration '3d_lowres', its"),
        (with_key(configuration={"patch_size": [16, 16]}), "patch_size (16, 16) and spacing (3.5, 1.0, 1.2) differ"),
        (
            {
                **with_key(configuration={"patch_size": [16, 16], "spacing": [1, 1]}),
                "inference_allowed_mirroring_axes": (1,),
            },
            "patch_size (16, 16) is not a multiple of (2, 4, 4)",
        ),
        (with_key(image_reader_writer="Tiff3DIO"), "image_reader_writer = 'Tiff3DIO' is not valid"),
        (with_key(label_manager="Mine"), "label_manager = 'Mine'"),
        (with_key(configuration={"preprocessor_name": "Mine"}), "3d_fullres: preprocessor_name = 'Mine'"),
        (with_key(configuration={"normalization_schemes": ["Mine"]}), "normalization_schemes.0 = 'Mine'"),
        (with_key(configuration={"resampling_fn_data": "Mine"}), "resampling_fn_data = 'Mine'"),
        (with_key(configuration={"resampling_fn_probabilities_kwargs": {"order": 3}}), "order = 3 is not valid"),
        (with_key(configuration={"spacing": [1, 0, 1]}), "spacing.1 = 0 is not valid"),
        (with_key(configuration={"inherits_from": "2d"}), "the configuration '2d' is missing"),
        (with_key(configuration={"inherits_from": "3d_fullres"}), "'3d_fullres' is missing or inherits from itself"),
        (
            with_key(configuration={"architecture": {"network_class_name": "os.system", "arch_kwargs": {}}}),
            "has the network os.system; only PlainConvUNet and ResidualEncoderUNet",
        ),
        (
            with_key(
                configuration={
                    "architecture": {
                        "network_class_name": CLASSES + "PlainConvUNet",
                        "arch_kwargs": {**ARCHITECTURE, "nonlin": "os.system"},
                    }
                }
            ),
            "nonlin = 'os.system' is not valid",
        ),
        (with_key(configuration={"patch_size": [8, 16, 10]}), "patch_size (8, 16, 10) is not a multiple of (2, 4, 4)"),
        (with_key(foreground_intensity_properties_per_channel={}), "channel 0 lack 'percentile_00_5'"),
        ({"labels": {"background": 0, "liver": 2}}, "labels has the values [0, 2]"),
        ({"labels": REGIONS, "order": [1, 2, 3]}, "regions_class_order (1, 2, 3) must have one value for each of"),
        ({"network_weights": {"a": torch.zeros(1)}}, "its trainer, nnUNetTrainer, may have changed the network"),
        ({"folds": ()}, "holds no trained fold"),
    ],
)
def test_what_cannot_be_done_as_nnunet_does_it_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        open_model(save(tmp_path / "m", **changes))
    assert str(tmp_path / "m") in str(error.value)


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    network = trained(seed=0, num_classes=3)
    network.decoder.seg_layers[-1].bias.data[0] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinity in 'decoder.seg_layers.1.bias'"):
        open_model(save(tmp_path / "m", network_weights=weights_of(network)))


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path / "m", logging=Harmful())
    with pytest.raises(InputError, match=r"checkpoint_final\.pth holds \S*mkdir, which may run code"):
        open_model(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["plans.json", "dataset.json", "fold_0/checkpoint_final.pth"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x00 no file of this kind"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    folder = save(tmp_path / "m")
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        open_model(folder)


def test_a_missing_dataset_json_is_named(tmp_path):
    folder = save(tmp_path / "m")
    (folder / "dataset.json").unlink()
    with pytest.raises(InputError, match=r"dataset\.json cannot be read .* copy it too"):
        open_model(folder)


def test_the_folder_above_the_models_of_a_data_set_names_them(tmp_path):
    save(tmp_path / "Dataset001_x" / "nnUNetTrainer__nnUNetPlans__3d_fullres")
    with pytest.raises(InputError, match=r"holds the nnU-Net models nnUNetTrainer__nnUNetPlans__3d_fullres; name one"):
        open_model(tmp_path / "Dataset001_x")


def test_the_command_predicts_with_a_folder_and_with_one_of_its_folds(tmp_path, voxelocity):
    folder = save(tmp_path / "m", folds=(0, 1))
    scan = phantom()
    nib.save(nib.Nifti1Image(scan.image[0], scan.grid.matrix), tmp_path / "x.nii.gz")
    for name, model in (("all", folder), ("one", folder / "fold_1")):
        done = voxelocity("predict", model, tmp_path / "x.nii.gz", "-o", tmp_path / name, "--device", "cpu")
        assert done.status == 0, done.err
        written = np.asarray(nib.load(tmp_path / name / "x.nii.gz").dataobj)
        assert np.array_equal(written, labels_of(open_model(model), scan))
        assert written.any()


@pytest.mark.parametrize("class_name", ["PlainConvUNet", "ResidualEncoderUNet"])
@pytest.mark.parametrize("num_axes", [2, 3])
def test_networks_are_those_of_dynamic_network_architectures(class_name, num_axes):
    unet = pytest.importorskip("dynamic_network_architectures.architectures.unet", reason="not installed")
    values = dict(ARCHITECTURE if num_axes == 3 else FLAT)
    if class_name == "ResidualEncoderUNet":
        values["n_blocks_per_stage"] = values.pop("n_conv_per_stage")
    theirs = getattr(unet, class_name)(
        input_channels=2,
        num_classes=3,
        **{
            **values,
            "conv_op": torch.nn.Conv3d if num_axes == 3 else torch.nn.Conv2d,
            "norm_op": torch.nn.InstanceNorm3d if num_axes == 3 else torch.nn.InstanceNorm2d,
            "nonlin": torch.nn.LeakyReLU,
        },
    ).eval()
    ours = PlannedUNet(Architecture.parse(values), num_channels=2, num_classes=3).eval()
    shapes = {name: tensor.shape for name, tensor in ours.state_dict().items()}
    kept = {name: tensor.reshape(shapes[name]) for name, tensor in theirs.state_dict().items() if name in shapes}
    ours.load_state_dict(kept)
    image = torch.rand(2, 2, 8 if num_axes == 3 else 1, 16, 12)
    with torch.no_grad():
        expected = theirs(image) if num_axes == 3 else theirs(image[:, :, 0])[:, :, None]
        torch.testing.assert_close(ours(image), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "labels", "order"),
    [
        ({}, LABELS, None),
        ({"transpose_forward": [1, 0, 2], "transpose_backward": [1, 0, 2]}, LABELS, None),
        ({"configuration": {"spacing": [2.0, 1.1, 1.2]}}, REGIONS, [1, 2]),
    ],
)
def test_labels_are_those_of_nnunets_predictor(tmp_path, changes, labels, order):
    pytest.importorskip("nnunetv2", reason="nnunetv2 is not installed")
    from nnunetv2.inference.export_prediction import convert_predicted_logits_to_segmentation_with_correct_shape
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    described = plans(**changes)
    folder = save(tmp_path / "m", described=described, labels=labels, order=order)
    scan, model = phantom(), open_model(folder)
    manager = PlansManager(json.loads((folder / "plans.json").read_text()))
    configuration = manager.get_configuration("3d_fullres")
    dataset = json.loads((folder / "dataset.json").read_text())
    predictor = nnUNetPredictor(device=CPU, allow_tqdm=False)
    network = trained(seed=0, num_classes=len(order or labels))
    predictor.manual_initialization(
        network, manager, configuration, [network.state_dict()], dataset, "nnUNetTrainer", (0, 2)
    )
    facts = {"spacing": scan.grid.spacing_mm[::-1]}
    image = scan.image.transpose(0, 3, 2, 1).astype(np.float32)
    preprocessor = configuration.preprocessor_class(verbose=False)
    data, _, facts = preprocessor.run_case_npy(image, None, facts, manager, configuration, dataset)
    np.testing.assert_allclose(model.preparation(scan).image, data, rtol=0, atol=1e-5)
    logits = predictor.predict_logits_from_preprocessed_data(torch.from_numpy(data))
    expected = convert_predicted_logits_to_segmentation_with_correct_shape(
        logits, manager, configuration, manager.get_label_manager(dataset), facts, num_threads_torch=1
    ).T
    found = labels_of(model, scan)
    foreground = (found > 0) | (expected > 0)
    assert foreground.sum() > 1000
    # nnU-Net sums logits in float16.
    assert (found != expected).sum() <= 0.004 * foreground.sum()
