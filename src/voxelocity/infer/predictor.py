"""From a scan to class indices on the scan's own grid: prepare, cover with windows, put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.laterality import swapped_classes
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.prepare import Preparation, restore_probabilities
from voxelocity.infer.model import ModelSpec
from voxelocity.infer.window import predict_volumes
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
        """Class indices (x, y, z) on the grid of `scan`, a case as it was decoded.

        Raises:
            ScanError: it has other than the channels the network was trained on.
        """
        return next(self._restored(iter([self._prepared(scan)])))[1]

    def predict_prepared(self, volumes: Iterable[Volume]) -> Iterator[tuple[Volume, torch.Tensor]]:
        """Prepared volumes with their class indices (x, y, z) uint8, in order, on their own grids and on the device.

        Args:
            volumes: taken as they are needed; windows of several share forward passes.
        """
        waiting: deque[Volume] = deque()

        def images() -> Iterator[torch.Tensor]:
            for volume in volumes:
                waiting.append(volume)
                yield _image_of(volume)

        self._network.eval()
        for probabilities in self._probabilities(images()):
            yield waiting.popleft(), probabilities.argmax(0).to(torch.uint8)

    def stream(self, refs: Sequence[VolumeRef], *, num_threads: int) -> Iterator[tuple[Volume, ClassIndices]]:
        """Each case as decoded, with its prediction, in order. The next scans are decoded and prepared meanwhile.

        Raises:
            ScanError: a case cannot be used, or has other than the channels the network was trained on. Raised when all
                cases before it are given.
        """

        def load(index: int) -> tuple[Volume, Volume]:
            return self._prepared(read_case(refs[index], label_values=self._spec.label_values))

        with OrderedPrefetch(load, start=0, stop=len(refs), num_threads=num_threads, num_ahead=2) as loaded:
            yield from self._restored(loaded)

    def _prepared(self, scan: Volume) -> tuple[Volume, Volume]:
        """The scan as decoded and prepared."""
        self._spec.check_channels(len(scan.image), where=f"infer: case '{scan.case_id}'")
        return scan, self._preparation(scan)

    def _restored(self, loaded: Iterator[tuple[Volume, Volume]]) -> Iterator[tuple[Volume, ClassIndices]]:
        """Pairs of (as decoded, prepared) to pairs of (as decoded, prediction).

        An error of `loaded` is raised when the predictions of all pairs before it are given.
        """
        waiting: deque[tuple[Volume, Volume]] = deque()
        failures: list[Exception] = []

        def images() -> Iterator[torch.Tensor]:
            try:
                for pair in loaded:
                    waiting.append(pair)
                    yield _image_of(pair[1])
            except Exception as error:  # raised below, whatever it is
                # Windows of the pairs before it may still wait for a full forward pass, and this end lets them go.
                failures.append(error)

        self._network.eval()
        for probabilities in self._probabilities(images()):
            scan, volume = waiting.popleft()
            yield scan, restore_probabilities(probabilities.cpu().numpy(), volume.trace)
        if failures:
            # Taken out, for the traceback holds this frame, and the frame would hold the error.
            raise failures.pop()

    def _probabilities(self, images: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        window = self._spec.window
        swapped = swapped_classes(self._spec.class_names, window.swap_pairs)
        return predict_volumes(self._forward, images, window, device=self._device, swapped_classes=swapped)

    def _forward(self, windows: torch.Tensor) -> torch.Tensor:
        with autocast(self._spec.precision, self._device):
            logits = self._network(windows.to(memory_format=self._spec.precision.memory_format))
        assert isinstance(logits, torch.Tensor)
        return logits


def _image_of(volume: Volume) -> torch.Tensor:
    """(c, x, y, z) float32; a copy, as volumes of the cache are read-only and torch tensors are not."""
    return torch.from_numpy(volume.intensities())
