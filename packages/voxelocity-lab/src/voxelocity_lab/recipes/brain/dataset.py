"""Folders as the BraTS challenge has them, described as a data set with overlapping classes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from voxelocity.core.scan_formats import NIFTI, stem_of
from voxelocity.data.decode import label_values_in
from voxelocity.data.source import DESCRIPTION_NAME, open_cases
from voxelocity.data.source.splits import SPLITS_NAME
from voxelocity_lab.recipes.division import visible_in
from voxelocity_observe.core.errors import ConfigError, DatasetError
from voxelocity_observe.core.plain import read_mapping
from voxelocity_observe.core.whole_file import write_whole

# Names of the contrasts in the releases of the challenge, the first one ours.
CHANNELS: Mapping[str, tuple[str, ...]] = {
    "FLAIR": ("flair", "t2f"),
    "T1": ("t1", "t1n"),
    "T1Gd": ("t1ce", "t1c", "t1gd"),
    "T2": ("t2", "t2w"),
}
REGIONS = ("whole tumor", "tumor core", "enhancing tumor")
_IS_LABEL = re.compile(r"(^|[_-])seg([_-]|$)")
# Of labels in MSD's Task01: how their names begin.
_PARTS = {"edema": "edema", "non-enhancing": "core", "enhancing": "enhancing"}
_SOURCE = "described_from"


def describe_brains(data: Path, out: Path, *, may_replace: bool = True) -> Path:
    """The data set to open: `data` itself if its classes overlap as it describes them, else one written into `out`.

    Args:
        data: a data set such as MSD's Task01, whose classes exclude each other and whose folds are kept, or a folder
            with a folder of each case, which holds four contrasts and a label `*seg*`.
        out: a folder for the description.
        may_replace: whether a description of other cases there may be replaced.

    Raises:
        DatasetError: there are no cases, or one lacks a contrast or a label.
        ConfigError: `out` describes other cases, which stay.
    """
    made = _describe_parts(data) if _has_list(data) else _describe_folders(data)
    if made is None:
        return data
    description, splits = made
    before = _read(out).get("dataset")
    if not may_replace and before and before.keys() != description["dataset"].keys():
        raise ConfigError(
            f"brain: {out} describes the cases of a run, and {data} has others; choose another folder with -o, or "
            "replace the run with --overwrite"
        )
    if splits:
        write_whole(out / SPLITS_NAME, json.dumps(splits, indent=1).encode())
    else:
        (out / SPLITS_NAME).unlink(missing_ok=True)
    text = json.dumps({**description, _SOURCE: os.path.realpath(data)}, indent=1)
    write_whole(out / DESCRIPTION_NAME, text.encode())
    return out


def find_source(described: Path) -> Path | None:
    """The data set from which `describe_brains` made a description; None where that is not known."""
    source = _read(described).get(_SOURCE)
    return None if source is None else Path(source)


def find_scans(data: Path) -> dict[str, Sequence[Path]]:
    """The images of each case, by its name, of what `describe_brains` takes, with labels or without.

    Raises:
        DatasetError: there are no cases, or one lacks a contrast.
    """
    if _has_list(data):
        return {ref.case_id: ref.images for ref in open_cases(data)}
    return {folder.name: _images(folder) for folder in _case_folders(data)}


def _has_list(data: Path) -> bool:
    return data.is_file() or (data / DESCRIPTION_NAME).is_file()


def _read(described: Path) -> Mapping[str, Any]:
    path = described / DESCRIPTION_NAME
    return read_mapping(path, where="brain", holds="the description of a data set") if path.is_file() else {}


def _describe_folders(data: Path) -> tuple[dict[str, Any], list[Any]]:
    """A description, and no splits."""
    cases = {folder.name: (_images(folder), _label(folder)) for folder in _case_folders(data)}
    with ThreadPoolExecutor() as pool:
        values = set().union(*pool.map(lambda case: set(label_values_in(case[1])), cases.values()))
    unknown = sorted(values - {0, 1, 2, 3, 4})
    if unknown or {3, 4} <= values:
        raise DatasetError(
            f"brain: the labels in {data} have the values {sorted(values)}; BraTS has 1, 2 and 4, or since 2023 1, 2 "
            "and 3: describe other labels in a dataset.json"
        )
    return _described(data.name, CHANNELS, cases, core=1, edema=2, enhancing=3 if 3 in values else 4), []


def _describe_parts(data: Path) -> tuple[dict[str, Any], list[Any]] | None:
    """A data set whose labels are the parts of tumors, as MSD's Task01, with the regions in their place.

    Returns:
        The description and the splits; None if the labels are others.
    """
    cases = open_cases(data)
    values = {part: value for value, name in cases.labels.items() for part in _PARTS if name.lower().startswith(part)}
    if cases.regions or values.keys() != _PARTS.keys():
        return None
    folds = {ref.case_id: ref.folds for ref in cases if ref.label is not None}
    # What a list or a file of splits there holds out is also held out here.
    splits = [
        {
            "train": [name for name, held_out in folds.items() if fold not in held_out],
            "val": [name for name, held_out in folds.items() if fold in held_out],
        }
        for fold in range(cases.num_folds)
    ]
    listed = {ref.case_id: (ref.images, ref.label) for ref in cases if ref.label is not None}
    parts = {_PARTS[part]: value for part, value in values.items()}
    return _described(cases.name, cases.channels, listed, **parts), splits


def _described(
    name: str, channels: Iterable[str], cases: Mapping[str, tuple[Sequence[Path], Path]], **parts: int
) -> dict[str, Any]:
    return {
        "name": name,
        "channel_names": {str(number): channel for number, channel in enumerate(channels)},
        **region_keys(**parts),
        "file_ending": ".nii.gz",
        "dataset": {
            case: {"images": [str(path.resolve()) for path in images], "label": str(label.resolve())}
            for case, (images, label) in cases.items()
        },
    }


def region_keys(*, core: int, edema: int, enhancing: int) -> dict[str, object]:
    """What a description says of the regions, made of parts of these values."""
    whole, inner, bright = REGIONS
    labels = {"background": 0, whole: [core, edema, enhancing], inner: [core, enhancing], bright: enhancing}
    return {"labels": labels, "regions_class_order": [edema, core, enhancing]}


def _case_folders(data: Path) -> list[Path]:
    folders = [path for path in visible_in(data) if path.is_dir()] if data.is_dir() else []
    if found := [folder for folder in folders if _scans_in(folder)]:
        return found
    raise DatasetError(
        f"brain: {data} has neither a dataset.json nor folders of cases such as "
        "BraTS-001/BraTS-001_flair.nii.gz; name a folder that does, or write phantoms for synthetic cases"
    )


def _scans_in(folder: Path) -> dict[str, Path]:
    """NIfTI files by their names in small letters, without ending."""
    return {stem_of(path.name).lower(): path for path in visible_in(folder) if path.name.endswith(NIFTI.endings)}


def _images(folder: Path) -> list[Path]:
    scans, images = _scans_in(folder), []
    for channel, words in CHANNELS.items():
        found = [path for stem, path in scans.items() if re.split(r"[_-]", stem)[-1] in words]
        if len(found) != 1:
            raise DatasetError(
                f"brain: {folder} has {len(found)} files of the contrast {channel}, whose names end in "
                f"{' or '.join(words)}; it must have one (found: {', '.join(sorted(scans)) or 'no scan'})"
            )
        images.append(found[0])
    return images


def _label(folder: Path) -> Path:
    labels = [path for stem, path in _scans_in(folder).items() if _IS_LABEL.search(stem)]
    if len(labels) != 1:
        raise DatasetError(f"brain: {folder} has {len(labels)} labels (*seg*.nii.gz); it must have one")
    return labels[0]
