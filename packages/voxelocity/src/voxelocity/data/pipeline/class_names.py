"""Names of the classes of an undescribed folder, from files that programs write next to their labels.

3D Slicer's segmentations (`.seg.nrrd`) name their segments, and TotalSegmentator's NIfTI files their values, in an
extension of the header; ITK-SNAP writes label descriptions (`.label`), 3D Slicer color tables (`.ctbl`); both also as
`.txt`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from voxelocity.core.scan_formats import NIFTI, NRRD
from voxelocity.data.decode.gunzip import read_start
from voxelocity_observe.core.errors import DatasetError, ScanError
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.quantities import listed

_MOST_BYTES = 1 << 22
# Of a line. Longer ones are not of a table, and the expressions below would take long for them.
_MOST_CHARACTERS = 500
_SEGMENT = re.compile(r"Segment(\d+)_(Name|LabelValue):=(.*)")
# Index, red, green, blue, opacity, two flags, and the name.
_SNAP = re.compile(r'\s*(\d{1,9})(?:\s+[\d.]+){6}\s+"(.*)"\s*')
# Value, name, red, green, blue, opacity.
_COLORS = re.compile(r"\s*(\d{1,9})\s+(\S.*?)(?:\s+\d{1,3}){4}\s*")
# Of the Caret extension.
_NIFTI = re.compile(rb'<Label\s+Key="(\d{1,5})"[^>]{0,400}>\s*<!\[CDATA\[([^\]]{1,200})\]\]>')
_TABLES = (".label", ".ctbl", ".txt")
_SHOWN = 80


def find_class_names(
    folder: Path, names: Sequence[str], label_files: Sequence[Path], values: Iterable[int]
) -> tuple[dict[int, str], str]:
    """Names by value, and the file that has them; nothing where no file names all of the values, or two disagree.

    Names are equal but for capitals, and for spaces that one of them has as "_", as tables of 3D Slicer do. Where
    label files disagree, a sentence that says so stands in place of the file.

    Args:
        folder: that `names` start from.
        names: of its files.
        label_files: of the cases.
        values: of the classes, without the background.

    Raises:
        DatasetError: a class has one value in a label file and another one in a second.
    """
    wanted = set(values)
    of_labels, doubt = _names_of_labels(label_files)
    tables = [folder / name for name in names if name.lower().endswith(_TABLES)]
    found: dict[tuple[str, ...], tuple[dict[int, str], str]] = {}
    for path, read in [*((file, of_labels) for file in label_files[:1]), *((file, _names_in(file)) for file in tables)]:
        own = {value: read[value] for value in sorted(wanted) if value in read}
        plain = tuple(map(_plain, own.values()))
        if own.keys() == wanted and len(set(plain)) == len(plain) and not any(map(is_background, plain)):
            found.setdefault(plain, (own, path.name))
    return next(iter(found.values())) if wanted and len(found) == 1 and not doubt else ({}, doubt)


def is_background(name: str) -> bool:
    """Whether a class has the name of what is in none, which is 0 everywhere."""
    return name.strip().casefold() == "background"


def lacking_text(names: Mapping[str, Collection[str]]) -> str:
    """Which cases lack a class that most have, as files that a copy lost, in a sentence; "" if none do.

    Args:
        names: of the classes, by case id.
    """
    counts = Counter(name for found in names.values() for name in found)
    usual = [name for name, count in counts.items() if 2 * count > len(names) and not is_background(name)]
    lacking = {case: few for case, found in names.items() if (few := [name for name in usual if name not in found])}
    if not lacking:
        return ""
    case, missing = next(iter(lacking.items()))
    return (
        f"{len(lacking)} of {len(names)} cases lack a class that most have, as {case} lacks {listed(missing, 3)}; its "
        "voxels count as background there."
    )


def _names_of_labels(files: Sequence[Path]) -> tuple[dict[int, str], str]:
    """Names by value of the first label file, and of all that 3D Slicer may have written; a sentence if they differ.

    Segments have numbers in the order in which they were drawn, so that one number may mean other things elsewhere.
    """
    names: dict[int, tuple[str, Path]] = {}
    numbers: dict[str, tuple[int, Path]] = {}
    doubt = ""
    for file in [*files[:1], *(file for file in files[1:] if file.name.lower().endswith(NRRD.endings))]:
        for value, name in _names_in(file).items():
            number, other = numbers.setdefault(_plain(name), (value, file))
            if number != value and other != file:
                raise DatasetError(
                    f"source: {name} is {number} in {other} and {value} in {file}, so that a network would learn "
                    "several structures as one; give each the same number in every file, for example in 3D Slicer by "
                    "exporting all segmentations as label maps with one color table"
                )
            first, other = names.setdefault(value, (name, file))
            if _plain(first) != _plain(name):
                doubt = doubt or f"{value} is {first} in {other.name} and {name} in {file.name}: are these one class?"
    return {value: name for value, (name, _) in names.items()}, doubt


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


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
    texts = [text for text in lines.decode("utf-8", "replace").splitlines() if len(text) <= _MOST_CHARACTERS]
    if is_nrrd:
        return _segments(texts)
    rows = [match.groups() for text in texts if (match := _SNAP.fullmatch(text) or _COLORS.fullmatch(text))]
    named = {int(value): _clean(name) for value, name in rows if _clean(name)}
    # A value with two names has none.
    return named if len(named) == len({(int(value), _clean(name)) for value, name in rows if _clean(name)}) else {}


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
