"""Which boxes of which cases are used for training or predicted. Reads no voxels."""

from voxelocity.data.patch.config import PatchConfig
from voxelocity.data.patch.order import CaseOrder, PartitionedOrder, partition, share_of_rank
from voxelocity.data.patch.regions import Spread, axis_starts, choose_region, grid_regions

__all__ = [
    "CaseOrder",
    "PartitionedOrder",
    "PatchConfig",
    "Spread",
    "axis_starts",
    "choose_region",
    "grid_regions",
    "partition",
    "share_of_rank",
]
