"""One volume while its windows come in: slabs that no later window touches leave for a sink.

Windows come ordered along one axis, so only as many planes of the weighted sum of the logits are held as a window is
deep, and one more: the large array of a prediction does not grow with the volume. `accumulator` finds a place for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from voxelocity.core.errors import InputError, ScanError
from voxelocity.core.region import Index3, Region
from voxelocity.data.patch import grid_regions
from voxelocity.infer.accumulator import Accumulators
from voxelocity.infer.blending import importance, weight_sums
from voxelocity.observe import system_clock

if TYPE_CHECKING:
    from voxelocity.infer.window_config import WindowConfig

_NOT_FINITE = (
    "the network returned NaN or infinity for some voxels, so there is no prediction; check the intensities of the "
    'scan, and if the model computes in float16, which may overflow, set precision.compute to "float32" in its '
    "model.json"
)


class Sink(Protocol):
    """Takes the summed logits of a volume, slab by slab, and makes of them what its owner asked for."""

    def take(self, sums_kxyz: torch.Tensor, weights_xyz: torch.Tensor | None, box: Region, *, axis: int) -> None:
        """Takes the next slab. It begins with the plane with which the slab before ended.

        Args:
            sums_kxyz: the logits of all windows times their weights, float32, on any device; overwritten after the
                call.
            weights_xyz: the sum of the weights, positive; None for 1.
            box: their place in the image, whole along the other axes.
            axis: along which the slabs follow each other, 0 for x.
        """


class Stitched:
    """The network's output for one volume, handed to its sink while its windows come in.

    Attributes:
        boxes: its windows, in the order in which their outputs must be added.
        constant_values: for each window that is constant, the value of each channel.
        seconds: spent in the network, in blending and in the sink. A device works on while these are taken, so on a GPU
            its work counts where the host waits for it, which is in the sink.
    """

    def __init__(
        self,
        image_cxyz: torch.Tensor,
        sink: Sink,
        config: WindowConfig,
        device: torch.device,
        accumulators: Accumulators,
    ) -> None:
        if image_cxyz.ndim != 4:
            raise InputError(
                f"infer.window: an image has shape {tuple(image_cxyz.shape)}; it must have the axes (c, x, y, z)"
            )
        self._sink = sink
        self._config = config
        self._device = device
        self._accumulators = accumulators
        image_cxyz, self._inside = _pad(image_cxyz.to(torch.float32), config.shape_voxel)
        shape = self._shape = spatial_shape(image_cxyz)
        self._axis = _slab_axis(shape, config.shape_voxel)
        grid = grid_regions(shape, config.shape_voxel, config.overlap, spread=config.spread)
        self.boxes = sorted(grid, key=lambda box: box.start[self._axis])
        self.constant_values: Mapping[Region, tuple[float, ...]] = {}
        # Read from a device, each would have to wait for it.
        if config.reuse_constant and image_cxyz.device.type == "cpu":
            values = ((box, _constant_value(image_cxyz[:, *box.slices])) for box in self.boxes)
            self.constant_values = {box: value for box, value in values if value is not None}
        try:
            self._image = image_cxyz.to(device, non_blocking=True)
        except torch.OutOfMemoryError:
            accumulators.say_device_is_full()
            self._image = image_cxyz
        self.seconds = {"network": 0.0, "blend": 0.0, "restore": 0.0}
        self._num_added = 0
        # Planes `_low` and above are held; those below `_done` were handed over.
        self._low = self._done = 0
        self._sum: torch.Tensor | None = None
        self._strip: torch.Tensor | None = None
        self._is_finite: torch.Tensor | None = None
        self._error: ScanError | None = None

    @property
    def is_complete(self) -> bool:
        return self.has_failed or self._num_added == len(self.boxes)

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def window(self, box: Region) -> torch.Tensor:
        """(c, x, y, z) on the device; a view if the image is there."""
        return self._image[:, *box.slices].to(self._device)

    def add(self, logits_kxyz: torch.Tensor, box: Region) -> None:
        """Adds the network's output for the next of `boxes`, a tensor that may be overwritten afterwards."""
        if self.has_failed:
            return
        start_s, restored_s = system_clock(), self.seconds["restore"]
        self._add(logits_kxyz, box)
        self.seconds["blend"] += system_clock() - start_s - (self.seconds["restore"] - restored_s)

    def _add(self, logits_kxyz: torch.Tensor, box: Region) -> None:
        if len(self.boxes) == 1:
            self._sum = logits_kxyz.to(torch.float32, copy=True)
        else:
            if self._sum is None:
                try:
                    self._sum = self._accumulators.zeros(
                        (logits_kxyz.shape[0], *held_shape(self._shape, self._config.shape_voxel))
                    )
                except ScanError as error:
                    self.fail(error)
                    return
            self._blend(logits_kxyz, box)
        self._num_added += 1
        stop = self._shape[self._axis] if self.is_complete else self.boxes[self._num_added].start[self._axis]
        if stop > self._done:
            self._hand_over(stop)

    def fail(self, error: ScanError) -> None:
        """Gives up the volume: frees its data, and makes `check` raise this error."""
        self._error, self._sum, self._strip = error, None, None
        self._image = self._image.new_empty(0)

    def move_off_device(self) -> bool:
        """Moves the sum to main memory or a file; whether that freed memory of the device."""
        if self._sum is None or self._sum.device.type == "cpu":
            return False
        try:
            self._sum, self._strip = self._accumulators.moved_off_device(self._sum), None
        except ScanError as error:
            self.fail(error)
        return True

    def check(self) -> None:
        """Returns once all logits are known to be finite.

        Raises:
            ScanError: the network returned NaN or infinity somewhere, or there was too little memory.
        """
        if self._error is not None:
            raise self._error
        assert self.is_complete, "asked for only once all windows are in"
        assert self._is_finite is not None
        if not bool(self._is_finite):
            raise ScanError(_NOT_FINITE)

    def _blend(self, logits_kxyz: torch.Tensor, box: Region) -> None:
        assert self._sum is not None
        offset = [-self._low if axis == self._axis else 0 for axis in range(3)]
        total = self._sum[:, *box.shifted((offset[0], offset[1], offset[2])).slices]
        weights = self._importance(total.device)
        if logits_kxyz.dtype == torch.float32 and logits_kxyz.device == total.device:
            total.addcmul_(logits_kxyz, weights)
            return
        # One class at a time, so that its converted copy stays in the caches.
        for channel, logits in zip(total, logits_kxyz, strict=True):
            channel.addcmul_(logits.to(channel.device, torch.float32), weights)

    def _hand_over(self, stop: int) -> None:
        """Hands the planes up to `stop`, which no later window reaches, to the sink, and makes room for the next."""
        assert self._sum is not None
        held = self._sum.narrow(1 + self._axis, 0, stop - self._low)
        # A NaN is not larger than any number: unnoticed, it would become the first class, usually the background.
        is_finite = _is_finite(held.narrow(1 + self._axis, self._done - self._low, stop - self._done))
        self._is_finite = is_finite if self._is_finite is None else self._is_finite.to(is_finite.device) & is_finite
        weights = self._weights(self._low, stop) if len(self.boxes) > 1 else None
        start = [self._low if axis == self._axis else 0 for axis in range(3)]
        box = Region.whole(spatial_shape(held)).shifted((start[0], start[1], start[2]))
        inside = self._inside_of(box).slices
        start_s = system_clock()
        self._sink.take(
            held[:, *inside], None if weights is None else weights[inside], self._in_image(box), axis=self._axis
        )
        self.seconds["restore"] += system_clock() - start_s
        self._done = stop
        if self.is_complete:
            self._sum = self._strip = None
            self._image = self._image.new_empty(0)
            return
        self._move_up(stop - 1 - self._low)
        self._low = stop - 1

    def _move_up(self, num_gone: int) -> None:
        """Moves the planes after the first `num_gone` to the front, and clears the room behind them."""
        if num_gone == 0:
            return
        assert self._sum is not None
        dim, num_held = 1 + self._axis, self._sum.shape[1 + self._axis]
        # In parts that do not overlap their new places.
        for start in range(num_gone, num_held, num_gone):
            part = self._sum.narrow(dim, start, min(num_gone, num_held - start))
            self._sum.narrow(dim, start - num_gone, part.shape[dim]).copy_(part)
        self._sum.narrow(dim, num_held - num_gone, num_gone).zero_()

    def _inside_of(self, box: Region) -> Region:
        """The part of a box of the padded image that is not padding, counted from the start of the box."""
        start = tuple(max(a, b) - a for a, b in zip(box.start, self._inside.start, strict=True))
        stop = tuple(min(a, b) - c for a, b, c in zip(box.stop, self._inside.stop, box.start, strict=True))
        return Region((start[0], start[1], start[2]), (stop[0], stop[1], stop[2]))

    def _in_image(self, box: Region) -> Region:
        """The same part, as a box of the image without padding."""
        offset = tuple(a - b for a, b in zip(box.start, self._inside.start, strict=True))
        return self._inside_of(box).shifted((offset[0], offset[1], offset[2]))

    def _weights(self, start: int, stop: int) -> torch.Tensor:
        """The sum of the weights of all windows in planes `start` to `stop`."""
        assert self._sum is not None
        axis, depth = self._axis, self._config.shape_voxel[self._axis]
        starts = [sorted({box.start[axis] for box in self.boxes}) for axis in range(3)]
        if self._strip is None:
            around = [depth if a == axis else n for a, n in enumerate(self._shape)]
            alone = [[0] if a == axis else each for a, each in enumerate(starts)]
            self._strip = weight_sums(self._importance(self._sum.device), alone, around)
        shape = [stop - start if a == axis else n for a, n in enumerate(self._shape)]
        total = self._strip.new_zeros(shape)
        for first in starts[axis]:
            low, high = max(first, start), min(first + depth, stop)
            if low < high:
                total.narrow(axis, low - start, high - low).add_(self._strip.narrow(axis, low - first, high - low))
        return total

    def _importance(self, device: torch.device) -> torch.Tensor:
        config = self._config
        return importance(config.shape_voxel, config.blend, config.sigma_scale, device)


