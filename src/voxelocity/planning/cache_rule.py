"""Where prepared cases are kept: which tier, in which format, and what of it stands on the device as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voxelocity.planning.facts import Facts
from voxelocity.planning.machine import Machine
from voxelocity.planning.prepared_size import build_s, prepared_bytes

Tier = Literal["none", "memory", "disk", "lmdb", "rotating"]

# Of the free memory: what cases may take where all of them, or a window of them, lie there. The budget is a little
# more, so that a wrong guess of their size does not push cases out.
_MEMORY_SHARE = 0.4
_BUDGET_SHARE = 0.5
_QUICK_BUILD_S = 15.0
# Of the disk that is free or holds entries: up to here it counts as plentiful, and at the most what the cache may take.
_RAW_SHARE = 0.5
_DISK_SHARE = 0.8
# What the folder may take where one data set needs less: older entries go beyond it, so that disks do not fill up with
# preparations that nobody uses any more. And a data set's own estimate, with a margin for a wrong guess of its size.
_FOLDER_SHARE = 0.5
_FOLDER_SPARE = 1.25
# What Blosc2 leaves of a case at the most: 1.7 of the 2 bytes of a voxel in the worst of our scans (docs/cache.md), of
# 3 with the label.
_BLOSC2_SHARE = 0.6
# What the page cache gets of the free memory, beside the training. A patch of a file that it holds takes 1.22 ms raw
# and 1.75 ms by Blosc2, else 39.8 and 25.8 ms (docs/measured.md, cache_read.json): Blosc2 gains by 14 ms where it does
# not and loses 0.53 where it does, so it pays once more than 3.6 % of the patches come from the disk itself.
_PAGE_CACHE_SHARE = 0.8
_COLD_SHARE = 0.036
# A file and its lock for each case: what quotas on files, backups and deleting count. See docs/cache.md for the cost.
_MANY_CASES = 20_000
_SMALL_CASE_BYTES = 2**20
# Below, a network would learn from a handful of cases at a time.
_USEFUL_CASES = 16
_REPLACE_RATE = 0.1
# Of the device's free memory. The batch is planned at 0.6 of it (`settle_batch`); weights, the optimizer's state, the
# workspaces of cuDNN and fragments get the 0.15 between.
_DEVICE_SHARE = 0.25
# Cases differ in size, and their estimate is that of the median.
_DEVICE_SPARE = 1.1
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """What the choice hangs on, beside the machine.

    Attributes:
        total_bytes: of all prepared cases.
        window: cases that the memory for them holds at a time, with those that will replace some of them.
    """

    total_bytes: float
    num_cases: int
    num_training: int
    build_s: float
    machine: Machine

    @property
    def case_bytes(self) -> float:
        return self.total_bytes / self.num_cases

    @property
    def window(self) -> int:
        return int(_MEMORY_SHARE * self.machine.memory_bytes / (self.case_bytes * (1.0 + _REPLACE_RATE)))

    @property
    def disk_room_bytes(self) -> int:
        """Free, or taken by entries that are this data set's own or may go."""
        return self.machine.disk_bytes + self.machine.cache_bytes

    @property
    def are_many_and_small(self) -> bool:
        return self.num_cases > _MANY_CASES and self.case_bytes < _SMALL_CASE_BYTES

    @property
    def text(self) -> str:
        memory_gib, disk_gib = self.machine.memory_bytes / _GIB, self.machine.disk_bytes / _GIB
        return (
            f"prepared cases take {self.total_bytes / _GIB:.2f} GiB ({memory_gib:.1f} GiB memory, {disk_gib:.1f} GiB "
            "disk free)"
        )


def settle_cache(facts: Facts) -> None:
    """Memory where all fits and is quick to make, disk where making it again would hurt, a window where neither holds.

    The device keeps the cases too where they are small beside its memory.
    """
    sizes = _Sizes(
        total_bytes=prepared_bytes(facts),
        num_cases=facts.data.num_cases,
        num_training=facts.request.num_training,
        build_s=build_s(facts),
        machine=facts.machine,
    )
    rule, why = _tier(sizes)
    key = "data.cache.tier"
    # Only this one shows the network other cases in an epoch.
    changes_results = facts.overrides.get(key, rule) == "rotating"
    tier = facts.settle(key, rule, why, changes_results=changes_results)
    held = f"one place for all runs, which holds {sizes.machine.cache_bytes / _GIB:.2f} GiB now"
    facts.settle("data.cache.folder", facts.request.cache_folder, held, changes_results=False)
    facts.settle("data.cache.folder_max_bytes", *_folder_limit(sizes), changes_results=False)
    if tier in ("disk", "lmdb"):
        facts.settle("data.cache.format", *_format(sizes), changes_results=False)
    facts.settle("data.cache.max_bytes", *_budget(sizes, tier), changes_results=False)
    if tier == "rotating":
        _settle_rotation(facts, sizes)
    elif sizes.machine.device == "cuda":
        facts.settle("data.cache.device_max_bytes", *_on_device(sizes), changes_results=False)


