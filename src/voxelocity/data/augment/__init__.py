"""Random changes of a batch: drawn first, as plain data, then made in one pass from the cached volume."""

from voxelocity.data.augment.apply import augment, chosen_engine
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.draw import sample
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import Source, needed_box

__all__ = ["AugmentConfig", "AugmentParams", "Source", "augment", "chosen_engine", "needed_box", "sample"]
