"""Random changes of a batch: drawn first, as plain data, then applied in one pass over the cached volume."""

from voxelocity.data.augment.ahead import compile_ahead
from voxelocity.data.augment.apply import augment, chosen_engine, filling_device
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.draw import sample
from voxelocity.data.augment.effects import BUILT_IN_EFFECTS, Effects
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import ResidentSource, Source, needed_box, needed_boxes

__all__ = [
    "BUILT_IN_EFFECTS",
    "AugmentConfig",
    "AugmentParams",
    "Effects",
    "ResidentSource",
    "Source",
    "augment",
    "chosen_engine",
    "compile_ahead",
    "filling_device",
    "needed_box",
    "needed_boxes",
    "sample",
]
