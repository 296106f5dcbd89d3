"""Which files of an undescribed folder are the images and the label of one case, judged by names alone.

`source.naming` has the ways of naming. Also says how a folder that cannot be opened would be: by command or table.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxelocity.core.scan_formats import SCAN_ENDINGS
from voxelocity.data.source.listing import (
    DOCS,
    conversion_of,
    files_below,
    is_label,
    is_named_dicom,
)
from voxelocity.data.source.naming import ONLY_CHANNEL, class_of, keys_of

# Of folders; the endings are those of imagesTs and imagesTr.
_TEST = re.compile(r"(?i:(?:^|[-_. ])(?:test|testing|testset|ts)(?:[-_. ]|$))|[a-z](?:Ts|Test)$")
_TRAINING = re.compile(r"(?i:(?:^|[-_. ])(?:train|training|tr)(?:[-_. ]|$))|[a-z](?:Tr|Train)$")
_MISSING_LABEL = "LABEL FILE OF THIS CASE"


@dataclass(frozen=True, kw_only=True)
class FoundCase:
    """One case: its files by channel, and its label; paths are relative to the folder, as text.

    Attributes:
        patient: the id of the first case of the same patient; empty if only the names can tell.
    """

    case_id: str
    images: Mapping[str, str]
    label: str = ""
    patient: str = ""


@dataclass(frozen=True, kw_only=True)
class FoundCases:
    """The cases of a folder. Each has every channel.

    Attributes:
        channels: in the order of the columns of a table.
        left_out: paths, or ids of cases, and why.
        masks: label files by case id, of cases with several, each with the class that it is the mask of by its name.
    """

    channels: tuple[str, ...]
    cases: tuple[FoundCase, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    masks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """The heads of a table of these cases and its rows, without ids; a missing label is a word to replace."""
        is_one = len(self.channels) == 1
        heads = ["image"] if is_one else [f"image_{index}" for index in range(len(self.channels))]
        rows = [(*case.images.values(), case.label or _MISSING_LABEL) for case in self.cases]
        return ((*heads, "label"), *rows)


def group_files(names: Sequence[str], *, are_masks: bool = False) -> FoundCases:
    """The cases among these scans, sorted by case id.

    Args:
        names: of files, or of folders of a DICOM series, relative to the folder, with "/".
        are_masks: whether label files are masks of one class each; then all of a case's are in `masks`.
    """
    of_tests = _of_tests(names)
    left_out = [
        (name, "of a test set, which is not learned from; rename the folder if it is none") for name in of_tests
    ]
    names = [name for name in names if name not in of_tests]
    # What the folders of all files are called says nothing of one.
    start = len(os.path.commonpath([os.path.dirname(name) for name in names])) if names else 0
    labels = [name for name in names if is_label(name[start:])]
    images = [name for name in names if not is_label(name[start:])]
    keys = keys_of(images, labels)
    by_case: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(images):
        case, channel = keys[name]
        if channel in by_case[case]:
            left_out.append((name, f"case {case} has {by_case[case][channel]} as well"))
        else:
            by_case[case][channel] = name
    labels_by_case: dict[str, list[str]] = defaultdict(list)
    for name in sorted(labels):
        labels_by_case[keys[name][0]].append(name)
    chosen: dict[str, str] = {}
    masks: dict[str, dict[str, str]] = {}
    for case, found in labels_by_case.items():
        folders = {os.path.dirname(image) for image in by_case.get(case, {}).values()}
        # A label next to its image is that of the whole case.
        candidates = [name for name in found if os.path.dirname(name) in folders] or found
        if case not in by_case:
            left_out += [(name, "no image has this name") for name in found]
        elif are_masks:
            masks[case] = {name: class_of(name, case) for name in found}
        elif len(candidates) == 1:
            chosen[case] = candidates[0]
            left_out += [(name, f"{chosen[case]} is the label of its case") for name in found if name != chosen[case]]
        else:
            masks[case] = {name: class_of(name, case) for name in found}
            choice = (
                "masks of one class each are merged by --merge-masks, labels of several raters by --raters majority"
            )
            left_out.append((case, f"{len(found)} label files ({', '.join(found[:2])}, ...): {choice}"))
    return _with_all_channels(by_case, chosen, left_out, masks)


def _of_tests(names: Sequence[str]) -> dict[str, None]:
    """The files in folders of tests next to those of a training, if tests have labels, or names of the training.

    Others are cases without labels, which a table lists for predictions.
    """
    folders = {name: name.split("/")[:-1] for name in names}
    tests = dict.fromkeys(name for name, parts in folders.items() if any(map(_TEST.search, parts)))
    others = [name for name in names if name not in tests]
    is_split = any(_TRAINING.search(part) for name in others for part in folders[name]) and any(map(is_label, others))
    shared = {os.path.basename(name) for name in tests} & {os.path.basename(name) for name in others}
    return tests if is_split and (shared or any(map(is_label, tests))) else {}


def _with_all_channels(
    by_case: Mapping[str, Mapping[str, str]],
    labels: Mapping[str, str],
    left_out: list[tuple[str, str]],
    masks: Mapping[str, Mapping[str, str]],
) -> FoundCases:
    # Cases without a label are not learned from, so they do not decide.
    deciding = [case for case in by_case if case in labels or case in masks] or list(by_case)
    counts = Counter(channel for case in deciding for channel in by_case[case])
    channels = tuple(sorted(channel for channel, count in counts.items() if 2 * count > len(deciding)))
    if not channels and all(len(images) == 1 for images in by_case.values()):
        # Each file has a name of its own, such as that of its patient.
        channels = (ONLY_CHANNEL,)
        by_case = {case: dict.fromkeys(channels, name) for case, images in by_case.items() for name in images.values()}
    cases = []
    for case, images in sorted(by_case.items()):
        missing = [channel for channel in channels if channel not in images]
        left_out += [
            (name, "most cases have no such file") for channel, name in images.items() if channel not in channels
        ]
        if missing:
            left_out.append((case, f"no {', '.join(missing)}"))
        elif channels:
            cases.append(
                FoundCase(
                    case_id=case, images={channel: images[channel] for channel in channels}, label=labels.get(case, "")
                )
            )
    return FoundCases(channels=channels, cases=tuple(cases), left_out=tuple(left_out), masks=masks)


def what_it_holds(folder: Path) -> str:
    """The layout recognized in the folder and how to open it: the end of a sentence, with an example.

    Looks only at names in the folder and up to eight folders below it.
    """
    files = files_below(folder)
    scans = [name for name in files if name.lower().endswith(SCAN_ENDINGS)]
    if not scans and (series := sorted({os.path.dirname(name) or "." for name in files if is_named_dicom(name)})):
        rows = [("image", "label"), *((name, _MISSING_LABEL) for name in series)]
        return f"it looks like DICOM files in {len(series)} folder(s): {_by_init(folder)}, or {_by_table(folder, rows)}"
    if not scans:
        return conversion_of(folder)
    found = group_files(scans)
    layout = f"it looks like {_layout(folder, scans)} ({len(scans)} scans)"
    labeled = [row for row in found.table[1:] if row[-1] != _MISSING_LABEL]
    if len(labeled) > len(found.masks):
        return f"{layout}: {_by_init(folder)}, or {_by_table(folder, [found.table[0], *labeled])}"
    return f"{layout}, {how_to_list(folder, found, scans)}"


def how_to_list(folder: Path, found: FoundCases, scans: Sequence[str]) -> str:
    """How to open a folder in which no label was found that belongs to an image: the end of a sentence."""
    if found.masks:
        case, masks = next(iter(found.masks.items()))
        return (
            f"with several label files for a case ({len(masks)} for {case}, such as {next(iter(masks))}). If each is "
            f"the mask of one class, `voxelocity init {shlex.quote(str(folder))} --merge-masks` merges those of a "
            "case; if they are by several raters, --raters majority takes the majority, and --raters NAME one of "
            "them; otherwise "
            f"{_by_table(folder, found.table)}"
        )
    table: Sequence[Sequence[str]] = [("image", "label"), *((name, _MISSING_LABEL) for name in scans)]
    if any(is_label(name) for name in scans):
        table = found.table if found.cases else table
        why = "but no label shares its name, or a folder of its own, with an image"
    else:
        why = "and no file or folder name marks the labels (label, seg, mask, gt, ...)"
    patterns = "--image 'images/{case}.nii.gz' --label 'labels/{case}.nii.gz'"
    init = f"`voxelocity init {shlex.quote(str(folder))} {patterns}`"
    return f"{why}: {init}, with patterns for your names, or {_by_table(folder, table)}"


def _by_init(folder: Path) -> str:
    return f"`voxelocity init {shlex.quote(str(folder))}` lists its cases for you to check"


def _by_table(folder: Path, rows: Sequence[Sequence[str]]) -> str:
    """How to write a table, with its heads and first rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows[:3])
    lines = [f"    {line}" for line in text.getvalue().splitlines()]
    return (
        f"list the cases in {folder / 'cases.csv'}, one line each:\n"
        + "\n".join(lines)
        + f"\nand open that folder again; see {DOCS}"
    )


def _layout(folder: Path, scans: Sequence[str]) -> str:
    tops = {name.split("/")[0] for name in scans if "/" in name}
    words = next(words for words, is_of in _LAYOUTS if is_of(folder, tops))
    return words.format(*sorted(tops, key=is_label))


def _is_bids(folder: Path, tops: set[str]) -> bool:
    return os.path.isfile(folder / "dataset_description.json") or any(top.startswith("sub-") for top in tops)


# Each with how it is recognized, by the folder and the first folders below it that lead to scans.
_LAYOUTS: tuple[tuple[str, Callable[[Path, set[str]], bool]], ...] = (
    ("nnU-Net's raw folder without its dataset.json", lambda folder, tops: {"imagesTr", "labelsTr"} <= tops),
    ("a BIDS data set", _is_bids),
    ("images in {}/ and labels in {}/", lambda folder, tops: len(tops) == 2 and sum(map(is_label, tops)) == 1),
    ("a folder for each patient", lambda folder, tops: bool(tops)),
    ("scans side by side", lambda folder, tops: True),
)
