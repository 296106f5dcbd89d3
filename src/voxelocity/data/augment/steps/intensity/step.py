"""Changes of a patch's intensities, as plain data that any implementation can take.

A step maps an array (c, x, y, z) float32 to one of the same shape. Steps of `pointwise` use each voxel alone; those of
`statistic` use the whole patch first, and those of `field` a voxel's place or its neighbors.
"""

from __future__ import annotations

from voxelocity.data.augment.steps.intensity.field import Field
from voxelocity.data.augment.steps.intensity.fill import Fill
from voxelocity.data.augment.steps.intensity.pointwise import Linear, Pointwise
from voxelocity.data.augment.steps.intensity.statistic import PercentileRange, Statistic

IntensityStep = Pointwise | Statistic | PercentileRange | Field | Fill

__all__ = ["IntensityStep", "Linear"]
