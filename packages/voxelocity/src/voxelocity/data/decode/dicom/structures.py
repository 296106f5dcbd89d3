"""Labels whose structures have names, DICOM SEG and RTSTRUCT, as values on the grid of their scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.axis_order import AxisOrder, nearest_ras
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.canvas import LabelCanvas, NamedValues
from voxelocity.data.decode.dicom.files import named_damage, numbers_of, read_dataset
from voxelocity.data.decode.dicom.pixels import mask_frames
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt, shortened
from voxelocity_observe.core.quantities import listed

# How far a pixel or a contour may lie from the place of a voxel, in voxels. Rounded positions are off by far less.
_OFF_GRID_VOXEL = 0.25
_LISTED, _NAME = 12, 80
# By the UID of the class of objects: segmentations, label maps, structures of radiotherapy.
_CLASSES = {
    "1.2.840.10008.5.1.4.1.1.66.4": "SEG",
    "1.2.840.10008.5.1.4.1.1.66.7": "SEG",
    "1.2.840.10008.5.1.4.1.1.481.3": "RTSTRUCT",
}
# Of a polygon.
_FEWEST_POINTS = 3
# Fewer planes at equal distances may be separate findings.
_LEAST_PLANES = 3
# How many times the distance between the slices of a scan is more than a rounding of it.
_THICKER = 1.5
# Edges of a contour per pass, so that a long one does not take memory by the gigabyte.
_EDGES_AT_ONCE = 1 << 12


@dataclass(frozen=True, kw_only=True)
class StructuresHeader:
    """What a file of structures says about itself: their names, and the UIDs of the series they were drawn on.

    Attributes:
        may_overlap: whether it says that its segments do, or may.
    """

    names: tuple[str, ...]
    series_uids: frozenset[str]
    may_overlap: bool = False


def read_structures_header(path: Path) -> StructuresHeader | None:
    """The names in a DICOM SEG or RTSTRUCT file; None if it is another kind of DICOM file. Reads no pixels.

    Raises:
        ScanError: pydicom is not installed, or the file is damaged.
    """
    with named_damage(path):
        return _structures_header(read_dataset(path, with_pixels=False))


def _structures_header(dataset: Any) -> StructuresHeader | None:
    modality = _modality_of(dataset)
    if modality not in ("SEG", "RTSTRUCT"):
        return None
    names = _segments(dataset) if modality == "SEG" else _regions(dataset)
    return StructuresHeader(
        names=tuple(dict.fromkeys(names.values())),
        series_uids=_series_uids(dataset),
        may_overlap=str(dataset.get("SegmentsOverlap", "")) == "YES",
    )


def _modality_of(dataset: Any) -> str:
    """The modality; by the class of the object, where what removed names from the file has removed it too."""
    return str(dataset.get("Modality") or "") or _CLASSES.get(str(dataset.get("SOPClassUID", "")), "")


def _series_uids(dataset: Any) -> frozenset[str]:
    series = [
        *dataset.get("ReferencedSeriesSequence", ()),
        *(
            referred
            for frame in dataset.get("ReferencedFrameOfReferenceSequence", ())
            for study in frame.get("RTReferencedStudySequence", ())
            for referred in study.get("RTReferencedSeriesSequence", ())
        ),
    ]
    return frozenset(str(referred.get("SeriesInstanceUID", "")) for referred in series)


def paint_structures(
    path: Path,
    grid: Grid,
    values: NamedValues,
    *,
    series_uid: str = "",
    note: Note = lambda kind, text: None,
) -> LabelCanvas:
    """The named structures that each voxel is in.

    Names are compared without regard to capitalization; structures without a value are left out. A voxel belongs to a
    contour if its center lies within it; contours inside one another of one structure are holes, as in other readers.
    The order of the grid's axes does not matter: each voxel of space gets the same value in all orders.

    Args:
        path: a DICOM SEG or RTSTRUCT file.
        grid: of the scan, on which the structures must have been drawn.
        values: of the structures to take, by name.
        series_uid: of the scan, if it is known.
        note: called if the structures were drawn on another series, whose places fit, or if contours enclose nothing.

    Raises:
        ScanError: the file holds none of these structures, does not lie on the grid, has larger or smaller voxels, or
            is damaged.
    """
    with named_damage(path):
        dataset = read_dataset(path)
        canvas = _paint(path, dataset, grid, values, note)
        drawn_on = _series_uids(dataset)
        if series_uid and drawn_on and series_uid not in drawn_on:
            note(
                "other series",
                f"decode: {path}: it refers to another series than that of its scan, although it matches its voxels; "
                "check that it belongs to this scan",
            )
        return canvas


def _paint(path: Path, dataset: Any, grid: Grid, values: NamedValues, note: Note) -> LabelCanvas:
    modality = _modality_of(dataset)
    if modality not in ("SEG", "RTSTRUCT"):
        raise ScanError(
            f"decode: {path}: the label is a DICOM file of {excerpt(modality) or 'no modality'}, not SEG or RTSTRUCT; "
            "name the file that holds the structures, or if it is this one, export it again with its Modality"
        )
    names = _segments(dataset) if modality == "SEG" else _regions(dataset)
    wanted = {name.strip().casefold(): name for name in values}
    chosen = {number: wanted[key] for number, name in names.items() if (key := name.strip().casefold()) in wanted}
    if not chosen:
        raise ScanError(f"decode: {path}: {needed_names(tuple(names.values()), tuple(values))}")
    # A voxel center on a contour belongs to one of two neighbors: to the same one, whatever the scan's order of axes.
    order = AxisOrder(axes=(0, 1, 2), flips=(False, False, False)) if modality == "SEG" else _to_lps(grid)
    turned = order.turn_grid(grid)
    canvas = LabelCanvas(turned.shape, values)
    planes: dict[int, set[int]] = {}
    painted = (
        _painted_frames(path, dataset, turned, chosen)
        if modality == "SEG"
        else _painted_contours(path, turned, _closed_contours(path, dataset, chosen, note), names)
    )
    for number, axis, index in painted:
        canvas.paint(chosen[number], index)
        planes.setdefault(number, set()).update(np.unique(index[axis]).tolist())
    step_mm = turned.spacing_mm[axis] if planes else 0.0
    for drawn in (*planes.values(), set().union(*planes.values())):
        _check_no_plane_is_skipped(path, drawn, is_thicker=_distance_mm(path, dataset) > _THICKER * step_mm)
    canvas.voxels = order.undo(canvas.voxels)
    return canvas


def _to_lps(grid: Grid) -> AxisOrder:
    """The turn nearest to left, posterior, superior, as axial series have it."""
    ras = nearest_ras(grid)
    right, anterior, inferior = ras.flips
    return AxisOrder(axes=ras.axes, flips=(not right, not anterior, inferior))


def _distance_mm(path: Path, dataset: Any) -> float:
    """Between the slices that the frames of a segmentation were drawn on; 0 if it does not say so."""
    shared = dataset.get("SharedFunctionalGroupsSequence") or [{}]
    measures = (shared[0].get("PixelMeasuresSequence") or [{}])[0]
    return numbers_of(path, measures, "SpacingBetweenSlices", 1)[0] if "SpacingBetweenSlices" in measures else 0.0


def _check_no_plane_is_skipped(path: Path, planes: set[int], *, is_thicker: bool) -> None:
    """Refuses planes at a regular distance of several slices: those of a series with thicker slices.

    Args:
        path: of the structures.
        planes: that hold something.
        is_thicker: whether the file itself says that its slices are farther apart than those of the scan.
    """
    steps = np.diff(sorted(planes))
    step = int(np.gcd.reduce(steps)) if len(steps) else 2
    is_regular = len(planes) >= _LEAST_PLANES and 2 * int((steps == step).sum()) > len(steps)
    if planes and ((is_regular and step > 1) or (is_thicker and not (steps == 1).any())):
        slices = listed([str(plane) for plane in sorted(planes)])
        raise ScanError(
            f"decode: {path}: a structure lies on slices {slices} of the scan only, as if contoured on a series with "
            "thicker slices, so that the slices in between would count as background; name the original series, or "
            "fill the slices, for example with 3D Slicer's 'Fill between slices'"
        )


def needed_names(found: tuple[str, ...], declared: tuple[str, ...] = ()) -> str:
    """What to do about a file none of whose structures is a class: the end of an error."""
    names = [excerpt(name, _NAME) for name in found]
    what = (
        f"none of the classes {listed(declared, _LISTED)} is among its structures"
        if declared
        else "its structures have names"
    )
    example = ", ".join(f'"{name}": {number}' for number, name in enumerate(names[:2], start=1))
    return (
        f"{what} ({listed(names, _LISTED)}); name the ones to learn in a dataset.json next to the table of cases: "
        f'{{"labels": {{"background": 0, {example}}}}}'
    )


def _segments(dataset: Any) -> dict[int, str]:
    # Of a label map, one number is the background, which is described like a segment.
    background = int(dataset.get("PixelPaddingValue", 0)) if _is_labelmap(dataset) else 0
    return {
        number: str(segment.get("SegmentLabel", ""))
        for segment in dataset.get("SegmentSequence", ())
        if (number := int(segment.SegmentNumber)) != background
    }


def _is_labelmap(dataset: Any) -> bool:
    return str(dataset.get("SegmentationType", "")) == "LABELMAP"


def _regions(dataset: Any) -> dict[int, str]:
    regions = dataset.get("StructureSetROISequence", ())
    return {int(region.ROINumber): str(region.get("ROIName", "")) for region in regions}


def _painted_frames(
    path: Path, dataset: Any, grid: Grid, chosen: Mapping[int, str]
) -> Iterator[tuple[int, int, tuple[Array, ...]]]:
    """Segment number, axis through the planes, and voxel indices of each frame that shows something chosen."""
    shared = dataset.SharedFunctionalGroupsSequence[0]
    groups = dataset.PerFrameFunctionalGroupsSequence
    is_labelmap = _is_labelmap(dataset)
    to_voxels = np.linalg.inv(grid.matrix) @ np.diag([-1.0, -1.0, 1.0, 1.0])
    for group, frame in zip(groups, mask_frames(path, dataset), strict=True):

        def part(name: str, group: Any = group) -> Any:
            return (group.get(name) or shared.get(name))[0]

        here: Iterable[Any] = (
            np.unique(frame) if is_labelmap else [part("SegmentIdentificationSequence").ReferencedSegmentNumber]
        )
        position = numbers_of(path, part("PlanePositionSequence"), "ImagePositionPatient", 3)
        directions = numbers_of(path, part("PlaneOrientationSequence"), "ImageOrientationPatient", 6)
        spacing_mm = numbers_of(path, part("PixelMeasuresSequence"), "PixelSpacing", 2)
        # From (column, row) of a pixel to voxels.
        steps = np.stack(
            [np.multiply(directions[:3], spacing_mm[1]), np.multiply(directions[3:], spacing_mm[0])], axis=1
        )
        to_index, origin = to_voxels[:3, :3] @ steps, (to_voxels @ [*position, 1.0])[:3]
        for number in [int(value) for value in here if value in chosen]:
            rows, columns = np.nonzero(frame == number if is_labelmap else frame)
            if rows.size == 0:
                continue
            axis = _axis_through(path, grid, to_index, frame.shape, spacing_mm)
            places = origin[:, None] + to_index @ np.stack([columns, rows])
            index = np.rint(places).astype(np.int64)
            _check_on_grid(path, grid, places, index)
            yield number, axis, tuple(index)


def _axis_through(
    path: Path, grid: Grid, to_index: Array, shape: tuple[int, ...], spacing_mm: tuple[float, ...]
) -> int:
    """The axis of the scan that goes through the frames, after checking that pixels are as large as its voxels.

    Args:
        path: of the segmentation.
        grid: of the scan.
        to_index: (3, 2), voxels for one step along columns and rows of the frames.
        shape: rows and columns of the frames.
        spacing_mm: between rows, between columns.

    Raises:
        ScanError: pixels have other sizes or directions than voxels, so that they would fill some of these alone.
    """
    along = np.rint(to_index)
    off = float(np.abs((to_index - along) * (shape[1] - 1, shape[0] - 1)).max())
    if off > _OFF_GRID_VOXEL or sorted(np.abs(along).sum(axis=0)) != [1, 1] or np.abs(along).sum(axis=1).max() > 1:
        raise ScanError(
            f"decode: {path}: the segmentation has pixels of {spacing_mm[1]:.4g} x {spacing_mm[0]:.4g} mm, which are "
            f"not those of the scan (voxels of {' x '.join(f'{step:.4g}' for step in grid.spacing_mm)} mm, or in other "
            "directions); resample it onto the scan, or name its original series"
        )
    return int(np.abs(along).sum(axis=1).argmin())


def _check_on_grid(path: Path, grid: Grid, places: Array, index: Array) -> None:
    off = float(np.abs(places - index).max())
    is_outside = bool((index < 0).any() or (index >= np.array(grid.shape)[:, None]).any())
    if off > _OFF_GRID_VOXEL or is_outside:
        where = "outside the scan" if is_outside else f"up to {off:.2f} voxels away from the voxels of the scan"
        raise ScanError(
            f"decode: {path}: the segmentation lies {where}; was it made on another series? Resample it onto the scan"
        )


def _closed_contours(path: Path, dataset: Any, chosen: Mapping[int, str], note: Note) -> dict[int, list[Array]]:
    """By region number, the points (n, 3) in LPS mm of each contour of the chosen regions that encloses something."""
    contours: dict[int, list[Array]] = {}
    num_open = 0
    for region in dataset.get("ROIContourSequence", ()):
        if (number := int(region.ReferencedROINumber)) in chosen:
            found = region.get("ContourSequence", ())
            closed = [
                points
                for contour in found
                if str(contour.get("ContourGeometricType", "")).startswith("CLOSED")
                and len(points := _points(path, contour)) >= _FEWEST_POINTS
            ]
            contours.setdefault(number, []).extend(closed)
            num_open += len(found) - len(closed)
    if num_open:
        note(
            "open contours",
            f"decode: {path}: {num_open} contours of these structures are points or lines, which enclose no voxel, and "
            "were left out",
        )
    return contours


def _painted_contours(
    path: Path, grid: Grid, contours: Mapping[int, list[Array]], names: Mapping[int, str]
) -> Iterator[tuple[int, int, tuple[Array, ...]]]:
    """Region number, axis through the planes, and voxel indices of each plane in which a region has contours."""
    to_voxels = np.linalg.inv(grid.matrix) @ np.diag([-1.0, -1.0, 1.0, 1.0])
    placed = {
        number: [points @ to_voxels[:3, :3].T + to_voxels[:3, 3] for points in polygons]
        for number, polygons in contours.items()
    }
    spreads = [np.ptp(points, axis=0) for polygons in placed.values() for points in polygons]
    axis = int(np.sum(spreads, axis=0).argmin()) if spreads else 2
    within = [other for other in range(3) if other != axis]
    for number, polygons_of_region in placed.items():
        by_plane: dict[int, list[Array]] = {}
        for points in polygons_of_region:
            plane = round(float(points[:, axis].mean()))
            off = float(np.abs(points[:, axis] - plane).max())
            if off > _OFF_GRID_VOXEL or not 0 <= plane < grid.shape[axis]:
                raise ScanError(
                    f"decode: {path}: a contour of {shortened(names.get(number))} lies {off:.2f} slices away from "
                    f"slice {plane} of {grid.shape[axis]}; was it made on another series? Name the series it belongs to"
                )
            by_plane.setdefault(plane, []).append(points[:, within])
        for plane, polygons in by_plane.items():
            inside = np.nonzero(_inside(polygons, (grid.shape[within[0]], grid.shape[within[1]])))
            index = [*inside]
            index.insert(axis, np.full_like(inside[0], plane))
            yield number, axis, tuple(index)


def _points(path: Path, contour: Any) -> Array:
    """(n, 3) in LPS mm."""
    values = numbers_of(path, contour, "ContourData")
    num_said = int(contour.get("NumberOfContourPoints") or len(values) // 3)
    if len(values) != 3 * num_said:
        raise ScanError(
            f"decode: {path}: a contour says that it has {shortened(num_said)} points (NumberOfContourPoints), and "
            f"holds {len(values)} coordinates; it is damaged: export the file again"
        )
    return np.array(values).reshape(-1, 3)


def _inside(polygons: list[Array], shape: tuple[int, int]) -> Array:
    """Which voxel centers (x, y) lie within an odd number of polygons, by the crossings of lines along x."""
    num_x, num_y = shape
    crossings = np.zeros((num_x + 1, num_y), dtype=np.int64)
    lines = np.arange(num_y)[None]
    for polygon in polygons:
        edges = np.concatenate([polygon, np.roll(polygon, -1, axis=0)], axis=1)
        for start in range(0, len(edges), _EDGES_AT_ONCE):
            x0, y0, x1, y1 = edges[start : start + _EDGES_AT_ONCE].T[:, :, None]
            # Half-open, so that a line through a corner counts one of its two edges.
            edge, line = np.nonzero((y0 <= lines) != (y1 <= lines))
            x0, y0, x1, y1 = x0[edge, 0], y0[edge, 0], x1[edge, 0], y1[edge, 0]
            at = x0 + (line - y0) * (x1 - x0) / (y1 - y0)
            np.add.at(crossings, (np.clip(np.ceil(at), 0, num_x).astype(np.int64), line), 1)
    inside: Array = np.cumsum(crossings, axis=0)[:-1] % 2 == 1
    return inside
