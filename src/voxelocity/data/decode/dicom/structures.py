"""Labels whose structures have names, DICOM SEG and RTSTRUCT, as values on the grid of their scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.dicom.files import frames_of, named_damage, numbers_of, read_dataset

# How far a pixel or a contour may lie from the place of a voxel, in voxels. Rounded positions are off by far less.
_OFF_GRID_VOXEL = 0.25
_LISTED = 12


@dataclass(frozen=True, kw_only=True)
class StructuresHeader:
    """What a file of structures says about itself: their names, and the UIDs of the series they were drawn on."""

    names: tuple[str, ...]
    series_uids: frozenset[str]


def read_structures_header(path: Path) -> StructuresHeader | None:
    """The names in a DICOM SEG or RTSTRUCT file; None if it is another kind of DICOM file. Reads no pixels.

    Raises:
        ScanError: pydicom is not installed, or the file is damaged.
    """
    with named_damage(path):
        return _structures_header(read_dataset(path, with_pixels=False))


def _structures_header(dataset: Any) -> StructuresHeader | None:
    modality = dataset.get("Modality", "")
    if modality == "SEG":
        series = dataset.get("ReferencedSeriesSequence", ())
        names = tuple(_segments(dataset).values())
    elif modality == "RTSTRUCT":
        series = [
            one
            for frame in dataset.get("ReferencedFrameOfReferenceSequence", ())
            for study in frame.get("RTReferencedStudySequence", ())
            for one in study.get("RTReferencedSeriesSequence", ())
        ]
        names = tuple(_regions(dataset).values())
    else:
        return None
    return StructuresHeader(
        names=tuple(dict.fromkeys(names)),
        series_uids=frozenset(str(one.get("SeriesInstanceUID", "")) for one in series),
    )


def read_structures(path: Path, grid: Grid, values: Mapping[str, int]) -> Array:
    """The values of the named structures (x, y, z) uint16, 0 elsewhere; where several overlap, the largest.

    Names are compared without regard to capitalization; structures without a value are left out. A voxel belongs to a
    contour if its center lies within it; contours inside one another of one structure are holes, as in other readers.

    Args:
        path: a DICOM SEG or RTSTRUCT file.
        grid: of the scan, on which the structures must have been drawn.
        values: of the structures to take, by name.

    Raises:
        ScanError: the file holds none of these structures, does not lie on the grid, or is damaged.
    """
    with named_damage(path):
        return _painted(path, read_dataset(path), grid, values)


def _painted(path: Path, dataset: Any, grid: Grid, values: Mapping[str, int]) -> Array:
    modality = dataset.get("Modality", "")
    if modality not in ("SEG", "RTSTRUCT"):
        raise ScanError(
            f"decode: {path}: the label is a DICOM file of {modality or 'no modality'}, not SEG or RTSTRUCT"
        )
    names = _segments(dataset) if modality == "SEG" else _regions(dataset)
    wanted = {name.strip().casefold(): value for name, value in values.items()}
    chosen = {number: wanted[key] for number, name in names.items() if (key := name.strip().casefold()) in wanted}
    if not chosen:
        raise ScanError(f"decode: {path}: {needed_names(tuple(names.values()), tuple(values))}")
    label = np.zeros(grid.shape, dtype=np.uint16)
    paint = _painted_frames if modality == "SEG" else _painted_contours
    for number, index in paint(path, dataset, grid, chosen):
        part = label[index]
        label[index] = np.maximum(part, chosen[number])
    return label


def needed_names(found: tuple[str, ...], declared: tuple[str, ...] = ()) -> str:
    """What to do about a file none of whose structures is a class: the end of an error."""
    listed = ", ".join(found[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
    what = (
        f"none of the classes {', '.join(declared)} is among its structures"
        if declared
        else "its structures have names"
    )
    example = ", ".join(f'"{name}": {number}' for number, name in enumerate(found[:2], start=1))
    return (
        f"{what} ({listed}); name the ones to learn in a dataset.json next to the table of cases: "
        f'{{"labels": {{"background": 0, {example}}}}}'
    )


def _segments(dataset: Any) -> dict[int, str]:
    return {int(one.SegmentNumber): str(one.get("SegmentLabel", "")) for one in dataset.get("SegmentSequence", ())}


def _regions(dataset: Any) -> dict[int, str]:
    return {int(one.ROINumber): str(one.get("ROIName", "")) for one in dataset.get("StructureSetROISequence", ())}


def _painted_frames(
    path: Path, dataset: Any, grid: Grid, chosen: Mapping[int, int]
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Segment number and voxel indices of each frame that shows something chosen."""
    shared = dataset.SharedFunctionalGroupsSequence[0]
    groups = dataset.PerFrameFunctionalGroupsSequence
    is_labelmap = str(dataset.get("SegmentationType", "")) == "LABELMAP"
    to_voxels = np.linalg.inv(grid.matrix) @ np.diag([-1.0, -1.0, 1.0, 1.0])
    for group, frame in zip(groups, frames_of(path, dataset), strict=False):

        def part(name: str, group: Any = group) -> Any:
            return (group.get(name) or shared.get(name))[0]

        here: Iterable[Any] = (
            np.unique(frame) if is_labelmap else [part("SegmentIdentificationSequence").ReferencedSegmentNumber]
        )
        position = numbers_of(path, part("PlanePositionSequence"), "ImagePositionPatient", 3)
        directions = numbers_of(path, part("PlaneOrientationSequence"), "ImageOrientationPatient", 6)
        between_rows, between_columns = numbers_of(path, part("PixelMeasuresSequence"), "PixelSpacing", 2)
        # From (column, row) of a pixel to voxels.
        steps = np.stack(
            [np.multiply(directions[:3], between_columns), np.multiply(directions[3:], between_rows)], axis=1
        )
        to_index, origin = to_voxels[:3, :3] @ steps, (to_voxels @ [*position, 1.0])[:3]
        for number in [int(one) for one in here if one in chosen]:
            rows, columns = np.nonzero(frame == number if is_labelmap else frame)
            if rows.size == 0:
                continue
            places = origin[:, None] + to_index @ np.stack([columns, rows])
            index = np.rint(places).astype(np.int64)
            _check_on_grid(path, grid, places, index)
            yield number, tuple(index)


