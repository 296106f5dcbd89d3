"""The configuration of the whole pipeline, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity.core.config import Config
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.cache import CacheConfig
from voxelocity.data.patch import PatchConfig
from voxelocity.data.prepare import PrepareConfig
from voxelocity_observe.core.device import Device


class FeedConfig(Config):
    """Threads of the feed. They affect when a batch is made, never its content."""

    num_threads: int = Field(ge=0, le=1024)
    """Threads that put batches together; 0 does it in the training thread."""
    num_batches_ahead: int = Field(default=2, ge=1, le=1024)
    """Batches made or being made beyond the one in use; each takes memory."""
    compiles_ahead: bool = True
    """Whether the kernels of a CUDA device are compiled in threads before batches need them, not when one does."""
    casts_images: bool = True
    """Whether images made on a CUDA device are in the number format and memory layout in which the network's first
    convolution takes them; if not, each step converts them. Changes no result."""


class DataConfig(Config):
    """How voxels travel from files to batches."""

    prepare: PrepareConfig
    """Deterministic preparation; its result is what the cache keeps."""
    cache: CacheConfig
    """Where prepared cases are kept."""
    patch: PatchConfig
    """Which boxes of a case the training uses."""
    batch_size: int = Field(ge=1, le=4096)
    """Patches in a batch."""
    feed: FeedConfig
    """How batches are put together while training runs."""
    augment: AugmentConfig = AugmentConfig()
    """Random changes to whole batches, made on the device."""

    def given_out(self, wanted: ImageFormat, filled_on: Device, num_voxels: int) -> ImageFormat:
        """In which format the feed gives out images.

        float32 in C order where a CPU fills batches, whose loops would need another pass to convert them, and where
        effects of the user's own follow, which take nothing else.

        Args:
            wanted: by the network.
            filled_on: the device that fills batches.
            num_voxels: of a patch, all channels together.
        """
        if filled_on.type != "cuda" or not self.feed.casts_images or (self.augment.enabled and self.augment.effects):
            return PLAIN
        # Kernels count the numbers of a sample in channels_last_3d in int32.
        return replace(wanted, channels_last=wanted.channels_last and num_voxels < 2**31)

    @model_validator(mode="after")
    def _sides_are_known(self) -> Self:
        augment = self.augment
        if augment.swap_pairs and any(augment.flip_probability) and self.prepare.orientation == "keep":
            raise ValueError(
                "augment.swap_pairs needs prepare.orientation RAS: in scans that keep their orientation, the "
                "left-right axis is unknown; choose RAS, or augment.flip_probability [0, 0, 0]"
            )
        return self
