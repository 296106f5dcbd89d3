"""Keeps prepared volumes: in memory that processes share, on a device, in files on disk or in one LMDB file.

Knows nothing about how they are made. Import `cache.device` by its own name, as only it needs torch.

- `tier_table`: the tiers by name. `choose`: the tier of a plan. `tiered`: the front, the tier and what is behind it
  when a place is full.
- Tiers: `memory`, `shared` with `shared_folder`, `disk`, `lmdb_file`, `device`; `rotating` over any of them.
- Entries: `contents` (keys), `entry`, `entry_files`, `chunked`, `stored`, `locks`; `remote_files` on object stores.
"""

from voxelocity.data.cache.choose import open_cache
from voxelocity.data.cache.disk import DiskTier, LmdbTier
from voxelocity.data.cache.entry import entry_key, source_identity
from voxelocity.data.cache.entry_files import disk_bytes_in
from voxelocity.data.cache.lmdb_file import LmdbFile, open_lmdb_file
from voxelocity.data.cache.locks import PassingLocks, is_shared
from voxelocity.data.cache.memory import MemoryTier
from voxelocity.data.cache.rotating import RotatingCache, RotatingSchedule
from voxelocity.data.cache.shared import SharedMemoryTier
from voxelocity.data.cache.shared_folder import shared_free_bytes
from voxelocity.data.cache.stored import EntryVolume
from voxelocity.data.cache.tier_table import FOLDER_TIERS, TIERS, CacheConfig, TierName, tiers_in
from voxelocity.data.cache.tiered import DeviceFront, TieredCache, open_device_front

__all__ = [
    "FOLDER_TIERS",
    "TIERS",
    "CacheConfig",
    "DeviceFront",
    "DiskTier",
    "EntryVolume",
    "LmdbFile",
    "LmdbTier",
    "MemoryTier",
    "PassingLocks",
    "RotatingCache",
    "RotatingSchedule",
    "SharedMemoryTier",
    "TierName",
    "TieredCache",
    "disk_bytes_in",
    "entry_key",
    "is_shared",
    "open_lmdb_file",
    "open_cache",
    "open_device_front",
    "shared_free_bytes",
    "source_identity",
    "tiers_in",
]