def _check_on_grid(path: Path, grid: Grid, places: Array, index: Array) -> None:
    off = float(np.abs(places - index).max())
    is_outside = bool((index < 0).any() or (index >= np.array(grid.shape)[:, None]).any())
    if off > _OFF_GRID_VOXEL or is_outside:
        where = "outside the scan" if is_outside else f"up to {off:.2f} voxels away from the voxels of the scan"
        raise ScanError(
            f"decode: {path}: the segmentation lies {where}; was it drawn on another series? Resample it onto the scan"
        )


def _painted_contours(
    path: Path, dataset: Any, grid: Grid, chosen: Mapping[int, int]
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Region number and voxel indices of each plane in which a chosen region has contours."""
    to_voxels = np.linalg.inv(grid.matrix) @ np.diag([-1.0, -1.0, 1.0, 1.0])
    for region in dataset.get("ROIContourSequence", ()):
        number = int(region.ReferencedROINumber)
        by_plane: dict[int, list[Array]] = {}
        for contour in region.get("ContourSequence", ()) if number in chosen else ():
            if not str(contour.get("ContourGeometricType", "")).startswith("CLOSED"):
                continue
            points = np.array(numbers_of(path, contour, "ContourData")).reshape(-1, 3)
            places = (to_voxels[:3, :3] @ points.T + to_voxels[:3, 3:]).T
            plane = round(float(places[:, 2].mean()))
            off = float(np.abs(places[:, 2] - plane).max())
            if off > _OFF_GRID_VOXEL or not 0 <= plane < grid.shape[2]:
                raise ScanError(
                    f"decode: {path}: a contour of '{_regions(dataset).get(number)}' lies {off:.2f} slices away from "
                    f"slice {plane} of {grid.shape[2]}; was it drawn on another series? Name the series it belongs to"
                )
            by_plane.setdefault(plane, []).append(places[:, :2])
        for plane, polygons in by_plane.items():
            x, y = np.nonzero(_inside(polygons, grid.shape[:2]))
            yield number, (x, y, np.full_like(x, plane))


def _inside(polygons: list[Array], shape: tuple[int, int]) -> Array:
    """Which voxel centers (x, y) lie within an odd number of polygons, by the crossings of lines along x."""
    num_x, num_y = shape
    crossings = np.zeros((num_x + 1, num_y), dtype=np.int64)
    lines = np.arange(num_y)[None]
    for polygon in polygons:
        (x0, y0), (x1, y1) = polygon.T[:, :, None], np.roll(polygon, -1, axis=0).T[:, :, None]
        # Half-open, so that a line through a corner counts one of its two edges.
        edge, line = np.nonzero((y0 <= lines) != (y1 <= lines))
        x0, y0, x1, y1 = x0[edge, 0], y0[edge, 0], x1[edge, 0], y1[edge, 0]
        at = x0 + (line - y0) * (x1 - x0) / (y1 - y0)
        np.add.at(crossings, (np.clip(np.ceil(at), 0, num_x).astype(np.int64), line), 1)
    inside: Array = np.cumsum(crossings, axis=0)[:-1] % 2 == 1
    return inside
