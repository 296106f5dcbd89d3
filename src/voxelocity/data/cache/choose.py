"""Opens the tier that a configuration names, as far as this machine allows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from voxelocity.core.contracts import Tier
from voxelocity.core.errors import CacheFullError, OutputError
from voxelocity.core.warn_once import Warn
from voxelocity.data.cache.config import CacheConfig
from voxelocity.data.cache.disk import DiskTier
from voxelocity.data.cache.lmdb_tier import LmdbTier
from voxelocity.data.cache.memory import MemoryTier
from voxelocity.data.cache.overflow import GOES_ON, OverflowingTier
from voxelocity.data.cache.shared import SharedMemoryTier
from voxelocity.data.cache.shared_folder import memory_folder
from voxelocity.data.cache.tiered import FrontTier, TieredCache, memory_floor_bytes
from voxelocity.observe.memory_folders import memory_folder_in


def open_tier(cache: CacheConfig, warn: Warn) -> Tier | None:
    """The tier of this configuration; None where nothing is kept.

    Memory is shared with all processes of this user where possible, with the folder's disk behind it. The tiers on a
    disk continue in memory when the disk is full, if the configuration gives them a budget for it.

    Args:
        cache: which tier, where, how large.
        warn: called with a text if memory cannot be shared, and when memory or the disk runs low.

    Raises:
        OutputError: the folder of the tier cannot be used.
        CacheFullError: the folder's disk is full, and there is no budget for memory.
    """
    if cache.tier == "none":
        return None
    if cache.tier not in ("disk", "lmdb"):
        return _memory_tier(cache, warn, partial(_open_files, cache, warn) if cache.folder else None)
    spare = partial(_memory_tier, cache, warn, None)
    try:
        files = _open_files(cache, warn)
    except CacheFullError as error:
        if cache.max_bytes == 0:
            raise
        warn(f"{error}; {GOES_ON}")
        return spare()
    return files if cache.max_bytes == 0 else OverflowingTier(files, spare, warn=warn)


def _open_files(cache: CacheConfig, warn: Warn) -> Tier:
    folder = Path(cache.folder)
    if cache.tier == "lmdb":
        return LmdbTier(folder, format=cache.format, warn=warn)
    return DiskTier(folder, format=cache.format, max_bytes=cache.folder_max_bytes, warn=warn)


def _memory_tier(cache: CacheConfig, warn: Warn, behind: Callable[[], Tier] | None) -> Tier:
    return TieredCache(
        _open_memory(cache.max_bytes, warn),
        behind,
        behind_name=f"the disk tier in {cache.folder}",
        warn=warn,
        floor_bytes=memory_floor_bytes(),
    )


def _open_memory(max_bytes: int, warn: Warn) -> FrontTier:
    place, reason = memory_folder(min_free_bytes=max_bytes)
    if place is not None:
        try:
            return SharedMemoryTier(memory_folder_in(place), max_bytes, warn=warn)
        except OutputError as error:
            reason = str(error)
    warn(
        f"cache: prepared cases cannot be shared between processes ({reason}): each training process on this machine "
        "keeps its own copy; nothing changes for one process, otherwise enlarge /dev/shm (docker run --shm-size)"
    )
    return MemoryTier(max_bytes)
