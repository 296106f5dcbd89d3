"""Prepared volumes, kept: in this process's memory, in mapped files on disk or in one LMDB file.

Knows nothing of how they are made.
"""

from voxelocity.data.cache.config import CacheConfig, default_cache_folder
from voxelocity.data.cache.disk import DiskTier
from voxelocity.data.cache.entry import Format
from voxelocity.data.cache.key import FORMAT_VERSION, entry_key, source_identity
from voxelocity.data.cache.lmdb_tier import LmdbTier
from voxelocity.data.cache.memory import MemoryTier

__all__ = [
    "FORMAT_VERSION",
    "CacheConfig",
    "DiskTier",
    "Format",
    "LmdbTier",
    "MemoryTier",
    "default_cache_folder",
    "entry_key",
    "source_identity",
]
