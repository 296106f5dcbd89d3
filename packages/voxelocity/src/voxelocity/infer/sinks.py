"""What becomes of a volume's logits, tile by tile: classes on its own grid, or on the grid of its scan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import ClassIndices
from voxelocity.data.prepare import Restoration, Trace, is_resampled, kept_largest, restore_labels
from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values
from voxelocity.infer.components import keep_largest
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.device import Device

if TYPE_CHECKING:
    from voxelocity.infer.device_restore import DeviceRestoration

# Values of the logits that are turned into probabilities or classes at a time: 64 MiB as float32.
_PIECE_VALUES = 1 << 24


class ClassMap:
    """The class of the largest logit of each voxel, on the device of the logits.

    Args:
        shape: of the volume.
        region_order: as in `PredictionSpec`; a voxel takes the class of the last logit above 0.
    """

    def __init__(self, shape: Index3, *, region_order: Sequence[int] = ()) -> None:
        self._shape, self._order = shape, tuple(region_order)
        self._classes: Values | None = None
        self._order_on_device: Values | None = None

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        # Dividing by positive weights changes neither which class is ahead nor a sign.
        if self._classes is None:
            self._classes = arrays.class_zeros(self._shape, arrays.device_of(sums_kxyz), len(sums_kxyz))
        classes = self._classes[box.slices]
        if _has_kernels(sums_kxyz, classes):
            from voxelocity.infer import device_arrays

            device_arrays.classify(classes, sums_kxyz, order=self._order_on(arrays.device_of(sums_kxyz)))
            return
        for piece, target in zip(_pieces(sums_kxyz), _pieces(classes, num_layers=len(sums_kxyz)), strict=True):
            if not self._order:
                arrays.fill_largest(target, piece)
                continue
            # Tiles may be in main memory and the result on a device.
            found = arrays.class_zeros(target.shape, arrays.device_of(piece), len(piece))
            for sums, index in zip(piece, self._order, strict=True):
                found[sums > 0.0] = index
            target[...] = found

    def _order_on(self, device: Device) -> Values | None:
        if self._order_on_device is None and self._order:
            order = arrays.of_numpy(np.array(self._order, np.uint8), device)
            self._order_on_device = arrays.moved(order, device)
        return self._order_on_device

    def result(self) -> Values:
        """(x, y, z), once all tiles were taken: uint8, or as `class_zeros` of more than 256 classes."""
        assert self._classes is not None
        return self._classes


class ScanLabels:
    """Class indices on the grid of the scan that a volume was prepared from.

    If the scan was resampled, probabilities are interpolated and each voxel takes the class of the largest; logits are
    interpolated if the model says so, or if its classes overlap; classes are brought back if the trace says so.

    Args:
        shape: of the prepared volume.
        trace: of its preparation.
        spec: of the model.
        num_threads: threads that interpolate.
        behind: does so while the network continues; the calling thread if None.
    """

    def __init__(
        self,
        shape: Index3,
        trace: Trace,
        spec: PredictionSpec,
        *,
        num_threads: int,
        behind: ThreadPoolExecutor | None = None,
    ) -> None:
        self._trace = trace
        self._behind = behind
        self._last: Future[None] | None = None
        self._classes = ClassMap(shape, region_order=spec.region_order)
        self._restoration: Restoration | None = None
        self._on_device: DeviceRestoration | None = None
        self._is_softmax, self._order = spec.restored == "probabilities" and not spec.region_order, spec.region_order
        self._rounds = spec.window.blend == FLOAT16_SUMS
        if is_resampled(trace):
            self._restoration = Restoration(
                trace,
                shape,
                num_threads=num_threads,
                is_softmax=self._is_softmax,
                region_order=self._order,
                rounds_to_float16=self._rounds,
            )

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        if self._restoration is None:
            self._classes.take(sums_kxyz, weights_xyz, box)
            return
        if _has_kernels(sums_kxyz) and not self._rounds:
            self._take_on_device(self._restoration, sums_kxyz, weights_xyz, box)
            return
        weights = None if weights_xyz is None else arrays.to_numpy(weights_xyz)
        add = partial(self._restoration.add, start=box.start, weights_xyz=weights)
        if self._behind is None:
            add(arrays.to_numpy(sums_kxyz))
            return
        is_shared = arrays.device_of(sums_kxyz).type == "cpu"
        copied = arrays.to_numpy(arrays.copied(sums_kxyz) if is_shared else sums_kxyz)
        if self._last is not None:
            self._last.result()
        self._last = self._behind.submit(add, copied)

    def result(self) -> ClassIndices:
        """(x, y, z), once all tiles were taken. Can be called once."""
        if self._restoration is None:
            classes = arrays.fetch(self._classes.result())
            kept = classes if classes.dtype == np.uint8 else classes.astype(np.uint16, copy=False)
            return restore_labels(keep_largest(kept, kept_largest(self._trace)), self._trace)
        if self._last is not None:
            self._last.result()
        return self._restoration.result(None if self._on_device is None else self._on_device.result())

    def _take_on_device(
        self, restoration: Restoration, sums_kxyz: Values, weights_xyz: Values | None, box: Region
    ) -> None:
        if self._on_device is None:
            from voxelocity.infer.device_restore import DeviceRestoration

            device = arrays.device_of(sums_kxyz)
            self._on_device = DeviceRestoration(
                restoration, device, is_softmax=self._is_softmax, region_order=self._order
            )
        self._on_device.add(sums_kxyz, weights_xyz, start=box.start)


def _has_kernels(sums_kxyz: Values, *others: Values) -> bool:
    """Whether kernels make classes of these sums: they write bytes."""
    return len(sums_kxyz) <= MAX_BYTE_CLASSES and arrays.has_kernels(sums_kxyz, *others)


def _pieces(values: Values, *, num_layers: int = 1) -> Iterator[Values]:
    """Views of (..., x, y, z), cut along x, of at most `_PIECE_VALUES` values times layers, but at least one plane."""
    *_, num_x, num_y, num_z = values.shape
    layers = math.prod(values.shape[:-3]) * num_layers
    thickness = max(1, _PIECE_VALUES // (layers * num_y * num_z))
    for start in range(0, num_x, thickness):
        yield values[..., start : start + thickness, :, :]
