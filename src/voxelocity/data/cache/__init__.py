"""Prepared volumes, kept: in this process's memory or in mapped files on disk. Knows nothing of how they are made."""

from voxelocity.data.cache.config import CacheConfig
from voxelocity.data.cache.disk import DiskTier
from voxelocity.data.cache.key import FORMAT_VERSION, entry_key, source_identity
from voxelocity.data.cache.memory import MemoryTier

__all__ = ["FORMAT_VERSION", "CacheConfig", "DiskTier", "MemoryTier", "entry_key", "source_identity"]
