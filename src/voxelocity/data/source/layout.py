"""Describes what a folder that cannot be opened seems to hold, with the table or the command that would open it.

Looks only at names in the folder and up to four folders below it, and opens no files.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_DOCS = "docs/data-sets.md"
_MOST_ENTRIES = 20_000
_LABEL = re.compile(r"(^|[^a-z])(labels?|segs?|segmentations?|dseg|masks?|gt|annotations?|rois?)(tr)?([^a-z]|$)", re.I)
_DICOM_ENDINGS = (".dcm", ".ima", ".dicom")
_OTHER_ENDINGS = (".nrrd", ".mha", ".mhd", ".hdr", ".mgz", ".mnc")
_FROM_DICOM = (
    "DICOM is not read: convert each series to one file, as with `dcm2niix -z y -o OUT FOLDER`, and segmentations with "
    "dcmqi's `segimage2itkimage` (DICOM SEG) or `dcmrtstruct2nii` (RTSTRUCT)"
)
_FROM_OTHERS = (
    "only .nii and .nii.gz scans are read: save them in this format in 3D Slicer, or in Python by "
    'SimpleITK.WriteImage(SimpleITK.ReadImage("a{ending}"), "a.nii.gz")'
)


def what_it_holds(folder: Path) -> str:
    """The layout recognized in the folder and how to open it: the end of a sentence, with an example."""
    files = _files_below(folder)
    scans = [name for name in files if name.endswith((".nii", ".nii.gz"))]
    if not scans:
        return conversion_of(folder)
    labels = [name for name in scans if _LABEL.search(name)]
    images = [name for name in scans if name not in set(labels)]
    pairs = list(itertools.islice(_pairs(images, labels), 2))
    rows = [f"    {image},{label}" for image, label in pairs] or [
        f"    {(images or scans)[0]},{labels[0] if labels and images else 'LABEL FILE OF THIS CASE'}"
    ]
    return (
        f"it looks like {_layout(folder, scans)} ({len(scans)} scans): list the cases in {folder / 'cases.csv'}, one "
        "line each:\n" + "\n".join(["    image,label", *rows]) + f"\nand open that folder again; see {_DOCS}"
    )


def conversion_of(folder: Path) -> str:
    """How to convert the folder's files to scans, where they have another format; the end of a sentence."""
    files = _files_below(folder)
    if any(_is_dicom(name) for name in files):
        return f"{_FROM_DICOM}; see {_DOCS}"
    ending = next((end for name in files for end in _OTHER_ENDINGS if name.lower().endswith(end)), None)
    if ending:
        return f"{_FROM_OTHERS.format(ending=ending)}; see {_DOCS}"
    if any(name.endswith((".nii", ".nii.gz")) for name in files):
        return f"name one of its files; see {_DOCS}"
    return f"add one, or give another folder: no scan (.nii, .nii.gz) was found in it; see {_DOCS}"


def _layout(folder: Path, scans: Sequence[str]) -> str:
    tops = {name.split("/")[0] for name in scans if "/" in name}
    if {"imagesTr", "labelsTr"} <= tops:
        return "nnU-Net's raw folder without its dataset.json"
    if os.path.isfile(folder / "dataset_description.json") or any(top.startswith("sub-") for top in tops):
        return "a BIDS data set"
    if len(tops) == 2 and sum(bool(_LABEL.search(top)) for top in tops) == 1:
        one, other = sorted(tops, key=lambda top: bool(_LABEL.search(top)))
        return f"images in {one}/ and labels in {other}/"
    return "a folder for each patient" if tops else "scans side by side"


def _pairs(images: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Images and labels that share a folder, or a name without its ending, its channel and its label word."""
    by_key: dict[str, str] = {}
    for label in labels:
        by_key.setdefault(_key(label), label)
    by_folder = {os.path.dirname(label): label for label in labels}
    is_shared = len(by_folder) < len(labels)
    for image in images:
        found = by_key.get(_key(image)) or (None if is_shared else by_folder.get(os.path.dirname(image)))
        if found is not None:
            yield image, found


def _key(name: str) -> str:
    stem = os.path.basename(name).removesuffix(".gz").removesuffix(".nii").removesuffix("_0000")
    words = re.split(r"[-_. ]+", stem)
    kept = [word for word in words if not _LABEL.fullmatch(word) and word.lower() not in ("image", "img", "volume")]
    return "_".join(kept)


def _is_dicom(name: str) -> bool:
    return name.lower().endswith(_DICOM_ENDINGS) or os.path.basename(name) == "DICOMDIR"


def _files_below(folder: Path) -> list[str]:
    """Paths of files relative to the folder, sorted; without those beyond the limits on depth and number."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        below = os.path.relpath(place, folder)
        depth = 0 if below == os.curdir else below.count(os.sep) + 1
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < 4 else []
        start = "" if below == os.curdir else below.replace(os.sep, "/") + "/"
        found += [start + name for name in sorted(files) if not name.startswith(".")]
        if len(found) > _MOST_ENTRIES:
            break
    return sorted(found)
