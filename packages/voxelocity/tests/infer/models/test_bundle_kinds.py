"""Bundles as in MONAI's model zoo, in small: labels are those of MONAI's own transforms, inferers and networks."""

import copy
from types import SimpleNamespace

import monai.networks.nets
import monai.transforms.utils
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from scipy import ndimage

from voxelocity.core.volume import Grid, VolumeRef, VolumeSpec
from voxelocity.data.decode import read_case
from voxelocity.infer import Predictor, keep_largest, open_model
from voxelocity.infer.memory import memory_document, scan_memory
from voxelocity.infer.runtimes.contract import EAGER
from voxelocity.infer.runtimes.of_model import check_model, load_chosen, task_of
from voxelocity_observe.core.errors import InputError, ScanError

from .test_bundle import (
    ARGMAX,
    CPU,
    CROPPED,
    INVERSE,
    LOADED,
    SIGMOID,
    SOFTMAX,
    SPACED,
    THRESHOLD,
    TURNED,
    UNET,
    WINDOWED,
    config,
    save,
)

NEAREST = {**INVERSE, "nearest_interp": True}
LARGEST = {"_target_": "KeepLargestConnectedComponentd", "keys": "pred", "applied_labels": [1, 2]}
# That of MONAI's bundle for BraTS.
LABEL_MAP = {
    "_target_": "Lambdad",
    "keys": "pred",
    "func": "$lambda x: torch.where(x[[2]] > 0, 4, torch.where(x[[0]] > 0, 1, torch.where(x[[1]] > 0, 2, 0)))",
}
NORMALIZED = {"_target_": "NormalizeIntensityd", "keys": "@keys", "nonzero": True, "channel_wise": True}
SEGRESNET = {
    "_target_": "SegResNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": "@num_classes",
    "init_filters": 8,
    "blocks_down": [1, 1],
    "blocks_up": [1],
}
DYNUNET = {
    "_target_": "monai.networks.nets.DynUNet",
    "spatial_dims": "$len(@window)",
    "in_channels": 1,
    "out_channels": "$len(@window)",
    "kernel_size": [3, 3, 3],
    "strides": [1, 2, [2, 2, 1]],
    "upsample_kernel_size": [2, [2, 2, 1]],
    "filters": [4, 8, 8],
    "norm_name": "instance",
    "res_block": True,
}
DINTS = {
    "_target_": "monai.networks.nets.DiNTS",
    "dints_space": "@dints_space",
    "in_channels": 1,
    "num_classes": "@num_classes",
    "use_downsample": True,
    "node_a": "$torch.from_numpy(@arch_ckpt['node_a'])",
}
ARCHITECTURE = {
    "node_a": np.array([[1, 1], [1, 0], [1, 1]]),
    "code_a": np.array([[1, 1, 0, 0], [1, 0, 1, 0]]),
    "code_c": np.array([[1, 0, 2, 3], [4, 1, 0, 2]], dtype=np.float64),
}


def dints():
    values = config(TURNED, WINDOWED, network=DINTS, roi_size=[16, 16, 8])
    return values | {
        "arch_ckpt_path": "$@bundle_root + '/models/search_code.pt'",
        "arch_ckpt": "$torch.load(@arch_ckpt_path, map_location=torch.device('cuda'))",
        "dints_space": {
            "_target_": "monai.networks.nets.TopologyInstance",
            "channel_mul": 0.125,
            "num_blocks": 2,
            "num_depths": 2,
            "use_downsample": True,
            "arch_code": ["$@arch_ckpt['code_a']", "$@arch_ckpt['code_c']"],
            "device": "$torch.device('cuda')",
        },
    }


def whole_body():
    """Expressions for the spacing and the file of the weights, classes brought back, replicated borders."""
    spaced = {**SPACED, "pixdim": "@pixdim"}
    post = (SOFTMAX, ARGMAX, NEAREST)
    values = config(
        TURNED, spaced, NORMALIZED, {"_target_": "ScaleIntensityd", "keys": "@keys", "minv": -1.0, "maxv": 1.0},
        post=post, network=SEGRESNET, roi_size=[16, 40, 16], padding_mode="replicate",
        overlap="@displayable_configs#sw_overlap",
    )  # fmt: skip
    return values | {
        "displayable_configs": {"highres": False, "sw_overlap": 0.25},
        "pixdim": "$[1.5, 1.5, 1.5] if @displayable_configs#highres else [1.3, 1.1, 2.0]",
        "modelname": "$'model.pt' if @displayable_configs#highres else 'model_lowres.pt'",
        "checkpointloader": {
            "_target_": "CheckpointLoader",
            "load_path": "$@bundle_root + '/models/' + @modelname",
            "load_dict": {"model": "@network"},
        },
    }


