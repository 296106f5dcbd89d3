"""The window engine: a network that sees a small box of voxels, applied to volumes of any size.

Windows overlap; their logits are blended, weighted by a Gaussian, and the softmax is taken of the blend, as in MONAI
and nnU-Net. Positions and weights of windows are exactly those of MONAI's `sliding_window_inference`; the differences
are that windows of several volumes share a forward pass, and that a volume of one window is not blended at all.
Not here: precision, compilation, and how the scan became the volume.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

import numpy as np

from voxelocity.core.region import Region
from voxelocity.infer import arrays
from voxelocity.infer.accumulator import Accumulators
from voxelocity.infer.arrays import Values
from voxelocity.infer.mirrored import Mirrored, as_float32_copy
from voxelocity.infer.stitched import Sink, Stitched, spatial_shape
from voxelocity.infer.window_config import FLOAT16_SUMS, WindowConfig
from voxelocity_observe.core.clock import system_clock
from voxelocity_observe.core.device import Device, is_out_of_memory
from voxelocity_observe.core.errors import InputError, ScanError
from voxelocity_observe.core.warn_once import WarnOnce

_X = 2  # of (b, c, x, y, z)
# A volume of more passes than this shares none with the next volume: two such sums at once would double peak memory,
# and a few partly filled passes cost little among this many.
_MOST_PASSES_SHARED = 4
# Logits of constant windows: air and padding have two values; more would be chance.
_MOST_KEPT, _MOST_KEPT_BYTES = 2, 256 << 20

Forward = Callable[[Values], Values]
"""Windows (b, c, x, y, z) float32 to logits (b, k, x, y, z) of any floating point dtype, both on one device."""


def stitch_volumes(
    forward: Forward,
    images: Iterable[tuple[Values, Sink]],
    config: WindowConfig,
    *,
    device: Device,
    num_outputs: int = 1,
    swapped_classes: Sequence[int] = (),
    folder: Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Iterator[Stitched[Sink]]:
    """Gives the blended logits of each volume to its sink; windows of neighboring small volumes share forward passes.

    The result of a volume does not depend on its neighbors (beyond rounding, about 1e-6). Images are taken when they
    are needed, so they may be loaded lazily. Nothing here waits for the device. For a volume of many windows, the
    device holds the image, 4 * c bytes per voxel, and the sum of the logits, 4 * k bytes per voxel that windows still
    change (`tiling`); if that is too much, main memory holds the sum, or a file.

    Args:
        forward: the network in evaluation mode, or a function that runs it at its precision. Called without gradients,
            with at most `batch_size` windows each time.
        images: (c, x, y, z) each, floating point, on any device, with what takes the logits of it, tile by tile;
            images are not changed.
        config: how volumes are covered.
        device: where the network is, and where the results will be if there is room.
        num_outputs: k, if it is known: a large sum is cut into smaller tiles. With sums in float16, a network may
            return several times as many: the logits of an ensemble's folds, averaged once they are blended.
        swapped_classes: for each of the k classes, the one whose channel takes its place in windows mirrored along x
            (`core.laterality.swapped_classes` of the configuration's `swap_pairs`); empty for none.
        folder: as in `Accumulators`.
        warn: called once for each way in which memory was too small.

    Yields:
        One for each image, in order, once its sink has taken everything; `check` it before you use the sink's result.
        Logits of mirrored windows are also averaged before the softmax, as in nnU-Net v2.

    Raises:
        InputError: an image does not have four axes, or the network's output does not have the shape of its windows.
        Exception: what the iteration of `images` raises, after the volumes before it.
    """
    accumulators = Accumulators(device, folder, warn, on_device=config.sum_on == "auto")
    passes = _Passes(forward, config, device, swapped_classes, warn)

    def begin(image: Values, sink: Sink) -> Stitched[Sink]:
        return Stitched(image, sink, config, device, accumulators, num_outputs=num_outputs)

    windows = _Windows(images, begin, config)
    while batch := windows.next_batch(passes):
        passes.run(batch, windows.pending)
        del batch
        while windows.pending and windows.pending[0].is_complete:
            yield windows.pending.popleft()
    if windows.error is not None:
        raise windows.pop_error()


_Window = tuple[Stitched[Any], Region]


class _Passes:
    """Runs the network; if the device is full, on fewer windows at once, then with sums in main memory or a file.

    Attributes:
        batch_size: the most windows in one pass.
    """

    def __init__(
        self,
        forward: Forward,
        config: WindowConfig,
        device: Device,
        swapped_classes: Sequence[int],
        warn: Callable[[str], None],
    ) -> None:
        self.batch_size = config.batch_size
        self._forward = forward
        self._config = config
        self._device = device
        swapped = arrays.of_numpy(np.asarray(swapped_classes, np.int64), device)
        self._swapped = arrays.moved(swapped, device) if len(swapped_classes) > 0 else None
        self._warn = WarnOnce(warn)
        # Logits of constant windows by their value.
        self._constant_logits: dict[tuple[float, ...], Values] = {}

    def windows_to_run(self, batch: Iterable[_Window]) -> list[_Window]:
        """The windows that the network must see: of those of a constant value, one whose logits are not known yet."""
        values = set(self._constant_logits)
        to_run = []
        for stitched, box in batch:
            value = stitched.constant_values.get(box)
            if value is None or value not in values:
                to_run.append((stitched, box))
            if value is not None:
                values.add(value)
        return to_run

    def run(self, batch: Sequence[_Window], pending: Iterable[Stitched[Any]]) -> None:
        """Runs one forward pass (times mirrorings) and adds each output to the volume its window is from."""
        batch = [window for window in batch if not window[0].has_failed]
        to_run = self.windows_to_run(batch)
        start_s = system_clock()
        logits = self._predict(to_run) if to_run else ()
        for stitched, _ in to_run:
            stitched.seconds["network"] += (system_clock() - start_s) / len(to_run)
        if logits is None:
            self._run_again(batch, len(to_run), pending)
            return
        outputs = dict(zip(to_run, logits, strict=True))
        constant = {
            value: output for (stitched, box), output in outputs.items() if (value := stitched.constant_values.get(box))
        }
        known = {**self._constant_logits, **constant}
        for window in batch:
            stitched, box = window
            stitched.add(outputs[window] if window in outputs else known[stitched.constant_values[box]], box)
        for value, output in constant.items():
            self._keep(value, output)

    def _keep(self, value: tuple[float, ...], output: Values | Mirrored) -> None:
        if output.nbytes > _MOST_KEPT_BYTES:
            return
        if len(self._constant_logits) == _MOST_KEPT:
            del self._constant_logits[next(iter(self._constant_logits))]
        # A copy: the output may be in a buffer that the next forward pass overwrites.
        self._constant_logits[value] = (
            as_float32_copy(output) if isinstance(output, Mirrored) else arrays.copied(output)
        )

    def _predict(self, batch: Sequence[_Window]) -> Values | Iterable[Mirrored] | None:
        """Logits (b, k, x, y, z); None if memory is full."""
        try:
            with arrays.without_gradients(self._device):
                windows = arrays.stack([stitched.window(box) for stitched, box in batch])
                return _predict_mirrored(self._forward, windows, self._config, self._swapped)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _run_again(self, batch: Sequence[_Window], num_run: int, pending: Iterable[Stitched[Any]]) -> None:
        self._constant_logits.clear()
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        if num_run > 1:
            self.batch_size = min(self.batch_size, -(-num_run // 2))
            self._warn(
                f"batch {self.batch_size}",
                f"infer: {num_run} windows at once do not fit into the device's memory ({self._device}); "
                f"{self.batch_size} are predicted at once from here on; set window.batch_size to {self.batch_size} "
                "next time",
            )
            while batch:
                part, batch = batch[: self.batch_size], batch[self.batch_size :]
                self.run(part, pending)
            return
        moved = [stitched.move_off_device() for stitched in pending]
        if not any(moved):
            shape = " x ".join(map(str, batch[0][1].shape))
            batch[0][0].fail(
                ScanError(
                    f"one window of {shape} voxels does not fit into the memory of the device ({self._device}); stop "
                    "other programs that use it, or predict with --device cpu"
                )
            )
        self.run(batch, pending)


class _Windows(Generic[Sink]):
    """Every window of every volume, in order. A volume is begun when its first window is needed.

    Attributes:
        pending: volumes that were begun and are not complete.
        error: what ended the iteration of the images.
    """

    def __init__(
        self,
        images: Iterable[tuple[Values, Sink]],
        begin: Callable[[Values, Sink], Stitched[Sink]],
        config: WindowConfig,
    ) -> None:
        self.pending: deque[Stitched[Sink]] = deque()
        self.error: Exception | None = None
        self._begin = begin
        self._most_shared = 0 if config.is_of_volume else _MOST_PASSES_SHARED * config.batch_size
        self._windows = self._of_volumes(images)

    def next_batch(self, passes: _Passes) -> list[_Window]:
        """Windows for one full pass; none only if there are no more."""
        batch: list[_Window] = []
        for window in self._windows:
            if window is not None:
                batch.append(window)
            if len(passes.windows_to_run(batch)) == passes.batch_size or (window is None and batch):
                break
        return batch

    def pop_error(self) -> Exception:
        """The error, which is kept no longer: its traceback would hold this object."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def _of_volumes(self, images: Iterable[tuple[Values, Sink]]) -> Iterator[_Window | None]:
        """None ends a pass."""
        try:
            for image, sink in images:
                stitched = self._begin(image, sink)
                self.pending.append(stitched)
                for box in stitched.boxes:
                    if not stitched.has_failed:
                        yield stitched, box
                if len(stitched.boxes) > self._most_shared:
                    yield None
                # The next volume is loaded now, and this frame must not keep this one alive.
                del image, sink, stitched
        except Exception as error:
            # Windows of earlier volumes may still wait for a full pass.
            self.error = error


def _predict_mirrored(
    forward: Forward, windows: Values, config: WindowConfig, swapped: Values | None
) -> Values | Iterable[Mirrored]:
    """Logits (b, k, x, y, z), the mean over all combinations of mirrored axes."""
    logits = _check_logits(forward(windows), windows)
    axes = [axis + 2 for axis in sorted(set(config.mirror_axes))]
    mirrorings = [m for n in range(1, len(axes) + 1) for m in itertools.combinations(axes, n)]
    if not mirrorings:
        return logits
    rounds = config.blend == FLOAT16_SUMS
    if arrays.has_kernels(logits) and not rounds:
        return _predict_mirrored_by_kernels(forward, windows, logits, mirrorings, swapped)
    # A copy: the output may be in a buffer that the next forward pass overwrites.
    total = arrays.copied(logits) if rounds else arrays.float32_copy(logits)
    for mirrored in mirrorings:
        output = arrays.flip(_check_logits(forward(arrays.flip(windows, mirrored)), windows), mirrored)
        # In a mirror image, what the network calls left is right.
        total += output if swapped is None or _X not in mirrored else output[:, swapped]
    total /= len(mirrorings) + 1
    return total


def _predict_mirrored_by_kernels(
    forward: Forward, windows: Values, logits: Values, mirrorings: Sequence[tuple[int, ...]], swapped: Values | None
) -> list[Mirrored]:
    """As `_predict_mirrored`, from the logits of the windows themselves; the last one is added with the weights."""
    from voxelocity.infer import device_arrays

    total = arrays.copied(logits)
    for number, mirrored in enumerate(mirrorings, start=1):
        output = _check_logits(forward(arrays.flip(windows, mirrored)), windows)
        axes = tuple(axis - _X for axis in mirrored)
        order = swapped if _X in mirrored else None
        if number == len(mirrorings):
            pairs = zip(total, output, strict=True)
            return [Mirrored(first, last, axes, order, 1.0 / (number + 1)) for first, last in pairs]
        is_copy = number == 1
        sums = arrays.zeros(tuple(total.shape), arrays.device_of(total)) if is_copy else total
        for target, first, last in zip(sums, total, output, strict=True):
            device_arrays.add(target, first, last, flipped=axes, swapped=order, overwrites=True)
        total = sums
    raise AssertionError("there is at least one mirroring")


def _check_logits(logits: Values, windows: Values) -> Values:
    shape = tuple(logits.shape) if isinstance(logits, type(windows)) else type(logits).__name__
    if (
        not isinstance(shape, tuple)
        or len(shape) != 5
        or (shape[0], *shape[2:]) != (len(windows), *spatial_shape(windows))
    ):
        raise InputError(
            f"infer.window: the network returned {shape} for windows of {tuple(windows.shape)}; it must return logits "
            "(b, k, x, y, z) of the same size, so pass a function that picks them, or choose another window.shape_voxel"
        )
    return logits