def _tier(sizes: _Sizes) -> tuple[Tier, str]:
    machine, text = sizes.machine, sizes.text
    fits_memory = sizes.total_bytes < _MEMORY_SHARE * machine.memory_bytes
    if fits_memory and sizes.build_s < _QUICK_BUILD_S:
        return "memory", f"{text} and about {sizes.build_s:.0f} s to make again in the next run"
    if _BLOSC2_SHARE * sizes.total_bytes < _DISK_SHARE * sizes.disk_room_bytes:
        kept = f"{text} and about {sizes.build_s:.0f} s to make, so they are kept for the next run"
        if not sizes.are_many_and_small:
            return "disk", kept
        small = f"{sizes.num_cases:,} cases of {sizes.case_bytes / 2**20:.2f} MiB"
        if machine.has_lmdb:
            return "lmdb", f"{kept}; {small} are one file instead of two for each, which quotas and backups count"
        return "disk", (
            f"{kept}; {small} would better be one file (tier lmdb), but that needs the package lmdb and a cache folder "
            "on a disk of this machine"
        )
    if fits_memory:
        return "memory", f"{text}; the disk is too full to keep them"
    full = f"{text}; neither memory nor disk holds them"
    if sizes.window >= sizes.num_training:
        return "memory", f"{full}, but memory holds the {sizes.num_training} to learn from"
    if sizes.window >= _USEFUL_CASES:
        return "rotating", (
            f"{full}, but memory holds {sizes.window} at a time: an epoch learns from these alone, then some give way "
            "to others, prepared beside the training. This changes results; free some disk, or set "
            'data.cache.tier to "none", to learn from all cases in every epoch'
        )
    return "none", (
        f"{full}, and fewer than {_USEFUL_CASES} at a time fit into memory, so cases are prepared each time they are "
        "used"
    )


def _format(sizes: _Sizes) -> tuple[str, str]:
    """How entries are stored, for the tiers on disk."""
    share = sizes.total_bytes / max(1, sizes.disk_room_bytes)
    if share > _RAW_SHARE:
        return "blosc2", (
            f"as they are they would take {share:.0%} of the free disk; Blosc2 makes that at most "
            f"{_BLOSC2_SHARE * share:.0%}, and a patch takes 1.75 ms instead of 1.22 (docs/measured.md)"
        )
    cold = 1.0 - _PAGE_CACHE_SHARE * sizes.machine.memory_bytes / sizes.total_bytes
    if cold > _COLD_SHARE:
        return "blosc2", (
            f"memory is too small for the system to keep them all there, so {cold:.0%} of the patches come from the "
            "disk itself: about 26 ms each by Blosc2, 40 ms as they are (docs/measured.md)"
        )
    return "raw", (
        f"{share:.0%} of the free disk, and the system keeps them in memory: 1.22 ms a patch, 1.75 by Blosc2 "
        "(docs/measured.md)"
    )


def _folder_limit(sizes: _Sizes) -> tuple[int, str]:
    """Bytes of all entries of the tier disk."""
    room = sizes.disk_room_bytes
    needed = _FOLDER_SPARE * sizes.total_bytes
    limit = max(1, int(min(max(_FOLDER_SHARE * room, needed), _DISK_SHARE * room)))
    return limit, (
        f"{limit / max(1, room):.0%} of the disk that is free or its own; beyond, entries that no run uses go, those "
        "used longest ago first"
    )


def _budget(sizes: _Sizes, tier: Tier) -> tuple[int, str]:
    """Bytes of the tiers in memory."""
    half, shared = int(_BUDGET_SHARE * sizes.machine.memory_bytes), sizes.machine.shared_bytes
    if half <= shared or tier not in ("memory", "rotating"):
        return half, "half of the free memory at the most"
    needed = sizes.total_bytes if tier == "memory" else _MEMORY_SHARE * sizes.machine.memory_bytes
    if needed <= shared:
        return shared, "all that /dev/shm has free, less than half of the free memory: so processes share one copy"
    return half, (
        f"half of the free memory at the most; /dev/shm has only {shared / _GIB:.2f} GiB free, so each training "
        "process keeps a copy of its own"
    )


def _settle_rotation(facts: Facts, sizes: _Sizes) -> None:
    window = max(1, min(sizes.window, sizes.num_training))
    num_cases = facts.settle(
        "data.cache.num_cases",
        window,
        f"{_MEMORY_SHARE:.0%} of the free memory holds {window} of the {sizes.num_training} cases to learn from, and "
        "those that replace some of them",
    )
    epochs = max(0, sizes.num_training - num_cases) / max(1, num_cases * _REPLACE_RATE)
    facts.settle(
        "data.cache.replace_rate",
        _REPLACE_RATE,
        f"a tenth after each epoch, which is prepared while it trains; after about {epochs:.0f} epochs every case was "
        "in use",
    )


def _on_device(sizes: _Sizes) -> tuple[int, str]:
    """Bytes of the device's memory for the cases to learn from, all of them or none."""
    needed = int(_DEVICE_SPARE * sizes.case_bytes * sizes.num_training)
    free = sizes.machine.device_free_bytes
    takes = (
        f"the {sizes.num_training} cases to learn from take {needed / _GIB:.2f} GiB of the device's {free / _GIB:.1f}"
    )
    if needed <= _DEVICE_SHARE * free:
        return needed, (
            f"{takes} GiB free: below {_DEVICE_SHARE:.0%}, so that they stay there beside the tier and no batch waits "
            "for a copy; the network is planned with the rest"
        )
    return 0, f"{takes} GiB free: above {_DEVICE_SHARE:.0%}, the rest of which the network needs"
