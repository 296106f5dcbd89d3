"""The scans among the files, folders and lists that a command names."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from voxelocity.core.scan_formats import NAMED_FORMATS, OUTPUTS, SCAN_ENDINGS, format_names, stem_of, without_companions
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import HOW_TO_CONVERT, holds_series, is_dicom, series_in
from voxelocity.data.source import TABLE_SUFFIXES, conversion_of_file, open_cases
from voxelocity_observe.core.errors import InputError, missing_path
from voxelocity_observe.core.quantities import listed

_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})\Z", re.DOTALL)
_MAX_NAME_BYTES, _LONGEST_ENDING = 255, max((format.written[0] for format in OUTPUTS.values()), key=len)
_DEEPEST = 4


def find_scans(
    inputs: Sequence[Path], *, num_channels: int, warn: Callable[[str], None] = warnings.warn
) -> tuple[VolumeRef, ...]:
    """The scans among these inputs, sorted by case.

    Files with nnU-Net's names (`CASE_0000.nii.gz`, `CASE_0001.nii.gz`, ...) are the channels of one scan if
    `CASE_0000` is among them, as far as the network has channels of these numbers. Any other file is a scan that holds
    all channels. A file that is named twice, or by itself and by its folder, is taken once. Of files, only DICOM ones
    and lists are opened.

    A folder of DICOM files is one series and a case of the folder's name; the same holds for folders of DICOM files
    inside a folder that is named, up to four levels down if nothing is found above. A DICOM file stands for its series:
    the whole folder, unless that holds several.

    Args:
        inputs: files of scans (`core.scan_formats`); folders of them; lists (.csv, .tsv) with the columns `image` (or
            `image_0`, `image_1`, ...) and, if wanted, `case`, whose paths are relative to the list.
        num_channels: of the network.
        warn: called with what was left out of a folder, and with a channel that was taken for a separate scan.

    Raises:
        InputError: a path does not exist, cannot be read or is not a scan, a channel is missing, a list is malformed,
            two scans share a name, or a name is too long for a prediction.
    """
    try:
        tables = [path for path in inputs if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()]
        scans = [scan for path in inputs if path not in tables for scan in _scans_of(path, warn)]
    except OSError as error:
        raise InputError(
            f"predict: {error.filename} cannot be read ({error.strerror}); check its permissions, or leave it out"
        ) from None
    by_case: dict[str, dict[int, Path]] = {}
    for case, channel, file in _numbered(scans, num_channels, warn):
        _add(by_case, case, channel, file)
    in_tables = [ref for table in tables for ref in open_cases(table)]
    for ref in in_tables:
        for channel, file in enumerate(ref.images):
            _add(by_case, ref.case_id, channel, file)
    volumes = {ref.case_id: ref.volume for ref in in_tables}
    refs = [_ref(case, channels, num_channels) for case, channels in sorted(by_case.items())]
    return tuple(replace(ref, volume=volumes.get(ref.case_id)) for ref in refs)


def _numbered(
    scans: Sequence[tuple[str, Path]], num_channels: int, warn: Callable[[str], None]
) -> Iterator[tuple[str, int, Path]]:
    """Case, channel and file of each scan that is known by a stem and a file."""
    numbered = [_CHANNEL.match(stem) for stem, _ in scans]
    begun = {match["case"] for match in numbered if match and int(match["channel"]) == 0}
    for (stem, file), match in zip(scans, numbered, strict=True):
        if match is None or match["case"] not in begun:
            yield stem, 0, file
        elif int(match["channel"]) < num_channels:
            yield match["case"], int(match["channel"]), file
        else:
            warn(
                f"predict: {file} is treated as a separate scan: its name says channel {int(match['channel'])} of "
                f"'{match['case']}', but the network takes {num_channels}, numbered from 0"
            )
            yield stem, 0, file


def _add(by_case: dict[str, dict[int, Path]], case: str, channel: int, file: Path) -> None:
    channels = by_case.setdefault(case, {})
    if channel in channels and not channels[channel].samefile(file):
        raise InputError(
            f"predict: the predictions of {channels[channel]} and {file} would both be written as '{case}'; "
            "predict them into different folders, or give them names in a list of scans (.csv) with the columns case "
            "and image"
        )
    channels.setdefault(channel, file)


def _ref(case: str, channels: Mapping[int, Path], num_channels: int) -> VolumeRef:
    if len(channels) > 1 and sorted(channels) != list(range(num_channels)):
        raise InputError(
            f"predict: case '{case}' has the channels {sorted(channels)}, but the network takes 0 to "
            f"{num_channels - 1}; add the missing files next to {next(iter(channels.values()))}"
        )
    num_bytes = len(os.fsencode(case + _LONGEST_ENDING))
    if num_bytes > _MAX_NAME_BYTES:
        raise InputError(
            f"predict: the prediction of case '{case}' would have a name of {num_bytes} bytes, "
            f"and file systems take {_MAX_NAME_BYTES}; rename {channels[min(channels)].name}"
        )
    return VolumeRef(case_id=case, images=tuple(channels[k] for k in sorted(channels)))


def _scans_of(path: Path, warn: Callable[[str], None]) -> list[tuple[str, Path]]:
    """Stem and file, or folder of a series, of each scan that an input stands for."""
    if path.is_dir():
        return _scans_in(path, warn)
    if not path.exists():
        raise InputError(f"predict: {missing_path(path)}; name scans, folders of them, or a .csv that lists them")
    if path.name.lower().endswith(SCAN_ENDINGS):
        return [(stem_of(path.name), path)]
    if path.is_file() and is_dicom(path):
        return [_series_of(path)]
    if cure := conversion_of_file(path.name):
        raise InputError(f"predict: {path} cannot be predicted: {cure}")
    raise InputError(f"predict: {path} is not a {format_names()} file; {HOW_TO_CONVERT}")


def _scans_in(folder: Path, warn: Callable[[str], None]) -> list[tuple[str, Path]]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    found = [entry for entry in entries if entry.name.lower().endswith(SCAN_ENDINGS) and not entry.is_dir()]
    if not found and holds_series(folder):
        return [(folder.resolve().name, folder)]
    found += [entry for entry in entries if entry.is_dir() and holds_series(entry)]
    # As archives are exported: patient, study, series. Next to other scans this is not searched: it could take long.
    found = found or [place for place in _folders_below(folder) if holds_series(place)]
    used = {folder / scan.relative_to(folder).parts[0] for scan in found}
    scans = set(without_companions(entry.name for entry in entries))
    others = [entry.name + "/" * entry.is_dir() for entry in entries if entry not in used and entry.name in scans]
    named = f" ({listed(others)})" if others else ""
    if not found:
        raise InputError(
            f"predict: the folder {folder} holds no {format_names(formats=NAMED_FORMATS)} file and no DICOM "
            f"series{named}; name one that does"
        )
    if others:
        warn(f"predict: {len(others)} of {len(entries)} entries of {folder} are not scans{named}")
    return [
        ("_".join(scan.relative_to(folder).parts) if scan.is_dir() else stem_of(scan.name), scan)
        for scan in sorted(found)
    ]


def _folders_below(folder: Path) -> Iterator[Path]:
    """Folders two to four levels below this one."""
    for place, folders, _ in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
        if depth > 1:
            yield Path(place)


def _series_of(file: Path) -> tuple[str, Path]:
    """The name and the folder of the series of a DICOM file, or its first file where the folder holds others."""
    folder = file.parent
    found = series_in(folder)
    name = folder.resolve().name
    for series in found.values():
        if any(series_slice.path == file for series_slice in series):
            first = series[0]
            return (name, folder) if len(found) == 1 else (f"{name}_{stem_of(first.path.name)}", first.path)
    raise InputError(f"predict: {file} holds no image of a scan; name a slice of a series, or its folder")
