"""How large the prepared cases will be, and where they are kept: the tier, its format, and the device's share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.data.cache import FOLDER_TIERS, TIERS, TierName
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.machine import Machine
from voxelocity_observe.core.quantities import count_text

# Shares of the free memory: what cases may take if all of them, or a window of them, are kept there. The budget is a
# little larger, so that a wrong estimate of their size does not push cases out.
_MEMORY_SHARE = 0.4
_BUDGET_SHARE = 0.5
_QUICK_BUILD_S = 15.0
# Shares of the disk that is free or holds entries: up to the first, space counts as plentiful; the second is the most
# that the cache may take.
_RAW_SHARE = 0.5
_DISK_SHARE = 0.8
# What the folder may take if one data set needs less: beyond it, older entries are removed, so that disks do not fill
# up with unused preparations. And a data set's own estimate, with a margin for a wrong estimate of its size.
_FOLDER_SHARE = 0.5
_FOLDER_SPARE = 1.25
# The most that Blosc2 leaves of a case: 1.7 of the 2 bytes of a voxel in the worst of our scans (docs/cache.md), or of
# 3 bytes with the label.
_BLOSC2_SHARE = 0.6
# The page cache's share of the free memory; training needs the rest. A patch of a cached file takes 1.22 ms raw and
# 1.75 ms with Blosc2, of other files 39.8 and 25.8 ms (docs/cache.md): Blosc2 loses 0.53 ms in the
# first case and gains 14 ms in the second, so it pays once more than 3.6 % of the patches come from the disk itself.
_PAGE_CACHE_SHARE = 0.8
_COLD_SHARE = 0.036
# With fewer, a network would learn from a handful of cases at a time.
_USEFUL_CASES = 16
_REPLACE_RATE = 0.1
# Cases that take at most this share of the device's free memory come before the network; others get what it leaves.
_DEVICE_SHARE = 0.25
# Stays free after the step's estimate and the cases: captured graphs, workspaces of cuDNN, validations, fragments.
_SPARE_SHARE, _LEAST_SPARE_BYTES = 0.15, 2**30
# Fewer are not worth the memory: nearly every batch waits for a copy all the same.
_LEAST_RESIDENT_SHARE = 0.1
# Cases differ in size, and the estimate assumes the median.
_DEVICE_SPARE = 1.1
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """What the choice depends on, besides the machine.

    Attributes:
        total_bytes: of all prepared cases.
        window: cases that their share of the memory holds at a time, leaving room for their replacements.
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
    def disk_free_bytes(self) -> int:
        """Free, or taken by entries that belong to this data set or may be removed."""
        return self.machine.disk_bytes + self.machine.cache_bytes

    @property
    def text(self) -> str:
        memory_gib, disk_gib = self.machine.memory_bytes / _GIB, self.machine.disk_bytes / _GIB
        return (
            f"prepared cases take {self.total_bytes / _GIB:.2f} GiB ({memory_gib:.1f} GiB memory, {disk_gib:.1f} GiB "
            "disk free)"
        )


def settle_cache(facts: PlanFacts) -> None:
    """Memory if everything fits and is quick to make, disk if making it again would hurt, a window if neither fits.

    The device keeps the cases too if they are small compared with its memory.
    """
    sizes = _Sizes(
        total_bytes=prepared_bytes(facts),
        num_cases=facts.data.num_cases,
        num_training=facts.num_training,
        build_s=build_s(facts),
        machine=facts.machine,
    )
    rule, why = _tier(sizes)
    key = "data.cache.tier"
    # Only this tier changes which cases the network sees in an epoch.
    changes_results = facts.overrides.get(key, rule) == "rotating"
    tier = facts.settle(key, rule, why, changes_results=changes_results)
    held = f"one folder for all runs, which has {sizes.machine.cache_bytes / _GIB:.2f} GiB now"
    facts.settle("data.cache.folder", facts.cache_folder, held, changes_results=False)
    facts.settle("data.cache.folder_max_bytes", *_folder_limit(sizes), changes_results=False)
    if TIERS[tier].open is not None:
        facts.settle("data.cache.format", *_format(sizes), changes_results=False)
    facts.settle("data.cache.max_bytes", *_budget(sizes, tier), changes_results=False)
    if tier == "rotating":
        _settle_rotation(facts, sizes)
    elif sizes.machine.device == "cuda" and not _is_wide(facts):
        fits = resident_bytes(facts) <= _DEVICE_SHARE * sizes.machine.device_free_bytes
        if fits or facts.is_given("data.cache.device_max_bytes"):
            facts.settle("data.cache.device_max_bytes", *_before_network(facts), changes_results=False)


