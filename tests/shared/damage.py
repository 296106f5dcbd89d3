"""Damaged and crafted files for fuzzing: rotten bytes, headers of odd values, DICOM data sets with odd elements."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from voxelocity.data.decode import read_scan
from voxelocity_observe.core.errors import ScanError

ODD_TEXTS = (
    *("", "0", "-1", "1", "3", "1.5", "nan", "inf", "1e400", "99999999999999999999", "4294967296", "-2147483649"),
    *("True", "x" * 5000, "../..", "1 2", "1 2 3 4 5 6 7 8 9", "0 0 0", "-7 6 5", "7e3 6 5", "none none none"),
    *("(1,0,0) (1,0,0) (1,0,0)", "(nan,0,0) (0,1,0) (0,0,1)", '"um" "mm" "m"', '"furlong" "" ""', "\x1b[31m"),
    *("é" * 40, "float", "MET_DOUBLE", "gzip", "raw", "LIST"),
)


def rotten(numbers: random.Random, content: bytes, *, start: int = 0) -> bytes:
    """The content with one to three flips, cuts, repeats, zeros or foreign bytes from `start` on."""
    changed = bytearray(content)
    for _ in range(numbers.randint(1, 3)):
        if len(changed) <= start:
            break
        at = numbers.randrange(start, len(changed))
        stop = min(len(changed), at + numbers.choice((1, 2, 8, 100)))
        match numbers.randrange(6):
            case 0 | 1:
                changed[at] ^= 1 << numbers.randrange(8)
            case 2:
                del changed[at:]
            case 3:
                del changed[at:stop]
            case 4:
                changed[at:stop] = bytes(stop - at)
            case _:
                changed[at:stop] = numbers.randbytes(numbers.choice((1, stop - at)))
    return bytes(changed)


def check_reading(path: Path, contents: Iterable[bytes]) -> None:
    """Asserts that a file of each content is a scan, or refused with a cure, and that some are refused."""
    refusals = []
    for content in contents:
        path.write_bytes(content)
        try:
            voxels, grid = read_scan(path)
        except ScanError as error:
            refusals.append(str(error))
        else:
            assert voxels.shape[1:] == grid.shape
    assert refusals
    assert all("; " in text for text in refusals)


def odd_lines(numbers: random.Random, header: str) -> str:
    """A header of lines "NAME: VALUE" or "NAME = VALUE" with one to three of them odd, missing, doubled or moved."""
    lines = header.splitlines()
    for _ in range(numbers.randint(1, 3)):
        # The first line may be a magic word.
        at = numbers.randrange(len(lines))
        separator = " = " if " = " in lines[at] else ": "
        name, _, value = lines[at].partition(separator)
        match numbers.randrange(6):
            case 0 if len(lines) > 2:
                del lines[at]
            case 1:
                lines.insert(numbers.randrange(len(lines) + 1), lines[at])
            case 2:
                lines.insert(at, f"{name}{separator}{numbers.choice(ODD_TEXTS)}")
            case 3:
                lines[at] = f"{name}{separator}{value} {numbers.choice(ODD_TEXTS)}"
            case _:
                lines[at] = f"{name}{separator}{numbers.choice(ODD_TEXTS)}"
    return "\n".join(lines) + "\n"


def elements_in(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """Data set and element of each element of a DICOM data set, those inside sequences included."""
    for element in list(dataset):
        yield dataset, element
        if element.VR == "SQ":
            for item in element.value:
                yield from elements_in(item)


def odd_elements(numbers: random.Random, dataset: Any) -> str:
    """Removes, empties, cuts, doubles or replaces one to three elements of a DICOM data set; what was done."""
    done = []
    for _ in range(numbers.randint(1, 3)):
        holder, element = numbers.choice(list(elements_in(dataset)))
        if element.tag not in holder:
            continue
        how = numbers.choice(_CHANGES)
        done.append(f"{how.__name__} {element.keyword}")
        how(numbers, holder, element)
    return ", ".join(done)


def _remove(numbers: random.Random, holder: Any, element: Any) -> None:
    del holder[element.tag]


def _empty(numbers: random.Random, holder: Any, element: Any) -> None:
    element.value = [] if element.VR == "SQ" else b"" if isinstance(element.value, bytes) else None


def _cut(numbers: random.Random, holder: Any, element: Any) -> None:
    value = element.value
    if element.VR == "SQ" or element.VM > 1:
        element.value = list(value)[: numbers.randrange(len(value) + 1)]
    elif isinstance(value, bytes | str):
        element.value = value[: numbers.randrange(len(value) + 1)]


def _double(numbers: random.Random, holder: Any, element: Any) -> None:
    value = element.value
    if element.VR == "SQ" or element.VM > 1:
        element.value = [*value, *value]
    elif isinstance(value, bytes):
        element.value = value + value


def _replace(numbers: random.Random, holder: Any, element: Any) -> None:
    value = element.value
    if isinstance(value, bytes):
        element.value = numbers.randbytes(max(1, len(value)))
    elif element.VM > 1 and element.VR != "SQ":
        changed = list(value)
        changed[numbers.randrange(len(changed))] = type(changed[0])(numbers.choice(("0", "-1", "7", "99999")))
        element.value = changed
    elif element.VR in ("US", "UL", "SS", "SL"):
        element.value = numbers.choice((0, 1, 2, 7, 300, 65_535))
    elif element.VR in ("IS", "DS"):
        element.value = numbers.choice(("0", "-5", "1", "2", "99999", "2147483647"))


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (_remove, _empty, _cut, _double, _replace)
