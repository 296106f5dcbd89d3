"""Folders as the BraTS challenge has them, described as a data set with overlapping classes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voxelocity.core.scan_formats import NIFTI, stem_of
from voxelocity.data.decode import label_values_in
from voxelocity.data.source import open_cases
from voxelocity_observe.core.errors import DatasetError
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


def describe_brains(data: Path, out: Path) -> Path:
    """The data set to open: `data` itself if its classes overlap as it describes them, else one written into `out`.

    Args:
        data: a data set such as MSD's Task01, whose classes exclude each other, or a folder with a folder of each case,
            which holds four contrasts and a label `*seg*`.
        out: a folder for the description.

    Raises:
        DatasetError: there are no cases, or one lacks a contrast or a label.
    """
    if data.is_file():
        return data
    if (data / "dataset.json").is_file():
        return _describe_parts(data, out)
    folders = [path for path in sorted(data.iterdir()) if path.is_dir()] if data.is_dir() else []
    cases = {folder.name: _case(folder) for folder in folders if any(map(_is_scan, folder.iterdir()))}
    if not cases:
        raise DatasetError(
            f"brain: {data} has neither a dataset.json nor folders of cases such as "
            "BraTS-001/BraTS-001_flair.nii.gz; name a folder that does, or write phantoms for synthetic cases"
        )
    with ThreadPoolExecutor() as pool:
        values = set().union(*pool.map(lambda case: set(label_values_in(Path(case["label"]))), cases.values()))
    unknown = sorted(values - {0, 1, 2, 3, 4})
    if unknown or {3, 4} <= values:
        raise DatasetError(
            f"brain: the labels in {data} have the values {sorted(values)}; BraTS has 1, 2 and 4, or since 2023 1, 2 "
            "and 3: describe other labels in a dataset.json"
        )
    enhancing = 3 if 3 in values else 4
    return _write(out, data.name, CHANNELS, cases, region_keys(core=1, edema=2, enhancing=enhancing))


def _describe_parts(data: Path, out: Path) -> Path:
    """A data set whose labels are the parts of tumors, as MSD's Task01, with the regions in their place."""
    cases = open_cases(data)
    values = {part: value for value, name in cases.labels.items() for part in _PARTS if name.lower().startswith(part)}
    if cases.regions or values.keys() != _PARTS.keys():
        return data
    listed = {
        ref.case_id: {"images": [str(path.resolve()) for path in ref.images], "label": str(ref.label.resolve())}
        for ref in cases.refs
        if ref.label is not None
    }
    parts = {_PARTS[part]: value for part, value in values.items()}
    return _write(out, cases.name, cases.channels, listed, region_keys(**parts))


def _write(
    out: Path, name: str, channels: Iterable[str], cases: Mapping[str, object], regions: Mapping[str, object]
) -> Path:
    description = {
        "name": name,
        "channel_names": {str(number): channel for number, channel in enumerate(channels)},
        **regions,
        "file_ending": ".nii.gz",
        "dataset": cases,
    }
    write_whole(out / "dataset.json", json.dumps(description, indent=1).encode())
    return out


def region_keys(*, core: int, edema: int, enhancing: int) -> dict[str, object]:
    """What a description says of the regions, made of parts of these values."""
    whole, inner, bright = REGIONS
    labels = {"background": 0, whole: [core, edema, enhancing], inner: [core, enhancing], bright: enhancing}
    return {"labels": labels, "regions_class_order": [edema, core, enhancing]}


def _is_scan(path: Path) -> bool:
    return path.name.endswith(NIFTI.endings)


def _case(folder: Path) -> dict[str, object]:
    scans = {stem_of(path.name).lower(): path for path in sorted(folder.iterdir()) if _is_scan(path)}
    images = []
    for channel, words in CHANNELS.items():
        found = [path for stem, path in scans.items() if re.split(r"[_-]", stem)[-1] in words]
        if len(found) != 1:
            raise DatasetError(
                f"brain: {folder} has {len(found)} files of the contrast {channel}, whose names end in "
                f"{' or '.join(words)}; it must have one (found: {', '.join(sorted(scans)) or 'no scan'})"
            )
        images.append(str(found[0].resolve()))
    labels = [path for stem, path in scans.items() if _IS_LABEL.search(stem)]
    if len(labels) != 1:
        raise DatasetError(f"brain: {folder} has {len(labels)} labels (*seg*.nii.gz); it must have one")
    return {"images": images, "label": str(labels[0].resolve())}
