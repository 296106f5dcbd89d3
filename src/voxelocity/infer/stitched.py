"""One volume while its windows come in: tiles that no later window touches leave for a sink.

`tiling` orders the windows and cuts the volume so that few voxels of the weighted sum of the logits are held: the large
array of a prediction does not grow with the volume. `accumulator` finds a place for each tile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from voxelocity.core.errors import InputError, ScanError
from voxelocity.core.region import Index3, Region
from voxelocity.infer.accumulator import Accumulators
from voxelocity.infer.blending import importance, weight_sums
from voxelocity.infer.tiling import Tile, tiling_of
from voxelocity.observe import system_clock

if TYPE_CHECKING:
    from voxelocity.infer.window_config import WindowConfig

_NOT_FINITE = (
    "the network returned NaN or infinity for some voxels, so there is no prediction; check the intensities of the "
    'scan, and if the model computes in float16, which may overflow, set precision.compute to "float32" in its '
    "model.json"
)


# Memory of a tile is used again for one that takes at least the inverse share of it.
_MOST_WASTE = 1.25


class Sink(Protocol):
    """Takes the summed logits of a volume, tile by tile, and makes of them what its owner asked for."""

    def take(self, sums_kxyz: torch.Tensor, weights_xyz: torch.Tensor | None, box: Region) -> None:
        """Takes the next tile. Along each axis it begins with the last plane of the tile before, if there is one.

        Args:
            sums_kxyz: the logits of all windows times their weights, float32, on any device; overwritten after the
                call.
            weights_xyz: the sum of the weights, positive; None for 1.
            box: their place in the image. All tiles before it along an axis came earlier.
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
        *,
        num_outputs: int,
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
        self._tiling = tiling_of(
            spatial_shape(image_cxyz),
            config.shape_voxel,
            config.overlap,
            num_outputs=num_outputs,
            spread=config.spread,
        )
        self.boxes = self._tiling.windows
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
        self._sums: dict[Tile, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []
        self._next_tiles = deque(self._tiling.tiles)
        # For each cut axis, the last planes of tiles, by where they are along the other axes.
        self._planes: dict[int, dict[tuple[int, ...], torch.Tensor]] = {axis: {} for axis in self._tiling.axes}
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
            self._sums[self._next_tiles[0]] = logits_kxyz.to(torch.float32, copy=True)
        else:
            try:
                self._blend(logits_kxyz, box)
            except ScanError as error:
                self.fail(error)
                return
        self._num_added += 1
        while self._next_tiles and self._next_tiles[0].complete_after <= self._num_added:
            self._hand_over(self._next_tiles.popleft())
        if self.is_complete:
            self._free()

    def fail(self, error: ScanError) -> None:
        """Gives up the volume: frees its data, and makes `check` raise this error."""
        self._error = error
        self._free()

    def _free(self) -> None:
        self._sums, self._spare, self._strip = {}, [], None
        self._planes = {axis: {} for axis in self._tiling.axes}
        self._image = self._image.new_empty(0)

    def move_off_device(self) -> bool:
        """Moves the sums to main memory or a file; whether that freed memory of the device."""
        on_device = [tile for tile, total in self._sums.items() if total.device.type != "cpu"]
        try:
            for tile in on_device:
                self._sums[tile] = self._accumulators.moved_off_device(self._sums[tile])
        except ScanError as error:
            self.fail(error)
        self._strip = None
        return bool(on_device)

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
        for tile in self._tiling.reached_by(self._num_added):
            part = tile.part_of(box)
            if part is None:
                continue
            if tile not in self._sums:
                self._sums[tile] = self._zeros((logits_kxyz.shape[0], *tile.held.shape))
            total = self._sums[tile][:, *_within(part, tile.held).slices]
            inside = _within(part, box).slices
            weights, logits = self._importance(total.device)[inside], logits_kxyz[:, *inside]
            if logits.dtype == torch.float32 and logits.device == total.device:
                total.addcmul_(logits, weights)
                continue
            # One class at a time, so that its converted copy stays in the caches.
            for sums, values in zip(total, logits, strict=True):
                sums.addcmul_(values.to(sums.device, torch.float32), weights)

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Zeros in memory of an earlier tile, which the system need not clear again, or in new memory."""
        num = math.prod(shape)
        fitting = [spare for spare in self._spare if num <= spare.numel() <= _MOST_WASTE * num]
        if not fitting:
            # So that no more is held than the tiles take.
            self._spare.clear()
            return self._accumulators.zeros(shape)
        chosen = min(fitting, key=torch.Tensor.numel)
        self._spare = [spare for spare in self._spare if spare is not chosen]
        return chosen[:num].zero_().view(shape)

    def _hand_over(self, tile: Tile) -> None:
        """Hands a tile to the sink, with the last planes of the tiles before it."""
        total = self._sums.pop(tile)
        # A NaN is not larger than any number: unnoticed, it would become the first class, usually the background.
        is_finite = _is_finite(total[:, *_within(tile.box, tile.held).slices])
        self._is_finite = is_finite if self._is_finite is None else self._is_finite.to(is_finite.device) & is_finite
        for axis, planes in self._planes.items():
            if tile.held.start[axis] < tile.box.start[axis]:
                total.narrow(1 + axis, 0, 1).copy_(planes.pop(_beside(tile, axis)))
        for axis, planes in self._planes.items():
            if tile.box.stop[axis] < self._tiling.shape[axis]:
                planes[_beside(tile, axis)] = total.narrow(1 + axis, tile.held.shape[axis] - 1, 1).clone()
        weights = self._weights(tile.held, total.device) if len(self.boxes) > 1 else None
        inside = self._inside_of(tile.held).slices
        start_s = system_clock()
        self._sink.take(total[:, *inside], None if weights is None else weights[inside], self._in_image(tile.held))
        self.seconds["restore"] += system_clock() - start_s
        if total.device.type == "cpu" and len(self.boxes) > 1:
            self._spare.append(total.view(-1))

    def _inside_of(self, box: Region) -> Region:
        """The part of a box of the padded image that is not padding, counted from the start of the box."""
        start = tuple(max(a, b) - a for a, b in zip(box.start, self._inside.start, strict=True))
        stop = tuple(min(a, b) - c for a, b, c in zip(box.stop, self._inside.stop, box.start, strict=True))
        return Region((start[0], start[1], start[2]), (stop[0], stop[1], stop[2]))

    def _in_image(self, box: Region) -> Region:
        """The same part, as a box of the image without padding."""
        offset = tuple(a - b for a, b in zip(box.start, self._inside.start, strict=True))
        return self._inside_of(box).shifted((offset[0], offset[1], offset[2]))

    def _weights(self, region: Region, device: torch.device) -> torch.Tensor:
        """The sum of the weights of all windows in a region."""
        axis = self._tiling.axes[0] if self._tiling.axes else 0
        depth = self._config.shape_voxel[axis]
        if self._strip is None or self._strip.device != device:
            around = [depth if each == axis else n for each, n in enumerate(self._tiling.shape)]
            alone = [[0] if each == axis else places for each, places in enumerate(self._tiling.starts)]
            self._strip = weight_sums(self._importance(device), alone, around)
        within = [slice(None) if each == axis else region.slices[each] for each in range(3)]
        strip, total = self._strip[*within], self._strip.new_zeros(region.shape)
        low, high = region.start[axis], region.stop[axis]
        for first in self._tiling.starts[axis]:
            begin, end = max(first, low), min(first + depth, high)
            if begin < end:
                total.narrow(axis, begin - low, end - begin).add_(strip.narrow(axis, begin - first, end - begin))
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


def _beside(tile: Tile, axis: int) -> tuple[int, ...]:
    """Where a tile begins along the other axes."""
    return tuple(start for other, start in enumerate(tile.box.start) if other != axis)


def _within(region: Region, outer: Region) -> Region:
    """A region counted from the start of another."""
    x, y, z = (-start for start in outer.start)
    return region.shifted((x, y, z))


def spatial_shape(tensor: torch.Tensor) -> Index3:
    """Voxels along (x, y, z), the last three axes."""
    x, y, z = tensor.shape[-3:]
    return (x, y, z)
