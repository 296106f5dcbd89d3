"""The window engine: a network that sees a small box of voxels, applied to volumes of any size.

Windows overlap; their logits are blended, weighted by a Gaussian, and the softmax is taken of the blend, as MONAI and
nnU-Net do. Where windows stand and how they weigh is MONAI's `sliding_window_inference` exactly; what differs is that
windows of several volumes share a forward pass, and that a volume of one window is not blended at all.
Not here: precision, compilation, and how the scan became the volume.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.core.errors import InputError
from voxelocity.core.region import Index3, Region
from voxelocity.data.patch import grid_regions
from voxelocity.infer.blending import Blend, importance, weight_sums

_X = 2  # of (b, c, x, y, z)
Forward = Callable[[torch.Tensor], torch.Tensor]
"""Windows (b, c, x, y, z) float32 to logits (b, k, x, y, z) of any floating point dtype, both on one device."""


class WindowConfig(Config):
    """How volumes are covered with windows."""

    shape_voxel: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Voxels of a window along (x, y, z); smaller volumes are padded to it with zeros on both sides."""
    overlap: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of a window that the next one covers again, on each axis."""
    blend: Blend = "gaussian"
    """Weight of a window's voxels: falling from the centre to the edges, or the same everywhere."""
    sigma_scale: float = Field(default=0.125, gt=0.0)
    """Standard deviation of the Gaussian as a share of the window's edge (nnU-Net's and MONAI's 1/8)."""
    batch_size: int = Field(default=1, ge=1)
    """Windows in one forward pass, of one volume or several."""
    mirror_axes: tuple[Annotated[int, Field(ge=0, le=2)], ...] = ()
    """Axes (0 for x) that predictions are averaged over: n axes cost 2**n forward passes."""
    swap_pairs: tuple[tuple[str, str], ...] = ()
    """Names of classes whose channels trade places in windows mirrored along x, as `data.augment.swap_pairs`."""


def predict_volume(
    forward: Forward,
    image_cxyz: torch.Tensor,
    config: WindowConfig,
    *,
    device: torch.device,
    swapped_classes: Sequence[int] = (),
) -> torch.Tensor:
    """Class probabilities of one volume, (k, x, y, z) float32 on `device`. See `predict_volumes`."""
    return next(predict_volumes(forward, (image_cxyz,), config, device=device, swapped_classes=swapped_classes))


def predict_volumes(
    forward: Forward,
    images: Iterable[torch.Tensor],
    config: WindowConfig,
    *,
    device: torch.device,
    swapped_classes: Sequence[int] = (),
) -> Iterator[torch.Tensor]:
    """Class probabilities of each volume, in order; windows of neighbouring volumes share forward passes.

    The result of a volume does not depend on its neighbours (beyond rounding, about 1e-6). Images are taken as they are
    needed, so they may be loaded lazily. Nothing waits for the device. The device holds up to `batch_size` images
    with what is predicted of them: 4 * (c + 2k) bytes a voxel while the last step of a volume runs.

    Args:
        forward: the network in evaluation mode, or a function that runs it at its precision. Called without gradients,
            with `batch_size` windows each time but for the last, which may be fewer.
        images: (c, x, y, z) each, floating point, on any device; left as they are.
        config: how volumes are covered.
        device: where the network is, and the results will be.
        swapped_classes: for each of the k classes, the one whose channel takes its place in windows mirrored along x
            (`core.laterality.swapped_classes` of the configuration's `swap_pairs`); empty for none.

    Yields:
        (k, x, y, z) float32 that sum to 1 over k. Logits of mirrored windows are averaged before the softmax too, as in
        nnU-Net v2.

    Raises:
        InputError: an image has other than four axes, or the network's answer has another shape than its windows.
    """
    pending: deque[_Prediction] = deque()
    windows = _windows(images, config, device, pending)
    swapped = torch.tensor(swapped_classes, dtype=torch.int64, device=device) if len(swapped_classes) > 0 else None
    while batch := list(itertools.islice(windows, config.batch_size)):
        _predict_batch(forward, batch, config, swapped)
        # All of them now, before the caller goes on: a CUDA graph's next answer would overwrite what they are made of.
        complete = deque[torch.Tensor]()
        while pending and pending[0].is_complete:
            complete.append(pending.popleft().finish())
        while complete:
            yield complete.popleft()


