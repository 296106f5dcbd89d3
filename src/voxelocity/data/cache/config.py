"""Where prepared cases are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from voxelocity.core.config import Config


class CacheConfig(Config):
    """The tier that keeps prepared cases."""

    tier: Literal["none", "memory", "disk"]
    """"none" prepares a case each time it is used; "memory" keeps it while the process lives; "disk" across runs."""
    folder: str = Field(default="", validate_default=True)
    """Folder of the disk tier; unused by the others."""
    max_bytes: int = Field(default=0, ge=0, validate_default=True)
    """Budget of the memory tier, which drops what was used longest ago; unused by the others."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str, info: ValidationInfo) -> str:
        if info.data.get("tier") == "disk" and not folder:
            raise ValueError('the disk tier needs a folder; name one, or choose tier "memory" or "none"')
        return folder

    @field_validator("max_bytes")
    @classmethod
    def _check_max_bytes(cls, max_bytes: int, info: ValidationInfo) -> int:
        if info.data.get("tier") == "memory" and max_bytes == 0:
            raise ValueError('the memory tier needs a budget above 0; raise it, or choose tier "disk" or "none"')
        return max_bytes
