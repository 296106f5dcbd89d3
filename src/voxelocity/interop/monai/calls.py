"""What a sliding window asks its predictor, and the answers: windows cut, called, processed and checked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor

from voxelocity.core.errors import InputError
from voxelocity.interop.monai.stitch import WHERE, Grid, Place

Prediction = torch.Tensor | Sequence[torch.Tensor] | Mapping[Any, torch.Tensor]
"""What predictors return, and what inference returns."""


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
class Calls:
    """Everything a call of the predictor needs, except the places of its windows."""

    images: torch.Tensor
    condition: torch.Tensor | None
    grid: Grid
    predictor: Callable[..., Any]
    process: Callable[..., Any] | None
    weights: torch.Tensor | None
    """Weights of a window's voxels, on `device`."""
    with_coord: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device

    def __call__(self, places: Sequence[Place]) -> Answers:
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
