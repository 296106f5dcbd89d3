"""Where sliding windows lie, what the predictor answers to them, and the sums that its answers are blended in.

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

    def places(self) -> Iterator[WindowPosition]:
        """Image after image, the last axis fastest."""
        for image in range(self.num_images):
            for start in itertools.product(*self.starts):
                yield WindowPosition(image, start)

    def slices(self, place: WindowPosition) -> list[slice]:
        """Slices of a batch with all its axes, as predictors that ask for coordinates get them."""
        box = [slice(a, a + n) for a, n in zip(place.start, self.window, strict=True)]
        return [slice(place.image, place.image + 1), slice(None), *box]


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

    def places(self, grid: WindowGrid) -> list[WindowPosition]:
        """Its windows, those that start first on the axis first."""
        found = []
        for along in self.starts:
            starts = [(along,) if axis == self.axis else every for axis, every in enumerate(grid.starts)]
            found += [WindowPosition(self.image, start) for start in itertools.product(*starts)]
        return found

    def shape(self, grid: WindowGrid) -> tuple[int, ...]:
        """Voxels on each spatial axis."""
        return (*grid.shape[: self.axis], self.stop - self.start, *grid.shape[self.axis + 1 :])

    def box(self, grid: WindowGrid, place: WindowPosition) -> tuple[slice, ...]:
        """Where a window lies in the slab."""
        starts = [a - self.start if axis == self.axis else a for axis, a in enumerate(place.start)]
        return tuple(slice(a, a + n) for a, n in zip(starts, grid.window, strict=True))


class Canvas:
    """The weighted sum of one of the predictor's answers over the windows of all images.

    Answers may be larger or smaller than their windows; places are scaled alike and rounded down.

    Args:
        grid: where windows lie on the inputs.
        answer: the first answer (b, k, ...), for its channels and size.
        weights: weights of an answer's voxels in the divisor, spatial axes only; None for 1 everywhere.
        dtype: of the sum.
        device: where the sum is.
    """

    def __init__(
        self,
        grid: WindowGrid,
        answer: torch.Tensor,
        weights: torch.Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # A copy, because a process_fn may change the weights in later calls.
        self._grid, self._weights = grid, None if weights is None else weights.clone()
        self._window = tuple(answer.shape[2:])
        shape = grid.num_images, answer.shape[1], *self._scaled(grid.shape)
        self.sum = torch.zeros(shape, dtype=dtype, device=device)

    def add(self, answer: torch.Tensor, place: WindowPosition, weights: torch.Tensor | None) -> None:
        """Adds the answer (k, ...) to one window, times `weights` (spatial axes only)."""
        start = self._scaled(place.start)
        box = [slice(a, a + n) for a, n in zip(start, self._window, strict=True)]
        add_weighted(self.sum[place.image][(slice(None), *box)], answer, weights)

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


def add_weighted(target: torch.Tensor, answer: torch.Tensor, weights: torch.Tensor | None) -> None:
    """Adds `answer * weights` to `target`, in one pass if all are on one device; `answer` does not change."""
    answer = answer.to(target.dtype)
    if weights is not None and answer.device != target.device:
        # Multiplied where the predictor runs, which is the faster of the two.
        answer, weights = answer * weights, None
    answer = answer.to(target.device)
    if weights is None:
        target.add_(answer)
    else:
        target.addcmul_(answer, weights)


@dataclass(frozen=True)
class Answers:
    """What one call of the predictor returned."""

    tensors: tuple[torch.Tensor, ...]
    """(n, k, ...) each, one window after the other."""
    weights: tuple[torch.Tensor | None, ...]
    """Weights of each tensor's voxels, spatial axes only; None if all are 1."""
    keys: tuple[Hashable, ...] | None
    """Keys of the mapping, if the predictor returned one."""


@dataclass(frozen=True, kw_only=True)
class PredictorCall:
    """Everything a call of the predictor needs, except the places of its windows."""

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

    def __call__(self, places: Sequence[WindowPosition]) -> Answers:
        """What the predictor returns for these windows.

        The windows are copies, made for this call: the predictor may change them, keep them or answer with them.

        Raises:
            InputError: the answer is not made of floating point tensors with one entry per window.
        """
        slices = [self.grid.slices(place) for place in places]
        windows = self._cut(self.images, slices)
        kwargs = self.kwargs
        if self.condition is not None:
            kwargs = {**kwargs, "condition": self._cut(self.condition, slices)}
        coordinates = (slices,) if self.with_coord else ()
        said = self.predictor(windows, *coordinates, *self.args, **kwargs)
        keys = tuple(sorted(said)) if isinstance(said, Mapping) else None
        tensors = tuple(said[key] for key in keys) if keys is not None else _listed(said)
        weights = self.weights
        if self.process is not None:
            tensors, weights = self.process(tensors, windows, weights)
        tensors = tuple(self._checked(tensor, len(places)) for tensor in tensors)
        return Answers(tensors, self._fitted(weights, tensors), keys)

    def _cut(self, images: torch.Tensor, slices: Sequence[list[slice]]) -> torch.Tensor:
        return torch.cat([images[tuple(each)] for each in slices]).to(self.device)

    def _checked(self, answer: Any, num_windows: int) -> torch.Tensor:
        shape = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        if not isinstance(shape, tuple) or len(shape) != self.images.ndim or shape[0] != num_windows:
            raise InputError(
                f"{WHERE}: the predictor returned {shape} for {num_windows} windows of {self.grid.window}; it must "
                f"return tensors of {self.images.ndim} axes, the first as long as the number of windows"
            )
        if answer.dtype.is_complex > self.images.is_complex() or not (
            answer.is_floating_point() or answer.is_complex()
        ):
            raise InputError(
                f"{WHERE}: the predictor returned {answer.dtype}, which cannot be blended in the inputs' "
                f"{self.images.dtype}; let it return floating point, and take classes from the result"
            )
        plain: torch.Tensor = answer.as_tensor() if isinstance(answer, MetaTensor) else answer
        return plain

    def _fitted(
        self, weights: torch.Tensor | None, tensors: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """The weights for each answer's size.

        As in MONAI, an answer of another size takes the nearest voxels of the previous answer's weights, not of the
        window's own. An answer of the window's size always gets the window's own weights; MONAI fails there.
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


def _listed(said: Any) -> tuple[Any, ...]:
    return tuple(said) if isinstance(said, Sequence) else (said,)


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
    """The outputs in the form of the predictor's answers: a mapping, one tensor, or a tuple of several."""
    if keys is not None:
        return dict(zip(keys, outputs, strict=False))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