def brats():
    """Two channels in as many files, three masks that overlap."""
    values = config(
        post=(SIGMOID, INVERSE, THRESHOLD, LABEL_MAP), network={**SEGRESNET, "in_channels": 2}, roi_size=[32, 32, 16],
        mode="constant",
    )  # fmt: skip
    values["preprocessing"]["transforms"] = [{**LOADED[0], "image_only": False}, NORMALIZED]
    return values


def template():
    """MONAI's own template: the whole volume at once."""
    values = config(post=({**SOFTMAX, "keys": "@pred"}, {**ARGMAX, "keys": "@pred"}))
    values |= {
        "keys": "$monai.utils.CommonKeys.IMAGE",
        "pred": "$monai.utils.CommonKeys.PRED",
        "inferer": {"_target_": "SimpleInferer"},
        "transforms": [*LOADED, {"_target_": "ScaleIntensityd", "keys": "@keys"}],
    }
    values["preprocessing"]["transforms"] = "$@transforms"
    return values


def slices():
    values = config(WINDOWED, network={**UNET, "spatial_dims": 2})
    return values | {"inferer": {"_target_": "SliceInferer", "roi_size": [16, 12], "spatial_dim": 2}}


def pediatric():
    values = config(
        TURNED, SPACED, WINDOWED, {**CROPPED, "mode": ["minimum"]},
        {"_target_": "CastToTyped", "keys": "@keys", "dtype": "$torch.float32"}, network=DYNUNET,
    )  # fmt: skip
    values["preprocessing"]["transforms"][0]["reader"] = "NibabelReader"
    return values | {"window": [16, 12, 8]}


KINDS = {
    "whole body": whole_body(),
    "BraTS": brats(),
    "BraTS, masks brought back": config(
        TURNED, SPACED, WINDOWED, post=(SIGMOID, THRESHOLD, NEAREST, LABEL_MAP), num_classes=3
    ),
    "template": template(),
    "DiNTS": dints(),
    "slices": slices(),
    "pediatric": pediatric(),
    "prostate": config(TURNED, SPACED, WINDOWED, post=(ARGMAX, LARGEST, INVERSE)),
    "largest on the scan": config(TURNED, SPACED, WINDOWED, post=(SOFTMAX, INVERSE, ARGMAX, LARGEST)),
    "spacing first, nearest": config(SPACED, TURNED, WINDOWED, CROPPED, post=(ARGMAX, NEAREST)),
    "spacing first, scores": config(SPACED, TURNED, WINDOWED),
    # Half of the voxels lie between two of the network.
    "halved": config(TURNED, {**SPACED, "pixdim": [1.8, 2.4, 3.0]}, WINDOWED, post=(ARGMAX, NEAREST)),
    "sigmoid of one": config(SPACED, WINDOWED, post=(SIGMOID, INVERSE, THRESHOLD), num_classes=1),
    "values around": config(WINDOWED, roi_size=[32, 32, 32], padding_mode="constant", cval=0.5, mode="constant"),
    "as long as the volume": config(WINDOWED, roi_size=[-1, 12, 8]),
}
NIGHTLY = ("BraTS, masks brought back", "spacing first, scores", "values around", "as long as the volume")
NAMES = ("background", "liver", "spleen")


@pytest.fixture
def scans(tmp_path):
    """Two images of one case, so that class, border and noise all show."""
    rng = np.random.default_rng(0)
    places = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in (32, 24, 16)), indexing="ij"))
    affine = np.diag([-0.9, 1.2, 3.0, 1.0])
    affine[:3, 3] = (20, -30, 7)
    paths = []
    for number in range(2):
        image = np.where((places**2).sum(0) < 0.6, 80.0, -900.0 * (1 - number)) + rng.normal(0, 20, places.shape[1:])
        paths.append(tmp_path / f"scan_{number}.nii.gz")
        nib.save(nib.Nifti1Image(image.astype(np.float32), affine), paths[-1])
    return paths


def parsed(folder):
    """The configuration, as MONAI evaluates it on a CPU."""
    parser = ConfigParser()
    parser.read_config(str(folder / "configs" / "inference.json"))
    parser["bundle_root"] = str(folder)
    if "dints_space" in parser:
        parser["arch_ckpt"] = "$torch.load(@arch_ckpt_path, weights_only=False)"
        parser["dints_space::device"] = "cpu"
    return parser


