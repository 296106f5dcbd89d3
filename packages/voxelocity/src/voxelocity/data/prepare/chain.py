"""The whole preparation of a case, one stage after the other."""

from __future__ import annotations

import hashlib
import json

from voxelocity.core.contracts import StageEffect, VolumeStage
from voxelocity.core.volume import Volume, VolumeSpec
from voxelocity.data.prepare.cast import Cast
from voxelocity.data.prepare.config import PrepareConfig
from voxelocity.data.prepare.crop import CropToNonzero
from voxelocity.data.prepare.foreground import FindForeground
from voxelocity.data.prepare.intensity import ScaleIntensity
from voxelocity.data.prepare.orient import OrientToRAS
from voxelocity.data.prepare.resample import Resample

PREPARATION_VERSION = 3
"""Increase it whenever a change of this package could change a prepared voxel: it makes cached ones stale."""


class Preparation:
    """The configured stages as one stage. Holds no state; safe from several threads.

    Args:
        config: which stages, with their settings.
    """

    def __init__(self, config: PrepareConfig) -> None:
        self._config = config
        self._stages = _stages(config)

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a scan of this spec; with cropping, an upper bound.

        Raises:
            ScanError: the scan's spacing is not a positive number, or resampling would make too many voxels.
        """
        scratch_bytes = 0
        for stage in self._stages:
            effect = stage.describe(spec)
            scratch_bytes = max(scratch_bytes, spec.image_bytes + effect.scratch_bytes)
            spec = effect.spec
        return StageEffect(spec=spec, scratch_bytes=scratch_bytes)

    def fingerprint(self) -> str:
        """A short text that is the same for equal configurations, in any process, and differs otherwise."""
        content = json.dumps(self._config.to_plain(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
        return f"prepare-v{PREPARATION_VERSION}-{digest}"

    def __call__(self, volume: Volume) -> Volume:
        """The prepared volume: image and label in their kept dtypes, C-contiguous, with trace and foreground.

        The result shares memory with the argument only where nothing had to be done to an array.

        Raises:
            ScanError: the case cannot be resampled or its intensities do not fit the dtype.
        """
        for stage in self._stages:
            volume = stage(volume)
        return volume


def _stages(config: PrepareConfig) -> tuple[VolumeStage, ...]:
    stages: list[VolumeStage] = []
    if config.orientation == "RAS":
        stages.append(OrientToRAS())
    if config.crop == "nonzero":
        stages.append(CropToNonzero(margin_voxel=config.margin_voxel))
    stages.append(ScaleIntensity(config.intensity))
    if config.spacing_mm != "keep":
        stages.append(Resample(spacing_mm=config.spacing_mm, engine=config.engine))
    stages.append(Cast(dtype=config.dtype))
    stages.append(FindForeground(per_class=config.foreground_per_class))
    return tuple(stages)
