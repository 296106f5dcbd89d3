"""Lists of cases as tools and data sets publish them, each with a few tiny files, and what must be read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shared.layouts import IMAGE, write_scan
from voxelocity.data.pipeline import declare_channels, declare_labels
from voxelocity.data.source import open_cases

_NUM = 5


@dataclass(frozen=True, kw_only=True)
class CaseList:
    """A list and its files.

    Attributes:
        name: of the list in its folder.
        content: of it.
        files: in the folder next to the list's own, `{}` being the number of a case, to the values of a label, or
            `IMAGE`.
        beside: other JSON files, such as splits.
        num_channels: of a file that holds several.
        cases: with a label.
        channels: of each.
        classes: without the background.
        held_out: cases of the first fold.
    """

    name: str = "dataset.json"
    content: Mapping[str, Any]
    files: Mapping[str, tuple[int, ...]]
    beside: Mapping[str, Any] = field(default_factory=dict)
    num_channels: int = 1
    cases: int = _NUM
    channels: int = 1
    classes: int = 2
    held_out: int = 1

    def make(self, folder: Path) -> Path:
        """Writes the list and its files; the path to open."""
        numbers = np.random.default_rng(0)
        for pattern, values in self.files.items():
            for number in range(_NUM):
                write_scan(folder / "data" / pattern.format(number), numbers, values, num_channels=self.num_channels)
        for name, content in {**self.beside, self.name: self.content}.items():
            (folder / "data" / name).write_text(json.dumps(content))
        return folder / "data"


@dataclass(frozen=True, kw_only=True)
class FoundList:
    """What was read of a list, as in `CaseList`."""

    cases: int
    channels: int
    classes: int
    held_out: int


def found_in_list(folder: Path) -> FoundList:
    """What is read of it.

    Raises:
        VoxelocityError: it is refused.
    """
    cases = declare_channels(declare_labels(open_cases(folder), num_threads=1))
    labeled = [ref for ref in cases.refs if ref.label is not None]
    return FoundList(
        cases=len(labeled),
        channels=len(cases.channels),
        classes=len(cases.class_names) - 1,
        held_out=sum(0 in ref.folds for ref in labeled),
    )


def _entries(
    image: str | Sequence[str], label: str, *, numbers: range = range(_NUM), **more: int
) -> list[dict[str, Any]]:
    """The cases of a list in MSD's form; each number in `more` counts folds."""

    def path(number: int) -> Any:
        return image.format(number) if isinstance(image, str) else [part.format(number) for part in image]

    return [
        {"image": path(number), "label": label.format(number), **{key: number % folds for key, folds in more.items()}}
        for number in numbers
    ]


_MSD_FILES = {"imagesTr/a_00{}.nii.gz": IMAGE, "labelsTr/a_00{}.nii.gz": (1, 2)}
_MSD_PATHS = ("./imagesTr/a_00{}.nii.gz", "./labelsTr/a_00{}.nii.gz")
_MSD_LABELS = {"0": "background", "1": "a", "2": "b"}
_MSD = {
    "name": "A", "description": "", "reference": "", "licence": "", "release": "1.0", "tensorImageSize": "3D",
    "modality": {"0": "CT"}, "labels": _MSD_LABELS, "numTraining": _NUM, "numTest": 1,
    "training": _entries(*_MSD_PATHS), "test": ["./imagesTs/a_100.nii.gz"],
}  # fmt: skip
_NNUNET = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1, "b": 2}, "numTraining": _NUM,
           "file_ending": ".nii.gz"}  # fmt: skip
