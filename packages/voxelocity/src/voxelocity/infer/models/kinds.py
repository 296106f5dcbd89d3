"""How the folder of a model is recognized, by the names of its files. Opens none, and imports no torch.

Of a folder that may not be read, nothing is known: `os.path.isfile` says so, and `Path.is_file` raises an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from voxelocity.infer.models.spec import SPEC_NAME
from voxelocity.infer.runtimes.table import EXPORT_FORMATS

PLANS, METADATA = "plans.json", Path("configs") / "metadata.json"
_PART = re.compile(r"Dataset\d{3,4}_(?P<model>\w{1,100}?)_part(?P<part>\d{1,2})(_.*)?")


def is_run(path: Path) -> bool:
    """Whether `path` is the folder of a run with a model, or of an export."""
    return os.path.isfile(path / SPEC_NAME)


def is_export(folder: Path) -> bool:
    """Whether a folder holds an exported network."""
    return is_run(folder) and any(os.path.isfile(folder / form.main_file) for form in EXPORT_FORMATS.values())


def runs_without_torch(models: Sequence[Path], device: str) -> bool:
    """Whether torch is not needed to predict with these models on a device: one export, for a runtime on the CPU.

    Args:
        models: folders.
        device: as the user named it. An ONNX model on "auto" uses a GPU if the ONNX Runtime that is installed can.
    """
    if len(models) != 1 or not is_export(models[0]):
        return False
    return any(
        form.open_on_host is not None and (device == "cpu" or (device == "auto" and bool(form.why_not_on_gpu())))
        for form in EXPORT_FORMATS.values()
        if os.path.isfile(models[0] / form.main_file)
    )


def is_bundle(path: Path) -> bool:
    """Whether `path` is the folder of a MONAI bundle."""
    return os.path.isfile(path / METADATA)


def is_nnunet(path: Path) -> bool:
    """Whether `path` is a results folder of nnU-Net, or one of its folds."""
    return os.path.isfile(nnunet_results(path) / PLANS)


def nnunet_results(path: Path) -> Path:
    """The results folder of nnU-Net that `path` is, or whose fold it is."""
    return path.parent if path.name.startswith("fold_") and not os.path.exists(path / PLANS) else path


def nnunet_archive(path: Path) -> tuple[Path, PurePosixPath]:
    """The `.zip` file that `path` is or lies in, and the place in it; `path` itself if there is none."""
    for archive in (path, *path.parents):
        if archive.suffix.lower() == ".zip" and os.path.isfile(archive):
            return archive, PurePosixPath(path.relative_to(archive).as_posix())
    return path, PurePosixPath()


def is_nnunet_archive(path: Path) -> bool:
    """Whether `path` is a `.zip` file, or a place in one."""
    return os.path.isfile(nnunet_archive(path)[0]) and nnunet_archive(path)[0].suffix.lower() == ".zip"


def nnunet_parts(path: Path) -> dict[str, list[Path]]:
    """The folders of data sets in `path` that hold the parts of one model, in the order of their parts, by its name.

    As TotalSegmentator stores its weights: `Dataset291_TotalSegmentator_part1_organs_1559subj` and so on.
    """
    found: dict[str, dict[int, Path]] = {}
    for folder in sorted(path.glob("Dataset*_part*")) if os.path.isdir(path) else ():
        named = _PART.fullmatch(folder.name)
        if named and any(is_nnunet(results) for results in folder.glob("*__*__*")):
            found.setdefault(named["model"], {})[int(named["part"])] = folder
    return {model: [parts[number] for number in sorted(parts)] for model, parts in found.items() if len(parts) > 1}


def holds_nnunet_parts(path: Path) -> bool:
    """Whether `path` holds the parts of a model of nnU-Net."""
    return bool(nnunet_parts(path))
