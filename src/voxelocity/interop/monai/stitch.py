"""Where sliding windows lie, and the sums that their answers are blended in. Knows neither networks nor padding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from voxelocity.data.patch import axis_starts
from voxelocity.infer.blending import weight_sums

WHERE = "sliding_window_inference"


@dataclass(frozen=True)
class Place:
    """One window: its image in the batch, and its first voxels."""

    image: int
    start: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Where the windows of a batch of images lie."""

    num_images: int
    shape: tuple[int, ...]
    """Shape of the padded images, spatial axes only."""
    window: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    """First voxels of the windows, ascending, for each axis."""

    @classmethod
    def of(cls, num_images: int, shape: Sequence[int], window: Sequence[int], overlap: Sequence[float]) -> Grid:
        """Windows that cover images of `shape`, none of whose axes is shorter than the window's."""
        starts = tuple(tuple(axis_starts(*axis)) for axis in zip(shape, window, overlap, strict=True))
        return cls(num_images, tuple(shape), tuple(window), starts)

    @property
    def is_disjoint(self) -> bool:
        """Whether every voxel belongs to one window alone."""
        axes = zip(self.starts, self.window, strict=True)
        return all(b - a >= side for starts, side in axes for a, b in itertools.pairwise(starts))

    def places(self) -> Iterator[Place]:
        """Image after image, the last axis fastest."""
        for image in range(self.num_images):
            for start in itertools.product(*self.starts):
                yield Place(image, start)

    def slices(self, place: Place) -> list[slice]:
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
    def all_of(cls, grid: Grid, axis: int, num_steps: int) -> list[Slab]:
        """`num_steps` starts a slab (the last may have fewer), image after image."""
        starts, side = grid.starts[axis], grid.window[axis]
        groups = [starts[i : i + num_steps] for i in range(0, len(starts), num_steps)]
        return [
            cls(image, axis, group, group[0], group[-1] + side) for image in range(grid.num_images) for group in groups
        ]

    def places(self, grid: Grid) -> list[Place]:
        """Its windows, those that start first on the axis first."""
        found = []
        for along in self.starts:
            starts = [(along,) if axis == self.axis else every for axis, every in enumerate(grid.starts)]
            found += [Place(self.image, start) for start in itertools.product(*starts)]
        return found

    def shape(self, grid: Grid) -> tuple[int, ...]:
        """Voxels on each spatial axis."""
        return (*grid.shape[: self.axis], self.stop - self.start, *grid.shape[self.axis + 1 :])

    def box(self, grid: Grid, place: Place) -> tuple[slice, ...]:
        """Where a window lies in the slab."""
        starts = [a - self.start if axis == self.axis else a for axis, a in enumerate(place.start)]
        return tuple(slice(a, a + n) for a, n in zip(starts, grid.window, strict=True))


def slabs_overlap(slabs: Sequence[Slab]) -> bool:
    """Whether a voxel of an image belongs to two slabs."""
    return any(a.image == b.image and b.start < a.stop for a, b in itertools.pairwise(slabs))


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
        self, grid: Grid, answer: torch.Tensor, weights: torch.Tensor | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._grid, self._weights = grid, weights
        self._window = tuple(answer.shape[2:])
        shape = grid.num_images, answer.shape[1], *self._scaled(grid.shape)
        self.sum = torch.zeros(shape, dtype=dtype, device=device)

    def add(self, answer: torch.Tensor, place: Place, weights: torch.Tensor | None) -> None:
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
