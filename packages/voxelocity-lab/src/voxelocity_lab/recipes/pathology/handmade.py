"""Hand-made features of a patch, stains, intensity and texture, with a ridge regression: what a network must beat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
_PENALTY = 30.0
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
    share = SQUARE / images.shape[2]
    found = [_moments(part) for part in _parts(torch.cat([stains, gray, saturation], dim=1), share)]
    plane = torch.cat([stains[:, :1], gray], dim=1)
    for _ in range(_NUM_LEVELS):
        found += [part.mean(dim=(2, 3)) for part in _parts(_texture(plane), share)]
        plane = functional.avg_pool2d(plane, 2)
    return torch.cat(found, dim=1)


def _parts(planes: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Planes (b, c, y, x) of a patch, and of its middle, this share of its sides."""
    height, width = planes.shape[2:]
    side = max(1, round(share * height))
    top, left = (height - side) // 2, (width - side) // 2
    return planes, planes[:, :, top : top + side, left : left + side]


def _moments(planes: torch.Tensor) -> torch.Tensor:
    """(b, 3 c): mean, standard deviation and skewness."""
    flat = planes.flatten(2)
    mean = flat.mean(dim=2)
    apart = flat - mean[..., None]
    deviation = apart.square().mean(dim=2).sqrt()
    skewness = apart.pow(3).mean(dim=2) / deviation.clamp(min=1e-3).pow(3)
    return torch.cat([mean, deviation, skewness], dim=1)


def _texture(planes: torch.Tensor) -> torch.Tensor:
    """(b, 4 c, y, x) of (b, c, y, x)."""
    slopes = torch.zeros_like(planes)
    slopes[..., :-1, :] += (planes[..., 1:, :] - planes[..., :-1, :]).abs()
    slopes[..., :-1] += (planes[..., 1:] - planes[..., :-1]).abs()
    apart = (planes - functional.avg_pool2d(planes, 3, 1, 1, count_include_pad=False)).abs()
    return torch.cat([slopes, apart, _opened(planes), -_opened(-planes)], dim=1)


def _opened(planes: torch.Tensor) -> torch.Tensor:
    """Without spots that are higher than what surrounds them and smaller than three pixels."""
    least = -functional.max_pool2d(-planes, 3, 1, 1)
    return functional.max_pool2d(least, 3, 1, 1)
