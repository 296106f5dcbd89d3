"""Random changes in any order: each patch has its own list of steps, drawn elsewhere, as plain data.

`AugmentParams` is the engine's own chain, in a fixed order, for whole batches. Steps are for chains that users wrote
for other libraries, and must give the same results as there.
"""

from voxelocity.data.augment.steps.intensity.field import Fill
from voxelocity.data.augment.steps.intensity.pointwise import Linear
from voxelocity.data.augment.steps.intensity.statistic import IntensityStep
from voxelocity.data.augment.steps.run import Piece, Step, run
from voxelocity.data.augment.steps.spatial.step import (
    Beyond,
    Crop,
    Flip,
    Interpolation,
    Places,
    Resize,
    SpatialStep,
    Table,
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
    "Piece",
    "Places",
    "Resize",
    "SpatialStep",
    "Step",
    "Table",
    "Turn",
    "Warp",
    "run",
]
