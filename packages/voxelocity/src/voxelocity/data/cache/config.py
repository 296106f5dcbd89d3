"""Configuration of the cache that keeps prepared cases."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from voxelocity.core.config import Config
from voxelocity.data.cache.entry import Format

_WRONG = {
    "folder": 'the {tier} tier needs a folder; name one, or choose tier "memory" or "none"',
    "max_bytes": 'the {tier} tier needs a budget above 0; raise it, or choose tier "disk" or "none"',
    "num_cases": 'the rotating tier needs cases; raise num_cases, or choose tier "disk" or "none"',
    "device_max_bytes": (
        "the rotating tier replaces its cases, but a device never drops a case; set device_max_bytes to 0"
    ),
    "num_parts": "the rotating tier draws from one window over all cases; set num_parts to 1",
}


class CacheConfig(Config):
    """The tier that keeps prepared cases."""

    tier: Literal["none", "memory", "disk", "lmdb", "rotating"]
    """"none" prepares a case each time it is used; "memory" keeps it while a process uses it; "disk" keeps it across
    runs, one file per case; "lmdb" across runs, all cases in one file; "rotating" keeps `num_cases` in memory, trains
    only on these and replaces some of them after each epoch."""
    folder: Annotated[str, AfterValidator(os.path.expanduser)] = Field(default="", validate_default=True)
    """Folder of the disk and lmdb tiers; the memory tier continues there when memory runs out, or drops cases where
    this is "". The disk tier's may be a URL of an object store, such as s3://bucket/cache: what a machine reads stays
    in a folder of its own. A leading "~" is the home folder."""
    format: Format = "raw"
    """Of the entries in the disk and lmdb tiers: "raw" needs no decoding; "blosc2" is smaller and decoded on each
    read. Unused by the others; does not change results."""
    max_bytes: int = Field(default=0, ge=0, validate_default=True)
    """Budget of the memory and rotating tiers, for all processes that share it; when the disk is full, the disk and
    lmdb tiers continue in memory up to this limit, or prepare cases at each use where this is 0."""
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
        rotates = tier == "rotating"
        wrong = {
            "folder": tier in ("disk", "lmdb") and not value,
            "max_bytes": tier in ("memory", "rotating") and value == 0,
            "num_cases": rotates and value == 0,
            "device_max_bytes": rotates and value != 0,
            "num_parts": rotates and value != 1,
        }
        if info.field_name and wrong[info.field_name]:
            raise ValueError(_WRONG[info.field_name].format(tier=tier))
        return value

    @property
    def holds_every_case(self) -> bool:
        """Whether it makes sense to fill it with every case before training."""
        return self.tier in ("memory", "disk", "lmdb")
