"""Which of MONAI's transforms have a faster equivalent here, by their exact class and arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from voxelocity.core.jit import has_numba
from voxelocity.interop.monai.compared import plain_class, why_not_readable


@dataclass(frozen=True)
class _Way:
    """How one class is made faster.

    Attributes:
        why_not: why a transform is left to MONAI, in words; "" if it is not.
        make: makes the faster one.
    """

    why_not: Callable[[Any], str]
    make: Callable[[Any], Callable[..., Any]]


def faster(transform: object) -> Callable[..., Any] | None:
    """A callable that returns what this MONAI transform returns, faster; None if there is none.

    It takes and returns the same items: the same keys, types, metadata and applied operations, so MONAI can invert its
    results. Labels, boxes and indices are equal; intensities to the tolerances in docs/monai.md. It holds the arguments
    that the transform has now; neither the transform nor the item is changed. Thread-safe.

    Args:
        transform: of exactly one of MONAI's classes; subclasses are never replaced.
    """
    return None if why_not(transform) else _ways()[plain_class(transform)].make(transform)


def why_not(transform: object) -> str:
    """Why `faster` has nothing for this transform, in words; empty if it has."""
    if not has_numba():
        return "Numba is not installed, so no loop can be compiled"
    way = _ways().get(plain_class(transform))
    if way is not None:
        return why_not_readable(transform) or way.why_not(transform)
    name = type(transform).__name__
    for known in _ways():
        if isinstance(transform, known):
            return f"{name} is a subclass of {known.__name__}: what it changes is not known"
    return f"{name} has no faster equivalent here"


@functools.cache
def _ways() -> dict[type, _Way]:
    # Compiled loops are imported when the first transform is asked about, not with the package.
    from monai import transforms as mt

    from voxelocity.interop.monai.deterministic import crop, indices, intensity, load, orientation, spacing

    return {
        mt.LoadImage: _Way(load.why_not_load, load.FastLoadImage),
        mt.LoadImaged: _Way(load.why_not_loadd, load.fast_loadd),
        mt.Orientation: _Way(orientation.why_not_orientation, orientation.FastOrientation),
        mt.Orientationd: _Way(orientation.why_not_orientationd, orientation.fast_orientationd),
        mt.Spacing: _Way(spacing.why_not_spacing, spacing.fast_spacing),
        mt.Spacingd: _Way(spacing.why_not_spacingd, spacing.fast_spacingd),
        mt.CropForeground: _Way(crop.why_not_crop, crop.fast_crop),
        mt.CropForegroundd: _Way(crop.why_not_cropd, crop.fast_cropd),
        mt.FgBgToIndices: _Way(indices.why_not_indices, indices.FastIndices),
        mt.FgBgToIndicesd: _Way(indices.why_not_indicesd, indices.fast_indicesd),
        mt.ScaleIntensityRange: _Way(intensity.why_not_range, intensity.FastScaleRange),
        mt.ScaleIntensityRanged: _Way(intensity.why_not_ranged, intensity.fast_ranged),
        mt.NormalizeIntensity: _Way(intensity.why_not_normalize, intensity.FastNormalize),
        mt.NormalizeIntensityd: _Way(intensity.why_not_normalized, intensity.fast_normalized),
    }