def settle_device_cache(facts: PlanFacts) -> None:
    """Cases on the device in what the network leaves of its memory, where they were too many to come first."""
    is_settled = "device_max_bytes" in facts.settled["data"]["cache"]
    may_keep = facts.settled["data"]["cache"]["tier"] != "rotating" and not _is_wide(facts)
    if facts.machine.device == "cuda" and not is_settled and may_keep:
        facts.settle("data.cache.device_max_bytes", *_after_network(facts), changes_results=False)


def _is_wide(facts: PlanFacts) -> bool:
    """Whether labels have more classes than those that a device keeps; 0 bytes of it are then the default."""
    return len(facts.data.class_names) >= MAX_BYTE_CLASSES


def resident_bytes(facts: PlanFacts) -> int:
    """Bytes that all training cases take on a device."""
    case_bytes = prepared_bytes(facts) / facts.data.num_cases
    return int(_DEVICE_SPARE * case_bytes * facts.num_training)


def _tier(sizes: _Sizes) -> tuple[TierName, str]:
    machine, text = sizes.machine, sizes.text
    fits_memory = sizes.total_bytes < _MEMORY_SHARE * machine.memory_bytes
    if fits_memory and sizes.build_s < _QUICK_BUILD_S:
        return "memory", f"{text} and about {sizes.build_s:.0f} s to make again in the next run"
    if _BLOSC2_SHARE * sizes.total_bytes < _DISK_SHARE * sizes.disk_free_bytes:
        kept = f"{text} and about {sizes.build_s:.0f} s to make, so they are kept for the next run"
        return _folder_tier(sizes, kept)
    if fits_memory:
        return "memory", f"{text}; the disk has too little free space for them"
    full = f"{text}; they fit neither in memory nor on disk"
    if sizes.window >= sizes.num_training:
        return "memory", f"{full}, but memory holds the {sizes.num_training} training cases"
    if sizes.window >= _USEFUL_CASES:
        return "rotating", (
            f"{full}, but memory holds {sizes.window} at a time: an epoch trains on these only, then some are replaced "
            "by others, prepared while training runs. This changes results; free some disk, or set "
            'data.cache.tier to "none", to train on all cases in every epoch'
        )
    return "none", (
        f"{full}, and fewer than {_USEFUL_CASES} at a time fit into memory, so cases are prepared each time they are "
        "used"
    )


def _folder_tier(sizes: _Sizes, kept: str) -> tuple[TierName, str]:
    """The tier for which these cases are made, the disk otherwise; and why."""
    for name in FOLDER_TIERS:
        niche = TIERS[name].niche
        if niche is not None and niche.suits(sizes.num_cases, sizes.case_bytes):
            cases = f"{count_text(sizes.num_cases, 'case')} of {sizes.case_bytes / 2**20:.2f} MiB"
            if name in sizes.machine.cache_tiers:
                return name, f"{kept}; {cases} {niche.benefit}"
            return "disk", (f"{kept}; {cases} are better kept {niche.form} (tier {name}), but that needs {niche.needs}")
    return "disk", kept


def _format(sizes: _Sizes) -> tuple[str, str]:
    """How entries are stored, for the tiers on disk."""
    share = sizes.total_bytes / max(1, sizes.disk_free_bytes)
    if share > _RAW_SHARE:
        return "blosc2", (
            f"uncompressed, they would take {share:.0%} of the free disk; Blosc2 reduces that to at most "
            f"{_BLOSC2_SHARE * share:.0%}, and reading a patch takes 1.75 ms instead of 1.22 (docs/cache.md)"
        )
    cold = 1.0 - _PAGE_CACHE_SHARE * sizes.machine.memory_bytes / sizes.total_bytes
    if cold > _COLD_SHARE:
        return "blosc2", (
            f"memory is too small for the system to keep them all there, so {cold:.0%} of the patches come from the "
            "disk itself: about 26 ms each with Blosc2, 40 ms uncompressed (docs/cache.md)"
        )
    return "raw", (
        f"{share:.0%} of the free disk, and the system keeps them in memory: 1.22 ms per patch, 1.75 with Blosc2 "
        "(docs/cache.md)"
    )


def _folder_limit(sizes: _Sizes) -> tuple[int, str]:
    """The limit in bytes for all entries of the tier disk, and why."""
    free_bytes = sizes.disk_free_bytes
    needed = _FOLDER_SPARE * sizes.total_bytes
    limit = max(1, int(min(max(_FOLDER_SHARE * free_bytes, needed), _DISK_SHARE * free_bytes)))
    return limit, (
        f"{limit / max(1, free_bytes):.0%} of the disk space that is free or already used by the cache; beyond it, "
        "entries that no run uses are removed, least recently used first"
    )


