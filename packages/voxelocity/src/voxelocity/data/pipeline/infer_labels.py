"""Fills in from its files what a data set's description leaves open: classes, and channels of 4-D images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from voxelocity.core.cases import MAX_CLASSES, MAX_LABEL_VALUE, Cases
from voxelocity.data.decode import label_values_in, read_header, spec_of
from voxelocity_observe.core.errors import DatasetError

# An image in place of a label holds thousands.
_MOST_UNNAMED = 256


def declare_labels(cases: Cases, *, num_threads: int) -> Cases:
    """The same cases with their classes known: unchanged if the data set declares them, else read from the labels.

    Reading them takes one read of every label file. The background is class 0 even if no file holds it.

    Raises:
        ScanError: a label file cannot be read.
        DatasetError: no label file holds a value other than 0, together they hold more than 256, or one is negative or
            larger than 65535.
    """
    if cases.labels:
        return cases
    files = [ref.label for ref in cases.refs if ref.label is not None]
    classes = classes_in(files, root=cases.root, num_threads=num_threads)
    check_are_labels(classes, files, root=cases.root)
    return replace(cases, labels=classes)


def check_are_labels(classes: Mapping[int, str], files: Sequence[Path], *, root: Path, are_named: bool = False) -> None:
    """Returns if this many values are classes: more than 256 are, if something names them.

    Raises:
        DatasetError: they are not, or too many.
    """
    if len(classes) > (MAX_CLASSES if are_named else _MOST_UNNAMED):
        raise DatasetError(
            f"source: {root}: {len(files)} label files, such as {files[0]}, hold {len(classes):,} different values, at "
            f"most {_MOST_UNNAMED} are classes without names; are these label files or images? Up to {MAX_CLASSES:,} "
            "can be trained if a dataset.json names them; `voxelocity init` writes it from a table of labels "
            "(.label, .ctbl) next to the files"
        )


def classes_in(files: Sequence[Path], *, root: Path, num_threads: int) -> dict[int, str]:
    """Class names by value, from the values in the label files of a data set; see `declare_labels`."""
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        values = {0}.union(*pool.map(label_values_in, files))
    if len(values) == 1:
        raise DatasetError(f"source: {root}: {len(files)} label files contain only 0; there is no class to train")
    outside = sorted(value for value in values if not 0 <= value <= MAX_LABEL_VALUE)
    if outside:
        raise DatasetError(
            f"source: {root}: the label files hold the value {outside[0]}"
            f"{f' and {len(outside) - 1} more' if len(outside) > 1 else ''} outside 0 to {MAX_LABEL_VALUE}; "
            "change these values in the files, for example to 0 where they mean nothing"
        )
    return {value: "background" if value == 0 else f"label_{value}" for value in sorted(values)}


def declare_channels(cases: Cases) -> Cases:
    """The same cases with one name for each channel in the files of the first case with a label.

    A layout without channel names counts files, and one 4-D file may hold several channels.

    Raises:
        ScanError: the first case's headers cannot be read.
        DatasetError: the data set declares another number of channels than its files hold.
    """
    first = next((ref for ref in cases.refs if ref.label is not None), cases.refs[0])
    found = spec_of(first, [read_header(path) for path in first.images]).num_channels
    if found == cases.num_channels:
        return cases
    if cases.num_channels == 1:
        return replace(cases, channels=tuple(f"channel_{index}" for index in range(found)))
    raise DatasetError(
        f"source: {cases.root} declares {cases.num_channels} channels ({', '.join(cases.channels)}), but case "
        f"'{first.case_id}' holds {found} ({first.images[0]}); correct the declaration"
    )
