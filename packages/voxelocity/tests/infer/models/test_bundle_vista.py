"""VISTA3D as in MONAI's model zoo, in small: the classes that it finds by itself are those of MONAI's own parts."""

import json

import monai.networks.nets
import numpy as np
import pytest
import torch
from monai.apps.vista3d.transforms import VistaPostTransformd
from monai.bundle import ConfigParser
from monai.inferers import SlidingWindowInfererAdapt
from monai.transforms import Compose, Invertd

from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.infer import Predictor, open_model
from voxelocity_observe.core.errors import InputError

from .test_bundle import write_scan

pytestmark = pytest.mark.filterwarnings("ignore")
ASKED = sorted({*range(1, 133)} - {2, 16, 18, 20, 21, 23, 24, 25, 26, 27, 128, 129, 130, 131, 132})
EVERYTHING = "$list(set([i+1 for i in range(132)]) - set([2,16,18,20,21,23,24,25,26,27,128,129,130,131,132]))"
NAMES = {str(value): f"structure {value}" if value else "background" for value in range(133)}


def described(**changes):
    """The configuration as published, with a narrow network and small windows."""
    return {
        "imports": ["$import glob", "$import scripts", "$import json", "$import pathlib"],
        "image_key": "image",
        "output_dtype": "$np.float32",
        "input_dict": "${'image': '/data/spleen_10.nii.gz', 'label_prompt': [3]}",
        "everything_labels": EVERYTHING,
        "metadata": "$json.loads(pathlib.Path(@metadata_path).read_text())",
        "labels_dict": "$@metadata['network_data_format']['outputs']['pred']['channel_def']",
        "subclass": {"2": [14, 5], "21": "$list(range(33, 57)) + list(range(63, 98)) + [114, 120, 122]"},
        "input_channels": 1,
        "resample_spacing": [1.5, 1.5, 1.5],
        "patch_size": [32, 32, 32],
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": "$monai.networks.nets.vista3d132(in_channels=@input_channels, encoder_embed_dim=8)",
        "network": "$@network_def.to(@device)",
        "preprocessing_transforms": [
            {"_target_": "LoadImaged", "keys": "@image_key", "reader": "NibabelGPUReader", "image_only": True},
            {"_target_": "EnsureChannelFirstd", "keys": "@image_key"},
            {"_target_": "EnsureTyped", "keys": "@image_key", "device": "@device", "track_meta": True},
            {"_target_": "Spacingd", "keys": "@image_key", "pixdim": "@resample_spacing", "mode": "bilinear"},
            {
                "_target_": "CropForegroundd", "keys": "@image_key", "allow_smaller": True, "margin": 10,
                "source_key": "@image_key",
            },
            {
                "_target_": "monai.apps.vista3d.transforms.VistaPreTransformd", "keys": "@image_key",
                "subclass": "@subclass", "labels_dict": "@labels_dict",
            },
            {
                "_target_": "ScaleIntensityRanged", "keys": "@image_key", "a_min": -963.8247715525971,
                "a_max": 1053.678477684517, "b_min": 0, "b_max": 1, "clip": True,
            },
            {"_target_": "Orientationd", "keys": "@image_key", "axcodes": "RAS"},
            {"_target_": "CastToTyped", "keys": "@image_key", "dtype": "$torch.float32"},
        ],
        "preprocessing": {"_target_": "Compose", "transforms": "$@preprocessing_transforms "},
        "inferer": {
            "_target_": "scripts.inferer.Vista3dInferer", "roi_size": "@patch_size", "overlap": 0.3, "sw_batch_size": 1,
            "use_point_window": True,
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "ToDeviced", "keys": "pred", "device": "cpu", "_disabled_": True},
                {"_target_": "monai.apps.vista3d.transforms.VistaPostTransformd", "keys": "pred"},
                {
                    "_target_": "Invertd", "keys": "pred", "transform": "$copy.deepcopy(@preprocessing)",
                    "orig_keys": "@image_key", "nearest_interp": True, "to_tensor": True,
                },
                {"_target_": "Lambdad", "func": "$lambda x: torch.nan_to_num(x, nan=255)", "keys": "pred"},
                {"_target_": "SaveImaged", "keys": "pred", "output_dtype": "@output_dtype"},
            ],
        },
        "checkpointloader": {
            "_target_": "CheckpointLoader", "load_path": "$@bundle_root + '/models/model.pt'",
            "load_dict": {"model": "@network"}, "map_location": "@device",
        },
        **changes,
    }  # fmt: skip


