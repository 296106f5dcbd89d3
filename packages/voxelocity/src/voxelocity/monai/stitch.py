"""Where sliding windows lie, what the predictor returns for them, and the sums that its outputs are blended in.

Windows are cut, called, processed and checked here. Knows no padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor

from voxelocity.data.patch import axis_starts
from voxelocity.infer.blending import weight_sums
from voxelocity_observe.core.errors import InputError

WHERE = "sliding_window_inference"
Prediction = torch.Tensor | Sequence[torch.Tensor] | Mapping[Any, torch.Tensor]
"""What predictors return, and what inference returns."""


@dataclass(frozen=True)
class WindowPosition:
    """One window: its image in the batch, and its first voxels."""

    image: int
    start: tuple[int, ...]


@dataclass(frozen=True)
class WindowGrid:
    """Where the windows of a batch of images lie."""

    num_images: int
    shape: tuple[int, ...]
    """Shape of the padded images, spatial axes only."""
    window: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    """First voxels of the windows, ascending, for each axis."""

    @classmethod
    def of(cls, num_images: int, shape: Sequence[int], window: Sequence[int], overlap: Sequence[float]) -> WindowGrid:
        """Windows that cover images of `shape`, none of whose axes is shorter than the window's."""
        starts = tuple(tuple(axis_starts(*axis)) for axis in zip(shape, window, overlap, strict=True))
        return cls(num_images, tuple(shape), tuple(window), starts)

    @property
    def is_disjoint(self) -> bool:
        """Whether every voxel belongs to one window alone."""
        axes = zip(self.starts, self.window, strict=True)
        return all(b - a >= side for starts, side in axes for a, b in itertools.pairwise(starts))

    def positions(self) -> Iterator[WindowPosition]:
        """Image after image, the last axis fastest."""
        for image in range(self.num_images):
            for start in itertools.product(*self.starts):
                yield WindowPosition(image, start)

    def slices(self, position: WindowPosition) -> list[slice]:
        """Slices of a batch with all its axes, as predictors that ask for coordinates get them."""
        box = [slice(a, a + n) for a, n in zip(position.start, self.window, strict=True)]
        return [slice(position.image, position.image + 1), slice(None), *box]


@dataclass(frozen=True)
class Slab:
    """Some neighboring starts of windows along one axis, of one image."""

    image: int
    axis: int
    starts: tuple[int, ...]
    start: int
    stop: int

    @classmethod
    def all_of(cls, grid: WindowGrid, axis: int, num_steps: int) -> list[Slab]:
        """`num_steps` starts a slab (the last may have fewer), image after image."""
        starts, side = grid.starts[axis], grid.window[axis]
        groups = [starts[i : i + num_steps] for i in range(0, len(starts), num_steps)]
        return [
            cls(image, axis, group, group[0], group[-1] + side) for image in range(grid.num_images) for group in groups
        ]

    def positions(self, grid: WindowGrid) -> list[WindowPosition]:
        """Its windows, those that start first on the axis first."""
        found = []
        for along in self.starts:
            starts = [(along,) if axis == self.axis else every for axis, every in enumerate(grid.starts)]
            found += [WindowPosition(self.image, start) for start in itertools.product(*starts)]
        return found

    def shape(self, grid: WindowGrid) -> tuple[int, ...]:
        """Voxels on each spatial axis."""
        return (*grid.shape[: self.axis], self.stop - self.start, *grid.shape[self.axis + 1 :])

    def box(self, grid: WindowGrid, position: WindowPosition) -> tuple[slice, ...]:
        """Where a window lies in the slab."""
        starts = [a - self.start if axis == self.axis else a for axis, a in enumerate(position.start)]
        return tuple(slice(a, a + n) for a, n in zip(starts, grid.window, strict=True))


