"""nnU-Net v2's raw layout: file names define the cases (imagesTr/CASE_0000.nii.gz), or "dataset" lists them.

Reads neither its preprocessed folders nor version 1, whose `dataset.json` has the MSD form.
"""

from __future__ import annotations

import os
import re
import reprlib
from pathlib import Path

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import Description, kind_of
from voxelocity.data.source.listing import check_refs
from voxelocity.data.source.splits import SPLITS_NAME, assign_folds


def read_nnunet(description: Description, *, root: Path, num_folds: int) -> Cases:
    """The training cases of an nnU-Net v2 raw data set.

    Without a "dataset" list, each CASE with imagesTr/CASE_0000 to CASE_000N (one file per channel) needs
    labelsTr/CASE. Paths in a "dataset" list may be absolute or lead out of the folder, as nnU-Net documents.

    Raises:
        DatasetError: the description is malformed, contradicts itself or the files next to it, asks for regions or an
            "ignore" label, or lists files that do not exist.
    """
    channels = description.channels
    labels = description.labels
    listed = _listed(description, len(channels)) if "dataset" in description.values else _scanned(description, channels)
    refs, num_folds = assign_folds(
        check_refs(listed, listing=description.path), num_folds=num_folds, splits_file=description.folder / SPLITS_NAME
    )
    return Cases(
        name=description.name,
        root=root,
        layout="nnunet",
        channels=channels,
        labels=labels,
        refs=refs,
        num_folds=num_folds,
    )


def _listed(description: Description, num_channels: int) -> list[VolumeRef]:
    refs = []
    cases = description.require("dataset", dict)
    if not cases:
        raise description.error('"dataset" lists no cases; add them, or remove it to find the cases in imagesTr')
    for case_id, files in cases.items():
        case = f"case {case_id!r}"
        if not isinstance(files, dict):
            raise description.error(f'{case} is {kind_of(files)}; write it as {{"images": ["..."], "label": "..."}}')
        for key in ("images", "label"):
            if key not in files:
                raise description.error(f'{case} has no "{key}", only {reprlib.repr(list(files))}; add its path')
        images = description.check_images(files["images"], case=case, num_channels=num_channels)
        label = description.check_label(files["label"], case=case)
        refs.append(
            VolumeRef(
                case_id=case_id,
                images=tuple(description.folder / image for image in images),
                label=description.folder / label,
            )
        )
    return refs


def _scanned(description: Description, channels: tuple[str, ...]) -> list[VolumeRef]:
    ending = description.require("file_ending", str)
    images_folder, labels_folder = description.folder / "imagesTr", description.folder / "labelsTr"
    names_by_case = _names_by_case(description, images_folder, ending)
    _check_number(description, len(names_by_case))
    refs = []
    for case_id, names in names_by_case.items():
        expected = [f"{case_id}_{channel:04d}{ending}" for channel in range(len(channels))]
        if names != expected:
            odd = next(name for name in [*expected, *names] if (name in names) != (name in expected))
            state = "is missing from" if odd in expected else "is one channel too many in"
            raise description.error(
                f"case {case_id!r}: {odd} {state} {images_folder}, as the data set has {len(channels)} channel(s): "
                f'{", ".join(channels)}; complete the files or correct "channel_names"'
            )
        images = tuple(images_folder / name for name in names)
        refs.append(VolumeRef(case_id=case_id, images=images, label=labels_folder / f"{case_id}{ending}"))
    return refs


def _names_by_case(description: Description, folder: Path, ending: str) -> dict[str, list[str]]:
    """Names of the image files of each case, sorted."""
    try:
        # Archives from a Mac put a file with a leading dot next to each file.
        names = sorted(name for name in os.listdir(folder) if name.endswith(ending) and not name.startswith("."))
    except OSError as error:
        raise description.error(
            f'{folder} cannot be read ({error.strerror}); put the images there, or list them under "dataset"'
        ) from None
    pattern = re.compile(rf"(.+)_[0-9]{{4}}{re.escape(ending)}")
    by_case: dict[str, list[str]] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            raise description.error(
                f"{folder / name} has no channel number; rename it to CASE_0000{ending} as nnU-Net v2 requires, "
                'or list the files under "dataset"'
            )
        by_case.setdefault(match[1], []).append(name)
    if not by_case:
        raise description.error(f'{folder} holds no file ending in {ending!r}; add the images or correct "file_ending"')
    return by_case


def _check_number(description: Description, num_found: int) -> None:
    if "numTraining" in description.values and (declared := description.require("numTraining", int)) != num_found:
        raise description.error(
            f'"numTraining" is {declared}, but imagesTr holds {num_found} case(s); '
            "complete the copy of the data set, or correct the number"
        )
