"""Which kind of model a folder holds, by the names of its files. Opens none, and imports no torch.

Of a folder that may not be read, nothing is known: `os.path.isfile` says so, and `Path.is_file` raises an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from voxelocity.infer.models.spec import SPEC_NAME, ExportFormat
from voxelocity.infer.runtimes.onnxruntime import why_not_on_gpu

PLANS, METADATA = "plans.json", Path("configs") / "metadata.json"
MAIN_FILES: dict[ExportFormat, str] = {
    "onnx": "network.onnx",
    "openvino": "network.xml",
    "pt2": "network.pt2",
    "tensorrt": "network.ep",
}
"""The file of an export that is opened."""
OPENVINO_WEIGHTS = "network.bin"
"""The other file of an export for OpenVINO."""
MACHINE_CODE: tuple[ExportFormat, ...] = ("pt2", "tensorrt")


def is_model(path: Path) -> bool:
    """Whether `path` is the folder of a model, not of scans."""
    return os.path.isfile(path / SPEC_NAME) or is_nnunet(path) or is_bundle(path)


def is_export(folder: Path) -> bool:
    """Whether a folder holds an exported network."""
    return os.path.isfile(folder / SPEC_NAME) and any(os.path.isfile(folder / name) for name in MAIN_FILES.values())


def runs_without_torch(models: Sequence[Path], device: str) -> bool:
    """Whether torch is not needed to predict with these models on a device: one export, for a runtime on the CPU.

    Args:
        models: folders.
        device: as the user named it. An ONNX model on "auto" uses a GPU if the ONNX Runtime that is installed can.
    """
    if len(models) != 1 or not is_export(models[0]):
        return False
    if os.path.isfile(models[0] / MAIN_FILES["openvino"]):
        return device in ("cpu", "auto")
    is_onnx = os.path.isfile(models[0] / MAIN_FILES["onnx"])
    return is_onnx and (device == "cpu" or (device == "auto" and bool(why_not_on_gpu())))


def is_bundle(path: Path) -> bool:
    """Whether `path` is the folder of a MONAI bundle."""
    return os.path.isfile(path / METADATA)


def is_nnunet(path: Path) -> bool:
    """Whether `path` is a results folder of nnU-Net, or one of its folds."""
    return os.path.isfile(nnunet_results(path) / PLANS)


def nnunet_results(path: Path) -> Path:
    """The results folder of nnU-Net that `path` is, or whose fold it is."""
    return path.parent if path.name.startswith("fold_") and not os.path.exists(path / PLANS) else path
