"""Random changes made to whole batches on their device: `sample` draws the numbers, `apply` uses them."""

from voxelocity.data.augment.batched import apply
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import AugmentParams, sample

__all__ = ["AugmentConfig", "AugmentParams", "apply", "sample"]
