"""A raw data set of nnU-Net v2, in the order in which nnU-Net takes its cases, and the labels that it samples from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.core.volume import VolumeRef
from voxelocity.data.source import open_cases
from voxelocity.infer.models.nnunet_plans import DATASET
from voxelocity_observe.core.errors import ConfigError, DatasetError

RAW, PREPROCESSED = "nnUNet_raw", "nnUNet_preprocessed"
"""nnU-Net's variables: the folders of its data sets."""
ClassKey = int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RawDataset:
    """A data set whose cases all have a label.

    Attributes:
        folder: of the raw data.
        description: `dataset.json`.
        refs: the cases.
    """

    folder: Path
    description: Mapping[str, Any]
    refs: Sequence[VolumeRef]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def ending(self) -> str:
        return str(self.description["file_ending"])

    @property
    def channels(self) -> Sequence[str]:
        names = self.description.get("channel_names") or self.description["modality"]
        return tuple(map(str, names.values()))

    def sampled_classes(self) -> list[ClassKey]:
        """The classes, or regions, of whose voxels some places are kept, as keys of nnU-Net's `class_locations`.

        Also all labels at once, with -1, if some voxels are to be ignored: patches are then cut around annotated ones.
        """
        labels = {name: value for name, value in self.description["labels"].items() if name != "ignore"}
        parts = [tuple(value) if isinstance(value, list) else (value,) for value in labels.values()]
        known = sorted({int(value) for part in parts for value in part})
        if any(len(part) > 1 for part in parts):
            regions = [tuple(value) if isinstance(value, list) else int(value) for value in labels.values()]
            classes: list[ClassKey] = [region for region, part in zip(regions, parts, strict=True) if set(part) != {0}]
        else:
            classes = [value for value in known if value != 0]
        if "ignore" in self.description["labels"]:
            classes.append((-1, *known))
        return classes


def find_raw(dataset: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a raw data set.

    Args:
        dataset: its folder, its name in `nnUNet_raw`, or the number in that name.
        environ: has nnU-Net's variables.

    Raises:
        ConfigError: the variable is needed and not set.
        DatasetError: there is no such data set, or several have the number.
    """
    if (Path(dataset) / DATASET).is_file():
        # nnU-Net knows it by the name of its folder.
        return Path(dataset).resolve()
    place = place_of(
        RAW, environ, f"or name the folder of the data set, which has a {DATASET}, in place of {dataset!r}"
    )
    start = f"Dataset{int(dataset):03d}_" if dataset.isdecimal() else dataset
    try:
        names = sorted(path.name for path in place.iterdir() if path.is_dir())
    except OSError as error:
        raise DatasetError(f"nnunet: {place} cannot be read ({error.strerror}); set {RAW} to another folder") from None
    found = [name for name in names if name == start or (dataset.isdecimal() and name.startswith(start))]
    if len(found) != 1:
        what = f"holds {' and '.join(found)}" if found else f"holds no data set {dataset!r}"
        others = ", ".join(name for name in names if name.startswith("Dataset"))[:200]
        raise DatasetError(f"nnunet: {place} {what}; name one of {others or 'its folders; it has none'}")
    return place / found[0]


def place_of(variable: str, environ: Mapping[str, str], otherwise: str) -> Path:
    """The folder that one of nnU-Net's variables names.

    Raises:
        ConfigError: it is not set; `otherwise` says what else helps.
    """
    if not environ.get(variable):
        raise ConfigError(f"nnunet: {variable} is not set; export {variable}=FOLDER as nnU-Net needs it, {otherwise}")
    return Path(environ[variable])


def open_raw(folder: Path) -> RawDataset:
    """The data set in a folder. No voxel is read.

    Raises:
        DatasetError: it is not in nnU-Net v2's layout, has a name without number, contradicts itself, or a case lacks a
            file.
    """
    if not re.match(r"Dataset\d{3}", folder.name):
        raise DatasetError(
            f"nnunet: {folder} has no name such as Dataset001_Liver, by whose three digits nnU-Net finds data sets; "
            "rename the folder"
        )
    cases = open_cases(folder)
    path = folder / DATASET
    if cases.layout != "nnunet":
        raise DatasetError(f"nnunet: {path} is not in nnU-Net v2's form; convert it with nnUNetv2_convert_MSD_dataset")
    description = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in ("labels", "file_ending") if key not in description]
    if missing:
        raise DatasetError(f"nnunet: {path} has no {missing[0]!r}, which nnU-Net needs; add it")
    by_id = {ref.case_id: ref for ref in cases.refs}
    # nnU-Net keeps the order of a list, and sorts what it finds itself.
    return RawDataset(
        folder=folder, description=description, refs=[by_id[name] for name in description.get("dataset", sorted(by_id))]
    )
