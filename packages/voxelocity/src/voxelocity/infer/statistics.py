"""What is written next to predictions for other programs: volume and mean intensity of each class, what values mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from voxelocity.core.records import SLICER_LABELS, SNAP_LABELS
from voxelocity.core.volume import ClassIndices, Scaling, Volume, slabs
from voxelocity.data.decode.label_tables import slicer_table, snap_table
from voxelocity.infer.components import voxel_counts
from voxelocity.infer.model import PredictionSpec
from voxelocity_observe.core.whole_file import write_whole

STATISTICS_FILE = "statistics.json"
"""Of a folder of masks, as TotalSegmentator calls it."""
_SUMMED_VALUES = 1 << 20


def class_statistics(scan: Volume, classes: ClassIndices, spec: PredictionSpec) -> bytes:
    """JSON with the volume in mm³ and the mean intensity of each class, as TotalSegmentator writes it.

    Of a class without voxels both are 0. Intensities are those of the first channel, before any normalization.

    Args:
        scan: as decoded.
        classes: (x, y, z) class indices on its grid.
        spec: of the model.
    """
    num_classes, image = len(spec.class_names), scan.image[0]
    sums = np.zeros(num_classes)
    for part, values in slabs(classes, image, max_values=_SUMMED_VALUES):
        sums += np.bincount(part.reshape(-1), weights=values.reshape(-1), minlength=num_classes)
    counts = voxel_counts(classes, num_classes)
    scaling = scan.scaling[0] if scan.scaling else Scaling()
    found = {}
    for name, indices in spec.scored.items():
        num_voxels, total = int(counts[list(indices)].sum()), float(sums[list(indices)].sum())
        mean = scaling.slope * total / num_voxels + scaling.inter if num_voxels else 0.0
        found[name] = {"volume": round(num_voxels * scan.grid.voxel_ml * 1e3, 3), "intensity": round(mean, 3)}
    return json.dumps(found, indent=4, ensure_ascii=False).encode()


def write_label_files(out: Path, spec: PredictionSpec) -> None:
    """Writes names and colors of the values of predictions for ITK-SNAP and for 3D Slicer.

    Raises:
        OutputError: a file cannot be written.
    """
    write_whole(out / SNAP_LABELS, snap_table(spec.labels))
    write_whole(out / SLICER_LABELS, slicer_table(spec.labels))
