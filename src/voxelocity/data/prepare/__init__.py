"""Deterministic preparation of a scan before the cache, and its inverse, back to the scan's own grid."""

from voxelocity.data.prepare.chain import PREPARATION_VERSION, Preparation
from voxelocity.data.prepare.config import IntensityConfig, PrepareConfig
from voxelocity.data.prepare.restore import Restoration, Trace, is_resampled, restore_labels, restore_probabilities

__all__ = [
    "PREPARATION_VERSION",
    "IntensityConfig",
    "Preparation",
    "PrepareConfig",
    "Restoration",
    "Trace",
    "is_resampled",
    "restore_labels",
    "restore_probabilities",
]
