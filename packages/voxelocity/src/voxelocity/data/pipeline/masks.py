"""Masks of one class each, merged into one label file for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from voxelocity.core.cases import MAX_CLASSES
from voxelocity.core.scan_formats import stem_of
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode import read_header, read_scan, write_scan
from voxelocity_observe.core.errors import DatasetError

MERGED_FOLDER = "merged_labels"
"""Of the label files, next to the table."""


def classes_of_masks(masks: Mapping[str, Sequence[str]]) -> dict[int, str]:
    """Class names by value: the names of the mask files, sorted, after the background.

    Raises:
        DatasetError: there are more than 256 classes.
    """
    names = sorted({stem_of(Path(path).name) for paths in masks.values() for path in paths})
    if len(names) >= MAX_CLASSES:
        raise DatasetError(
            f"source: the masks have {len(names)} different names, such as {', '.join(names[:3])}, and at most "
            f"{MAX_CLASSES - 1} classes can be learned; give the masks of one class the same name in every case"
        )
    return {0: "background", **dict(enumerate(names, start=1))}


def merge_masks(
    folder: Path, masks: Mapping[str, Sequence[str]], labels: Mapping[int, str], out: Path, *, num_threads: int
) -> dict[str, int]:
    """Writes a label file for each case into `out`, and returns how many voxels of it lie in several masks.

    Where masks overlap, the class with the larger value is taken, as it is for structures in DICOM.

    Args:
        folder: that paths start from.
        masks: paths by case id.
        labels: class names by value, as `classes_of_masks` gives them.
        out: made if it does not exist.
        num_threads: cases at a time.

    Raises:
        DatasetError: masks of a case lie on different grids, or one has several values other than 0.
        OutputError: a file cannot be written.
        ScanError: a mask cannot be read.
    """
    values = {name: value for value, name in labels.items()}
    out.mkdir(parents=True, exist_ok=True)

    def merge(case_id: str) -> int:
        paths = sorted((folder / path for path in masks[case_id]), key=lambda path: values[stem_of(path.name)])
        merged, num_twice = _merge(paths, values)
        header = read_header(paths[0])
        write_scan(out / f"{case_id}.nii.gz", merged, header.grid, placement=header.placement)
        return num_twice

    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        return dict(zip(masks, pool.map(merge, masks), strict=True))


def _merge(paths: Sequence[Path], values: Mapping[str, int]) -> tuple[Array, int]:
    """The values of the classes (x, y, z), and how many voxels lie in several masks."""
    first: Grid | None = None
    for path in paths:
        voxels, grid = read_scan(path)
        if first is None:
            first = grid
            merged = np.zeros(grid.shape, dtype=np.uint8)
            num_masks = np.zeros(grid.shape, dtype=np.uint8)
        if len(voxels) > 1 or grid.shape != first.shape or not grid.is_shared_with(first):
            raise DatasetError(
                f"source: {path} and {paths[0]} do not lie on the same voxels, so they cannot be merged; "
                "resample one onto the grid of the other, or move it away"
            )
        inside = voxels[0] != 0
        found = np.unique(voxels[0][inside])
        if len(found) > 1:
            raise DatasetError(
                f"source: {path} holds the values {', '.join(f'{value:g}' for value in found[:3])}"
                f"{', ...' if len(found) > 3 else ''}, and a mask has one value other than 0; if it is the label of "
                "all classes, name it in a table instead of --merge-masks, or move it away"
            )
        merged[inside] = values[stem_of(path.name)]
        num_masks[inside] += num_masks[inside] < 2
    return merged, int((num_masks > 1).sum())
