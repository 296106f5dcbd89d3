"""From a scan to class indices on the scan's own grid: prepare, cover with windows, put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.patch import grid_regions
from voxelocity.data.prepare import Preparation, restore_probabilities
from voxelocity.infer.model import ModelSpec
from voxelocity.infer.window import WindowConfig, predict_volume, predict_volumes
from voxelocity.observe import Clock
from voxelocity.step import autocast

_MOST_ROUNDS = 5

ClassIndices = npt.NDArray[np.uint8]


class Predictor:
    """A network with its preparation, on a device. Validation and prediction both go through here, so they agree.

    Args:
        network: in evaluation mode; moved to `device`.
        spec: how scans are prepared and covered.
        device: where the network runs.
        on_windows: called before each forward pass; what it raises ends the prediction.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        spec: ModelSpec,
        *,
        device: torch.device,
        on_windows: Callable[[], None] | None = None,
    ) -> None:
        self._network = network.to(device, memory_format=spec.precision.memory_format)  # type: ignore[call-overload]
        self._spec = spec
        self._device = device
        self._preparation = Preparation(spec.prepare)
        self._on_windows = on_windows

    def predict(self, scan: Volume) -> ClassIndices:
        """Class indices (x, y, z) on the grid of `scan`, a case as it was decoded.

        Raises:
            ScanError: it has other than the channels the network was trained on.
        """
        return next(self._restored(iter([self._prepared(scan)])))[1]

    def predict_prepared(
        self, volumes: Iterable[Volume], *, window: WindowConfig
    ) -> Iterator[tuple[Volume, torch.Tensor]]:
        """Prepared volumes with their class indices (x, y, z) uint8, in order, on their own grids and on the device.

        Args:
            volumes: taken as they are needed; windows of several share forward passes.
            window: another than the spec's, as a rule.
        """
        waiting: deque[Volume] = deque()

        def images() -> Iterator[torch.Tensor]:
            for volume in volumes:
                waiting.append(volume)
                yield _image_of(volume)

        self._network.eval()
        for probabilities in predict_volumes(self._forward, images(), window, device=self._device):
            yield waiting.popleft(), probabilities.argmax(0).to(torch.uint8)

    def window_seconds(self, volume: Volume, *, limit_s: float, clock: Clock) -> float:
        """Seconds of one window in one forward pass, with its share of blending, from a few windows of a prepared case.

        Takes two batches of windows at least, the first of which does not count, and more until `limit_s` is over.

        Args:
            volume: larger than a window where the windows of other cases are blended too.
            limit_s: seconds for all of it.
            clock: tells seconds.
        """
        window = self._spec.window.model_copy(update={"mirror_axes": ()})
        image = _image_of(volume)
        image = image[:, *_part_of_windows(volume.grid.shape, window).slices]
        num_windows = len(grid_regions(_shape3(image), window.shape_voxel, window.overlap))
        self._network.eval()

        def predict() -> None:
            # The answer is read, as a device is done only then.
            predict_volume(self._forward, image, window, device=self._device).argmax(0).to(torch.uint8).cpu()

        begin_s = clock()
        predict()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST_ROUNDS and clock() - begin_s + seconds[-1] < limit_s):
            start_s = clock()
            predict()
            seconds.append(clock() - start_s)
        return fmean(seconds) / num_windows

    def stream(self, refs: Sequence[VolumeRef], *, num_threads: int) -> Iterator[tuple[Volume, ClassIndices]]:
        """Each case as decoded, with its prediction, in order. The next scans are decoded and prepared meanwhile.

        Raises:
            ScanError: a case cannot be used, or has other than the channels the network was trained on. Raised when all
                cases before it are given.
        """

        def load(index: int) -> tuple[Volume, Volume]:
            return self.load(refs[index])

        with OrderedPrefetch(load, start=0, stop=len(refs), num_threads=num_threads, num_ahead=2) as loaded:
            yield from self._restored(loaded)

    def load(self, ref: VolumeRef) -> tuple[Volume, Volume]:
        """A case as decoded and prepared.

        Raises:
            ScanError: it cannot be used, or has other than the channels the network was trained on.
        """
        return self._prepared(read_case(ref, label_values=self._spec.label_values))

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
        for probabilities in predict_volumes(self._forward, images(), self._spec.window, device=self._device):
            scan, volume = waiting.popleft()
            yield scan, restore_probabilities(probabilities.cpu().numpy(), volume.trace)
        if failures:
            # Taken out, for the traceback holds this frame, and the frame would hold the error.
            raise failures.pop()

    def _forward(self, windows: torch.Tensor) -> torch.Tensor:
        if self._on_windows is not None:
            self._on_windows()
        with autocast(self._spec.precision, self._device):
            logits = self._network(windows.to(memory_format=self._spec.precision.memory_format))
        assert isinstance(logits, torch.Tensor)
        return logits


def _part_of_windows(shape: Index3, window: WindowConfig) -> Region:
    """A corner of a volume that takes about as many windows as one forward pass does."""
    stop = [min(n, w) for n, w in zip(shape, window.shape_voxel, strict=True)]
    num_windows = 1
    for axis in range(3):
        if num_windows >= max(2, window.batch_size):
            break
        step = max(1, int(window.shape_voxel[axis] * (1.0 - window.overlap)))
        wanted = -(-max(2, window.batch_size) // num_windows) - 1
        added = min(wanted, (shape[axis] - stop[axis]) // step)
        stop[axis] += added * step
        num_windows *= 1 + added
    return Region((0, 0, 0), (stop[0], stop[1], stop[2]))


def _shape3(image_cxyz: torch.Tensor) -> Index3:
    x, y, z = image_cxyz.shape[-3:]
    return (x, y, z)


def _image_of(volume: Volume) -> torch.Tensor:
    """(c, x, y, z) float32; a copy, as volumes of the cache are read-only and torch tensors are not."""
    return torch.from_numpy(volume.intensities())
