"""The scans among the files and folders that a command names, and the names of their predictions."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from voxelocity.core.errors import InputError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import HOW_TO_CONVERT

_NIFTI = re.compile(r"(?P<stem>.+?)(?P<ending>\.nii(\.gz)?)\Z", re.IGNORECASE | re.DOTALL)
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})\Z", re.DOTALL)
_MAX_NAME_BYTES = 255
_LISTED = 5


def find_scans(
    inputs: Sequence[Path], *, num_channels: int, warn: Callable[[str], None] = warnings.warn
) -> tuple[VolumeRef, ...]:
    """The scans among these files and folders, sorted by case.

    Files with nnU-Net's names (`CASE_0000.nii.gz`, `CASE_0001.nii.gz`, ...) are the channels of one scan if
    `CASE_0000` is among them, as far as the network has channels of these numbers. Any other file is a scan that holds
    all channels. A file that is named twice, or by itself and by its folder, is taken once. No file is opened.

    Args:
        inputs: NIfTI files, or folders of them; folders inside these are not searched.
        num_channels: of the network.
        warn: called with what was left out of a folder, and with a channel that was taken for a separate scan.

    Raises:
        InputError: a path does not exist or is not a NIfTI file, a channel is missing, two scans share a name, or a
            name is too long for a prediction.
    """
    stems = [(file, _stem(file)) for path in inputs for file in _files_of(path, warn)]
    numbered = [_CHANNEL.match(stem) for _, stem in stems]
    begun = {match["case"] for match in numbered if match and int(match["channel"]) == 0}
    by_case: dict[str, dict[int, Path]] = {}
    for (file, stem), match in zip(stems, numbered, strict=True):
        case, channel = stem, 0
        if match and match["case"] in begun:
            if int(match["channel"]) < num_channels:
                case, channel = match["case"], int(match["channel"])
            else:
                warn(
                    f"predict: {file} is taken for a separate scan: by its name it is channel "
                    f"{int(match['channel'])} of '{match['case']}', but the network takes {num_channels}, from 0"
                )
        channels = by_case.setdefault(case, {})
        if channel in channels and channels[channel].samefile(file):
            continue
        if channel in channels:
            raise InputError(
                f"predict: {channels[channel]} and {file} would both be written as {case}.nii.gz; "
                "predict them into different folders"
            )
        channels[channel] = file
    return tuple(_ref(case, channels, num_channels) for case, channels in sorted(by_case.items()))


def _ref(case: str, channels: Mapping[int, Path], num_channels: int) -> VolumeRef:
    if len(channels) > 1 and sorted(channels) != list(range(num_channels)):
        raise InputError(
            f"predict: case '{case}' has the channels {sorted(channels)}, but the network takes 0 to "
            f"{num_channels - 1}; add the missing files next to {next(iter(channels.values()))}"
        )
    if len(os.fsencode(file_name(case))) > _MAX_NAME_BYTES:
        raise InputError(
            f"predict: the prediction of case '{case}' would have a name of {len(os.fsencode(file_name(case)))} bytes, "
            f"and file systems take {_MAX_NAME_BYTES}; rename {channels[min(channels)].name}"
        )
    return VolumeRef(case_id=case, images=tuple(channels[k] for k in sorted(channels)))


def file_name(case_id: str) -> str:
    """Of the prediction of a case."""
    return f"{case_id}.nii.gz"


def _files_of(path: Path, warn: Callable[[str], None]) -> list[Path]:
    if path.is_dir():
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        files = [entry for entry in entries if _NIFTI.match(entry.name) and not entry.is_dir()]
        others = [entry.name + "/" * entry.is_dir() for entry in sorted({*entries} - {*files})]
        if not files:
            raise InputError(
                f"predict: the folder {path} holds no .nii or .nii.gz file{_listed(others)}; name one that does"
            )
        if others:
            warn(f"predict: {len(others)} of {len(entries)} entries of {path} are not scans{_listed(others)}")
        return files
    if not path.exists():
        raise InputError(f"predict: {path} does not exist; name NIfTI files or folders of them")
    return [path]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f" ({', '.join(names[:_LISTED])}{more})"


def _stem(file: Path) -> str:
    match = _NIFTI.match(file.name)
    if match is None:
        raise InputError(f"predict: {file} is not named .nii or .nii.gz; {HOW_TO_CONVERT}")
    return match["stem"]
