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
from typing import Annotated

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.core.errors import InputError, ScanError
from voxelocity.core.region import Region
from voxelocity.core.warn_once import WarnOnce
from voxelocity.data.patch import Spread
from voxelocity.infer.blending import Blend
from voxelocity.infer.stitched import Sink, Stitched, spatial_shape
from voxelocity.step import is_out_of_memory

_X = 2  # of (b, c, x, y, z)
# A volume of more passes than this shares none with the next volume: two such sums at once would double peak memory,
# and a few partly filled passes cost little among this many.
_MOST_PASSES_SHARED = 4

_Edge = Annotated[int, Field(ge=1, le=2048)]
Forward = Callable[[torch.Tensor], torch.Tensor]
"""Windows (b, c, x, y, z) float32 to logits (b, k, x, y, z) of any floating point dtype, both on one device."""


class WindowConfig(Config):
    """How volumes are covered with windows."""

    shape_voxel: tuple[_Edge, _Edge, _Edge]
    """Voxels of a window along (x, y, z); smaller volumes are padded to it with zeros on both sides."""
    overlap: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of a window that the next one covers too, on each axis."""
    spread: Spread = "monai"
    """Where windows are: a fixed step apart with the last one moved back, or at equal distances as in nnU-Net."""
    blend: Blend = "gaussian"
    """Weight of a window's voxels: falling from the center to the edges, the same everywhere, or exactly as in nnU-Net,
    whose Gaussian lies half a voxel off the center of an even edge."""
    sigma_scale: float = Field(default=0.125, gt=0.0)
    """Standard deviation of the Gaussian as a share of the window's edge (nnU-Net's and MONAI's 1/8)."""
    batch_size: int = Field(default=1, ge=1, le=4096)
    """Windows in one forward pass, from one volume or several."""
    mirror_axes: tuple[Annotated[int, Field(ge=0, le=2)], ...] = ()
    """Axes (0 for x) that predictions are averaged over: n axes cost 2**n forward passes."""
    swap_pairs: tuple[tuple[str, str], ...] = ()
    """Names of classes whose channels swap places in windows mirrored along x, as in `data.augment.swap_pairs`."""