def save(folder, *, release="0.6.0", **changes):
    image = {"num_channels": 1, "modality": "CT", "channel_def": {"0": "image"}}
    metadata = {
        "version": release,
        "network_data_format": {
            "inputs": {"image": image}, "outputs": {"pred": {"num_channels": 1, "channel_def": NAMES}},
        },
    }  # fmt: skip
    for name in ("configs", "models"):
        (folder / name).mkdir(parents=True)
    (folder / "configs" / "inference.json").write_text(json.dumps(described(**changes)))
    (folder / "configs" / "metadata.json").write_text(json.dumps(metadata))
    torch.manual_seed(1)
    network = monai.networks.nets.vista3d132(in_channels=1, encoder_embed_dim=8)
    torch.save(network.state_dict(), folder / "models" / "model.pt")
    return folder


@pytest.fixture
def scan(tmp_path):
    """Longer than a window on one axis, shorter on the others."""
    return write_scan(tmp_path / "scan.nii.gz", (60, 24, 16))


def as_monai(folder, scan):
    """What the code of the bundle does with MONAI's parts if nobody asks for a class."""
    network = monai.networks.nets.vista3d132(in_channels=1, encoder_embed_dim=8).eval()
    network.load_state_dict(torch.load(folder / "models" / "model.pt"))
    parser = ConfigParser(described(device="cpu"))
    steps = [
        parser.get_parsed_content(f"preprocessing_transforms::{number}")
        for number, step in enumerate(described()["preprocessing_transforms"])
        if "Vista" not in step["_target_"] and step["_target_"] != "LoadImaged"
    ]
    preparation = Compose([monai.transforms.LoadImaged("image", image_only=True), *steps])
    data = preparation({"image": str(scan)})
    numbers = torch.tensor(ASKED)[:, None]
    inferer = SlidingWindowInfererAdapt(roi_size=[32] * 3, sw_batch_size=1, with_coord=True, padding_mode="replicate")
    with torch.no_grad():
        data["pred"] = inferer(
            data["image"][None], network, transpose=True, point_coords=None, point_labels=None, class_vector=numbers,
            prompt_class=numbers, prev_mask=None, labels=None, label_set=None,
        )[0]  # fmt: skip
    data["label_prompt"] = numbers
    back = Invertd("pred", preparation, orig_keys="image", nearest_interp=True, to_tensor=True)
    return back(VistaPostTransformd("pred")(data))["pred"][0].numpy()


def as_ours(model, scan):
    volume = read_case(VolumeRef(case_id="x", images=(scan,)), label_values=model.spec.label_values)
    indices = Predictor(model.network, model.spec, model.preparation, device=torch.device("cpu")).predict(volume)
    return np.array(model.spec.label_values)[indices]


def test_classes_are_those_of_monais_own_parts(tmp_path, scan):
    folder = save(tmp_path / "vista3d")
    model = open_model(folder)
    assert model.spec.labels == {0: "background", **{value: f"structure {value}" for value in ASKED}}
    found, expected = as_ours(model, scan), as_monai(folder, scan)
    assert found.shape == expected.shape
    foreground = (found > 0) | (expected > 0)
    assert (found != expected)[foreground].mean() <= 0.001
    assert len(np.unique(expected)) > 5
    assert 0.05 < foreground.mean() < 1.0


def test_few_classes_are_those_that_the_bundle_names(tmp_path):
    model = open_model(save(tmp_path / "b", everything_labels=[3, 1]))
    assert model.spec.labels == {0: "background", 1: "structure 1", 3: "structure 3"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": "0.5.6"}, r"metadata.json is of release '0.5.6'; VISTA3D is read from 0.5.7 on"),
        ({"release": None}, "is of release 'None'"),
        ({"everything_labels": [1, 133]}, r"is \[1, 133\], not different numbers of classes up to 132"),
        ({"everything_labels": [0, 1]}, "not different numbers"),
        ({"everything_labels": [1, 1]}, "not different numbers"),
        ({"everything_labels": "$[i for i in range(10**9)]"}, "more than 10000 items|is not computed"),
        ({"network_def": "$scripts.build(in_channels=1)"}, "code and is not evaluated"),
        ({"network_def": "$monai.networks.nets.vista3d132(1)"}, "code and is not evaluated"),
        ({"network_def": "$monai.networks.nets.vista3d132(in_channels=os.abort())"}, "code and is not evaluated"),
        ({"inferer": {"_target_": "scripts.inferer.Mine"}}, "is made by scripts.inferer.Mine, which is not MONAI's"),
    ],
)
def test_what_is_not_known_of_it_is_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        open_model(save(tmp_path / "b", **changes))
