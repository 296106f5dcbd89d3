"""Hand-made features of a patch, stains, intensity and texture, with a ridge regression: what a network must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from voxelocity.core.batch import Batch
from voxelocity.data.augment.color import STAINS_APART
from voxelocity_lab.recipes.pathology.settings import SQUARE

_Float64 = npt.NDArray[np.float64]
_NUM_LEVELS = 3
# Of the regression, on features of unit variance.
_PENALTY = 3.0
# Standard deviations; a square of more would decide alone.
_MOST_FAR = 4.0
_LEAST = 1.0 / 255.0


@dataclass(frozen=True, kw_only=True)
class HandMade:
    """A regression of hand-made features and their squares on whether a patch is tumor.

    Attributes:
        mean: (n,), of each feature in training.
        scale: (n,), its standard deviation.
        weights: (2 n,), of the features and of their squares.
    """

    mean: _Float64
    scale: _Float64
    weights: _Float64

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """A number (b,) for each of the patches (b, 3, y, x) from 0 to 1: the higher, the more likely tumor."""
        return torch.from_numpy(_spread(_features_of(images), self.mean, self.scale) @ self.weights)

    def to_plain(self) -> dict[str, list[float]]:
        """As plain data for `model.json`."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_plain` returned."""
        return cls(**{name: np.asarray(values, np.float64) for name, values in plain.items()})


def fit_handmade(batches: Iterable[Batch]) -> HandMade:
    """The regression of batches of unchanged patches, whose label is that of the square in the middle."""
    measured, labels = [], []
    for batch in batches:
        measured.append(_features_of(batch.image))
        middle = batch.label.shape[1] // 2
        labels.append(batch.label[:, middle, middle].double().numpy())
    features, label = np.concatenate(measured), np.concatenate(labels)
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    spread = _spread(features, mean, scale)
    normal = spread.T @ spread + _PENALTY * np.eye(spread.shape[1])
    return HandMade(mean=mean, scale=scale, weights=np.linalg.solve(normal, spread.T @ (label - label.mean())))


def _spread(features: _Float64, mean: _Float64, scale: _Float64) -> _Float64:
    """(b, 2 n): features of unit variance, and their squares."""
    unit = np.clip((features - mean) / scale, -_MOST_FAR, _MOST_FAR)
    return np.concatenate([unit, unit**2 - 1.0], axis=1)


def _features_of(images: torch.Tensor) -> _Float64:
    return measure_features(images.cpu()).double().numpy()


def measure_features(images: torch.Tensor) -> torch.Tensor:
    """(b, n) of patches (b, 3, y, x) from 0 to 1, each over the whole patch and over the square in its middle.

    Mean, deviation and skewness of the amounts of hematoxylin, eosin and residue, of optical density and saturation;
    and the texture of hematoxylin and density at three resolutions: slopes, what stands out from its surroundings, and
    what is left of dark and of light spots when those smaller than three pixels are removed.
    """
    density = images.clamp(_LEAST, 1.0).log().neg()
    stains = torch.einsum("bcyx,cs->bsyx", density, torch.from_numpy(STAINS_APART).float())
    gray = density.mean(dim=1, keepdim=True)
    saturation = 1.0 - images.amin(dim=1, keepdim=True) / images.amax(dim=1, keepdim=True).clamp(min=_LEAST)
    colors = torch.cat([stains, gray, saturation], dim=1)
    found = [_moments(colors), _moments(_middle(colors, SQUARE))]
    plane, side = torch.cat([stains[:, :1], gray], dim=1), SQUARE
    for _ in range(_NUM_LEVELS):
        texture = _texture(plane)
        found += [part.mean(dim=(2, 3)) for part in (*texture, *(_middle(part, side) for part in texture))]
        plane, side = functional.avg_pool2d(plane, 2), side // 2
    return torch.cat(found, dim=1)


def _middle(planes: torch.Tensor, side: int) -> torch.Tensor:
    """The square of this side, or all where there is less, in the middle of planes (b, c, y, x)."""
    top, left = (max(0, (size - side) // 2) for size in planes.shape[2:])
    return planes[:, :, top : top + side, left : left + side]


def _moments(planes: torch.Tensor) -> torch.Tensor:
    """(b, 3 c): mean, standard deviation and skewness."""
    flat = planes.flatten(2)
    mean = flat.mean(dim=2)
    apart = flat - mean[..., None]
    deviation = apart.square().mean(dim=2).sqrt()
    skewness = apart.pow(3).mean(dim=2) / deviation.clamp(min=1e-3).pow(3)
    return torch.cat([mean, deviation, skewness], dim=1)


def _texture(planes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four maps (b, c, ...) of planes (b, c, y, x), each smaller by the same on all sides."""
    inside = planes[..., 1:-1, 1:-1]
    slopes = (planes[..., 2:, 1:-1] - inside).abs() + (planes[..., 1:-1, 2:] - inside).abs()
    apart = (inside - _over_three(planes, lambda one, two, three: (one + two + three) / 3.0)).abs()
    return slopes, apart, _opened(planes), -_opened(-planes)


def _opened(planes: torch.Tensor) -> torch.Tensor:
    """Without spots that are higher than what surrounds them and smaller than three pixels."""
    least = _over_three(planes, lambda one, two, three: torch.minimum(torch.minimum(one, two), three))
    return _over_three(least, lambda one, two, three: torch.maximum(torch.maximum(one, two), three))


def _over_three(
    planes: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Three neighbors along y, then along x, combined: ten times as quick as torch's pools of stride 1."""
    rows = combine(planes[..., :-2, :], planes[..., 1:-1, :], planes[..., 2:, :])
    return combine(rows[..., :-2], rows[..., 1:-1], rows[..., 2:])