def stitch_volumes(
    forward: Forward,
    images: Iterable[tuple[torch.Tensor, Sink]],
    config: WindowConfig,
    *,
    device: torch.device,
    swapped_classes: Sequence[int] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> Iterator[Stitched]:
    """Gives the blended logits of each volume to its sink; windows of neighboring small volumes share forward passes.

    The result of a volume does not depend on its neighbors (beyond rounding, about 1e-6). Images are taken when they
    are needed, so they may be loaded lazily. Nothing here waits for the device. For a volume of many windows, the
    device holds the image, 4 * c bytes per voxel, and the sum of the logits, 4 * k bytes per voxel of as many planes
    as a window is deep, and one more; if that is too much, main memory holds the sum.

    Args:
        forward: the network in evaluation mode, or a function that runs it at its precision. Called without gradients,
            with at most `batch_size` windows each time.
        images: (c, x, y, z) each, floating point, on any device, with what takes the logits of it, as slabs along the
            axis whose planes take the least memory; images are not changed.
        config: how volumes are covered.
        device: where the network is, and where the results will be if there is room.
        swapped_classes: for each of the k classes, the one whose channel takes its place in windows mirrored along x
            (`core.laterality.swapped_classes` of the configuration's `swap_pairs`); empty for none.
        warn: called once, if the device has too little memory.

    Yields:
        One for each image, in order, once its sink has taken everything; `check` it before you use the sink's result.
        Logits of mirrored windows are also averaged before the softmax, as in nnU-Net v2.

    Raises:
        InputError: an image does not have four axes, or the network's output does not have the shape of its windows.
    """
    pending: deque[Stitched] = deque()
    passes = _Passes(forward, config, device, swapped_classes, warn)
    windows = _windows(images, config, device, pending, passes.warn_full)
    while batch := _next_batch(windows, config.batch_size):
        passes.run(batch, pending)
        del batch
        while pending and pending[0].is_complete:
            yield pending.popleft()


_Window = tuple[Stitched, Region]


class _Passes:
    """Runs the network, in smaller passes and with sums in main memory if the device is full."""

    def __init__(
        self,
        forward: Forward,
        config: WindowConfig,
        device: torch.device,
        swapped_classes: Sequence[int],
        warn: Callable[[str], None],
    ) -> None:
        self._forward = forward
        self._config = config
        self._device = device
        self._swapped = torch.tensor(swapped_classes, device=device) if len(swapped_classes) > 0 else None
        self._warn = WarnOnce(warn)

    def run(self, batch: Sequence[_Window], pending: Iterable[Stitched]) -> None:
        """Runs one forward pass (times mirrorings) and adds each output to the volume its window is from."""
        batch = [window for window in batch if not window[0].has_failed]
        if not batch:
            return
        logits = self._answers(batch)
        if logits is None:
            self._run_again(batch, pending)
            return
        for (stitched, box), answer in zip(batch, logits, strict=True):
            stitched.add(answer, box)

    def _answers(self, batch: Sequence[_Window]) -> torch.Tensor | None:
        """Logits (b, k, x, y, z) float32; None if memory is full."""
        try:
            with torch.no_grad():
                windows = torch.stack([stitched.window(box) for stitched, box in batch])
                return _mirrored(self._forward, windows, self._config, self._swapped)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _run_again(self, batch: Sequence[_Window], pending: Iterable[Stitched]) -> None:
        moved = [stitched.move_to_host() for stitched in pending]
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if any(moved):
            self.warn_full()
            self.run(batch, pending)
        elif len(batch) > 1:
            half = len(batch) // 2
            self.run(batch[:half], pending)
            self.run(batch[half:], pending)
        else:
            shape = " x ".join(map(str, self._config.shape_voxel))
            batch[0][0].fail(
                ScanError(
                    f"one window of {shape} voxels does not fit into the memory of the device ({self._device}); end "
                    "other programs that use it, or predict with --device cpu"
                )
            )

    def warn_full(self) -> None:
        """Warns once that the device is full."""
        self._warn(
            "full",
            f"infer: the memory of the device ({self._device}) is too small for a scan and the scores of its "
            "classes; they are kept in main memory, which takes longer",
        )


def _windows(
    images: Iterable[tuple[torch.Tensor, Sink]],
    config: WindowConfig,
    device: torch.device,
    pending: deque[Stitched],
    on_full: Callable[[], None],
) -> Iterator[_Window | None]:
    """Every window of every volume; a volume is put into `pending` just before its first. None ends a pass."""
    for image, sink in images:
        stitched = Stitched(image, sink, config, device, on_full)
        pending.append(stitched)
        for box in stitched.boxes:
            if not stitched.has_failed:
                yield stitched, box
        if len(stitched.boxes) > _MOST_PASSES_SHARED * config.batch_size:
            yield None
        # The next volume is loaded now, and this frame must not keep this one alive.
        del image, sink, stitched


def _next_batch(windows: Iterator[_Window | None], num: int) -> list[_Window]:
    """Up to `num` windows; none only if there are no more."""
    batch: list[_Window] = []
    for window in windows:
        if window is not None:
            batch.append(window)
        if len(batch) == num or (window is None and batch):
            break
    return batch


def _mirrored(
    forward: Forward, windows: torch.Tensor, config: WindowConfig, swapped: torch.Tensor | None
) -> torch.Tensor:
    """Logits (b, k, x, y, z) float32, the mean over all combinations of mirrored axes."""
    logits = _checked(forward(windows), windows)
    axes = [axis + 2 for axis in sorted(set(config.mirror_axes))]
    mirrorings = [m for n in range(1, len(axes) + 1) for m in itertools.combinations(axes, n)]
    if not mirrorings:
        return logits
    # A copy: the output may be in a buffer that the next forward pass overwrites.
    total = logits.clone()
    for mirrored in mirrorings:
        answer = _checked(forward(windows.flip(mirrored)), windows).flip(mirrored)
        # In a mirror image, what the network calls left is right.
        total += answer if swapped is None or _X not in mirrored else answer.index_select(1, swapped)
    return total.div_(len(mirrorings) + 1)


def _checked(logits: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if (
        not isinstance(shape, tuple)
        or len(shape) != 5
        or (shape[0], *shape[2:]) != (len(windows), *spatial_shape(windows))
    ):
        raise InputError(
            f"infer.window: the network returned {shape} for windows of {tuple(windows.shape)}; it must return logits "
            "(b, k, x, y, z) of the same size, so pass a function that picks them, or choose another window.shape_voxel"
        )
    return logits.float()
