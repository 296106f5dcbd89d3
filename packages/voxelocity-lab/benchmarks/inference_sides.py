"""One scan predicted once by one side, in a process of its own: a line of JSON with its seconds and its peak memory.

    python benchmarks/inference_sides.py SIDE SCAN OUT --classes 14 --window 128 --memory-gib 20

The network is a stand-in that costs little, so that everything around it can be seen: a mean of 27 voxels, and for each
class how near that is to the intensity of the class. Every side gets the same network, windows, overlap, spacing and
intensities. `benchmarks/inference.py` alternates the sides.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

SPACING_MM = 1.5
LOW, HIGH, STD = -900.0, 2000.0, 500.0
FIRST, STEP = -200.0, 15.0
"""Intensity of the first organ, and from each to the next; the background is LOW and below."""
CLASS_NAMES = "class"


class StandIn(torch.nn.Module):
    """The class whose intensity is nearest; notes the seconds that it takes.

    Attributes:
        seconds: of all forward passes.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        organs = FIRST + STEP * np.arange(num_classes - 1)
        centers = torch.tensor(np.concatenate([[LOW], organs]) / STD, dtype=torch.float32)
        self._sharpness = sharpness = 4.0 * (STD / STEP) ** 2
        self.classes = torch.nn.Conv3d(1, num_classes, 1)
        with torch.no_grad():
            self.classes.weight.copy_(2.0 * sharpness * centers.reshape(-1, 1, 1, 1, 1))
            self.classes.bias.copy_(-sharpness * centers**2)  # type: ignore[union-attr]
        self.seconds = 0.0

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        mean = torch.nn.functional.avg_pool3d(windows, 3, stride=1, padding=1, count_include_pad=False)
        logits: torch.Tensor = self.classes(mean)
        # The square of the distance to each class, no farther than nnU-Net's float16 sums can hold.
        logits = (logits - self._sharpness * mean.square_()).clamp_(min=-50.0)
        self.seconds += time.perf_counter() - start
        return logits


_built: list[StandIn] = []


def build(*, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The stand-in, as `network.factory` names it."""
    assert num_channels == 1
    _built.append(StandIn(num_classes))
    return _built[-1]


def ours(scan: Path, out: Path, network: StandIn, window: int) -> Callable[[], float]:
    """`voxelocity.predict` with the folder of a run."""
    from voxelocity.infer import ModelSpec, predict_files, save_model

    num_classes = network.classes.out_channels
    spec = ModelSpec.parse(
        {
            "network": {"name": "custom", "factory": "inference_sides:build", "widths": [4, 8], "strides": [[2, 2, 2]]},
            "channels": ["CT"],
            "labels": {index: f"{CLASS_NAMES} {index}" for index in range(num_classes)},
            "prepare": {
                "intensity": {"mode": "window", "low": LOW, "high": HIGH, "mean": 0.0, "std": STD},
                "spacing_mm": [SPACING_MM] * 3,
            },
            "window": {"shape_voxel": [window] * 3, "overlap": 0.5},
            "precision": {"compute": "float32"},
        }
    )
    run = out.parent / f"run_{num_classes}"
    run.mkdir(exist_ok=True)
    save_model(run, network, spec)

    def predict() -> float:
        predict_files(
            run, [scan], out, device=torch.device("cpu"), num_threads=2, overwrite=True,
            factory="inference_sides:build",
        )  # fmt: skip
        return _built[-1].seconds

    return predict


def nnunet(scan: Path, out: Path, network: StandIn, window: int, *, resampling: str) -> Callable[[], float]:
    """nnU-Net's predictor, scan by scan; `resampling` is its default or its faster one in torch."""
    os.environ.setdefault("nnUNet_def_n_proc", "2")
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    names = {"default": "resample_data_or_seg_to_shape", "torch": "resample_torch_fornnunet"}
    options: dict[str, dict[str, Any]] = {
        "default": {"order": 1, "order_z": 0, "force_separate_z": None},
        "torch": {"is_seg": False, "force_separate_z": False, "memefficient_seg_resampling": False},
    }
    data_options = dict(options[resampling], is_seg=False)
    if resampling == "default":
        # The scan too is resampled linearly, as by the other sides; nnU-Net's plans say 3.
        options[resampling]["is_seg"] = False
    plans = {
        "dataset_name": "Dataset001_StandIn", "plans_name": "nnUNetPlans", "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2], "image_reader_writer": "SimpleITKIO", "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            "0": {"mean": 0.0, "std": STD, "percentile_00_5": LOW, "percentile_99_5": HIGH}
        },
        "configurations": {
            "3d_fullres": {
                "data_identifier": "x", "preprocessor_name": "DefaultPreprocessor", "batch_size": 1,
                "patch_size": [window] * 3, "spacing": [SPACING_MM] * 3, "normalization_schemes": ["CTNormalization"],
                "architecture": {"network_class_name": "unused", "arch_kwargs": {}, "_kw_requires_import": []},
                "use_mask_for_norm": [False], "batch_dice": False,
                "resampling_fn_data": names[resampling], "resampling_fn_data_kwargs": data_options,
                "resampling_fn_seg": names[resampling], "resampling_fn_seg_kwargs": data_options,
                "resampling_fn_probabilities": names[resampling],
                "resampling_fn_probabilities_kwargs": options[resampling],
            }
        },
    }  # fmt: skip
    num_classes = network.classes.out_channels
    labels = {"background": 0, **{f"{CLASS_NAMES} {index}": index for index in range(1, num_classes)}}
    dataset = {"channel_names": {"0": "CT"}, "labels": labels, "file_ending": ".nii.gz", "numTraining": 1}
    manager = PlansManager(plans)
    predictor = nnUNetPredictor(use_mirroring=False, device=torch.device("cpu"), allow_tqdm=False)
    predictor.manual_initialization(
        network,
        manager,
        manager.get_configuration("3d_fullres"),
        [network.state_dict()],
        dataset,
        "nnUNetTrainer",
        None,
    )

    def predict() -> float:
        predictor.predict_from_files_sequential([[str(scan)]], [str(out / scan.name.removesuffix(".nii.gz"))])
        return network.seconds

    return predict