class _Prediction:
    """One volume while its windows come in."""

    def __init__(self, image_cxyz: torch.Tensor, config: WindowConfig, device: torch.device) -> None:
        if image_cxyz.ndim != 4:
            raise InputError(
                f"infer.window: an image has shape {tuple(image_cxyz.shape)}; it must have the axes (c, x, y, z)"
            )
        self._config = config
        self._image, self._inside = _pad(image_cxyz.to(device, torch.float32, non_blocking=True), config.shape_voxel)
        self.boxes = grid_regions(_shape(self._image), config.shape_voxel, config.overlap)
        self._num_left = len(self.boxes)
        self._sum: torch.Tensor | None = None

    @property
    def is_complete(self) -> bool:
        return self._num_left == 0

    def window(self, box: Region) -> torch.Tensor:
        """(c, x, y, z), a view."""
        return self._image[:, *box.slices]

    def add(self, logits_kxyz: torch.Tensor, box: Region) -> None:
        """Takes what the network said of one window."""
        self._num_left -= 1
        if len(self.boxes) == 1:
            self._sum = logits_kxyz
            return
        if self._sum is None:
            shape = (logits_kxyz.shape[0], *_shape(self._image))
            self._sum = logits_kxyz.new_zeros(shape)
        self._sum[:, *box.slices].addcmul_(logits_kxyz, self._importance(logits_kxyz.device))

    def finish(self) -> torch.Tensor:
        """Probabilities (k, x, y, z) of the volume without its padding; all other memory is given back."""
        assert self._sum is not None, "asked for only once all windows are in"
        logits = self._sum[:, *self._inside.slices]
        if len(self.boxes) > 1:
            starts = [sorted({box.start[axis] for box in self.boxes}) for axis in range(3)]
            sums = weight_sums(self._importance(logits.device), starts, _shape(self._image))
            logits = logits.div_(sums[self._inside.slices])
        self._sum = None
        del self._image
        return torch.softmax(logits, dim=0)

    def _importance(self, device: torch.device) -> torch.Tensor:
        config = self._config
        return importance(config.shape_voxel, config.blend, config.sigma_scale, device)


def _windows(
    images: Iterable[torch.Tensor], config: WindowConfig, device: torch.device, pending: deque[_Prediction]
) -> Iterator[tuple[_Prediction, Region]]:
    """Every window of every volume; a volume is put into `pending` just before its first."""
    for image in images:
        prediction = _Prediction(image, config, device)
        pending.append(prediction)
        for box in prediction.boxes:
            yield prediction, box


def _predict_batch(
    forward: Forward, batch: list[tuple[_Prediction, Region]], config: WindowConfig, swapped: torch.Tensor | None
) -> None:
    """One forward pass (times mirrorings); each answer goes to the volume its window is from."""
    with torch.no_grad():
        logits = _mirrored(forward, torch.stack([prediction.window(box) for prediction, box in batch]), config, swapped)
        for (prediction, box), answer in zip(batch, logits, strict=True):
            prediction.add(answer, box)


def _mirrored(
    forward: Forward, windows: torch.Tensor, config: WindowConfig, swapped: torch.Tensor | None
) -> torch.Tensor:
    """Logits (b, k, x, y, z) float32, the mean over all combinations of mirrored axes."""
    logits = _checked(forward(windows), windows)
    axes = [axis + 2 for axis in sorted(set(config.mirror_axes))]
    mirrorings = [m for n in range(1, len(axes) + 1) for m in itertools.combinations(axes, n)]
    if not mirrorings:
        return logits
    # A copy: the answer may lie in a buffer that the next forward pass writes to.
    total = logits.clone()
    for mirrored in mirrorings:
        answer = _checked(forward(windows.flip(mirrored)), windows).flip(mirrored)
        # What the network calls left in a mirror image is right.
        total += answer if swapped is None or _X not in mirrored else answer.index_select(1, swapped)
    return total.div_(len(mirrorings) + 1)


def _checked(logits: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(shape, tuple) or len(shape) != 5 or (shape[0], *shape[2:]) != (len(windows), *_shape(windows)):
        raise InputError(
            f"infer.window: the network answered {shape} to windows of {tuple(windows.shape)}; it must return logits "
            "(b, k, x, y, z) of the same size, so pass a function that picks them, or choose another window.shape_voxel"
        )
    return logits.float()


def _pad(image_cxyz: torch.Tensor, shape: Index3) -> tuple[torch.Tensor, Region]:
    """The image padded with zeros to at least `shape`, as much after as before or one more; and where it lies in it."""
    inside = _shape(image_cxyz)
    missing = [max(0, w - n) for n, w in zip(inside, shape, strict=True)]
    x, y, z = (n // 2 for n in missing)
    if any(missing):
        ends = [side for n in reversed(missing) for side in (n // 2, n - n // 2)]
        image_cxyz = torch.nn.functional.pad(image_cxyz, ends)
    return image_cxyz, Region.whole(inside).shifted((x, y, z))


def _shape(tensor: torch.Tensor) -> Index3:
    x, y, z = tensor.shape[-3:]
    return (x, y, z)
