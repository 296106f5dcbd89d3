"""Which files of an undescribed folder are the images and the label of one case, judged by names alone.

Three ways of naming, tried in this order: BIDS; images and labels of the same name, in two folders or side by side; a
folder for each patient.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxelocity.core.volume import stem_of
from voxelocity.data.source.listing import is_label, name_without_label

_BIDS = re.compile(r"(sub-[A-Za-z0-9]+(?:_ses-[A-Za-z0-9]+)?)")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
ONLY_CHANNEL = "image"
"""The name of the channel where file names do not distinguish several."""


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
    """

    channels: tuple[str, ...]
    cases: tuple[FoundCase, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def group_files(names: Sequence[str]) -> FoundCases:
    """The cases among these scans, sorted by case id.

    Args:
        names: of files, or of folders of a DICOM series, relative to the folder, with "/".
    """
    labels = [name for name in names if is_label(name)]
    images = [name for name in names if not is_label(name)]
    keys = _keys_of(images, labels)
    by_case: dict[str, dict[str, str]] = defaultdict(dict)
    left_out: list[tuple[str, str]] = []
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
    for case, found in labels_by_case.items():
        if case not in by_case:
            left_out += [(name, "no image has this name") for name in found]
        elif len(found) > 1:
            left_out.append((case, f"{len(found)} label files ({found[0]}, ...): one with a value per class is needed"))
        else:
            chosen[case] = found[0]
    return _with_all_channels(by_case, chosen, left_out)


def _with_all_channels(
    by_case: Mapping[str, Mapping[str, str]], labels: Mapping[str, str], left_out: list[tuple[str, str]]
) -> FoundCases:
    # Cases without a label are not learned from, so they do not decide.
    deciding = [case for case in by_case if case in labels] or list(by_case)
    counts = Counter(channel for case in deciding for channel in by_case[case])
    channels = tuple(sorted(channel for channel, count in counts.items() if 2 * count > len(deciding)))
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
    return FoundCases(channels=channels, cases=tuple(cases), left_out=tuple(left_out))


def _keys_of(images: Sequence[str], labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Case and channel of each name."""
    everything = [*images, *labels]
    if all(_BIDS.search(os.path.basename(name)) for name in everything):
        return {name: _bids_key(name) for name in everything}
    by_name = {name: (name_without_label(name), ONLY_CHANNEL) for name in labels}
    label_keys = Counter(case for case, _ in by_name.values())
    by_name |= {name: _name_key(name, label_keys) for name in images}
    image_keys = {by_name[name][0] for name in images}
    num_matched = sum(count == 1 and key in image_keys for key, count in label_keys.items())
    are_apart = len({by_name[name] for name in images}) == len(images)
    return by_name if are_apart and 2 * num_matched >= len(labels) else _folder_keys(everything)


def _bids_key(name: str) -> tuple[str, str]:
    base = os.path.basename(name)
    match = _BIDS.search(base)
    assert match is not None, "checked for every name"
    return match[1], stem_of(base).rpartition("_")[2]


def _name_key(name: str, label_keys: Mapping[str, int]) -> tuple[str, str]:
    whole, numbered = name_without_label(name) or "case", _NUMBERED.fullmatch(stem_of(os.path.basename(name)))
    # A number at the end counts channels only where it does not belong to the name of a case.
    if numbered is None or (whole in label_keys and numbered["channel"] != "0000"):
        return whole, ONLY_CHANNEL
    return name_without_label(numbered["case"]), numbered["channel"]


def _folder_keys(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Cases are folders; channels are what the names of the files in one folder do not have in common."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_folder[os.path.dirname(name)].append(name)
    parts = {folder: [part for part in folder.split("/") if part] for folder in by_folder}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    keys = {}
    for folder, inside in by_folder.items():
        case = "_".join(part for part in parts[folder] if part not in shared) or os.path.basename(folder) or "case"
        words = {name: re.split(r"[-_. ]+", stem_of(os.path.basename(name))) for name in inside}
        columns = list(zip(*words.values(), strict=False)) if len(inside) > 1 else []
        start = next((index for index, column in enumerate(columns) if len(set(column)) > 1), len(columns))
        for name in inside:
            keys[name] = case, "_".join(words[name][start:]) or ONLY_CHANNEL
    return keys
