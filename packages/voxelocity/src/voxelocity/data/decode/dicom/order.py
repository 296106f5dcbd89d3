"""The slices of a volume along the normal, checked to be at equal distances; and several volumes at one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import Slice
from voxelocity.data.decode.dicom.volumes import differences, number_places
from voxelocity_observe.core.errors import ScanError

STRAIGHTEN = "`dcm2niix` writes such series as .nii.gz files that can be read"
"""What to do about a series that is not a regular volume: the end of an error."""
# Shares of a step: one that skips a slice, and a slice that is off its place.
_SKIPS, _OFF_PLACE = 1.5, 0.1
# Of a pixel: how far the last slice may be shifted from the normal through the first one.
_MOST_SHIFT_PIXEL = 0.25


def normal_of(slice_: Slice) -> Array:
    """(3,), in LPS, of a slice whose directions are known."""
    assert slice_.directions is not None, "checked for every slice"
    return np.cross(slice_.directions[:3], slice_.directions[3:])


def check_same_places(
    path: Path, ordered: Sequence[Slice], others: Sequence[Sequence[Slice]], *, least_mm: float
) -> None:
    """Refuses volumes that are shifted against each other within their planes.

    Args:
        path: of the series.
        ordered: the slices of the first volume.
        others: those of the others, in the same order.
        least_mm: the smallest distance of two voxels.

    Raises:
        ScanError: they are.
    """
    places_mm = np.array([[slice_.position_mm for slice_ in volume] for volume in (ordered, *others)])
    apart_mm = float(np.linalg.norm(places_mm - places_mm[0], axis=-1).max())
    if apart_mm > _MOST_SHIFT_PIXEL * least_mm:
        raise ScanError(
            f"decode: {path}: the series holds {len(places_mm)} volumes, which lie up to {apart_mm:.4g} mm apart, so "
            f"that they are not channels of one scan; {STRAIGHTEN}"
        )


def in_order(path: Path, slices: Sequence[Slice]) -> tuple[tuple[Slice, ...], Array, Array]:
    """The slices along their normal, the axes (3, 3) of the volume in columns, and its spacing (3,).

    Raises:
        ScanError: one is missing, there twice or off its place, or they are shifted against each other.
    """
    first = slices[0]
    assert first.directions is not None, "checked for every slice"
    assert first.spacing_mm is not None, "checked for every slice"
    row, column, normal = np.array(first.directions[:3]), np.array(first.directions[3:]), normal_of(first)
    positions = np.array([slice_.position_mm for slice_ in slices])
    order = np.argsort(positions @ normal, kind="stable")
    ordered = tuple(slices[place] for place in order)
    positions = positions[order]
    row_spacing, column_spacing = first.spacing_mm
    if len(ordered) == 1:
        if first.step_mm is None:
            raise ScanError(
                f"decode: {path}: the series has one slice without a thickness, so it is not a volume; name a "
                "complete series"
            )
        return ordered, np.stack([row, column, normal], axis=1), np.array([column_spacing, row_spacing, first.step_mm])
    _check_steps(path, ordered, positions @ normal)
    _check_column(path, ordered, positions, normal)
    step_mm = float((positions[-1] - positions[0]) @ normal) / (len(ordered) - 1)
    return ordered, np.stack([row, column, normal], axis=1), np.array([column_spacing, row_spacing, step_mm])


def _check_steps(path: Path, ordered: Sequence[Slice], places_mm: Array) -> None:
    """Refuses slices that are there twice, missing, or unevenly spaced."""
    steps, places = np.diff(places_mm), number_places(places_mm)
    uids = [slice_.uid for slice_ in ordered if slice_.uid]
    same = np.flatnonzero(np.diff(places) == 0)
    for index in same[:1]:
        slice_, other = ordered[index], ordered[index + 1]
        cause = (
            "they are copies: remove one of each"
            if len(set(uids)) < len(uids)
            else f"the series holds several images of one position, {_in_numbers(ordered, places)}, such as "
            "time points, echoes, or copies, and these do not make whole volumes: "
            f"{'' if slice_.frame is not None else 'move each volume into a folder of its own; '}"
            "`dcm2niix` writes each as .nii.gz"
        )
        raise ScanError(
            f"decode: {path}: {len(same)} of {len(ordered)} slices share the position of another, first "
            f"{slice_.path.name} and {other.path.name} at {places_mm[index]:.4g} mm along the normal; {cause}"
        )
    usual = float(np.median(steps))
    for index in np.flatnonzero(steps > _SKIPS * usual)[:1]:
        num_missing = round(float(steps[index]) / usual) - 1
        raise ScanError(
            f"decode: {path}: {max(1, num_missing)} slice(s) are missing between {ordered[index].path.name} at "
            f"{places_mm[index]:.4g} mm and {ordered[index + 1].path.name} at {places_mm[index + 1]:.4g} mm along the "
            f"normal, where all others are {usual:.4g} mm apart; copy or export the series again"
        )
    even = np.linspace(places_mm[0], places_mm[-1], len(places_mm))
    if np.abs(places_mm - even).max() > _OFF_PLACE * usual:
        worst = int(np.abs(places_mm - even).argmax())
        off_mm = abs(float(places_mm[worst] - even[worst]))
        raise ScanError(
            f"decode: {path}: the slices are unevenly spaced, {steps.min():.4g} to {steps.max():.4g} mm apart, so that "
            f"{ordered[worst].path.name} is {off_mm:.4g} mm away from its position on a regular grid; "
            f"{STRAIGHTEN}, or resample them"
        )


def _check_column(path: Path, ordered: Sequence[Slice], positions: Array, normal: Array) -> None:
    """Refuses slices that are shifted against the first one within their planes."""
    assert ordered[0].spacing_mm is not None, "checked for every slice"
    apart = positions - positions[0]
    shifts_mm = np.linalg.norm(apart - np.outer(apart @ normal, normal), axis=1)
    worst = int(shifts_mm.argmax())
    if shifts_mm[worst] > _MOST_SHIFT_PIXEL * min(ordered[0].spacing_mm):
        tilt = np.degrees(np.arctan2(shifts_mm[worst], apart[worst] @ normal))
        raise ScanError(
            f"decode: {path}: the slices are sheared: from {ordered[0].path.name} to {ordered[worst].path.name} they "
            f"shift sideways by {shifts_mm[worst]:.4g} mm ({tilt:.1f} degrees), as with a tilted gantry; {STRAIGHTEN}"
        )


def _in_numbers(ordered: Sequence[Slice], places: Sequence[int]) -> str:
    """How many images share a place, and in what all of them differ."""
    counts = Counter(places).values()
    number = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
    return f"{number} at each, which differ in {differences([[slice_] for slice_ in ordered])}"
