"""MONAI bundles, made by hand in the documented format: labels are those of MONAI's own run, code is refused."""

import copy
import json
import re

import monai.networks.nets as nets
import nibabel as nib
import numpy as np
import pytest
import torch
import yaml
from monai.bundle import ConfigParser

from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.infer import Predictor, open_model
from voxelocity_observe.core.errors import InputError

CPU = torch.device("cpu")
UNET = {
    "_target_": "UNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": "@num_classes",
    "channels": [4, 8],
    "strides": [2],
    "norm": "batch",
}
LOADED = [{"_target_": "LoadImaged", "keys": "@keys"}, {"_target_": "EnsureChannelFirstd", "keys": "@keys"}]
TURNED = {"_target_": "Orientationd", "keys": "@keys", "axcodes": "RAS"}
SPACED = {"_target_": "Spacingd", "keys": "@keys", "pixdim": [1.3, 1.0, 2.1], "mode": "bilinear"}
WINDOWED = {
    "_target_": "ScaleIntensityRanged",
    "keys": "@keys",
    "a_min": -100,
    "a_max": 200,
    "b_min": 0.0,
    "b_max": 1.0,
    "clip": True,
}
CROPPED = {"_target_": "CropForegroundd", "keys": "@keys", "source_key": "image"}
SOFTMAX = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
SIGMOID = {"_target_": "Activationsd", "keys": "pred", "sigmoid": True}
INVERSE = {
    "_target_": "Invertd",
    "keys": "pred",
    "transform": "@preprocessing",
    "orig_keys": "@keys",
    "nearest_interp": False,
}
ARGMAX = {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}
THRESHOLD = {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5}
ENSURED = {"_target_": "EnsureTyped", "keys": "@keys", "device": "@device"}


def config(*preparation, post=(SOFTMAX, INVERSE, ARGMAX), network=UNET, num_classes=3, **inferer):
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "device": "$torch.device('cpu')",
        "keys": "image",
        "num_classes": num_classes,
        "dataset": "$glob.glob('*.nii.gz')",
        "network_def": network,
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": [*LOADED, *preparation, ENSURED]},
        "inferer": {
            "_target_": "SlidingWindowInferer",
            "roi_size": [16, 12, 8],
            "sw_batch_size": 2,
            "overlap": 0.5,
            "mode": "gaussian",
            "device": "@device",
            **inferer,
        },
        "postprocessing": {"_target_": "Compose", "transforms": [*post]},
    }


def save(folder, values, *, ending="json", classes=("background", "liver", "spleen"), weights=None, num_channels=1):
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    text = json.dumps(values) if ending == "json" else yaml.safe_dump(values)
    (folder / "configs" / f"inference.{ending}").write_text(text)
    channels = {str(index): name for index, name in enumerate(classes)}
    formats = {
        "inputs": {"image": {"num_channels": num_channels, "channel_def": {"0": "CT"}}},
        "outputs": {"pred": {"num_channels": len(classes), "channel_def": channels}},
    }
    (folder / "configs" / "metadata.json").write_text(json.dumps({"network_data_format": formats}))
    if weights is None:
        weights = network_of(len(classes)).state_dict()
    torch.save(weights, folder / "models" / "model.pt")
    return folder


def network_of(num_classes):
    torch.manual_seed(2)
    values = {key: value for key, value in UNET.items() if key != "_target_"}
    network = nets.UNet(**{**values, "out_channels": num_classes})
    # Logits far apart and of both signs, so that few voxels are close to a tie.
    for name, weight in network.named_parameters():
        if name.endswith("conv.weight"):
            torch.nn.init.normal_(weight, std=0.4)
    return network.eval()


def write_scan(path, shape):
    """A ball in air, with noise, on a grid that is neither turned nor spaced as networks want it."""
    rng = np.random.default_rng(0)
    places = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    image = np.where((places**2).sum(0) < 0.6, 80.0, -900.0) + rng.normal(0, 20, places.shape[1:])
    affine = np.diag([-0.9, 1.2, 3.0, 1.0])
    affine[:3, 3] = (20, -30, 7)
    nib.save(nib.Nifti1Image(image.astype(np.float32), affine), path)
    return path


@pytest.fixture
def scan(tmp_path):
    return write_scan(tmp_path / "scan.nii.gz", (30, 26, 14))


def as_monai(folder, ending, scan):
    """The labels of MONAI's own run of the bundle."""
    parser = ConfigParser()
    parser.read_config(str(folder / "configs" / f"inference.{ending}"))
    network = parser.get_parsed_content("network_def")
    network.load_state_dict(torch.load(folder / "models" / "model.pt"))
    data = parser.get_parsed_content("preprocessing")({"image": str(scan)})
    with torch.no_grad():
        data["pred"] = parser.get_parsed_content("inferer")(data["image"][None], network.eval())[0]
    return parser.get_parsed_content("postprocessing")(data)["pred"][0].numpy().astype(int)


def as_ours(folder, scan):
    model = open_model(folder)
    volume = read_case(VolumeRef(case_id="x", images=(scan,)), label_values=model.spec.label_values)
    indices = Predictor(model.network, model.spec, model.preparation, device=CPU).predict(volume)
    return np.array(model.spec.label_values)[indices]


