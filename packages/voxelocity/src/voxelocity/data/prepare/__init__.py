"""Deterministic preparation of a scan before the cache, and its inverse, back to the scan's own grid.

`chain` runs the stages: `orient`, `crop`, `resample`, `intensity`, `cast`; `foreground` notes where classes lie.
`restore` follows the trace backwards. `interpolate` is NumPy's way, the `native_` modules the compiled one.
"""

from voxelocity.data.prepare.chain import Preparation
from voxelocity.data.prepare.config import IntensityConfig, PrepareConfig
from voxelocity.data.prepare.crop import CropToNonzero, nonzero_box
from voxelocity.data.prepare.interpolate import first_positions, nearest_positions
from voxelocity.data.prepare.orient import OrientToRAS, orient_record
from voxelocity.data.prepare.resample import resize_record
from voxelocity.data.prepare.restore import (
    Restoration,
    Trace,
    is_resampled,
    kept_largest,
    labels_record,
    restore_labels,
    restore_probabilities,
    restore_scores,
)

__all__ = [
    "CropToNonzero",
    "IntensityConfig",
    "OrientToRAS",
    "Preparation",
    "PrepareConfig",
    "Restoration",
    "Trace",
    "first_positions",
    "is_resampled",
    "kept_largest",
    "labels_record",
    "nearest_positions",
    "nonzero_box",
    "orient_record",
    "resize_record",
    "restore_labels",
    "restore_probabilities",
    "restore_scores",
]
