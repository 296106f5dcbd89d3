"""Labels of a file as class indices, and the values that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from voxelocity.core.cases import MAX_CLASSES, LabelValues, index_dtype, indices_by_value
from voxelocity.core.volume import Array, Grid, slabs
from voxelocity.data.decode.formats import read_scan_with_header
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import listed

_SLAB_VALUES = 1 << 20
# How far values may be from whole numbers in files that compute with them, for example by averaging equal ones.
_NOISE = 1e-3
_UNDECLARED = 65_535
_LISTED = 8


def read_labels(path: Path, *, where: str, note: Note) -> tuple[Array, Grid]:
    """The values (x, y, z) of a label file as integers, and their grid.

    Integers that a file stores scaled (NIfTI's scl_slope) lose up to half of a step: each stands for the whole number
    within that distance. Values of other files may be off by 0.001. Rounding is noted.

    Args:
        path: of a scan, not of structures with names.
        where: start of the error text.
        note: called if values were rounded.

    Raises:
        ScanError: as `read_scan`; or the file has several channels, or a value that is not a whole number.
    """
    labels, header = read_scan_with_header(path)
    if len(labels) != 1:
        raise ScanError(
            f"{where}: the label has {len(labels)} channels; save it as one 3-D image with a number per class"
        )
    is_scaled = header.is_scaled and np.dtype(header.dtype).kind in "iu"
    return whole_numbers(labels[0], where=where, step=abs(header.slope) if is_scaled else 0.0, note=note), header.grid


def whole_numbers(labels: Array, *, where: str, step: float = 0.0, note: Note = lambda kind, text: None) -> Array:
    """The nearest whole numbers; integer arrays are returned unchanged.

    Args:
        labels: of any shape.
        where: start of the error text.
        step: between neighboring values that the file can store, if these are scaled integers; else 0.
        note: called if values were rounded.

    Raises:
        ScanError: a value is NaN, infinite or has a fraction.
    """
    if labels.dtype.kind in "iu":
        return labels
    # Steps of 1 and more cannot come near to most whole numbers, so that a fraction is not a rounding.
    tolerance = max(_NOISE, step / 2 * (1 + _NOISE)) if step < 1.0 else _NOISE
    # Later, small numbers are looked up in a table, wide ones are searched for.
    is_small = labels.min() >= -(2**15) and labels.max() < 2**15 - 1
    whole = np.empty_like(labels, dtype=np.int16 if is_small else np.int64)
    num_bad, first_bad, farthest = 0, 0.0, 0.0
    for source, target in slabs(labels, whole, max_values=_SLAB_VALUES):
        nearest = np.rint(source)
        with np.errstate(invalid="ignore"):
            off = np.abs(source - nearest)
        bad = ~(np.abs(source) < 2.0**53) | (off > tolerance)
        if bad.any():
            first_bad = first_bad if num_bad else float(source[bad][0])
            num_bad += int(bad.sum())
            continue
        farthest = max(farthest, float(off.max()))
        target[...] = nearest
    scaled = f"stores whole numbers scaled by {step:g} (scl_slope)"
    if num_bad:
        cause = f"the file {scaled}; if those are the classes, set scl_slope to 1 and scl_inter to 0. Otherwise " * (
            step > 0.0
        )
        raise ScanError(
            f"{where}: the label holds {num_bad:,} values that are not whole numbers, the first is {first_bad:g}; "
            f"{cause}it may have been resampled with interpolation: save it with one whole number per class"
        )
    if farthest > 0.0:
        cause = f"the file {scaled}" if step > 0.0 else "the values were computed"
        note("rounded", f"{where}: the values are up to {farthest:.2g} away from whole numbers, to which they were "
             f"rounded: {cause}")  # fmt: skip
    return whole


def class_indices(labels: Array, label_values: LabelValues, *, where: str) -> Array:
    """Class indices, of the type `index_dtype`: index i where the file holds `label_values[i]`, or one of these.

    Keeps shape and order in memory. Returns the argument itself where it has this type and its values are their own
    indices.

    Args:
        labels: file values, of any number type.
        label_values: distinct, for at most 65,535 indices.
        where: start of the error text.

    Raises:
        ScanError: a value is not declared or not a whole number, or too many classes are declared.
    """
    index_of = indices_by_value(label_values)
    num_values = sum(1 if isinstance(values, int) else len(values) for values in label_values)
    if len(label_values) > MAX_CLASSES or len(index_of) != num_values:
        raise ScanError(
            f"{where}: {num_values:,} label values are declared, {len(index_of):,} of them distinct, for "
            f"{len(label_values):,} classes; at most {MAX_CLASSES:,} classes with distinct values are supported: merge "
            "classes in the data set's labels"
        )
    dtype = index_dtype(len(label_values))
    whole = whole_numbers(labels, where=where)
    are_indices = list(index_of) == list(index_of.values()) == list(range(len(label_values)))
    if are_indices and whole.dtype.kind == "u" and int(whole.max()) < len(label_values):
        return whole.astype(dtype, copy=False)
    indices = _look_up(whole, index_of) if whole.itemsize <= 2 else _search(whole, index_of)
    undeclared = indices == _UNDECLARED
    if undeclared.any():
        values, counts = np.unique(whole[undeclared], return_counts=True)
        raise ScanError(f"{where}: {_undeclared_in_words(values, counts, list(index_of))}")
    return indices.astype(dtype, copy=False)


def _look_up(whole: Array, index_of: Mapping[int, int]) -> Array:
    # As unsigned, a negative value v is entry v + 65536 (or 256) of the table, which is where v % size puts it.
    size = 1 << (8 * whole.itemsize)
    table = np.full(size, _UNDECLARED, dtype=np.uint16)
    limits = np.iinfo(whole.dtype)
    for value, index in index_of.items():
        if limits.min <= value <= limits.max:
            table[value % size] = index
    found: Array = table[whole.view(f"u{whole.itemsize}")]
    return found


def _search(whole: Array, index_of: Mapping[int, int]) -> Array:
    ordered, indices = np.array(sorted(index_of.items()), dtype=np.int64).T
    signed = whole.astype(np.int64)
    place = np.minimum(np.searchsorted(ordered, signed), len(ordered) - 1)
    return np.where(ordered[place] == signed, indices[place], _UNDECLARED).astype(np.uint16)


def _undeclared_in_words(values: Array, counts: Array, label_values: Sequence[int]) -> str:
    pairs = [f"{value} ({count:,} voxels)" for value, count in zip(values, counts, strict=True)]
    declared = listed([str(value) for value in label_values], _LISTED)
    return (
        f"the label holds values that are not declared: {listed(pairs, _LISTED)}; declared are {declared}: "
        "add them to the labels of the data set or correct the file"
    )
