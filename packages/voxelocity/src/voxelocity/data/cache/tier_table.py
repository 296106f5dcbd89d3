"""The tiers of the cache by name, and the configuration that chooses one. `choose` opens it, with what is behind it.

All that depends on a tier's name follows from its entry: which keys it needs, when a plan chooses it, what the commands
list, which contract it is tested by, and its row in docs/cache.md.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from voxelocity.core.config import Config
from voxelocity.data.cache.disk import DiskTier, LmdbTier
from voxelocity.data.cache.entry import Format
from voxelocity.data.cache.lmdb_file import LMDB_NAME, open_lmdb_file, remove_lmdb_file
from voxelocity.data.cache.stored import EntryTier, Store
from voxelocity_observe.core.host import file_system_of, is_on_network
from voxelocity_observe.core.warn_once import Warn

TierName = Literal["none", "memory", "disk", "lmdb", "rotating"]

_WRONG = {
    "folder": 'the {tier} tier needs a folder; name one, or choose tier "memory" or "none"',
    "max_bytes": 'the {tier} tier needs a budget above 0; raise it, or choose tier "disk" or "none"',
    "num_cases": 'the rotating tier needs cases; raise num_cases, or choose tier "disk" or "none"',
    "device_max_bytes": (
        "the rotating tier replaces its cases, but a device never drops a case; set device_max_bytes to 0"
    ),
    "num_parts": "the rotating tier uses one window over all cases; set num_parts to 1",
}


class CacheConfig(Config):
    """The tier that keeps prepared cases."""

    tier: TierName
    """A row of `TIERS`, which docs/cache.md shows: "none" prepares a case each time it is used; the others keep it in
    memory or in a folder."""
    folder: Annotated[str, AfterValidator(os.path.expanduser)] = Field(default="", validate_default=True)
    """Folder of the tiers that outlive a run; those in memory continue there when memory runs out, or drop cases where
    this is "". The disk tier's may be a URL of an object store, such as s3://bucket/cache: what a machine reads stays
    in a folder of its own. A leading "~" is the home folder."""
    format: Format = "raw"
    """Of the entries in a folder: "raw" needs no decoding; "blosc2" is smaller and decoded on each read. Does not
    change results."""
    max_bytes: int = Field(default=0, ge=0, validate_default=True)
    """Budget of the tiers in memory, for all processes that share it; when the disk is full, those in a folder
    continue in memory up to this limit, or prepare cases at each use where this is 0."""
    folder_max_bytes: int = Field(default=0, ge=0)
    """Limit on the entries of the disk tier on this machine, including those of other runs: beyond it, entries that no
    run uses are removed, least recently used first. 0: no limit. Does not change results."""
    num_cases: int = Field(default=0, ge=0, validate_default=True)
    """Cases that the rotating tier holds in an epoch; unused by the others."""
    replace_rate: float = Field(default=0.1, gt=0.0, le=1.0)
    """Share of these cases that the rotating tier replaces after each epoch; unused by the others."""
    device_max_bytes: int = Field(default=0, ge=0)
    """Device memory that keeps cases in front of the tier, taken when training begins; cases that do not fit there
    are read from the tier. 0 keeps none there. Does not change results."""
    num_parts: int = Field(default=1, ge=1)
    """Parts into which the cases are divided among training processes; each process then reads only its own parts.
    Every batch takes the same number of patches from each part. 1: every process reads every case."""

    @field_validator("folder", "max_bytes", "num_cases", "device_max_bytes", "num_parts")
    @classmethod
    def _suits_the_tier(cls, value: str | int, info: ValidationInfo) -> str | int:
        tier = info.data.get("tier")
        if tier is None:
            return value
        kind = TIERS[tier]
        wrong = {
            "folder": kind.open is not None and not value,
            "max_bytes": kind.is_in_memory and value == 0,
            "num_cases": kind.rotates and value == 0,
            "device_max_bytes": kind.rotates and value != 0,
            "num_parts": kind.rotates and value != 1,
        }
        if info.field_name and wrong[info.field_name]:
            raise ValueError(_WRONG[info.field_name].format(tier=tier))
        return value

    @property
    def kind(self) -> TierKind:
        """The entry of its tier."""
        return TIERS[self.tier]

    @property
    def holds_every_case(self) -> bool:
        """Whether it makes sense to fill it with every case before training."""
        return self.kind.holds_every_case


@dataclass(frozen=True, kw_only=True)
class OneFile:
    """The file of a tier that keeps all entries in one, on a disk of one machine."""

    name: str
    open: Callable[[Path], Store]
    remove: Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class Niche:
    """For which cases a tier in a folder is better than the others.

    Attributes:
        suits: whether it is, for this many cases of this many bytes each.
        benefit: what the plan says of such cases where the tier works.
        form: how they are kept then.
        needs: what the tier needs to work.
        works_in: whether this folder, and the machine, have it.
    """

    suits: Callable[[int, float], bool]
    benefit: str
    form: str
    needs: str
    works_in: Callable[[Path], bool]


@dataclass(frozen=True, kw_only=True)
class TierKind:
    """A tier of the cache, as far as others need to know it.

    Attributes:
        kept: where it keeps cases, for documentation.
        is_in_memory: whether `max_bytes` limits it.
        rotates: whether it holds some cases at a time, which changes results.
        open: opens a tier in a folder; the text is the URL of an object store that holds all entries, or "". Its
            entries outlive a run.
        mapped: formats in which entries in a folder are mapped, so that the system may keep all of them in memory.
        file: of a tier that keeps all entries in one file; others keep each in a file of its own.
        niche: None for a tier that suits all cases.
    """

    kept: str
    is_in_memory: bool = False
    rotates: bool = False
    open: Callable[[Path, str, CacheConfig, Warn], EntryTier[Store]] | None = None
    mapped: tuple[Format, ...] = ()
    file: OneFile | None = None
    niche: Niche | None = None

    @property
    def holds_every_case(self) -> bool:
        """Whether it keeps all cases at a time; between such tiers nothing but speed differs."""
        return not self.rotates and (self.is_in_memory or self.open is not None)


def open_disk(folder: Path, url: str, cache: CacheConfig, warn: Warn) -> DiskTier:
    """The disk tier, which is also behind a tier in memory."""
    return DiskTier(folder, url=url, format=cache.format, max_bytes=cache.folder_max_bytes, warn=warn)


def _open_lmdb(folder: Path, url: str, cache: CacheConfig, warn: Warn) -> LmdbTier:
    return LmdbTier(folder, format=cache.format, warn=warn)


def _has_lmdb(folder: Path) -> bool:
    return not is_on_network(file_system_of(folder)) and importlib.util.find_spec("lmdb") is not None


TIERS: Mapping[TierName, TierKind] = {
    "none": TierKind(kept="not kept: a case is prepared each time it is used"),
    "memory": TierKind(
        kept="in main memory (`/dev/shm`), up to `data.cache.max_bytes`",
        is_in_memory=True,
    ),
    "disk": TierKind(
        kept="one file for each case, in `data.cache.folder`",
        open=open_disk,
        mapped=("raw",),
    ),
    "lmdb": TierKind(
        kept=f"all cases in one file, `{LMDB_NAME}`, in `data.cache.folder`",
        open=_open_lmdb,
        file=OneFile(name=LMDB_NAME, open=open_lmdb_file, remove=remove_lmdb_file),
        niche=Niche(
            # Each case takes a file and its lock, which count in file quotas, backups and deletion. docs/cache.md has
            # the cost.
            suits=lambda num_cases, case_bytes: num_cases > 20_000 and case_bytes < 2**20,
            benefit="go into one file instead of two each, since quotas and backups count files",
            form="in one file",
            needs="the package lmdb and a cache folder on a local disk",
            works_in=_has_lmdb,
        ),
    ),
    "rotating": TierKind(
        kept="like `memory`, but only `data.cache.num_cases` at a time; some are replaced after each epoch",
        is_in_memory=True,
        rotates=True,
    ),
}

FOLDER_TIERS = tuple(name for name in get_args(TierName) if TIERS[name].open is not None)
"""Those whose entries outlive a run."""


def tiers_in(folder: Path) -> tuple[TierName, ...]:
    """The tiers in a folder that work in this one."""
    return tuple(name for name in FOLDER_TIERS if (niche := TIERS[name].niche) is None or niche.works_in(folder))
