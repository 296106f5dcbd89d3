"""Labels of a file as class indices, and the values that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxelocity.core.cases import MAX_CLASSES
from voxelocity.core.errors import ScanError
from voxelocity.core.staging import staged
from voxelocity.core.volume import Array, slabs
from voxelocity.data.decode.dicom.structures import needed_names, read_structures_header
from voxelocity.data.decode.formats import format_of, read_scan

_SLAB_VALUES = 1 << 20
_UNDECLARED = 65_535
_LISTED = 8


def label_values_in(path: Path) -> tuple[int, ...]:
    """The distinct values of a label file, ascending.

    Raises:
        ScanError: as `read_scan`; or a value is not a whole number, or the file has names in place of values.
    """
    path = staged(path)
    if format_of(path) == "dicom" and path.is_file() and (found := read_structures_header(path)) is not None:
        raise ScanError(f"decode: {path}: {needed_names(found.names)}")
    labels, _ = read_scan(path)
    values: set[int] = set()
    for (slab,) in slabs(whole_numbers(labels, where=f"decode: {path}"), max_values=_SLAB_VALUES):
        # Counting is six times faster than sorting for the few values that a label file has.
        low = int(slab.min())
        if int(slab.max()) - low < 65_536:
            signed_safe = slab if slab.dtype.kind == "u" else slab.astype(np.int64)
            counts = np.bincount((signed_safe - low).ravel(order="K").astype(np.intp, copy=False))
            values.update((np.flatnonzero(counts) + low).tolist())
        else:
            values.update(np.unique(slab).tolist())
    return tuple(sorted(values))


def whole_numbers(labels: Array, *, where: str) -> Array:
    """The same values as integers; integer arrays are returned unchanged.

    Args:
        labels: of any shape.
        where: start of the error text.

    Raises:
        ScanError: a value is NaN, infinite or has a fraction.
    """
    if labels.dtype.kind in "iu":
        return labels
    # Later, small numbers are looked up in a table, wide ones are searched for.
    is_small = labels.min() >= -(2**15) and labels.max() < 2**15
    whole = np.empty_like(labels, dtype=np.int16 if is_small else np.int64)
    num_bad, first_bad = 0, 0.0
    for source, target in slabs(labels, whole, max_values=_SLAB_VALUES):
        bad = ~(np.abs(source) < 2.0**53) | (source != np.rint(source))
        if bad.any():
            first_bad = first_bad if num_bad else float(source[bad][0])
            num_bad += int(bad.sum())
            continue
        target[...] = source
    if num_bad:
        raise ScanError(
            f"{where}: the label holds {num_bad:,} values that are not whole numbers, the first is {first_bad:g}; "
            "it may have been resampled with interpolation: save it with one whole number per class"
        )
    return whole


def class_indices(labels: Array, label_values: Sequence[int], *, where: str) -> Array:
    """uint8 class indices: index i where the file holds `label_values[i]`. Keeps shape and order in memory.

    Returns the argument itself where it is uint8 and its values are their own indices.

    Args:
        labels: file values, of any number type.
        label_values: distinct, at most 256.
        where: start of the error text.

    Raises:
        ScanError: a value is not declared or not a whole number, or more than 256 classes are declared.
    """
    if len(label_values) > MAX_CLASSES or len(set(label_values)) != len(label_values):
        raise ScanError(
            f"{where}: {len(label_values)} label values are declared, {len(set(label_values))} of them distinct; "
            f"at most {MAX_CLASSES} distinct ones are supported: merge classes in the data set's labels"
        )
    whole = whole_numbers(labels, where=where)
    are_indices = list(label_values) == list(range(len(label_values)))
    if are_indices and whole.dtype.kind == "u" and int(whole.max()) < len(label_values):
        return whole.astype(np.uint8, copy=False)
    indices = _look_up(whole, label_values) if whole.itemsize <= 2 else _search(whole, label_values)
    undeclared = indices == _UNDECLARED
    if undeclared.any():
        values, counts = np.unique(whole[undeclared], return_counts=True)
        raise ScanError(f"{where}: {_undeclared_in_words(values, counts, label_values)}")
    return indices.astype(np.uint8)


def _look_up(whole: Array, label_values: Sequence[int]) -> Array:
    # As unsigned, a negative value v is entry v + 65536 (or 256) of the table, which is where v % size puts it.
    size = 1 << (8 * whole.itemsize)
    table = np.full(size, _UNDECLARED, dtype=np.uint16)
    limits = np.iinfo(whole.dtype)
    for index, value in enumerate(label_values):
        if limits.min <= value <= limits.max:
            table[value % size] = index
    found: Array = table[whole.view(f"u{whole.itemsize}")]
    return found


def _search(whole: Array, label_values: Sequence[int]) -> Array:
    order = np.argsort(np.array(label_values, dtype=np.int64), kind="stable")
    ordered = np.array(label_values, dtype=np.int64)[order]
    signed = whole.astype(np.int64)
    place = np.minimum(np.searchsorted(ordered, signed), len(ordered) - 1)
    return np.where(ordered[place] == signed, order[place], _UNDECLARED).astype(np.uint16)


def _undeclared_in_words(values: Array, counts: Array, label_values: Sequence[int]) -> str:
    pairs = [f"{value} ({count:,} voxels)" for value, count in zip(values, counts, strict=True)]
    more = f" and {len(pairs) - _LISTED} more" if len(pairs) > _LISTED else ""
    declared = ", ".join(str(value) for value in label_values[:_LISTED])
    declared += ", ..." if len(label_values) > _LISTED else ""
    return (
        f"the label holds values that are not declared: {', '.join(pairs[:_LISTED])}{more}; declared are {declared}: "
        "add them to the labels of the data set or correct the file"
    )
