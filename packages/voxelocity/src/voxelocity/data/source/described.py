"""Data sets that a `dataset.json` describes: the Medical Segmentation Decathlon's layout, and nnU-Net v2's raw one.

MONAI's and Auto3DSeg's data lists have MSD's form, and need not name channels and classes.
MSD's "test" list is not read: to predict cases without labels, give their paths. nnU-Net's version 1 has the MSD form,
with names of images that lack the channel number of the files. Does not read nnU-Net's preprocessed folders.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from voxelocity.core.cases import Cases
from voxelocity.core.scan_formats import stem_of
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import Description, kind_of, whole_number
from voxelocity.data.source.listing import case_id_of, check_refs
from voxelocity.data.source.splits import SPLITS_NAME, assign_folds
from voxelocity_observe.core.plain import excerpt, shortened

_VALIDATION = ("validation", "val")


class _Layout(NamedTuple):
    """A form of `dataset.json`, by its name in `Cases`: how it is recognized, and the cases that it has."""

    name: str
    is_of: Callable[[Description], bool]
    refs: Callable[[Description], list[VolumeRef]]


def read_described(description: Description, *, root: Path, num_folds: int) -> Cases:
    """The training cases of a data set in one of the two layouts; the direction of "labels" decides which, or a list.

    MSD ("msd"): a case of the "training" list is named after its image file without .nii.gz or .nii, and without
    nnU-Net's channel number where the label file has none. "image" may be one path (a file of one or of all channels)
    or a list of one per channel; where no such file exists, it stands for CASE_0000 to CASE_000N, as in nnU-Net v1. An
    integer "fold" per entry is honored; without one, the cases of a "validation" list are held out in fold 0. Paths
    must stay inside the folder: such a data set is published as one folder, so a path that leaves it is a mistake, or
    an attempt to read other files.

    nnU-Net v2 ("nnunet"): each CASE with imagesTr/CASE_0000 to CASE_000N (one file per channel) needs labelsTr/CASE, or
    a "dataset" lists the files. Paths in it may be absolute or lead out of the folder, as nnU-Net documents.

    Raises:
        DatasetError: the description is malformed, contradicts itself or the files next to it, or lists files
            that do not exist.
    """
    layout = next(layout for layout in _LAYOUTS if layout.is_of(description))
    channels, labels = description.channels, description.labels
    refs, num_folds = assign_folds(
        check_refs(layout.refs(description), listing=description.path),
        num_folds=num_folds,
        splits_file=description.folder / SPLITS_NAME,
    )
    return Cases(
        name=description.name,
        root=root,
        layout=layout.name,
        channels=channels,
        labels=labels,
        refs=refs,
        num_folds=num_folds,
        regions=description.regions,
        region_values=description.region_values,
        ignore_value=description.ignore_value,
    )


def _check_direction(description: Description) -> None:
    """Refuses labels in MSD's form in a description that is otherwise nnU-Net's."""
    if "training" in description.values or "file_ending" not in description.values:
        return
    labels = description.labels
    turned = ", ".join(f'"{excerpt(name, 80)}": {value}' for value, name in list(labels.items())[:3])
    raise description.error(
        '"labels" maps numbers to names, as in MSD with its "training" list of cases; nnU-Net v2 writes it the other '
        f"way around: turn it into {{{turned}{', ...' if len(labels) > 3 else ''}}}"
    )


def _msd_refs(description: Description) -> list[VolumeRef]:
    _check_direction(description)
    if not description.require("training", list):
        raise description.error('"training" lists no cases; add an {"image": ..., "label": ...} for each')
    refs = _listed_refs(description, "training")
    key = next((key for key in _VALIDATION if isinstance(description.values.get(key), list)), "")
    if not key or not (entries := description.values[key]):
        return refs
    why = _why_unused(description, refs, entries, key)
    if why:
        warnings.warn(
            f'source: {description.path}: the {len(entries)} cases under "{key}" are not used, neither to train nor to '
            f"judge, because {why}",
            stacklevel=2,
        )
        return refs
    held_out = {ref.images: replace(ref, fold=0) for ref in _listed_refs(description, key)}
    return [*(ref for ref in refs if ref.images not in held_out), *held_out.values()]


def _listed_refs(description: Description, key: str) -> list[VolumeRef]:
    num_channels = len(description.channels)
    refs = []
    for index, entry in enumerate(description.values[key]):
        case = f'entry {index} of "{key}"'
        images, label = _files(description, entry, case=case, key="image", num_channels=num_channels)
        image_paths = tuple(_inside(description, path, case) for path in images)
        image_paths = _with_channel_numbers(image_paths, num_channels)
        label_path = _inside(description, label, case)
        refs.append(
            VolumeRef(
                case_id=case_id_of(image_paths, label_path),
                images=image_paths,
                label=label_path,
                fold=_fold(description, entry.get("fold"), case),
            )
        )
    return refs


def _why_unused(description: Description, training: Sequence[VolumeRef], entries: Sequence[Any], key: str) -> str:
    """Why the cases that a list keeps for validation cannot be held out; "" if they can."""
    if any(ref.fold is not None for ref in training):
        return 'those under "training" have folds; move them there, with the number of a fold each'
    if not all(isinstance(entry, dict) and entry.get("label") for entry in entries):
        return "not all of them have a label"
    missing = [path for ref in _listed_refs(description, key) for path in ref.files if not os.path.lexists(path)]
    return f"{len(missing)} of their files are missing, the first is {excerpt(missing[0])}" if missing else ""


def _with_channel_numbers(images: tuple[Path, ...], num_channels: int) -> tuple[Path, ...]:
    """The files that nnU-Net v1 means by the one image of a case: with the number of the channel in their names."""
    if len(images) > 1 or os.path.lexists(images[0]):
        return images
    ending = images[0].name[len(stem_of(images[0].name)) :]
    numbered = tuple(
        images[0].with_name(f"{stem_of(images[0].name)}_{channel:04d}{ending}") for channel in range(num_channels)
    )
    return numbered if all(map(os.path.lexists, numbered)) else images


def _nnunet_refs(description: Description) -> list[VolumeRef]:
    num_channels = len(description.channels)
    cases = description.require("dataset", dict)
    if not cases:
        raise description.error('"dataset" lists no cases; add them, or remove it to find the cases in imagesTr')
    refs = []
    for case_id, entry in cases.items():
        case = f"case {shortened(case_id)}"
        images, label = _files(description, entry, case=case, key="images", num_channels=num_channels)
        image_paths = tuple(description.folder / image for image in images)
        refs.append(VolumeRef(case_id=case_id, images=image_paths, label=description.folder / label))
    return refs


def _files(
    description: Description, entry: Any, *, case: str, key: Literal["image", "images"], num_channels: int
) -> tuple[list[str], str]:
    """The paths of the images, under this key, and of the label of one case, as listed."""
    if not isinstance(entry, dict):
        form = '"..."' if key == "image" else '["..."]'
        raise description.error(f'{case} is {kind_of(entry)}; write it as {{"{key}": {form}, "label": "..."}}')
    for name in (key, "label"):
        if name not in entry:
            raise description.error(f'{case} has no "{name}", only {shortened(list(entry))}; add its path')
    images, label = entry[key], entry["label"]
    # One file for all channels (a string or a list of one), or one each.
    paths = [images] if isinstance(images, str) else images
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise description.error(f"{case} has the image {shortened(images)}; write a path, or a list of one per channel")
    if len(paths) not in (1, num_channels):
        raise description.error(
            f"{case} has {len(paths)} image files, but the data set has {num_channels} channel(s); "
            "list one file per channel, or one file that holds them all"
        )
    if not isinstance(label, str) or not label:
        raise description.error(f"{case} has the label {shortened(label)}; write the path of one label file")
    return paths, label


def _inside(description: Description, listed: str, case: str) -> Path:
    # Compared as text: an inner folder that links to another disk is the owner's choice and is followed.
    if os.path.isabs(listed) or os.path.normpath(listed).split(os.sep)[0] == os.pardir:
        raise description.error(
            f"{case} lists {shortened(listed)}, which lies outside the data set's folder; "
            "write the path relative to the folder, or list such files in a .csv table"
        )
    return description.folder / listed


def _fold(description: Description, fold: Any, case: str) -> int | None:
    if fold is None:
        return None
    if not isinstance(fold, int) or isinstance(fold, bool) or fold < 0:
        raise description.error(f'{case} has "fold": {shortened(fold)}; write a whole number from 0')
    return fold


def _scan_refs(description: Description) -> list[VolumeRef]:
    channels = description.channels
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
                f"case {case_id!r}: {excerpt(odd)} {state} {images_folder}, as the data set has {len(channels)} "
                f'channel(s): {excerpt(", ".join(channels))}; complete the files or correct "channel_names"'
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
                f"{folder / name} has no channel number; rename it to CASE_0000{excerpt(ending, 80)} as nnU-Net v2 "
                'requires, or list the files under "dataset"'
            )
        by_case.setdefault(match[1], []).append(name)
    if not by_case:
        raise description.error(
            f'{folder} holds no file ending in {shortened(ending)}; add the images or correct "file_ending"'
        )
    return by_case


def _check_number(description: Description, num_found: int) -> None:
    listed = description.values.get("numTraining")
    if isinstance(listed, str) and whole_number(listed) == num_found:
        return
    if "numTraining" in description.values and (declared := description.require("numTraining", int)) != num_found:
        raise description.error(
            f'"numTraining" is {shortened(declared)}, but imagesTr holds {num_found} case(s); '
            "complete the copy of the data set, or correct the number"
        )


def _lists_training(description: Description) -> bool:
    """Whether it lists cases as MSD does, though its labels have nnU-Net's direction."""
    return "training" in description.values and not {"dataset", "file_ending"} & description.values.keys()


# The first that recognizes a description reads it.
_LAYOUTS = (
    _Layout("msd", lambda description: description.names_are_values or _lists_training(description), _msd_refs),
    _Layout("nnunet", lambda description: "dataset" in description.values, _nnunet_refs),
    _Layout("nnunet", lambda description: True, _scan_refs),
)
