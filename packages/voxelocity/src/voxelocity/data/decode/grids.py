"""Two files of one scan compared in space: the same places in another order of axes are turned, others are refused."""

from __future__ import annotations

from pathlib import Path

from voxelocity.core.axis_order import nearest_turn, orientation_of, turn_onto
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError

File = tuple[Path, Grid]


def check_same_places(first: File, other: File, *, where: str) -> None:
    """Returns if both files hold the same places of space, in any order of axes.

    Args:
        first: whose grid counts.
        other: whose voxels have to lie on it.
        where: start of the error text, up to what the files are.

    Raises:
        ScanError: they do not; the text says how they differ and what to do.
    """
    if turn_onto(other[1], first[1]) is None:
        raise ScanError(f"{where} {_difference(first, other)}")


def turned_onto(array: Array, first: File, other: File, *, where: str, note: Note) -> Array:
    """The voxels (..., x, y, z) of the other file on the grid of the first, a view; turned if need be.

    Args:
        array: the voxels of `other`.
        first: whose grid counts.
        other: the file of `array`.
        where: start of texts, up to what the files are.
        note: called if the array was turned.

    Raises:
        ScanError: as `check_same_places`.
    """
    (path, grid), (other_path, other_grid) = first, other
    order = turn_onto(other_grid, grid)
    if order is None:
        raise ScanError(f"{where} {_difference(first, other)}")
    if not order.is_identity:
        note(
            "turned",
            f"{where} have the same voxel positions in another axis order: {path} as {orientation_of(grid)}, "
            f"{other_path} as "
            f"{orientation_of(other_grid)}; the latter is reoriented, which changes no value",
        )
    return order.turn(array)


def _difference(first: File, other: File) -> str:
    (path, grid), (other_path, other_grid) = first, other
    order = nearest_turn(other_grid, grid)
    cure = "resample the latter onto the grid of the former, labels by nearest neighbor"
    if order is None:
        return f"differ in shape: {path} has {grid.shape}, {other_path} has {other_grid.shape}; {cure}"
    affines = f"{path} has the affine {_affine_text(grid)}, {other_path} has {_affine_text(other_grid)}"
    apart_mm = grid.largest_difference_mm(order.turn_grid(other_grid))
    if order.is_identity:
        return f"lie up to {apart_mm:.4g} mm apart: {affines}; {cure}, or copy the affine if the voxels belong together"
    return (
        f"lie up to {apart_mm:.4g} mm apart, even with the latter reoriented from "
        f"{orientation_of(other_grid)} to {orientation_of(grid)}: {affines}; {cure}"
    )


def _affine_text(grid: Grid) -> str:
    return str([[round(value, 4) for value in row] for row in grid.affine[:3]])
