"""The Medical Segmentation Decathlon's layout: `dataset.json` lists an image and a label file per training case.

Its "test" list is not read: to predict cases without labels, give their paths.
"""

from __future__ import annotations

import os
import reprlib
from pathlib import Path
from typing import Any

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import Description, kind_of
from voxelocity.data.source.listing import case_id_of, check_refs
from voxelocity.data.source.splits import SPLITS_NAME, assign_folds


def read_msd(description: Description, *, root: Path, num_folds: int) -> Cases:
    """The training cases of an MSD data set.

    A case is named after its image file without .nii.gz or .nii, and without nnU-Net's channel number where the label
    file has none. "image" may be one path (a file of one or of all channels) or a list of one per channel. An integer
    "fold" per entry is honored. Paths must stay inside the folder: such a data set is published as one folder, so a
    path that leaves it is a mistake, or an attempt to read other files.

    Raises:
        DatasetError: the description is malformed, contradicts itself, or lists files that do not exist.
    """
    channels = description.channels
    labels = description.labels
    entries = description.require("training", list)
    if not entries:
        raise description.error('"training" lists no cases; add an {"image": ..., "label": ...} for each')
    listed = [_ref(description, index, entry, len(channels)) for index, entry in enumerate(entries)]
    refs, num_folds = assign_folds(
        check_refs(listed, listing=description.path), num_folds=num_folds, splits_file=description.folder / SPLITS_NAME
    )
    return Cases(
        name=description.name,
        root=root,
        layout="msd",
        channels=channels,
        labels=labels,
        refs=refs,
        num_folds=num_folds,
    )


def _ref(description: Description, index: int, entry: Any, num_channels: int) -> VolumeRef:
    case = f'entry {index} of "training"'
    if not isinstance(entry, dict):
        raise description.error(f'{case} is {kind_of(entry)}; write it as {{"image": "...", "label": "..."}}')
    for key in ("image", "label"):
        if key not in entry:
            raise description.error(f'{case} has no "{key}", only {reprlib.repr(list(entry))}; add its path')
    images = description.check_images(entry["image"], case=case, num_channels=num_channels)
    image_paths = tuple(_inside(description, path, case) for path in images)
    label_path = _inside(description, description.check_label(entry["label"], case=case), case)
    return VolumeRef(
        case_id=case_id_of(image_paths, label_path),
        images=image_paths,
        label=label_path,
        fold=_fold(description, entry.get("fold"), case),
    )


def _inside(description: Description, listed: str, case: str) -> Path:
    # Compared as text: an inner folder that links to another disk is the owner's choice and is followed.
    if os.path.isabs(listed) or os.path.normpath(listed).split(os.sep)[0] == os.pardir:
        raise description.error(
            f"{case} lists {listed!r}, which lies outside the data set's folder; "
            "write the path relative to the folder, or list such files in a .csv table"
        )
    return description.folder / listed


def _fold(description: Description, fold: Any, case: str) -> int | None:
    if fold is None:
        return None
    if not isinstance(fold, int) or isinstance(fold, bool) or fold < 0:
        raise description.error(f'{case} has "fold": {reprlib.repr(fold)}; write a whole number from 0')
    return fold
