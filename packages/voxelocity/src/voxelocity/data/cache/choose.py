"""Opens the places that a configuration names, as far as this machine allows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from voxelocity.core.contracts import Tier
from voxelocity.core.remote import local_name, remote_url
from voxelocity.data.cache.memory import MemoryTier
from voxelocity.data.cache.shared import SharedMemoryTier
from voxelocity.data.cache.shared_folder import memory_folder
from voxelocity.data.cache.tier_table import CacheConfig, open_disk
from voxelocity.data.cache.tiered import MemoryPlace, TieredCache, memory_floor_bytes
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.memory_folders import memory_folder_in
from voxelocity_observe.core.warn_once import Warn


def open_cache(cache: CacheConfig, warn: Warn) -> TieredCache:
    """The cache of this configuration.

    Memory is shared with all processes of this user where possible, with the folder's disk behind it. The tiers on a
    disk continue in memory when the disk is full, if the configuration gives them a budget for it.

    Args:
        cache: which tier, where, how large.
        warn: called with a text if memory cannot be shared, and when a place fails.

    Raises:
        OutputError: the folder of the tier cannot be used.
    """
    kind = cache.kind
    files = partial(_open_files, cache, warn)
    memory = partial(_open_memory, cache.max_bytes, warn)
    floor_bytes = memory_floor_bytes()
    if kind.open is not None:
        return TieredCache(files, memory if cache.max_bytes else None, warn=warn, floor_bytes=floor_bytes)
    return TieredCache(
        memory if kind.is_in_memory else None,
        files if kind.is_in_memory and cache.folder else None,
        second_name=f"the disk tier in {cache.folder}",
        warn=warn,
        floor_bytes=floor_bytes,
    )


def _open_files(cache: CacheConfig, warn: Warn) -> Tier:
    """The tier that the configuration names, or the disk tier behind one in memory."""
    kind, url = cache.kind, remote_url(cache.folder)
    if url and kind.file is not None:
        raise ConfigError(
            f"data.cache.folder: the one file of the {cache.tier} tier cannot be on a server ({url}); choose "
            "data.cache.tier disk"
        )
    folder = default_cache_folder() / "remote-cache" / local_name(url) if url else Path(cache.folder)
    return (kind.open or open_disk)(folder, url, cache, warn)


def _open_memory(max_bytes: int, warn: Warn) -> MemoryPlace:
    place, reason = memory_folder(min_free_bytes=max_bytes)
    if place is not None:
        try:
            return SharedMemoryTier(memory_folder_in(place), max_bytes, warn=warn)
        except OutputError as error:
            reason = str(error)
    warn(
        f"cache: prepared cases cannot be shared between processes ({reason}): each training process on this machine "
        "keeps its own copy; with one process nothing changes; with several, enlarge /dev/shm (docker run --shm-size)"
    )
    return MemoryTier(max_bytes)