_NNUNET_FILES = {"imagesTr/a_{}_0000.nii.gz": IMAGE, "labelsTr/a_{}.nii.gz": (1, 2)}
_IDS = [f"a_{number}" for number in range(_NUM)]
_SPLITS = [{"train": [case for case in _IDS if case != out], "val": [out]} for out in _IDS]
LISTS: dict[str, CaseList] = {
    "Medical Segmentation Decathlon": CaseList(content=_MSD, files=_MSD_FILES),
    "MSD, channels in one file": CaseList(
        content={**_MSD, "tensorImageSize": "4D", "modality": {"0": "FLAIR", "1": "T1w", "2": "T2w"}},
        files=_MSD_FILES, num_channels=3, channels=3,
    ),
    "MONAI, with validation": CaseList(
        name="dataset_0.json",
        content={**_MSD, "training": _entries(*_MSD_PATHS)[:3], "validation": _entries(*_MSD_PATHS)[3:]},
        files=_MSD_FILES, held_out=2,
    ),
    "AMOS 22": CaseList(
        content={
            **_MSD, "numValidation": 1, "training": _entries(*_MSD_PATHS)[:4],
            "validation": _entries("./imagesVa/a_00{}.nii.gz", "./labelsVa/a_00{}.nii.gz", numbers=range(4, 5)),
        },
        files={**_MSD_FILES, "imagesVa/a_00{}.nii.gz": IMAGE, "labelsVa/a_00{}.nii.gz": (1, 2)},
    ),
    "Auto3DSeg": CaseList(
        name="datalist.json",
        content={
            "training": _entries("img/i{}.nii.gz", "lab/l{}.nii.gz", fold=2), "testing": [{"image": "img/i0.nii.gz"}],
        },
        files={"img/i{}.nii.gz": IMAGE, "lab/l{}.nii.gz": (1, 2)}, held_out=3,
    ),
    "Auto3DSeg, several channels": CaseList(
        name="brats_datalist.json",
        content={"training": _entries(["img/i{}_a.nii.gz", "img/i{}_b.nii.gz"], "lab/l{}.nii.gz", fold=5)},
        files={"img/i{}_a.nii.gz": IMAGE, "img/i{}_b.nii.gz": IMAGE, "lab/l{}.nii.gz": (1, 2)}, channels=2,
    ),
    "nnU-Net 1": CaseList(
        content=_MSD, files={"imagesTr/a_00{}_0000.nii.gz": IMAGE, "labelsTr/a_00{}.nii.gz": (1, 2)}
    ),
    "nnU-Net 1, several channels": CaseList(
        content={**_MSD, "modality": {"0": "T1", "1": "T2"}},
        files={
            **{f"imagesTr/a_00{{}}_000{channel}.nii.gz": IMAGE for channel in (0, 1)},
            "labelsTr/a_00{}.nii.gz": (1, 2),
        },
        channels=2,
    ),
    "nnU-Net 2": CaseList(content=_NNUNET, files=_NNUNET_FILES),
    "nnU-Net 2, numbers in quotes": CaseList(
        content={**_NNUNET, "labels": {"background": "0", "a": "1", "b": "2"}, "numTraining": "5"}, files=_NNUNET_FILES
    ),
    "nnU-Net 2, .mha, regions, ignore, splits": CaseList(
        content={
            **_NNUNET, "channel_names": {"0": "T2", "1": "noNorm"}, "file_ending": ".mha",
            "labels": {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}, "regions_class_order": [1, 2],
            "overwrite_image_reader_writer": "SimpleITKIO",
        },
        files={
            **{f"imagesTr/a_{{}}_000{channel}.mha": IMAGE for channel in (0, 1)}, "labelsTr/a_{}.mha": (1, 2, 3),
        },
        beside={"splits_final.json": _SPLITS}, channels=2,
    ),
    "nnU-Net 2, paths elsewhere": CaseList(
        content={
            **_NNUNET, "file_ending": ".nrrd",
            "dataset": {
                f"a_{number}": {"images": [f"../raw/im{number}.nrrd"], "label": f"../raw/gt{number}.nrrd"}
                for number in range(_NUM)
            },
        },
        files={"../raw/im{}.nrrd": IMAGE, "../raw/gt{}.nrrd": (1, 2)},
    ),
    "nnU-Net 2, a fixed test set": CaseList(
        content=_NNUNET, files=_NNUNET_FILES, cases=4,
        beside={
            "splits_final.json": [
                {"train": [case for case in _IDS[:4] if case != out], "val": [out]} for out in _IDS[:4]
            ]
        },
    ),
    "nnU-Net 2, repeated splits": CaseList(
        content=_NNUNET, files=_NNUNET_FILES, beside={"splits_final.json": [*_SPLITS, *_SPLITS[::-1]]}
    ),
}  # fmt: skip
