"""Names of the classes of an undescribed folder, from files that programs write next to their labels.

3D Slicer's segmentations (`.seg.nrrd`) name their segments, and TotalSegmentator's NIfTI files their values, in an
extension of the header; ITK-SNAP writes label descriptions (`.label`), 3D Slicer color tables (`.ctbl`); both also as
`.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from voxelocity.core.scan_formats import NIFTI
from voxelocity.data.decode.gunzip import read_start
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt

_MOST_BYTES = 1 << 22
_SEGMENT = re.compile(r"Segment(\d+)_(Name|LabelValue):=(.*)")
# Index, red, green, blue, opacity, two flags, and the name.
_SNAP = re.compile(r'\s*(\d+)(?:\s+[\d.]+){6}\s+"(.*)"\s*')
# Value, name, red, green, blue, opacity.
_COLORS = re.compile(r"\s*(\d+)\s+(\S.*?)(?:\s+\d{1,3}){4}\s*")
# Of the Caret extension.
_NIFTI = re.compile(rb'<Label\s+Key="(\d{1,5})"[^>]{0,400}>\s*<!\[CDATA\[([^\]]{1,200})\]\]>')
_TABLES = (".label", ".ctbl", ".txt")
_SHOWN = 80


def find_class_names(
    folder: Path, names: Sequence[str], label_files: Sequence[Path], values: Iterable[int]
) -> tuple[dict[int, str], str]:
    """Names by value, and the file that has them; nothing where no file names all of the values, or two disagree.

    Args:
        folder: that `names` start from.
        names: of its files.
        label_files: of the cases.
        values: of the classes, without the background.
    """
    wanted = set(values)
    found: dict[tuple[tuple[int, str], ...], str] = {}
    for path in [*label_files[:1], *(folder / name for name in names if name.lower().endswith(_TABLES))]:
        read = _names_in(path)
        if wanted and wanted <= read.keys() and len({read[value] for value in wanted}) == len(wanted):
            found.setdefault(tuple((value, read[value]) for value in sorted(wanted)), path.name)
    if len(found) != 1:
        return {}, ""
    ((pairs, source),) = found.items()
    return dict(pairs), source


def _names_in(path: Path) -> dict[int, str]:
    """Names by value of a file; empty for any other kind."""
    name = path.name.lower()
    is_nrrd = name.endswith(".nrrd")
    if not is_nrrd and not name.endswith((*NIFTI.endings, *_TABLES)):
        return {}
    try:
        start = read_start(path, _MOST_BYTES)
    except ScanError:
        return {}
    if name.endswith(NIFTI.endings):
        pairs = [(int(value), text.decode("utf-8", "replace")) for value, text in _NIFTI.findall(start)]
        return {value: _clean(text) for value, text in pairs if value and _clean(text)}
    # The voxels of an NRRD file follow an empty line.
    lines = start.partition(b"\n\n" if b"\r\n" not in start[:200] else b"\r\n\r\n")[0] if is_nrrd else start
    texts = lines.decode("utf-8", "replace").splitlines()
    if is_nrrd:
        return _segments(texts)
    lines_of_table = [match.groups() for text in texts if (match := _SNAP.fullmatch(text) or _COLORS.fullmatch(text))]
    return {int(value): _clean(name) for value, name in lines_of_table if _clean(name)}


def _segments(lines: Iterable[str]) -> dict[int, str]:
    """Of segments in one layer: overlapping ones have values of their own in each."""
    fields: dict[str, dict[str, str]] = {}
    for line in lines:
        if match := _SEGMENT.fullmatch(line.strip()):
            fields.setdefault(match[1], {})[match[2]] = match[3].strip()
    whole = [found for found in fields.values() if found.get("Name") and found.get("LabelValue", "").isdecimal()]
    named = {int(found["LabelValue"]): _clean(found["Name"]) for found in whole}
    return named if len(named) == len(whole) else {}


def _clean(name: str) -> str:
    return excerpt(" ".join(name.split()), _SHOWN) if name.isprintable() else ""
