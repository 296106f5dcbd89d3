"""One volume while its windows come in: tiles that no later window touches leave for a sink.

`tiling` orders the windows and cuts the volume so that few voxels of the weighted sum of the logits are held: the large
array of a prediction does not grow with the volume. `accumulator` finds a place for each tile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from voxelocity.core.region import Index3, Region
from voxelocity.infer import arrays
from voxelocity.infer.accumulator import Accumulators
from voxelocity.infer.arrays import Values
from voxelocity.infer.blending import importance, weight_sums
from voxelocity.infer.mirrored import Mirrored, add_weighted, as_float32_copy, part_of
from voxelocity.infer.tiling import Tile, shared_voxels, tiling_of
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.clock import system_clock
from voxelocity_observe.core.device import Device, is_out_of_memory
from voxelocity_observe.core.errors import InputError, ScanError

if TYPE_CHECKING:
    from voxelocity.infer.window_config import WindowConfig

_NOT_FINITE = (
    "the network returned NaN or infinity for some voxels, so there is no prediction; check the intensities of the "
    'scan, and if the model computes in float16, which may overflow, set precision.compute to "float32" in its '
    "model.json"
)


# Memory of a tile is used again for one that takes at least the inverse share of it.
_MOST_WASTE = 1.25


class TileSink(Protocol):
    """Takes the summed logits of a volume, tile by tile, and makes of them what its owner asked for."""

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        """Takes the next tile. Along each axis it begins with the last plane of the tile before, if there is one.

        Args:
            sums_kxyz: the logits of all windows times their weights, float32, on any device; overwritten after the
                call.
            weights_xyz: the sum of the weights, positive; None for 1.
            box: their place in the image. All tiles before it along an axis came earlier.
        """


Sink = TypeVar("Sink", bound=TileSink)


class Stitched(Generic[Sink]):
    """The network's output for one volume, handed to its sink while its windows come in.

    Attributes:
        sink: what takes its logits.
        boxes: its windows, in the order in which their outputs must be added.
        constant_values: for each window that is constant, the value of each channel.
        seconds: spent in the network, in blending and in the sink. A device works on while these are taken, so on a GPU
            its work counts where the host waits for it, which is in the sink.
    """

    def __init__(
        self,
        image_cxyz: Values,
        sink: Sink,
        config: WindowConfig,
        device: Device,
        accumulators: Accumulators,
        *,
        num_outputs: int,
    ) -> None:
        if image_cxyz.ndim != 4:
            raise InputError(
                f"infer.window: an image has shape {tuple(image_cxyz.shape)}; it must have the axes (c, x, y, z)"
            )
        self.sink = sink
        self._config = config = config.within(spatial_shape(image_cxyz))
        self._device = device
        self._accumulators = accumulators
        image_cxyz, self._inside = _pad(arrays.as_float32(image_cxyz), config.shape_voxel)
        self._tiling = tiling_of(
            spatial_shape(image_cxyz),
            config.shape_voxel,
            config.overlap,
            num_outputs=num_outputs,
            spread=config.spread,
            in_order=config.blend == FLOAT16_SUMS,
        )
        self.boxes = self._tiling.windows
        self._num_outputs, self._rounds = num_outputs, config.blend == FLOAT16_SUMS
        # A volume of one window is not blended at all, unless roundings count.
        self._is_blended = len(self.boxes) > 1 or self._rounds
        self.constant_values: Mapping[Region, tuple[float, ...]] = {}
        # Read from a device, each would have to wait for it.
        if config.reuse_constant and arrays.device_of(image_cxyz).type == "cpu":
            values = ((box, _constant_value(image_cxyz[:, *box.slices])) for box in self.boxes)
            self.constant_values = {box: value for box, value in values if value is not None}
        try:
            self._image = arrays.moved(image_cxyz, device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            accumulators.say_device_is_full()
            self._image = image_cxyz
        self.seconds = {"network": 0.0, "blend": 0.0, "restore": 0.0}
        self._num_added = 0
        self._sums: dict[Tile, Values] = {}
        self._spare: list[Values] = []
        self._next_tiles = deque(self._tiling.tiles)
        # For each cut axis, the last planes of tiles, by where they are along the other axes.
        self._planes: dict[int, dict[tuple[int, ...], Values]] = {axis: {} for axis in self._tiling.axes}
        self._strip: Values | None = None
        self._is_finite: Values | None = None
        self._error: ScanError | None = None

    @property
    def is_complete(self) -> bool:
        return self.has_failed or self._num_added == len(self.boxes)

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def window(self, box: Region) -> Values:
        """(c, x, y, z) on the device; a view if the image is there."""
        return arrays.moved(self._image[:, *box.slices], self._device)

    def add(self, logits_kxyz: Values | Mirrored, box: Region) -> None:
        """Adds the network's output for the next of `boxes`, an array that may be overwritten afterwards."""
        if self.has_failed:
            return
        start_s, restored_s = system_clock(), self.seconds["restore"]
        self._add(logits_kxyz, box)
        self.seconds["blend"] += system_clock() - start_s - (self.seconds["restore"] - restored_s)

    def _add(self, logits_kxyz: Values | Mirrored, box: Region) -> None:
        try:
            if not self._is_blended:
                self._sums[self._next_tiles[0]] = as_float32_copy(logits_kxyz)
            else:
                self._blend(logits_kxyz, box)
            self._num_added += 1
            while self._next_tiles and self._next_tiles[0].complete_after <= self._num_added:
                self._hand_over(self._next_tiles.popleft())
        # No place has room for the sums.
        except ScanError as error:
            self.fail(error)
        if self.is_complete:
            self._free()

    def fail(self, error: ScanError) -> None:
        """Gives up the volume: frees its data, and makes `check` raise this error."""
        self._error = error
        self._free()

    def _free(self) -> None:
        self._sums, self._spare, self._strip = {}, [], None
        self._planes = {axis: {} for axis in self._tiling.axes}
        self._image = arrays.zeros_like(self._image, (0,))

    def move_off_device(self) -> bool:
        """Moves the sums to main memory or a file; whether that freed memory of the device."""
        on_device = [tile for tile, total in self._sums.items() if arrays.device_of(total).type != "cpu"]
        try:
            for tile in on_device:
                self._sums[tile] = self._accumulators.move_off_device(self._sums[tile])
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

    def _blend(self, logits_kxyz: Values | Mirrored, box: Region) -> None:
        for tile in self._tiling.reached_by(self._num_added):
            part = tile.part_of(box)
            if part is None:
                continue
            if tile not in self._sums:
                self._sums[tile] = self._zeros((logits_kxyz.shape[0], *tile.held.shape))
            self._with_room(tile, partial(self._add_part, logits_kxyz, box, tile, part))

    def _add_part(self, logits_kxyz: Values | Mirrored, box: Region, tile: Tile, part: Region) -> None:
        total = self._sums[tile][:, *_within(part, tile.held).slices]
        inside = _within(part, box)
        weights = self._importance(arrays.device_of(total))[inside.slices]
        if self._rounds:
            assert not isinstance(logits_kxyz, Mirrored), "made by kernels, which do not round"
            arrays.add_rounded(total, logits_kxyz[:, *inside.slices], weights)
        else:
            add_weighted(total, part_of(logits_kxyz, inside), weights)

    def _with_room(self, tile: Tile, work: Callable[[], None]) -> None:
        """Runs `work`; if memory is full, again with that sum in main memory or a file."""
        try:
            work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._strip = None
            self._sums[tile] = self._accumulators.move_off_device(self._sums[tile])
            work()

    def _zeros(self, shape: tuple[int, ...]) -> Values:
        """Zeros in memory of an earlier tile, which the system need not clear again, or in new memory."""
        num = math.prod(shape)
        fitting = [spare for spare in self._spare if num <= len(spare) <= _MOST_WASTE * num]
        if not fitting:
            # So that no more is held than the tiles take.
            self._spare.clear()
            return self._accumulators.zeros(shape)
        chosen = min(fitting, key=len)
        self._spare = [spare for spare in self._spare if spare is not chosen]
        chosen[:num] = 0.0
        return chosen[:num].reshape(shape)

    def _hand_over(self, tile: Tile) -> None:
        """Hands a tile to the sink, with the last planes of the tiles before it."""
        self._with_room(tile, partial(self._take, tile))
        total = self._sums.pop(tile)
        if arrays.device_of(total).type == "cpu" and self._is_blended:
            self._spare.append(total.reshape(-1))

    def _take(self, tile: Tile) -> None:
        total = self._sums[tile]
        # A NaN is not larger than any number: unnoticed, it would become the first class, usually the background.
        is_finite = arrays.is_finite(total[:, *_within(tile.box, tile.held).slices])
        begun = [axis for axis in self._planes if tile.held.start[axis] < tile.box.start[axis]]
        for axis in begun:
            total[_plane(axis, 0)] = self._planes[axis][_beside(tile, axis)]
        ended = [axis for axis in self._planes if tile.box.stop[axis] < self._tiling.shape[axis]]
        last = {axis: arrays.copied(total[_plane(axis, tile.held.shape[axis] - 1)]) for axis in ended}
        weights = None
        if self._rounds:
            total = self._float16_logits(total, tile.held)
        elif self._is_blended:
            weights = self._weights(tile.held, arrays.device_of(total))
        # Without the padding, as a box of the image and counted from the start of the tile.
        in_image = _within(tile.held, self._inside).clip(self._inside.shape)
        inside = _within(in_image.shifted(self._inside.start), tile.held).slices
        start_s = system_clock()
        self.sink.take(total[:, *inside], None if weights is None else weights[inside], in_image)
        self.seconds["restore"] += system_clock() - start_s
        # Only now, as everything before may be done again.
        self._is_finite = is_finite if self._is_finite is None else arrays.both(self._is_finite, is_finite)
        for axis in begun:
            del self._planes[axis][_beside(tile, axis)]
        for axis, plane in last.items():
            self._planes[axis][_beside(tile, axis)] = plane

    def _float16_logits(self, sums_kxyz: Values, held: Region) -> Values:
        """The sums divided as nnU-Net does, and the mean of an ensemble's folds: float32 with values of float16."""
        device, num = arrays.device_of(sums_kxyz), self._num_outputs
        weights = arrays.zeros(held.shape, device)
        for box in self.boxes:
            if (part := shared_voxels(held, box)) is not None:
                target = weights[_within(part, held).slices]
                target += self._importance(device)[_within(part, box).slices]
                arrays.round_to_float16(target)
        logits = sums_kxyz / weights
        arrays.round_to_float16(logits)
        mean, num_folds = logits[:num], len(logits) // num
        for fold in range(1, num_folds):
            mean += logits[fold * num : (fold + 1) * num]
            arrays.round_to_float16(mean)
        if num_folds > 1:
            mean /= num_folds
            arrays.round_to_float16(mean)
        return mean

    def _weights(self, region: Region, device: Device) -> Values:
        """The sum of the weights of all windows in a region."""
        axis = self._tiling.axes[0] if self._tiling.axes else 0
        depth = self._config.shape_voxel[axis]
        if self._strip is None or arrays.device_of(self._strip) != device:
            around = [depth if number == axis else n for number, n in enumerate(self._tiling.shape)]
            alone = [[0] if number == axis else starts for number, starts in enumerate(self._tiling.starts)]
            self._strip = weight_sums(self._importance(device), alone, around)
        within = [slice(None) if number == axis else region.slices[number] for number in range(3)]
        strip, total = self._strip[*within], arrays.zeros_like(self._strip, region.shape)
        low, high = region.start[axis], region.stop[axis]
        for first in self._tiling.starts[axis]:
            begin, end = max(first, low), min(first + depth, high)
            if begin < end:
                before = (slice(None),) * axis
                total[*before, begin - low : end - low] += strip[*before, begin - first : end - first]
        return total

    def _importance(self, device: Device) -> Values:
        config = self._config
        return importance(config.shape_voxel, config.blend, config.sigma_scale, device)


