"""Scans prepared for the second network of nnU-Net's cascade: their channels, then one for each class of the first.

What the first network predicts is brought to the second one's grid as nnU-Net brings a label there.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from voxelocity.core.contracts import StageEffect
from voxelocity.core.volume import Volume, VolumeSpec
from voxelocity.infer.memory import scan_memory
from voxelocity.infer.model import Model
from voxelocity.infer.models.nnunet_labels import OUTSIDE, Int16, outside_of, resize_labels
from voxelocity.infer.models.nnunet_prepare import Float32, NnunetPreparation, thick_axis
from voxelocity.infer.predictor import Predictor
from voxelocity_observe.core.device import Device

_LABEL_BYTES, _FEW = 2, 4


@dataclass(frozen=True, kw_only=True)
class CascadePreparation:
    """Stage: the scan for the second network, and the first network's classes as further channels of 0 and 1.

    Attributes:
        stage: prepares the scan's own channels.
        earlier: the model of the first network.
        values: the labels that get a channel, ascending.
        in_planes: whether planes of labels are resampled alone; None to decide by the spacing.
        predictor: the first network on a device, which runs for one scan at a time; None before `on_device`.
    """

    stage: NnunetPreparation
    earlier: Model
    values: tuple[int, ...]
    in_planes: bool | None
    predictor: Predictor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def on_device(self, device: Device, on_windows: Callable[[], None] | None = None) -> CascadePreparation:
        """The same, with the first network on a device, as `NeedsDevice`."""
        earlier = self.earlier
        predictor = Predictor(earlier.network, earlier.spec, earlier.preparation, device=device, on_windows=on_windows)
        return replace(self, predictor=predictor)

    def num_passes(self, spec: VolumeSpec) -> int:
        """Of the first network, as `NeedsDevice`."""
        return scan_memory(spec, self.earlier.spec, self.earlier.preparation).num_passes

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """As `NnunetPreparation.describe`, with what the first network takes while it predicts.

        Raises:
            ScanError: likewise.
        """
        effect = self.stage.describe(spec)
        memory = scan_memory(spec, self.earlier.spec, self.earlier.preparation)
        labels_bytes = _LABEL_BYTES * (2 * spec.grid.num_voxels + effect.spec.grid.num_voxels)
        prepared = replace(effect.spec, num_channels=effect.spec.num_channels + len(self.values))
        scratch_bytes = max(memory.peak_bytes, effect.scratch_bytes + prepared.image_bytes + labels_bytes)
        return StageEffect(spec=prepared, scratch_bytes=scratch_bytes)

    def fingerprint(self) -> str:
        network = self.earlier.network
        assert isinstance(network, torch.nn.Module)
        # Trained networks differ in the first weights of each layer, and reading all would take seconds.
        few = [tensor.flatten()[:_FEW].tolist() for tensor in network.state_dict().values()]
        first = repr((self.earlier.preparation.fingerprint(), few, self.values, self.in_planes))
        return f"{self.stage.fingerprint()}-after-{hashlib.blake2b(first.encode(), digest_size=12).hexdigest()}"

    def __call__(self, volume: Volume) -> Volume:
        """The prepared volume.

        Raises:
            ScanError: as `NnunetPreparation`, or the first network returned NaN or infinity.
        """
        assert self.predictor is not None, "a predictor puts it on its device"
        volume = volume.with_(label=None)
        with self._lock:
            indices = self.predictor.predict(volume)
        labels = np.array(self.earlier.spec.label_values, dtype=np.int16)[indices]
        cropped = self.stage.crop(volume.with_(label=labels))
        prepared = self.stage.resample(cropped)
        image = prepared.intensities()
        return prepared.with_(image=np.concatenate([image, self._channels(cropped, prepared)]), scaling=())

    def _channels(self, cropped: Volume, prepared: Volume) -> Float32:
        """1 where the first network found a label, (k, x, y, z) on the second one's grid."""
        label: Int16 = np.array(cropped.label, dtype=np.int16, order="C")
        outside = outside_of(cropped.image)
        if outside is not None:
            label[outside & (label == 0)] = OUTSIDE
        spacing_mm, target_mm = self.stage.spacings_of(cropped.grid)
        thick = thick_axis(spacing_mm, target_mm, in_planes=self.in_planes)
        resized = resize_labels(label, prepared.grid.shape, thick=thick)
        return np.stack([resized == value for value in self.values]).astype(np.float32)