class Canvas:
    """The weighted sum of one of the predictor's outputs over the windows of all images.

    Outputs may be larger or smaller than their windows; positions are scaled alike and rounded down.

    Args:
        grid: where windows lie on the inputs.
        output: the first output (b, k, ...), for its channels and size.
        weights: weights of an output's voxels in the divisor, spatial axes only; None for 1 everywhere.
        dtype: of the sum.
        device: where the sum is.
    """

    def __init__(
        self,
        grid: WindowGrid,
        output: torch.Tensor,
        weights: torch.Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # A copy, because a process_fn may change the weights in later calls.
        self._grid, self._weights = grid, None if weights is None else weights.clone()
        self._window = tuple(output.shape[2:])
        shape = grid.num_images, output.shape[1], *self._scaled(grid.shape)
        self.sum = torch.zeros(shape, dtype=dtype, device=device)

    def add(self, output: torch.Tensor, position: WindowPosition, weights: torch.Tensor | None) -> None:
        """Adds the output (k, ...) to one window, times `weights` (spatial axes only)."""
        start = self._scaled(position.start)
        box = [slice(a, a + n) for a, n in zip(start, self._window, strict=True)]
        add_weighted(self.sum[position.image][(slice(None), *box)], output, weights)

    def add_slab(self, total: torch.Tensor, slab: Slab, *, once: bool) -> None:
        """Adds a slab (k, ...) that is already weighted; with `once` no other slab has voxels in common with it."""
        target = self.sum[slab.image].narrow(slab.axis + 1, slab.start, slab.stop - slab.start)
        if once:
            target.copy_(total)
        else:
            target.add_(total.to(target.device))

    def finish(self) -> torch.Tensor:
        """The weighted mean (b, k, ...), in the memory of the sum."""
        weights = self._weights
        if weights is None:
            if self._grid.is_disjoint:
                return self.sum
            weights = torch.ones(self._window)
        scales = zip(self._grid.starts, self._window, self._grid.window, strict=True)
        starts = [[a * size // side for a in axis] for axis, size, side in scales]
        sums = weight_sums(weights.to(self.sum.device, self.sum.dtype), starts, self.sum.shape[2:])
        return self.sum.div_(sums)

    def _scaled(self, voxels: Sequence[int]) -> list[int]:
        # Whole numbers: MONAI multiplies by a rounded ratio, and then 49 * (1 / 49) is 0.
        return [n * size // side for n, size, side in zip(voxels, self._window, self._grid.window, strict=True)]


def add_weighted(target: torch.Tensor, output: torch.Tensor, weights: torch.Tensor | None) -> None:
    """Adds `output * weights` to `target`, in one pass if all are on one device; `output` does not change."""
    output = output.to(target.dtype)
    if weights is not None and output.device != target.device:
        # Multiplied where the predictor runs, which is the faster of the two.
        output, weights = output * weights, None
    output = output.to(target.device)
    if weights is None:
        target.add_(output)
    else:
        target.addcmul_(output, weights)


@dataclass(frozen=True)
class PredictorOutputs:
    """What one call of the predictor returned."""

    tensors: tuple[torch.Tensor, ...]
    """(n, k, ...) each, one window after the other."""
    weights: tuple[torch.Tensor | None, ...]
    """Weights of each tensor's voxels, spatial axes only; None if all are 1."""
    keys: tuple[Hashable, ...] | None
    """Keys of the mapping, if the predictor returned one."""


@dataclass(frozen=True, kw_only=True)
class PredictorCall:
    """Everything a call of the predictor needs, except the positions of its windows."""

    images: torch.Tensor
    condition: torch.Tensor | None
    grid: WindowGrid
    predictor: Callable[..., Any]
    process: Callable[..., Any] | None
    weights: torch.Tensor | None
    """Weights of a window's voxels, on `device`."""
    with_coord: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device

    def __call__(self, positions: Sequence[WindowPosition]) -> PredictorOutputs:
        """What the predictor returns for these windows.

        The windows are copies, made for this call: the predictor may change them, keep them or return them.

        Raises:
            InputError: the output is not made of floating point tensors with one entry per window.
        """
        slices = [self.grid.slices(position) for position in positions]
        windows = self._cut(self.images, slices)
        kwargs = self.kwargs
        if self.condition is not None:
            kwargs = {**kwargs, "condition": self._cut(self.condition, slices)}
        coordinates = (slices,) if self.with_coord else ()
        returned = self.predictor(windows, *coordinates, *self.args, **kwargs)
        keys = tuple(sorted(returned)) if isinstance(returned, Mapping) else None
        tensors = tuple(returned[key] for key in keys) if keys is not None else _listed(returned)
        weights = self.weights
        if self.process is not None:
            tensors, weights = self.process(tensors, windows, weights)
        tensors = tuple(self._check(tensor, len(positions)) for tensor in tensors)
        return PredictorOutputs(tensors, self._fit_weights(weights, tensors), keys)

    def _cut(self, images: torch.Tensor, slices: Sequence[list[slice]]) -> torch.Tensor:
        return torch.cat([images[tuple(box)] for box in slices]).to(self.device)

    def _check(self, output: Any, num_windows: int) -> torch.Tensor:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        if not isinstance(shape, tuple) or len(shape) != self.images.ndim or shape[0] != num_windows:
            raise InputError(
                f"{WHERE}: the predictor returned {shape} for {num_windows} windows of {self.grid.window}; it must "
                f"return tensors of {self.images.ndim} axes, the first as long as the number of windows"
            )
        if output.dtype.is_complex > self.images.is_complex() or not (
            output.is_floating_point() or output.is_complex()
        ):
            raise InputError(
                f"{WHERE}: the predictor returned {output.dtype}, which cannot be blended in the inputs' "
                f"{self.images.dtype}; let it return floating point, and take classes from the result"
            )
        plain: torch.Tensor = output.as_tensor() if isinstance(output, MetaTensor) else output
        return plain

    def _fit_weights(
        self, weights: torch.Tensor | None, tensors: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """The weights for each output's size.

        As in MONAI, an output of another size takes the nearest voxels of the previous output's weights, not of the
        window's own. An output of the window's size always gets the window's own weights; MONAI fails there.
        """
        if weights is None:
            return (None,) * len(tensors)
        window_weights = as_spatial(weights, self.grid.window).to(self.device, self.images.dtype)
        fitted, last = [], window_weights
        for tensor in tensors:
            size = tuple(tensor.shape[2:])
            if size == self.grid.window:
                fitted.append(window_weights if tuple(window_weights.shape) == size else last)
                continue
            last = torch.nn.functional.interpolate(last[None, None], size, mode="nearest-exact")[0, 0]
            fitted.append(last)
        return tuple(fitted)


def _listed(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, Sequence) else (returned,)


def as_spatial(weights: torch.Tensor, window: tuple[int, ...]) -> torch.Tensor:
    """The weights without batch and channel axes; they share memory.

    Raises:
        InputError: they differ between windows of a batch or between channels.
    """
    extra = weights.ndim - len(window)
    if extra not in (0, 2) or any(n != 1 for n in weights.shape[:extra]):
        raise InputError(
            f"{WHERE}: weights of shape {tuple(weights.shape)} do not fit windows of {window}; give one per voxel, "
            "without batch and channel axes"
        )
    return weights[0, 0] if extra else weights


def packed(outputs: Sequence[torch.Tensor], keys: tuple[Hashable, ...] | None) -> Prediction:
    """The outputs in the form in which the predictor returns them: a mapping, one tensor, or a tuple of several."""
    if keys is not None:
        return dict(zip(keys, outputs, strict=False))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