def _pad(image_cxyz: Values, shape: Index3) -> tuple[Values, Region]:
    """The image zero-padded to at least `shape`, as many zeros after as before or one more; and its place in it."""
    inside = spatial_shape(image_cxyz)
    missing = [max(0, w - n) for n, w in zip(inside, shape, strict=True)]
    x, y, z = (n // 2 for n in missing)
    inner = Region.whole(inside).shifted((x, y, z))
    if not any(missing):
        return image_cxyz, inner
    padded = arrays.zeros_like(image_cxyz, (len(image_cxyz), *(n + m for n, m in zip(inside, missing, strict=True))))
    padded[:, *inner.slices] = image_cxyz
    return padded, inner


def _constant_value(window_cxyz: Values) -> tuple[float, ...] | None:
    """The value of each channel if it is the same everywhere; None otherwise."""
    first = window_cxyz[:, :1, :1, :1]
    # A few voxels first, which almost always differ in a window that is not constant.
    if bool((window_cxyz[:, ::8, ::8, ::8] != first).any()) or bool((window_cxyz != first).any()):
        return None
    return tuple(first.flatten().tolist())


def _beside(tile: Tile, axis: int) -> tuple[int, ...]:
    """Where a tile begins along the other axes."""
    return tuple(start for other, start in enumerate(tile.box.start) if other != axis)


def _plane(axis: int, index: int) -> tuple[slice, ...]:
    """One plane of (k, x, y, z) across a spatial axis, which is kept."""
    return (slice(None),) * (1 + axis) + (slice(index, index + 1),)


def _within(region: Region, outer: Region) -> Region:
    """A region counted from the start of another."""
    x, y, z = (-start for start in outer.start)
    return region.shifted((x, y, z))


def spatial_shape(values: Values) -> Index3:
    """Voxels along (x, y, z), the last three axes."""
    x, y, z = values.shape[-3:]
    return (x, y, z)
