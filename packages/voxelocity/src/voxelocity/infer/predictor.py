"""From a scan to class indices on the scan's own grid: prepare, cover with windows, put back."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from voxelocity.core.contracts import DeterministicStage
from voxelocity.core.laterality import swapped_classes
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import ClassIndices, Volume, VolumeRef
from voxelocity.data.decode import read_case
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.patch import grid_regions
from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values
from voxelocity.infer.model import ForeignNetwork, PredictionSpec, placed
from voxelocity.infer.pending import Failed, Loaded, OnFailure, PendingScan, Prediction, Scratch, about_case
from voxelocity.infer.runtimes.contract import EAGER, NamedForward
from voxelocity.infer.sinks import ClassMap
from voxelocity.infer.stitched import Sink, Stitched, spatial_shape
from voxelocity.infer.window import stitch_volumes
from voxelocity.infer.window_config import WindowConfig
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.device import Device, Host
from voxelocity_observe.core.errors import ScanError

if TYPE_CHECKING:
    import torch

    from voxelocity.infer.resident import HeldOutVolume

_MOST_ROUNDS = 5


class Predictor:
    """A network with its preparation, on a device. Validation and prediction both use it, so they agree.

    Uses float32 in place of a compute format that is slower than float32 on the device.

    Args:
        network: in evaluation mode; moved to `device`.
        spec: how scans are prepared and covered.
        preparation: of scans, as the network was trained; safe from several threads.
        device: where the network runs.
        scratch: where scores and probabilities go that main memory should not hold; the system's temporary folder if
            None.
        warn: called with one sentence for each way in which memory was too small.
        on_windows: called before each forward pass, also of a network in the preparation; what it raises ends the
            prediction.
        forward: the network loaded by one of `infer.runtimes` for this device; eager mode if None.

    Attributes:
        device: where the network runs.
    """

    def __init__(
        self,
        network: torch.nn.Module | ForeignNetwork,
        spec: PredictionSpec,
        preparation: DeterministicStage,
        *,
        device: Device,
        scratch: Scratch | None = None,
        warn: Callable[[str], None] = warnings.warn,
        on_windows: Callable[[], None] | None = None,
        forward: NamedForward | None = None,
    ) -> None:
        self._network = network
        self._spec = spec
        self.device = device
        self._scratch, self._warn = scratch or Scratch(), warn
        self._preparation = placed(preparation, device, on_windows)
        self._runtime, self._run = forward or _load_directly(network, spec, device)
        # A CPU would gain nothing from it and would hold the scores of two tiles.
        self._restores_behind = device.type != "cpu"
        # Volumes whose result waits until the windows of the next one are queued.
        self._most_queued = 1 if device.type == "cuda" else 0
        self._on_windows = on_windows

    def predict(self, scan: Volume) -> ClassIndices:
        """Class indices (x, y, z) on the grid of `scan`, a case as it was decoded.

        Raises:
            ScanError: it does not have the channels the network was trained on, or as `stream`.
        """
        return next(self.predict_loaded(iter([self.prepare(scan)]), on_failure=None, num_threads=1)).classes

    def predict_prepared(
        self, volumes: Iterable[Volume | HeldOutVolume]
    ) -> Iterator[tuple[Volume | HeldOutVolume, Values]]:
        """Prepared volumes with their class indices (x, y, z) uint8, in order, on their own grids and on the device.

        On a CUDA device, a volume is given only once the windows of the next one are queued, so that it never idles.

        Args:
            volumes: taken when they are needed; windows of several share forward passes.

        Raises:
            ScanError: the network returned NaN or infinity.
        """

        def begin(volume: Volume | HeldOutVolume) -> tuple[Values, _VolumeClasses]:
            image = self._image_of(volume)
            return image, _VolumeClasses(volume, spatial_shape(image), self._spec.region_order)

        queued: deque[Stitched[_VolumeClasses]] = deque()
        for stitched in self._stitch(map(begin, volumes)):
            queued.append(stitched)
            if len(queued) > self._most_queued:
                yield _result_of(queued.popleft())
        while queued:
            yield _result_of(queued.popleft())

    def window_seconds(self, volume: Volume, *, limit_s: float, clock: Clock) -> float:
        """Seconds of one window in one forward pass, with its share of blending, from a few windows of a prepared case.

        Runs at least two batches of windows, the first of which does not count, and more until `limit_s` is over.

        Args:
            volume: larger than a window if the windows of other cases are blended too.
            limit_s: seconds for everything.
            clock: returns seconds.
        """
        window = self._spec.window.model_copy(update={"mirror_axes": (), "reuse_constant": False})
        image = self._image_of(volume)
        image = image[:, *_part_of_windows(volume.grid.shape, window).slices]
        num_windows = len(grid_regions(spatial_shape(image), window.shape_voxel, window.overlap, spread=window.spread))
        # Windows of several cases share a pass; torch convolves a single window in a slower way (docs/log).
        images = [image] * math.ceil(window.batch_size / num_windows)
        num_windows *= len(images)
        self._enter_evaluation_mode()

        def predict() -> None:
            both = [(array, ClassMap(spatial_shape(array), region_order=self._spec.region_order)) for array in images]
            for stitched in stitch_volumes(self._forward, both, window, device=self.device, warn=self._warn):
                stitched.check()
            for _, classes in both:
                # Reads the result, because only then has the device finished.
                arrays.to_numpy(classes.result())

        begin_s = clock()
        predict()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST_ROUNDS and clock() - begin_s + seconds[-1] < limit_s):
            start_s = clock()
            predict()
            seconds.append(clock() - start_s)
        return fmean(seconds) / num_windows

    def stream(
        self,
        refs: Sequence[VolumeRef],
        *,
        num_threads: int,
        num_ahead: int = 2,
        on_failure: OnFailure | None = None,
    ) -> Iterator[Prediction]:
        """Each case with its prediction, in order. The next scans are decoded and prepared meanwhile.

        Args:
            refs: the cases.
            num_threads: threads that decode scans, and that put a prediction back on its scan's grid.
            num_ahead: scans decoded and prepared beyond the current one; 0 if memory has no room for any.
            on_failure: called with the id and the error of each case that cannot be predicted, which is then left out.

        Raises:
            ScanError: without `on_failure`: a case cannot be used, does not have the channels the network was trained
                on, needs more memory than there is, or the network returned NaN or infinity. Raised after all cases
                before it have been yielded.
        """
        with self.prefetch(refs, num_threads=num_threads, num_ahead=num_ahead) as loaded:
            yield from self.predict_loaded(loaded, on_failure=on_failure, num_threads=num_threads)

    def prefetch(
        self, refs: Sequence[VolumeRef], *, num_threads: int, num_ahead: int
    ) -> OrderedPrefetch[Loaded | Failed]:
        """The cases as decoded and prepared, ahead of time. Arguments as `stream`."""

        def load(index: int) -> Loaded | Failed:
            ref = refs[index]
            try:
                return self.load(ref)
            except ScanError as error:
                return Failed(ref.case_id, error)

        num_loaders = num_threads if num_ahead > 0 else 0
        return OrderedPrefetch(load, start=0, stop=len(refs), num_threads=num_loaders, num_ahead=max(1, num_ahead))

    def load(self, ref: VolumeRef) -> Loaded:
        """A case as decoded and prepared.

        Raises:
            ScanError: it cannot be used, does not have the channels the network was trained on, or does not fit into
                memory.
        """
        try:
            start_s = system_clock()
            scan = read_case(ref, label_values=self._spec.stored_values)
            return self.prepare(scan, decode_s=system_clock() - start_s)
        except MemoryError as error:
            raise ScanError(
                f"infer: case '{ref.case_id}': the scan does not fit into memory ({error}); free some, use a machine "
                "with more, or crop the scan"
            ) from None

    def prepare(self, scan: Volume, *, decode_s: float = 0.0) -> Loaded:
        """A scan as decoded, and as prepared.

        Raises:
            ScanError: it does not have the channels the network was trained on, or cannot be prepared.
        """
        self._spec.check_channels(len(scan.image), where=f"infer: case '{scan.case_id}'")
        start_s = system_clock()
        volume = self._preparation(scan)
        return Loaded(scan, volume, {"decode": decode_s, "prepare": system_clock() - start_s})

    def predict_loaded(
        self, cases: Iterable[Loaded | Failed], *, on_failure: OnFailure | None, num_threads: int
    ) -> Iterator[Prediction]:
        """The prediction of each case that `prefetch` gives. Arguments and errors as `stream`.

        What `cases` raises is raised after the predictions of all cases before it.
        """

        def fail(case_id: str, error: ScanError) -> None:
            if on_failure is None:
                raise error from None
            on_failure(case_id, error)

        def begin(case: Loaded | Failed) -> tuple[Values, PendingScan] | None:
            if isinstance(case, Failed):
                fail(case.case_id, case.error)
                return None
            try:
                sink = PendingScan(case, self._spec, num_threads=num_threads, behind=behind, scratch=self._scratch)
            except ScanError as error:
                fail(case.scan.case_id, error)
                return None
            return self._image_of(case.volume), sink

        def finish(stitched: Stitched[PendingScan]) -> Prediction | None:
            try:
                return stitched.sink.finish(stitched, device=self.device, runtime=self._runtime)
            except ScanError as error:
                fail(stitched.sink.scan.case_id, error)
                return None

        with ThreadPoolExecutor(max_workers=1) as pool:
            behind = pool if self._restores_behind else None
            # Unlike a loop, `map` keeps none of what it passes on while the next volume is predicted.
            yield from filter(None, map(finish, self._stitch(filter(None, map(begin, cases)))))

    def _stitch(self, images: Iterable[tuple[Values, Sink]]) -> Iterator[Stitched[Sink]]:
        self._enter_evaluation_mode()
        window = self._spec.window
        swapped = () if self._spec.region_order else swapped_classes(self._spec.class_names, window.swap_pairs)
        return stitch_volumes(
            self._forward,
            images,
            window,
            device=self.device,
            num_outputs=self._spec.num_outputs,
            swapped_classes=swapped,
            folder=self._scratch.folder,
            warn=self._warn,
        )

    def _enter_evaluation_mode(self) -> None:
        """A training puts its network back into training mode between validations."""
        if not isinstance(self._network, ForeignNetwork):
            self._network.eval()

    def _image_of(self, volume: Volume | HeldOutVolume) -> Values:
        """(c, x, y, z) float32; a copy, because volumes of the cache are read-only and torch tensors are not."""
        image = volume.intensities()
        return arrays.of_numpy(image, self.device) if isinstance(image, np.ndarray) else image

    def _forward(self, windows: Values) -> Values:
        if self._on_windows is not None:
            self._on_windows()
        return self._run(windows)


class _VolumeClasses(ClassMap):
    """The classes of a prepared volume."""

    def __init__(self, volume: Volume | HeldOutVolume, shape: Index3, region_order: Sequence[int]) -> None:
        super().__init__(shape, region_order=region_order)
        self.volume = volume


def _result_of(stitched: Stitched[_VolumeClasses]) -> tuple[Volume | HeldOutVolume, Values]:
    volume = stitched.sink.volume
    with about_case(volume.case_id):
        stitched.check()
    return volume, stitched.sink.result()


def _load_directly(network: torch.nn.Module | ForeignNetwork, spec: PredictionSpec, device: Device) -> NamedForward:
    """The network moved to the device, in eager mode; one of another runtime as it is."""
    if isinstance(network, ForeignNetwork):
        return NamedForward(network.runtime, network)
    from voxelocity.infer.runtimes.native import eager
    from voxelocity.step import precision_on

    assert not isinstance(device, Host), "only networks of other runtimes run without torch"
    network = network.to(device, memory_format=spec.precision.memory_format)  # type: ignore[call-overload]
    return NamedForward(EAGER, eager(network, precision_on(spec.precision, device), device))


def _part_of_windows(shape: Index3, window: WindowConfig) -> Region:
    """A corner of a volume with about as many windows as one forward pass."""
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