def prepared(parser, scans):
    given = [str(scan) for scan in scans] if len(scans) > 1 else str(scans[0])
    return parser.get_parsed_content("preprocessing")({"image": given})


def save_kind(folder, values, scans, *, weights="model.pt"):
    """The bundle, with random weights of which every class wins somewhere: the last bias centers each channel."""
    num_classes = values["num_classes"]
    save(folder, copy.deepcopy(values), classes=NAMES[3 - num_classes :], weights={}, num_channels=len(scans))
    torch.save(ARCHITECTURE, folder / "models" / "search_code.pt", _use_new_zipfile_serialization=False)
    parser = parsed(folder)
    torch.manual_seed(2)
    network = parser.get_parsed_content("network_def").eval()
    with torch.no_grad():
        logits = parser.get_parsed_content("inferer")(prepared(parser, scans)["image"][None], network)
        bias = [weight for weight in network.parameters() if weight.shape == (num_classes,)][-1]
        bias -= torch.from_numpy(np.asarray(logits.mean((0, 2, 3, 4))))
    torch.save(network.state_dict(), folder / "models" / weights)
    return folder


def as_monai(folder, scans, weights="model.pt"):
    """The values of MONAI's own run of the bundle."""
    parser = parsed(folder)
    network = parser.get_parsed_content("network_def")
    network.load_state_dict(torch.load(folder / "models" / weights))
    data = prepared(parser, scans)
    with torch.no_grad():
        data["pred"] = parser.get_parsed_content("inferer")(data["image"][None], network.eval())[0]
    return parser.get_parsed_content("postprocessing")(data)["pred"][0].numpy()


def as_ours(model, scans):
    volume = read_case(VolumeRef(case_id="x", images=tuple(scans)), label_values=model.spec.label_values)
    indices = Predictor(model.network, model.spec, model.preparation, device=CPU).predict(volume)
    names = model.spec.class_names
    indices = keep_largest(indices, [names.index(name) for name in model.spec.keep_largest])
    return np.array(model.spec.label_values)[indices]


def whole_numbers(values):
    """Class numbers that MONAI has interpolated, rounded, halves down."""
    return np.ceil(values - 0.5001).astype(int)


@pytest.fixture
def _components(monkeypatch):
    """MONAI takes them from scikit-image, which nothing else here needs."""
    if not monai.transforms.utils.has_measure:
        neighbors = np.ones((3, 3, 3))
        measure = SimpleNamespace(label=lambda image, **_: ndimage.label(image, neighbors))
        monkeypatch.setattr(monai.transforms.utils, "has_measure", True)
        monkeypatch.setattr(monai.transforms.utils, "measure", measure)


@pytest.mark.usefixtures("_components")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in KINDS]
)
def test_labels_are_those_of_monais_own_run(tmp_path, scans, name):
    values = KINDS[name]
    scans = scans if values["network_def"].get("in_channels") == 2 else scans[:1]
    weights = "model_lowres.pt" if "modelname" in values else "model.pt"
    folder = save_kind(tmp_path / "bundle", values, scans, weights=weights)
    expected = whole_numbers(as_monai(folder, scans, weights))
    found = as_ours(open_model(folder), scans)
    assert found.shape == expected.shape
    foreground = (found > 0) | (expected > 0)
    assert (found != expected)[foreground].mean() <= 0.001
    assert len(np.unique(expected)) > values["num_classes"] - (values["num_classes"] > 1)
    assert foreground.mean() > 0.05


def test_classes_of_masks_that_overlap_have_the_values_of_the_bundle(tmp_path, scans):
    spec = open_model(save_kind(tmp_path / "b", KINDS["BraTS"], scans)).spec
    # Class 4 is the strongest, so its channel comes last, and voxels of the others are in no mask drawn over theirs.
    assert spec.labels == {0: "background", 1: "rest of background", 2: "rest of liver", 4: "spleen"}
    assert spec.region_order == (2, 1, 3)
    assert spec.num_outputs == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "device", "is_last"),
    [("whole body", "cpu", True), ("whole body", "cuda", False), ("slices", "cpu", False), ("pediatric", "cpu", False)],
)
def test_networks_that_a_cpu_computes_faster_so_have_their_channels_last_there(
    tmp_path, scans, monkeypatch, name, device, is_last
):
    weights = "model_lowres.pt" if name == "whole body" else "model.pt"
    folder = save_kind(tmp_path / "b", KINDS[name], scans[:1], weights=weights)
    # Whatever else the machine has.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert task_of(open_model(folder), torch.device(device)).precision.channels_last == is_last
    monkeypatch.setattr("voxelocity.infer.models.bundle_network._MOST_LAST", 2)
    assert not task_of(open_model(folder), torch.device(device)).precision.channels_last


