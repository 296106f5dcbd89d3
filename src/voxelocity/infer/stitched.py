"""One volume while its windows come in: slabs that no later window touches leave for a sink.

Windows come ordered along one axis, so only as many planes of the weighted sum of the logits are held as a window is
deep, and one more: the large array of a prediction does not grow with the volume. If the device has no room for it, it
is in main memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from voxelocity.core.errors import InputError, ScanError
from voxelocity.core.region import Index3, Region
from voxelocity.data.patch import grid_regions
from voxelocity.infer.blending import importance, weight_sums
from voxelocity.observe import available_memory_bytes
from voxelocity.step import is_out_of_memory

if TYPE_CHECKING:
    from voxelocity.infer.window import WindowConfig

_NOT_FINITE = (
    "the network returned NaN or infinity for some voxels, so there is no prediction; check the intensities of the "
    'scan, and if the model computes in float16, which may overflow, set precision.compute to "float32" in its '
    "model.json"
)


class Sink(Protocol):
    """Takes the blended logits of a volume, slab by slab, and makes of them what its owner asked for."""

    def take(self, logits_kxyz: torch.Tensor, box: Region, *, axis: int, num_taken: int) -> None:
        """Takes the next slab.

        Args:
            logits_kxyz: float32, on any device; may be changed in place, and is overwritten after the call.
            box: their place in the image, whole along the other axes.
            axis: along which the slabs follow each other, 0 for x.
            num_taken: leading planes with which the slab before ended, as the sink left them: 0 or 1.
        """


class Stitched:
    """The network's output for one volume, handed to its sink while its windows come in."""

    def __init__(
        self,
        image_cxyz: torch.Tensor,
        sink: Sink,
        config: WindowConfig,
        device: torch.device,
        on_full: Callable[[], None],
    ) -> None:
        if image_cxyz.ndim != 4:
            raise InputError(
                f"infer.window: an image has shape {tuple(image_cxyz.shape)}; it must have the axes (c, x, y, z)"
            )
        self._sink = sink
        self._config = config
        self._device = device
        self._on_full = on_full
        try:
            image_cxyz = image_cxyz.to(device, torch.float32, non_blocking=True)
        except torch.OutOfMemoryError:
            on_full()
            image_cxyz = image_cxyz.float()
        self._image, self._inside = _pad(image_cxyz, config.shape_voxel)
        shape = self._shape = spatial_shape(self._image)
        # Along this axis the planes that a window reaches take the least memory.
        self._axis = min(range(3), key=lambda axis: min(shape[axis], config.shape_voxel[axis] + 1) / shape[axis])
        grid = grid_regions(shape, config.shape_voxel, config.overlap, spread=config.spread)
        self.boxes = sorted(grid, key=lambda box: box.start[self._axis])
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
        if len(self.boxes) == 1:
            self._sum = logits_kxyz.clone()
        else:
            if self._sum is None:
                self._sum = self._room((logits_kxyz.shape[0], *self._held_shape()))
            if self._sum is None:
                return
            offset = [-self._low if axis == self._axis else 0 for axis in range(3)]
            place = box.shifted((offset[0], offset[1], offset[2]))
            self._sum[:, *place.slices].addcmul_(logits_kxyz.to(self._sum.device), self._importance(self._sum.device))
        self._num_added += 1
        stop = self._shape[self._axis] if self.is_complete else self.boxes[self._num_added].start[self._axis]
        if stop > self._done:
            self._hand_over(stop)

    def fail(self, error: ScanError) -> None:
        """Gives up the volume: frees its data, and makes `check` raise this error."""
        self._error, self._sum, self._strip = error, None, None
        self._image = self._image.new_empty(0)

    def move_to_host(self) -> bool:
        """Moves the sum to main memory; whether that freed memory of the device."""
        if self._sum is None or self._sum.device.type == "cpu":
            return False
        host = self._host_room(tuple(self._sum.shape))
        self._sum = None if host is None else host.copy_(self._sum)
        self._strip = None
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

    def _held_shape(self) -> Index3:
        window = self._config.shape_voxel
        x, y, z = (min(n, window[axis] + 1) if axis == self._axis else n for axis, n in enumerate(self._shape))
        return (x, y, z)

    def _hand_over(self, stop: int) -> None:
        """Hands the planes up to `stop`, which no later window reaches, to the sink, and makes room for the next."""
        assert self._sum is not None
        num_taken = self._done - self._low
        fresh = self._sum.narrow(1 + self._axis, num_taken, stop - self._done)
        if len(self.boxes) > 1:
            fresh.div_(self._weights(self._done, stop))
        # A NaN is not larger than any number: unnoticed, it would become the first class, usually the background.
        extremes = torch.stack([value for channel in fresh for value in torch.aminmax(channel)])
        is_finite = torch.isfinite(extremes).all()
        self._is_finite = is_finite if self._is_finite is None else self._is_finite.to(is_finite.device) & is_finite
        held = self._sum.narrow(1 + self._axis, 0, stop - self._low)
        start = [self._low if axis == self._axis else 0 for axis in range(3)]
        box = Region.whole(spatial_shape(held)).shifted((start[0], start[1], start[2]))
        inside = held[:, *self._inside_of(box).slices]
        self._sink.take(inside, self._in_image(box), axis=self._axis, num_taken=num_taken)
        self._done = stop
        if self.is_complete:
            self._sum = self._strip = None
            self._image = self._image.new_empty(0)
            return
        num_gone = stop - 1 - self._low
        for channel in self._sum:
            num_left = channel.shape[self._axis] - num_gone
            channel.narrow(self._axis, 0, num_left).copy_(channel.narrow(self._axis, num_gone, num_left).clone())
            channel.narrow(self._axis, num_left, num_gone).zero_()
        self._low = stop - 1

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

    def _room(self, shape: tuple[int, ...]) -> torch.Tensor | None:
        if self._device.type != "cpu":
            try:
                return torch.zeros(shape, device=self._device)
            except torch.OutOfMemoryError:
                self._on_full()
        return self._host_room(shape)

    def _host_room(self, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Zeros in main memory; None, and the volume is given up, if there is too little."""
        needed_bytes, free_bytes = 4 * math.prod(shape), available_memory_bytes()
        # Checked first: the system grants memory that it does not have, and kills the program when it writes there.
        if needed_bytes <= free_bytes:
            try:
                return torch.zeros(shape)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
        self.fail(
            ScanError(
                f"the scores of {shape[0]} classes for {' x '.join(map(str, shape[1:]))} prepared voxels take "
                f"{needed_bytes / 1e9:.1f} GB of memory, and {free_bytes / 1e9:.1f} GB are free; free some, use a "
                "machine with more, or crop the scan"
            )
        )
        return None

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


def spatial_shape(tensor: torch.Tensor) -> Index3:
    """Voxels along (x, y, z), the last three axes."""
    x, y, z = tensor.shape[-3:]
    return (x, y, z)
