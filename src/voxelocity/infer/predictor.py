"""From a scan to class indices on the scan's own grid: prepare, cover with windows, put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.prepare import Preparation, restore_probabilities
from voxelocity.infer.model import ModelSpec
from voxelocity.infer.window import WindowConfig, predict_volume
from voxelocity.step import autocast

ClassIndices = npt.NDArray[np.uint8]


class Predictor:
    """A network with its preparation, on a device. Validation and prediction both go through here, so they agree.

    Args:
        network: in evaluation mode; moved to `device`.
        spec: how scans are prepared and covered.
        device: where the network runs.
    """

    def __init__(self, network: torch.nn.Module, spec: ModelSpec, *, device: torch.device) -> None:
        self._network = network.to(device, memory_format=spec.precision.memory_format)  # type: ignore[call-overload]
        self._spec = spec
        self._device = device
        self._preparation = Preparation(spec.prepare)

    def predict(self, scan: Volume) -> ClassIndices:
        """Class indices (x, y, z) on the grid of `scan`, a case as it was decoded."""
        return self._finish(self._preparation(scan))

    def predict_prepared(self, volume: Volume, *, window: WindowConfig) -> torch.Tensor:
        """Class indices (x, y, z) uint8 on the prepared grid, on the device, with another window than the spec's."""
        return self._probabilities(volume, window).argmax(0).to(torch.uint8)

    def stream(self, refs: Sequence[VolumeRef], *, num_threads: int) -> Iterator[tuple[Volume, ClassIndices]]:
        """Each case as decoded, with its prediction, in order. The next scans are decoded and prepared meanwhile.

        Raises:
            ScanError: a case cannot be used.
        """

        def load(index: int) -> tuple[Volume, Volume]:
            scan = read_case(refs[index], label_values=self._spec.label_values)
            return scan, self._preparation(scan)

        with OrderedPrefetch(load, start=0, stop=len(refs), num_threads=num_threads, num_ahead=2) as loaded:
            for scan, volume in loaded:
                yield scan, self._finish(volume)

    def _finish(self, volume: Volume) -> ClassIndices:
        probabilities = self._probabilities(volume, self._spec.window)
        return restore_probabilities(probabilities.cpu().numpy(), volume.trace)

    def _probabilities(self, volume: Volume, window: WindowConfig) -> torch.Tensor:
        image = torch.from_numpy(np.array(volume.image, dtype=np.float32))
        self._network.eval()
        with torch.inference_mode():
            return predict_volume(self._forward, image, window, device=self._device)

    def _forward(self, windows: torch.Tensor) -> torch.Tensor:
        with autocast(self._spec.precision, self._device):
            logits = self._network(windows.to(memory_format=self._spec.precision.memory_format))
        assert isinstance(logits, torch.Tensor)
        return logits