CHAINS = {
    "spacing": config(TURNED, SPACED, WINDOWED),
    "nothing moves": config(WINDOWED, post=(SOFTMAX, ARGMAX), mode="constant"),
    "logits are inverted": config(TURNED, SPACED, WINDOWED, post=(INVERSE, ARGMAX)),
    "crop": config(TURNED, WINDOWED, CROPPED, SPACED),
    "statistics": config(
        SPACED,
        {"_target_": "NormalizeIntensityd", "keys": ["image"], "nonzero": True},
        {"_target_": "ScaleIntensityd", "keys": "@keys", "minv": -1.0, "maxv": 1.0},
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("ending", "name"),
    [
        *(("json", name) for name in CHAINS),
        ("yaml", "nothing moves"),
        *(pytest.param("yaml", name, marks=pytest.mark.nightly) for name in CHAINS if name != "nothing moves"),
    ],
)
def test_labels_are_those_of_monais_own_run(tmp_path, scan, name, ending):
    folder = save(tmp_path / "bundle", copy.deepcopy(CHAINS[name]), ending=ending)
    expected, found = as_monai(folder, ending, scan), as_ours(folder, scan)
    assert found.shape == expected.shape
    assert (found != expected).mean() <= 0.001
    assert len(np.unique(expected)) > 1


@pytest.mark.filterwarnings("ignore")
def test_one_channel_with_a_sigmoid_is_a_class_and_background(tmp_path, scan):
    values = config(TURNED, WINDOWED, post=(SIGMOID, INVERSE, THRESHOLD), num_classes=1)
    folder = save(tmp_path / "bundle", values, classes=("tumor",))
    assert open_model(folder).spec.labels == {0: "background", 1: "tumor"}
    expected, found = as_monai(folder, "json", scan), as_ours(folder, scan)
    assert (found != expected).mean() <= 0.001
    assert 0 < expected.mean() < 1


def test_a_bundle_is_read_as_its_files_describe_it(tmp_path):
    model = open_model(save(tmp_path / "b", config(TURNED, WINDOWED), weights={"model": network_of(3).state_dict()}))
    assert model.spec.labels == {0: "background", 1: "liver", 2: "spleen"}
    assert (model.spec.channels, model.spec.restored) == (("CT",), "probabilities")
    window = model.spec.window
    assert (window.shape_voxel, window.overlap, window.blend, window.batch_size) == ((16, 12, 8), 0.5, "gaussian", 2)
    image = torch.rand(1, 1, 16, 12, 8)
    assert torch.equal(model.network(image), network_of(3)(image))


def test_a_checkpoint_that_holds_other_things_than_weights_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"model\.pt holds other weights than .* \(the first is epoch\)"):
        open_model(save(tmp_path / "b", config(), weights={**network_of(3).state_dict(), "epoch": 3}))


def test_disabled_transforms_are_left_out(tmp_path):
    disabled = {"_target_": "RandFlipd", "_disabled_": True}
    assert len(open_model(save(tmp_path / "b", config(disabled, WINDOWED))).preparation.stages) == 1