def monai(scan: Path, out: Path, network: StandIn, window: int) -> Callable[[], float]:
    """MONAI's chain: prepared, windows, inverted, arg-max, saved."""
    from monai.data import decollate_batch
    from monai.inferers import sliding_window_inference
    from monai.transforms import (
        AsDiscreted,
        Compose,
        EnsureChannelFirstd,
        Invertd,
        LoadImaged,
        Orientationd,
        SaveImaged,
        ScaleIntensityRanged,
        Spacingd,
    )

    before = Compose([
        LoadImaged("image"), EnsureChannelFirstd("image"), Orientationd("image", axcodes="RAS"),
        ScaleIntensityRanged("image", a_min=LOW, a_max=HIGH, b_min=LOW / STD, b_max=HIGH / STD, clip=True),
        Spacingd("image", pixdim=(SPACING_MM,) * 3, mode="bilinear"),
    ])  # fmt: skip
    after = Compose([
        Invertd("pred", transform=before, orig_keys="image", nearest_interp=False, to_tensor=True),
        AsDiscreted("pred", argmax=True),
        SaveImaged("pred", output_dir=str(out), output_postfix="", separate_folder=False, print_log=False),
    ])  # fmt: skip

    def predict() -> float:
        from monai.data import DataLoader, Dataset

        batch = next(iter(DataLoader(Dataset([{"image": str(scan)}], before), batch_size=1)))
        with torch.no_grad():
            batch["pred"] = sliding_window_inference(
                batch["image"], (window,) * 3, 1, network, overlap=0.5, mode="gaussian"
            )
        for item in decollate_batch(batch):
            after(item)
        return network.seconds

    return predict


def main() -> None:
    """Runs one side and prints its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("ours", "nnunet", "nnunet-torch", "monai"))
    parser.add_argument("scan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--memory-gib", type=float, default=20.0, help="data that the process may allocate")
    chosen = parser.parse_args()
    limit = int(chosen.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(2)
    chosen.out.mkdir(parents=True, exist_ok=True)
    network = StandIn(chosen.classes).eval()
    kind, _, resampling = chosen.side.partition("-")
    options: dict[str, Any] = {"resampling": resampling or "default"} if kind == "nnunet" else {}
    sides: dict[str, Callable[..., Callable[[], float]]] = {"ours": ours, "nnunet": nnunet, "monai": monai}
    predict = sides[kind](chosen.scan, chosen.out, network, chosen.window, **options)
    with torch.no_grad():
        network(torch.zeros(1, 1, *(chosen.window,) * 3))
    own_bytes = _peak_bytes()
    network.seconds = 0.0
    start = time.perf_counter()
    try:
        network_s = predict()
    except (MemoryError, RuntimeError) as error:
        print(json.dumps({"error": str(error).splitlines()[0][:200], "peak_bytes": _peak_bytes() - own_bytes}))
        return
    seconds = time.perf_counter() - start
    record = {
        "seconds": seconds,
        "network_s": network_s,
        "own_bytes": own_bytes,
        "peak_bytes": _peak_bytes() - own_bytes,
    }
    print(json.dumps(record))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    # The factory is found by the name of this module.
    sys.modules["inference_sides"] = sys.modules["__main__"]
    main()