@pytest.mark.filterwarnings("ignore")
def test_a_volume_that_the_network_cannot_take_whole_is_refused_by_its_size(tmp_path, scans):
    folder = save_kind(tmp_path / "b", KINDS["template"], scans[:1])
    odd = tmp_path / "odd.nii.gz"
    nib.save(nib.load(scans[0]).slicer[:31], odd)
    with pytest.raises(ScanError, match=r"case 'x' has 31 x 24 x 16 voxels .* all at once"):
        as_ours(open_model(folder), [odd])


@pytest.mark.filterwarnings("ignore")
def test_a_volume_that_fits_is_known_without_torchs_compiler(tmp_path, scans, monkeypatch):
    model = open_model(save_kind(tmp_path / "b", KINDS["template"], scans[:1]))
    # A copy without weights, with which torch computes shapes by its compiler.
    monkeypatch.setattr("voxelocity.infer.models.bundle_network.copy.deepcopy", pytest.fail)
    assert {*np.unique(as_ours(model, scans[:1]))} <= {0, 1, 2}


@pytest.mark.filterwarnings("ignore")
def test_whole_volumes_are_predicted_in_eager_mode(tmp_path, scans):
    model = open_model(save_kind(tmp_path / "b", KINDS["template"], scans[:1]))
    with pytest.raises(InputError, match=r"passes whole volumes of different shapes to its network.*leave it out"):
        check_model("onnxruntime", model, CPU)
    check_model("auto", model, CPU)
    assert load_chosen("auto", model, num_windows=9, device=CPU, warn=print, note=print).runtime == EAGER
    header = VolumeSpec(num_channels=1, grid=Grid.of((32, 24, 16), np.eye(4)), dtype="float32")
    memory = scan_memory(header, model.spec, model.preparation)
    assert (memory.num_windows, memory.windows_bytes) == (1, 4 * (1 + 3) * 32 * 24 * 16)
    document = memory_document("x", memory, model.spec, place="main memory", free_bytes=1)
    assert "a pass of 1 windows, 32 x 24 x 16 voxels" in str(document.values)


@pytest.mark.filterwarnings("ignore")
def test_interpolated_numbers_of_classes_are_doubted(tmp_path, scans):
    (doubt,) = open_model(save_kind(tmp_path / "b", KINDS["prostate"], scans[:1])).doubts
    assert "nearest_interp false" in doubt


SMALL = {
    "AttentionUnet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 3, "channels": [4, 8], "strides": [2]},
    "BasicUNet": {"out_channels": 3, "features": [4, 4, 4, 4, 4, 4]},
    "FlexibleUNet": {
        "in_channels": 1, "out_channels": 3, "backbone": "resnet10", "spatial_dims": 3, "pretrained": True,
        "decoder_channels": [8, 4, 4, 4, 4],
    },
    "MedNeXt": {"out_channels": 3, "init_filters": 4, "kernel_size": 3, "blocks_down": [1], "blocks_up": [1],
                "blocks_bottleneck": 1},
    "SegResNetDS": {"out_channels": 3, "init_filters": 8, "blocks_down": [1, 1], "dsdepth": 2},
    "SwinUNETR": {"in_channels": 1, "out_channels": 3, "img_size": 32, "feature_size": 12, "depths": [1, 1, 1, 1]},
    "UNETR": {"in_channels": 1, "out_channels": 3, "img_size": [32, 32, 32], "feature_size": 4, "hidden_size": 24,
              "mlp_dim": 24, "num_heads": 2},
    "VNet": {"out_channels": 3},
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_networks_of_monai_return_what_they_return_in_monai(tmp_path, name):
    if name in ("SwinUNETR", "UNETR"):
        pytest.importorskip("einops")

    arguments = {**SMALL[name], **({"pretrained": False} if "pretrained" in SMALL[name] else {})}
    if name == "SwinUNETR":
        del arguments["img_size"]
    network = getattr(monai.networks.nets, name)(**arguments).eval()
    side = 64 if name == "SwinUNETR" else 32
    values = config(network={"_target_": name, **SMALL[name]}, roi_size=[side] * 3)
    model = open_model(save(tmp_path / "b", values, weights=network.state_dict()))
    image = torch.rand(1, 1, side, side, side)
    with torch.no_grad():
        assert torch.equal(model.network(image), network(image))
