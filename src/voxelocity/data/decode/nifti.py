"""Voxels of one NIfTI file, exactly as nibabel gives them, without a copy of the volume unless one is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Array, Grid, slabs
from voxelocity.data.decode.gunzip import read_unpacked
from voxelocity.data.decode.header import ScanHeader, read_header

_SLAB_VALUES = 1 << 20


def read_scan(path: Path) -> tuple[Array, Grid]:
    """The voxels (c, x, y, z) of a .nii or .nii.gz file, and the grid they lie on.

    The stored dtype is kept if the header has no scaling (big-endian values come in this machine's order); scaled
    values are computed in float64 and returned as float32. The fourth axis of a file becomes the channels. Without
    scaling or byte swapping the array is a read-only view on the unpacked bytes, whose order in memory is (c, z, y, x),
    slowest first. Releases the GIL while it unpacks. Safe from several threads.

    Raises:
        ScanError: as `read_header`; or the file is truncated or damaged.
    """
    header = read_header(path)
    return _voxels(header), header.grid


def label_values_in(path: Path) -> tuple[int, ...]:
    """The distinct values of a label file, ascending.

    Raises:
        ScanError: as `read_scan`; or a value is not a whole number.
    """
    labels, _ = read_scan(path)
    found: set[int] = set()
    for (slab,) in slabs(whole_numbers(labels, where=f"decode: {path}"), max_values=_SLAB_VALUES):
        # Counting is six times faster than sorting for the few values that a label file has.
        low = int(slab.min())
        if int(slab.max()) - low < 65_536:
            signed_safe = slab if slab.dtype.kind == "u" else slab.astype(np.int64)
            counts = np.bincount((signed_safe - low).ravel(order="K").astype(np.intp, copy=False))
            found.update((np.flatnonzero(counts) + low).tolist())
        else:
            found.update(np.unique(slab).tolist())
    return tuple(sorted(found))


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


def _voxels(header: ScanHeader) -> Array:
    data = read_unpacked(header.path, num_expected=header.data_start + header.data_bytes)
    num_values = header.num_channels * header.grid.num_voxels
    flat = np.frombuffer(data, dtype=header.stored_dtype, count=num_values, offset=header.data_start)
    x, y, z = header.grid.shape
    stored = flat.reshape((header.num_channels, z, y, x)).transpose(0, 3, 2, 1)
    if not header.is_scaled:
        return stored.astype(np.dtype(header.dtype), copy=False)
    scaled = np.empty_like(stored, dtype=np.float32)
    for source, target in slabs(stored, scaled, max_values=_SLAB_VALUES):
        target[...] = source.astype(np.float64) * header.slope + header.inter
    return scaled
