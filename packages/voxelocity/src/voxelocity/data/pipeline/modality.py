"""Which kind of scan the images of an undescribed folder are: by DICOM headers, by names, or by air near -1000.

One table has one kind: intensities of CT mean the same in every case, those of others do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from voxelocity.data.decode import read_scan
from voxelocity.data.decode.dicom.files import Slice
from voxelocity.data.source import FoundCase
from voxelocity.data.source.naming import ONLY_CHANNEL
from voxelocity_observe.core.errors import ScanError

MODALITIES = {"CT": "CT", "MR": "MRI", "PT": "PET", "US": "ultrasound"}
# Words that mean nothing else in names of files; "t1" may be a visit, and "pt" a patient.
_WORDS = {
    **dict.fromkeys(("ct", "cbct", "cta", "cect", "ncct"), "CT"),
    **dict.fromkeys(("mr", "mri", "t1w", "t2w", "t1c", "t1ce", "flair", "dwi", "adc", "swi"), "MRI"),
    "pet": "PET",
}
CT_AIR, CT_FAT = -900, -100
"""In Hounsfield units: at most that of air; a scan without values below that of fat shows neither fat nor air."""
# Reading a scan takes a second or so: more of them say nothing new.
_MOST_READ = 24


def sort_by_kind(
    folder: Path, cases: Sequence[FoundCase], series: Mapping[str, Slice], *, channel: str, num_threads: int
) -> tuple[str, dict[str, str], list[str]]:
    """The name of the only channel, why cases are of another kind than most, by id, and what was guessed.

    Reads the voxels of at most 24 scans, and none where headers or names say what all of them are.

    Args:
        folder: that paths start from.
        cases: with one image each; those with a label decide.
        series: a slice of each DICOM series, by path.
        channel: as the names of the files call it; `ONLY_CHANNEL` if they do not.
        num_threads: scans that are read at a time.
    """
    images = {case.case_id: next(iter(case.images.values())) for case in cases}
    known = {case_id: kind for case_id, path in images.items() if (kind := _known_kind(path, series))}
    unknown = [case_id for case_id in images if case_id not in known]
    is_named = channel != ONLY_CHANNEL and not channel.isdecimal()
    lowest: dict[str, float] = {}
    if unknown and (known or not is_named):
        chosen = [unknown[i] for i in np.linspace(0, len(unknown) - 1, min(_MOST_READ, len(unknown))).astype(int)]
        lowest = _lowest_values({case_id: folder / images[case_id] for case_id in chosen}, num_threads)
    kinds = {**known, **{case_id: "CT" for case_id, value in lowest.items() if value <= CT_AIR}}
    labeled = {case.case_id for case in cases if case.label}
    votes = Counter(kind for case_id, kind in kinds.items() if case_id in labeled) or Counter(kinds.values())
    others = [case_id for case_id, value in lowest.items() if value >= CT_FAT]
    if not known:
        return _by_values(channel if is_named else "", {images[name]: value for name, value in lowest.items()})
    kind = max(sorted(votes), key=lambda name: votes[name])
    reasons = {name: f"{found}; the table has {kind}" for name, found in kinds.items() if found != kind}
    notes = []
    if reasons:
        notes.append(
            f"Most scans are {kind}. To train on the {len(reasons)} of another modality, which are left out, move "
            "them to a separate folder."
        )
    if kind == "CT" and others:
        return ONLY_CHANNEL, reasons, [*notes, _question(images[others[0]], lowest[others[0]], len(others))]
    return channel if is_named and kind != "CT" else kind, reasons, notes


def _known_kind(path: str, series: Mapping[str, Slice]) -> str:
    """By the header of a DICOM series, or the last word in the path that says it; "" if nothing does."""
    if path in series:
        return MODALITIES.get(series[path].modality, series[path].modality)
    words = [word for word in re.split(r"[^a-z0-9]+", path.lower()) if word in _WORDS]
    return _WORDS[words[-1]] if words else ""


def _lowest_values(paths: Mapping[str, Path], num_threads: int) -> dict[str, float]:
    """The smallest value of each scan that can be read."""

    def lowest(path: Path) -> float:
        try:
            return float(read_scan(path)[0].min())
        except ScanError:
            return np.nan

    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        values = dict(zip(paths, pool.map(lowest, paths.values()), strict=True))
    return {name: value for name, value in values.items() if np.isfinite(value)}


def _by_values(named: str, lowest: Mapping[str, float]) -> tuple[str, dict[str, str], list[str]]:
    if named:
        return named, {}, ["The channel is named after its files; name a CT channel CT."]
    if not lowest:
        return "MRI", {}, ["The modality is unknown: no image could be read."]
    with_air = [path for path, value in lowest.items() if value <= CT_AIR]
    others = [path for path, value in lowest.items() if value >= CT_FAT]
    if with_air and others:
        return ONLY_CHANNEL, {}, [_question(others[0], lowest[others[0]], len(others), of=len(lowest))]
    kind, first = "CT" if with_air else "MRI", next(iter(lowest))
    return kind, {}, [f"The channel is called {kind} because the values of {first} begin at {lowest[first]:g}."]


def _question(path: str, value: float, num: int, *, of: int = 0) -> str:
    return (
        f"Are all scans CT? {num}{f' of {of} that were read' if of else ''} contain no air near -1000, such as {path} "
        f"(from {value:g}). If all are, name the channel CT in dataset.json; if not, delete the rows of the others. "
        "Until then, each scan is scaled separately."
    )
