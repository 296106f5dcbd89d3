"""Random changes in any order: each patch has its own list of steps, drawn elsewhere, as plain data.

`AugmentParams` is the engine's own chain, in a fixed order, for whole batches. Steps are for chains that users wrote
for other libraries, and must give the same results as there.
"""

from voxelocity.monai.steps.intensity.field import Fill
from voxelocity.monai.steps.intensity.pointwise import Linear
from voxelocity.monai.steps.intensity.statistic import IntensityStep
from voxelocity.monai.steps.run import PatchTask, Step, run
from voxelocity.monai.steps.spatial.step import (
    AxisWeights,
    Beyond,
    Crop,
    Flip,
    Interpolation,
    Resize,
    SamplingGrid,
    SpatialStep,
    Turn,
    Warp,
)

__all__ = [
    "Beyond",
    "Crop",
    "Fill",
    "Flip",
    "IntensityStep",
    "Interpolation",
    "Linear",
    "PatchTask",
    "SamplingGrid",
    "Resize",
    "SpatialStep",
    "Step",
    "AxisWeights",
    "Turn",
    "Warp",
    "run",
]
