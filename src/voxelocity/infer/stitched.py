"""One volume while its windows come in, and the probabilities or classes that they add up to.

The weighted sum of the logits, k float32 volumes, is the only large array. It is divided and turned into probabilities
in place, piece by piece. If the device has no room for it, it is in main memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from voxelocity.core.errors import InputError, ScanError
from voxelocity.core.region import Index3, Region
from voxelocity.data.patch import grid_regions
from voxelocity.infer.blending import importance, weight_sums
from voxelocity.observe import available_memory_bytes
from voxelocity.step import is_out_of_memory

if TYPE_CHECKING:
    from voxelocity.infer.window import WindowConfig

# Values of the logits that are turned into probabilities or classes at a time: 64 MiB as float32.
_PIECE_VALUES = 1 << 24


class Stitched:
    """The network's output for one volume: first while its windows come in, then as a whole."""

    def __init__(
        self, image_cxyz: torch.Tensor, config: WindowConfig, device: torch.device, on_full: Callable[[], None]
    ) -> None:
        if image_cxyz.ndim != 4:
            raise InputError(
                f"infer.window: an image has shape {tuple(image_cxyz.shape)}; it must have the axes (c, x, y, z)"
            )
        self._config = config
        self._device = device
        self._on_full = on_full
        try:
            image_cxyz = image_cxyz.to(device, torch.float32, non_blocking=True)
        except torch.OutOfMemoryError:
            on_full()
            image_cxyz = image_cxyz.float()
        self._image, self._inside = _pad(image_cxyz, config.shape_voxel)
        self.boxes = grid_regions(spatial_shape(self._image), config.shape_voxel, config.overlap)
        self._num_left = len(self.boxes)
        self._sum: torch.Tensor | None = None
        self._error: ScanError | None = None

    @property
    def is_complete(self) -> bool:
        return self._num_left == 0

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def window(self, box: Region) -> torch.Tensor:
        """(c, x, y, z) on the device; a view if the image is there."""
        return self._image[:, *box.slices].to(self._device)

    def add(self, logits_kxyz: torch.Tensor, box: Region) -> None:
        """Adds the network's output for one window, a tensor that may be overwritten afterwards."""
        if self.has_failed:
            return
        self._num_left -= 1
        if len(self.boxes) == 1:
            self._sum = logits_kxyz.clone()
            return
        if self._sum is None:
            self._sum = self._room((logits_kxyz.shape[0], *spatial_shape(self._image)))
        if self._sum is not None:
            logits_kxyz = logits_kxyz.to(self._sum.device)
            self._sum[:, *box.slices].addcmul_(logits_kxyz, self._importance(self._sum.device))

    def fail(self, error: ScanError) -> None:
        """Gives up the volume: frees its data, and makes `probabilities` and `classes` raise this error."""
        self._error, self._sum, self._num_left = error, None, 0
        self._image = self._image.new_empty(0)

    def move_to_host(self) -> bool:
        """Moves the sum to main memory; whether that freed memory of the device."""
        if self._sum is None or self._sum.device.type == "cpu":
            return False
        host = self._host_room(tuple(self._sum.shape))
        self._sum = None if host is None else host.copy_(self._sum)
        return True

    def probabilities(self) -> torch.Tensor:
        """(k, x, y, z) float32 that sum to 1 over k. Can be called once; nothing is kept.

        Raises:
            ScanError: the network returned NaN or infinity somewhere, or there was too little memory.
        """
        logits = self._logits()
        for piece in _pieces(logits):
            piece.copy_(torch.softmax(piece, dim=0))
        return logits

    def classes(self) -> torch.Tensor:
        """(x, y, z) uint8, the class of the largest probability. Can be called once; nothing is kept.

        Raises:
            ScanError: as `probabilities`.
        """
        logits = self._logits()
        classes = torch.empty(spatial_shape(logits), dtype=torch.uint8, device=logits.device)
        for piece, target in zip(_pieces(logits), _pieces(classes, num_layers=len(logits)), strict=True):
            # argmax takes 3 to 17 times as long on a CPU (docs/log.md).
            target.copy_(piece.max(dim=0).indices)
        return classes

    def _logits(self) -> torch.Tensor:
        """Blended logits (k, x, y, z) of the volume without its padding."""
        if self._error is not None:
            raise self._error
        assert self.is_complete, "asked for only once all windows are in"
        assert self._sum is not None, "asked for once"
        if len(self.boxes) > 1:
            self._divide()
        logits = self._sum[:, *self._inside.slices]
        self._sum = None
        self._image = self._image.new_empty(0)
        # A NaN is not larger than any number: unnoticed, it would become the first class, usually the background.
        extremes = torch.stack([value for channel in logits for value in torch.aminmax(channel)])
        if not bool(torch.isfinite(extremes).all()):
            raise ScanError(
                "the network returned NaN or infinity for some voxels, so there is no prediction; check the "
                "intensities of the scan, and if the model computes in float16, which may overflow, set "
                'precision.compute to "float32" in its model.json'
            )
        return logits

    def _divide(self) -> None:
        """Divides the sum by the weights of all windows."""
        starts = [sorted({box.start[axis] for box in self.boxes}) for axis in range(3)]
        assert self._sum is not None
        weights = self._importance(self._sum.device)
        self._sum.div_(weight_sums(weights, starts, spatial_shape(self._sum)))

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


def _pieces(tensor: torch.Tensor, *, num_layers: int = 1) -> Iterator[torch.Tensor]:
    """Views of (..., x, y, z), cut along x, of at most `_PIECE_VALUES` values times layers, but at least one plane."""
    *_, num_x, num_y, num_z = tensor.shape
    layers = math.prod(tensor.shape[:-3]) * num_layers
    thickness = max(1, _PIECE_VALUES // (layers * num_y * num_z))
    for start in range(0, num_x, thickness):
        yield tensor.narrow(-3, start, min(thickness, num_x - start))