REFUSED = {
    "Lambdad": (
        config({"_target_": "Lambdad", "keys": "image", "func": "$abs"}),
        "(Lambdad) is not among the supported transf",
    ),
    "own class": (config({"_target_": "scripts.my.Crop"}), "scripts.my.Crop, which is not MONAI's"),
    "expression": (
        config({**SPACED, "pixdim": "$numpy.ones(3)"}),
        "preprocessing::transforms::2::pixdim is the expression '$numpy.ones(3)', which is code",
    ),
    "reader": (config({**LOADED[0], "reader": "scripts.mine"}), "has the reader 'scripts.mine'"),
    "whole expression": (config("$lambda x: x"), "is the expression '$lambda x: x'"),
    "unknown argument": (config({**SPACED, "scale_extent": True}), "(Spacingd) has the argument scale_extent"),
    "foreground": (config({**CROPPED, "select_fn": "$lambda x: x > -5"}), "'$lambda x: x > -5', which is code"),
    "two spacings": (config(SPACED, SPACED), "(Spacingd) is the second of its kind"),
    "axcodes": (config({**TURNED, "axcodes": "LPS"}), "has the axcodes 'LPS'; only 'RAS' is supported"),
    "keys": (config({**WINDOWED, "keys": ["image", "label"]}), "has the keys ['image', 'label']"),
    "missing reference": (config({**SPACED, "pixdim": "@nowhere"}), "refers to 'nowhere', which is not there"),
    "circle": (
        config({**SPACED, "pixdim": "@preprocessing::transforms::2::pixdim"}),
        "follows more than 20 ref",
    ),
    "network": (
        config(network={"_target_": "HighResNet"}),
        "(HighResNet) is not among the supported networks of MONAI",
    ),
    "part of a network": (config(network={"_target_": "TopologyInstance"}), "(TopologyInstance) is not among"),
    "network of others": (
        config(network={"_target_": "os.system", "command": "ls"}),
        "by os.system, which is not",
    ),
    "network argument": (config(network={**UNET, "foo": 1}), "(UNet) cannot be made from"),
    "network object": (config(network={**UNET, "act": {"_target_": "torch.nn.ReLU"}}), "has an object as an argument"),
    "classes": (config(num_classes=4), "has 4 out_channels, but configs/metadata.json describes 3"),
    "other network": (config(network={**UNET, "channels": [4, 9]}), "holds other weights than the network"),
    "inferer": ({**config(), "inferer": {"_target_": "PatchInferer"}}, "(PatchInferer) is none of the inferers"),
    "padding": (config(padding_mode="symmetric"), "pads with 'symmetric'"),
    "window": (config(roi_size=[3000, 8, 8]), "window.shape_voxel.0 = 3000 is not valid"),
    "window of two": (config(roi_size=[8, 8]), "has the roi_size [8, 8], not 3 numbers"),
    "no inverse": (config(SPACED, post=(SOFTMAX, ARGMAX)), "has no Invertd"),
    "nearest": (config(SPACED, post=(SOFTMAX, {**INVERSE, "nearest_interp": True}, ARGMAX)), "has nearest_interp true"),
    "order": (config(post=(ARGMAX, SOFTMAX)), "is AsDiscreted, Activationsd; Activationsd must come before"),
    "holes": (config(post=(ARGMAX, {"_target_": "FillHoles"})), "(FillHoles) is not supported"),
    "overlapping": (config(post=(SIGMOID, THRESHOLD)), "threshold 0.5 for 3 channels, which may overlap"),
    "lambda": (
        config(post=(SIGMOID, THRESHOLD, {"_target_": "Lambdad", "keys": "pred", "func": "$lambda x: x.sum(0)"})),
        "(Lambdad) has the function '$lambda x: x.sum(0)', which is code and is not run",
    ),
    "two inverses": (config(post=(INVERSE, ARGMAX, INVERSE)), "(Invertd) occurs twice"),
    "components of others": (
        config(post=(ARGMAX, {"_target_": "KeepLargestConnectedComponentd", "keys": "pred", "applied_labels": [7]})),
        "has the applied_labels [7]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_as_monai_does_it_is_refused_by_name(tmp_path, name):
    values, message = REFUSED[name]
    with pytest.raises(InputError, match=re.escape(message)) as error:
        open_model(save(tmp_path / "b", values))
    assert str(tmp_path / "b") in str(error.value)


def test_a_window_that_fits_is_checked_without_torchs_compiler_and_another_is_refused_in_words(tmp_path, monkeypatch):
    levels = {"channels": [4, 8, 8], "strides": [2, 2]}
    network = nets.UNet(spatial_dims=3, in_channels=1, out_channels=3, norm="batch", **levels)
    values = config(network={**UNET, **levels}, roi_size=[14, 12, 8])
    with pytest.raises(InputError, match=r"cannot take its own windows of 14 x 12 x 8 \(.*Sizes of tensors"):
        open_model(save(tmp_path / "odd", values, weights=network.state_dict()))

    def refuse(*_):
        raise AssertionError("shapes without memory import torch's compiler")

    monkeypatch.setattr("voxelocity.infer.models.foreign_files._check_batch", refuse)
    assert open_model(save(tmp_path / "even", config())).spec.window.shape_voxel == (16, 12, 8)


def test_torchscript_is_refused_as_code(tmp_path):
    folder = save(tmp_path / "b", config())
    (folder / "models" / "model.pt").rename(folder / "models" / "model.ts")
    with pytest.raises(InputError, match=r"model\.pt is missing; model\.ts is TorchScript, which is code"):
        open_model(folder)


@pytest.mark.parametrize("name", ["configs/metadata.json", "configs/inference.json", "models/model.pt"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x00 no file of this kind"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    folder = save(tmp_path / "b", config())
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        open_model(folder)


@pytest.mark.parametrize("num_channels", [None, 0, 10**15, "3"])
def test_metadata_without_a_number_of_channels_is_refused(tmp_path, num_channels):
    folder = save(tmp_path / "b", config())
    described = json.loads((folder / "configs" / "metadata.json").read_text())
    described["network_data_format"]["outputs"]["pred"]["num_channels"] = num_channels
    (folder / "configs" / "metadata.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"metadata\.json does not describe network_data_format"):
        open_model(folder)


def test_classes_of_one_name_have_their_numbers_too(tmp_path):
    folder = save(tmp_path / "b", config())
    path = folder / "configs" / "metadata.json"
    described = json.loads(path.read_text())
    described["network_data_format"]["outputs"]["pred"]["channel_def"] = {"0": "background", "1": "tumor", "2": "tumor"}
    path.write_text(json.dumps(described))
    spec = open_model(folder).spec
    assert spec.labels == {0: "background", 1: "tumor 1", 2: "tumor 2"}
    assert len(spec.scored) == 2


def test_a_bundle_without_configuration_says_which_files_are_looked_for(tmp_path):
    folder = save(tmp_path / "b", config())
    (folder / "configs" / "inference.json").unlink()
    with pytest.raises(InputError, match=r"holds none of inference\.json, inference\.yaml"):
        open_model(folder)
