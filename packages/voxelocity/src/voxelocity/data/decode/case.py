"""One case in memory: its channels stacked, its label as class indices, with everything checked that can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from voxelocity.core.cases import LabelValues
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Volume, VolumeRef, VolumeSpec
from voxelocity.data.decode.canvas import values_by_name
from voxelocity.data.decode.dicom.series import SeriesHeader
from voxelocity.data.decode.formats import read_header, read_scan_with_header
from voxelocity.data.decode.grids import check_same_places, turned_onto
from voxelocity.data.decode.header import ScanHeader
from voxelocity.data.decode.labels import class_indices, read_labels
from voxelocity.data.decode.named_labels import label_names_in, read_named
from voxelocity.data.decode.notes import Note, notes_about
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import count_text

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def read_case(ref: VolumeRef, *, label_values: LabelValues) -> Volume:
    """The voxels of one case on its own grid: image (c, x, y, z), class indices (x, y, z), `index_dtype`, or None.

    The image has the common dtype of its files; integers stay integers. Arrays may be read-only views on the unpacked
    bytes, with x fastest in memory. Safe from several threads; the GIL is free while files are unpacked.

    The grid is that of the first image. Other files that hold the same places in another order of axes are turned, and
    label values that are whole numbers but for rounding are rounded; a warning says so once for each data set.

    Args:
        ref: the files of the case.
        label_values: the file values of each class index.

    Raises:
        ScanError: a file is missing, damaged, truncated or not a 3-D image; the files hold different places of space;
            the image holds voxels that are NaN, infinite or larger than float32 can hold; the label holds values that
            are not declared; the spacing or the affine is not valid. The text names the case, the file, the value and
            the fix.
    """
    note = notes_about(ref.files)
    image, header = _stack(ref, note)
    grid = header.grid
    label = None if ref.label is None else _read_label(ref, header, label_values, note)
    return Volume(case_id=ref.case_id, image=image, label=label, grid=grid)


def spec_of(ref: VolumeRef, headers: Sequence[ScanHeader]) -> VolumeSpec:
    """What is known of the volume of a case: the channels of all its files, or one of each if it takes one volume.

    Args:
        ref: the case.
        headers: of its images, in their order.

    Raises:
        ScanError: a file has no volume of the number that the case takes.
    """
    for header in headers:
        _read(ref, ref.volume, header.check_volume)
    return VolumeSpec(
        num_channels=sum(header.num_channels if ref.volume is None else 1 for header in headers),
        grid=headers[0].grid,
        dtype=str(np.result_type(*(header.read_dtype for header in headers))),
    )


def _stack(ref: VolumeRef, note: Note) -> tuple[Array, ScanHeader]:
    """The channels, and the header of the first file."""
    first, read_chosen = ref.images[0], partial(read_scan_with_header, volume=ref.volume)
    image, own = _read(ref, first, read_chosen)
    grid = own.grid
    _check_finite(ref, first, image)
    if len(ref.images) == 1:
        return image, own
    headers = [_read(ref, path, read_header) for path in ref.images]
    where = f"decode: case '{ref.case_id}': channels"
    for path, header in zip(ref.images, headers, strict=True):
        check_same_places((first, grid), (path, header.grid), where=where)
    spec = spec_of(ref, headers)
    x, y, z = grid.shape
    # In the memory order of the files, so that each channel is one straight copy.
    stacked = np.empty((spec.num_channels, z, y, x), dtype=spec.dtype).transpose(0, 3, 2, 1)
    stacked[: len(image)] = image
    num_filled = len(image)
    # One file at a time, so that memory holds each voxel once, and only those of one file twice.
    del image
    for path in ref.images[1:]:
        part, header = _read(ref, path, read_chosen)
        _check_finite(ref, path, part)
        part = turned_onto(part, (first, grid), (path, header.grid), where=where, note=note)
        stacked[num_filled : num_filled + len(part)] = part
        num_filled += len(part)
        del part
    return stacked, own


def _read_label(ref: VolumeRef, header: ScanHeader, label_values: LabelValues, note: Note) -> Array:
    assert ref.label is not None, "only called for cases with a label"
    grid = header.grid
    case = f"decode: case '{ref.case_id}':"
    path = _read(ref, ref.label, stage)
    if _read(ref, path, label_names_in) is not None:
        uid = header.slices[0].series_uid if isinstance(header, SeriesHeader) else ""
        place, classes = (ref.images[0], grid), values_by_name(ref.structures)
        values = _read(ref, path, lambda file: read_named(file, place, classes, series_uid=uid, note=note))
        return np.asfortranarray(class_indices(values, label_values, where=f"{case} {path}"))
    label, label_grid = _read(ref, path, lambda file: read_labels(file, where=f"decode: {file}", note=note))
    label = turned_onto(label, (ref.images[0], grid), (path, label_grid), where=f"{case} image and label", note=note)
    indices = class_indices(label, label_values, where=f"{case} {path}")
    # With x fastest, as all that follows goes through it in this order.
    return np.asfortranarray(indices)


def _read(ref: VolumeRef, given: _Given, read: Callable[[_Given], _Found]) -> _Found:
    try:
        return read(given)
    except ScanError as error:
        raise ScanError(f"decode: case '{ref.case_id}': {str(error).removeprefix('decode: ')}") from None


def _check_finite(ref: VolumeRef, path: Path, image: Array) -> None:
    if image.dtype.kind != "f":
        return
    # The extremes of an array with NaN are NaN: two fast passes instead of a mask of the whole volume.
    largest = np.finfo(np.float32).max
    if np.abs([image.min(), image.max()]).max() <= largest:
        return
    finite = np.isfinite(image)
    if finite.all():
        finite = np.abs(image) <= largest
        what, cure = "larger than float32 can hold", "rescale the image"
    else:
        what, cure = "NaN or infinite", "replace them, for example with numpy.nan_to_num,"
    bad = ~finite
    number = int(bad.sum())
    channel, x, y, z = np.unravel_index(int(bad.argmax()), bad.shape)
    raise ScanError(
        f"decode: case '{ref.case_id}': {path}: {count_text(number, 'voxel')} {'is' if number == 1 else 'are'} "
        f"{what}, the first is {image[channel, x, y, z]} at (x, y, z) = ({x}, {y}, {z}), channel {channel}; "
        f"{cure} or leave the case out"
    )