def _pad(image_cxyz: torch.Tensor, shape: Index3) -> tuple[torch.Tensor, Region]:
    """The image zero-padded to at least `shape`, as many zeros after as before or one more; and its place in it."""
    inside = spatial_shape(image_cxyz)
    missing = [max(0, w - n) for n, w in zip(inside, shape, strict=True)]
    x, y, z = (n // 2 for n in missing)
    if any(missing):
        ends = [side for n in reversed(missing) for side in (n // 2, n - n // 2)]
        image_cxyz = torch.nn.functional.pad(image_cxyz, ends)
    return image_cxyz, Region.whole(inside).shifted((x, y, z))


def _is_finite(values_kxyz: torch.Tensor) -> torch.Tensor:
    """Whether all values are finite, a scalar on their device."""
    if values_kxyz.device.type == "cpu" and bool(torch.isfinite(total := values_kxyz.sum())):
        # Half the time; a sum may also overflow, so one that is not finite proves nothing.
        return torch.isfinite(total)
    return torch.isfinite(torch.stack([value for channel in values_kxyz for value in torch.aminmax(channel)])).all()


def _constant_value(window_cxyz: torch.Tensor) -> tuple[float, ...] | None:
    """The value of each channel if it is the same everywhere; None otherwise."""
    first = window_cxyz[:, :1, :1, :1]
    # A few voxels first, which almost always differ in a window that is not constant.
    if bool((window_cxyz[:, ::8, ::8, ::8] != first).any()) or bool((window_cxyz != first).any()):
        return None
    return tuple(first.flatten().tolist())


def held_shape(shape: Index3, window: Index3) -> Index3:
    """Voxels of a volume whose summed logits are held at once: a window's depth and one plane, across the slab axis."""
    slab_axis = _slab_axis(shape, window)
    x, y, z = (min(n, window[axis] + 1) if axis == slab_axis else n for axis, n in enumerate(shape))
    return (x, y, z)


def _slab_axis(shape: Index3, window: Index3) -> int:
    """The axis along which the planes that a window reaches take the least memory."""
    return min(range(3), key=lambda axis: min(shape[axis], window[axis] + 1) / shape[axis])


def spatial_shape(tensor: torch.Tensor) -> Index3:
    """Voxels along (x, y, z), the last three axes."""
    x, y, z = tensor.shape[-3:]
    return (x, y, z)
