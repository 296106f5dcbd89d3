"""How well a segmentation agrees with the truth: overlap and surface distance, per class, case and set of cases."""

from voxelocity.metrics.case import case_score, summarize
from voxelocity.metrics.dice import DiceCounts
from voxelocity.metrics.surface import NSD_TOLERANCE_MM

__all__ = [
    "NSD_TOLERANCE_MM",
    "DiceCounts",
    "case_score",
    "summarize",
]
