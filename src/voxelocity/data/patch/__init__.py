"""Which boxes of which cases are used for training or predicted. Reads no voxels."""

from voxelocity.data.patch.choose import choose_region
from voxelocity.data.patch.config import PatchConfig, PatchStage
from voxelocity.data.patch.grid import axis_starts, grid_regions
from voxelocity.data.patch.order import CaseOrder
from voxelocity.data.patch.partition import PartitionedOrder, partition, share_of_rank

__all__ = [
    "CaseOrder",
    "PartitionedOrder",
    "PatchConfig",
    "PatchStage",
    "axis_starts",
    "choose_region",
    "grid_regions",
    "partition",
    "share_of_rank",
]