def _budget(sizes: _Sizes, tier: TierName) -> tuple[int, str]:
    """The limit in bytes for the tiers in memory, and why."""
    half, shared = int(_BUDGET_SHARE * sizes.machine.memory_bytes), sizes.machine.shared_bytes
    if half <= shared or not TIERS[tier].is_in_memory:
        return half, "at most half of the free memory"
    needed = sizes.total_bytes if TIERS[tier].holds_every_case else _MEMORY_SHARE * sizes.machine.memory_bytes
    if needed <= shared:
        return shared, "all free space in /dev/shm, less than half of the free memory: processes share one copy"
    return half, (
        f"at most half of the free memory; /dev/shm has only {shared / _GIB:.2f} GiB free, so each training "
        "process keeps its own copy"
    )


def _settle_rotation(facts: PlanFacts, sizes: _Sizes) -> None:
    window = max(1, min(sizes.window, sizes.num_training))
    num_cases = facts.settle(
        "data.cache.num_cases",
        window,
        f"{_MEMORY_SHARE:.0%} of the free memory holds {window} of the {sizes.num_training} training cases, and "
        "those that replace some of them",
    )
    epochs = max(0, sizes.num_training - num_cases) / max(1, num_cases * _REPLACE_RATE)
    facts.settle(
        "data.cache.replace_rate",
        _REPLACE_RATE,
        f"a tenth after each epoch, prepared during the epoch; after about {epochs:.0f} epochs every case has been "
        "used",
    )


def _before_network(facts: PlanFacts) -> tuple[int, str]:
    """Bytes of the device's memory for all training cases, and why; the network is planned with what they leave."""
    return resident_bytes(facts), (
        f"{_training_cases(facts)} GiB free: below {_DEVICE_SHARE:.0%}, so the device keeps them too and no batch "
        "waits for a copy; the network is planned with the rest"
    )


def _after_network(facts: PlanFacts) -> tuple[int, str]:
    """Bytes of the device's memory for training cases, all of them, a part or none, after what the step needs."""
    needed, free = resident_bytes(facts), facts.machine.device_free_bytes
    spare = int(max(_SPARE_SHARE * free, _LEAST_SPARE_BYTES, facts.window_bytes))
    if facts.room_bytes:
        return 0, "a step ran out of device memory, so no cases are kept there"
    left = free - facts.planned_bytes - spare
    takes = (
        f"{_training_cases(facts)} GiB free, of which a step takes {facts.planned_bytes / _GIB:.1f} and "
        f"{spare / _GIB:.1f} stay free for workspaces, graphs and validations"
    )
    if needed <= left:
        return needed, f"{takes}: they fit, so they are also kept on the device and no batch waits for a copy"
    if left >= _LEAST_RESIDENT_SHARE * needed:
        return left, (
            f"{takes}: it keeps {left / needed:.0%} of them, and patches of the others are copied there for each batch"
        )
    return 0, f"{takes}: too little memory is left for a tenth of them"


def _training_cases(facts: PlanFacts) -> str:
    needed, free = resident_bytes(facts), facts.machine.device_free_bytes
    return f"the {facts.num_training} training cases take {needed / _GIB:.2f} GiB of the device's {free / _GIB:.1f}"


def prepared_spacing_mm(facts: PlanFacts) -> npt.NDArray[np.float64]:
    """Spacing of the prepared cases: as settled, or the median if each case keeps its own."""
    spacing = facts.settled["data"]["prepare"]["spacing_mm"]
    return np.array(facts.data.spacing_mm.median if spacing == "keep" else spacing, dtype=np.float64)


def prepared_bytes(facts: PlanFacts) -> float:
    """Bytes of all prepared cases, image channels and label; for "smallest", the most they can take."""
    bytes_per_value = 4 if facts.settled["data"]["prepare"].get("dtype") == "float32" else 2
    spacing = prepared_spacing_mm(facts)
    crop = facts.settled["data"]["prepare"].get("crop", "none")
    voxels = float((np.array(facts.data.extent_mm.median) / spacing).prod())
    voxels *= facts.data.crop_share if crop == "nonzero" else 1.0
    return facts.data.num_cases * voxels * (len(facts.data.channels) * bytes_per_value + 1 + _is_wide(facts))


def build_s(facts: PlanFacts) -> float:
    """Seconds that preparing all cases takes with all cores, extrapolated from the sampled cases."""
    seconds = facts.data.prepare_s / max(1, facts.data.sampled_voxels) * facts.data.num_voxels
    return seconds * len(facts.data.channels) / max(1, facts.machine.num_cpus)
