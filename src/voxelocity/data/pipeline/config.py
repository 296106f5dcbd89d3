"""The configuration of the whole path, stage by stage in the order of travel."""

from __future__ import annotations

from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.cache import CacheConfig
from voxelocity.data.feed import FeedConfig
from voxelocity.data.patch import PatchConfig
from voxelocity.data.prepare import PrepareConfig


class DataConfig(Config):
    """How voxels travel from files to batches."""

    prepare: PrepareConfig
    """Deterministic preparation; its result is what the cache keeps."""
    cache: CacheConfig
    """Where prepared cases are kept."""
    patch: PatchConfig
    """Which boxes of a case are learnt from."""
    batch_size: int = Field(ge=1, le=4096)
    """Patches in a batch."""
    feed: FeedConfig
    """How batches are put together beside the training."""
    augment: AugmentConfig = AugmentConfig()
    """Random changes, made to whole batches on the device."""
