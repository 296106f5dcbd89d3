"""What changes intensities and no places: scaling, ranges, contrast, filters, spectra, shuffled voxels.

Only images are changed; labels go along and are compared too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import monai.transforms as mt
import numpy as np

from parity.case import Item, ParityCase, cases_of, item_of, scaled

TOLERANCE = 1e-5
"""Sums are made in another order, powers and exponentials by another library."""
SPIKE_TOLERANCE = 1e-4
"""A spike's size is exp of a logarithm that MONAI takes in float32, and its phase that of one frequency of many."""
Make = Callable[[int], Item]


def cases(side: int) -> Iterator[ParityCase]:
    """All of them, for patches of this many voxels a side."""
    patch: Make = functools.partial(item_of, shape=(side, side, side))
    # Two channels, a third of the voxels 0.
    slim: Make = functools.partial(item_of, shape=scaled(side, 101, 90, 57), num_channels=2, empty_share=0.3)
    whole: Make = functools.partial(item_of, shape=scaled(side, 101, 90, 57), num_channels=2, dtype=np.int16)
    plane: Make = functools.partial(item_of, shape=scaled(side, 320, 288))
    yield from _scalings(patch, slim, whole)
    yield from _shifts(patch, slim, whole)
    yield from _ranges(patch, slim, whole)
    yield from _contrasts(patch, slim, plane)
    yield from _filters(patch, slim, plane)
    yield from _spectra(patch, slim, plane)
    yield from _shuffles(side, patch, slim)


def _of(transform: type, *tried: tuple[Make, Mapping[str, Any]], tolerance: float = TOLERANCE) -> list[ParityCase]:
    return cases_of(transform, *tried, keys="image", tolerance=tolerance)


def _scalings(patch: Make, slim: Make, whole: Make) -> Iterator[ParityCase]:
    by = {"factors": 0.3, "prob": 1.0}
    yield from _of(
        mt.RandScaleIntensityd,
        (patch, by),
        (slim, by | {"channel_wise": True}),
        (whole, {"factors": (-0.5, 0.5), "prob": 0.5}),
    )
    yield from _of(
        mt.RandScaleIntensityFixedMeand,
        (patch, by),
        (slim, by | {"channel_wise": True, "preserve_range": True}),
        (slim, by | {"fixed_mean": False, "prob": 0.5}),
    )


def _shifts(patch: Make, slim: Make, whole: Make) -> Iterator[ParityCase]:
    by = {"offsets": 10.0, "prob": 1.0}
    yield from _of(
        mt.RandShiftIntensityd,
        (patch, by),
        (slim, by | {"channel_wise": True}),
        (whole, {"offsets": (-5.0, 20.0), "prob": 0.5, "safe": True}),
    )
    yield from _of(mt.ShiftIntensityd, (patch, {"offset": -7.5}), (whole, {"offset": 12.0, "safe": True}))
    by_std = {"factors": 0.5, "prob": 1.0}
    yield from _of(
        mt.RandStdShiftIntensityd,
        (patch, by_std),
        (slim, by_std | {"channel_wise": True, "nonzero": True}),
        (slim, by_std | {"nonzero": True, "prob": 0.5}),
    )
    yield from _of(
        mt.StdShiftIntensityd,
        (patch, {"factor": 0.7}),
        (slim, {"factor": -0.7, "channel_wise": True, "nonzero": True}),
    )


def _ranges(patch: Make, slim: Make, whole: Make) -> Iterator[ParityCase]:
    yield from _of(
        mt.ScaleIntensityd,
        (patch, {}),
        (slim, {"minv": -1.0, "maxv": 2.0, "channel_wise": True}),
        (whole, {"minv": None, "maxv": None, "factor": 0.4}),
    )
    window = {"a_min": 10, "a_max": 80, "b_min": 0.0, "b_max": 1.0}
    yield from _of(
        mt.ScaleIntensityRanged,
        (patch, window | {"clip": True}),
        (whole, window),
        (slim, window | {"b_min": None, "b_max": None}),
    )
    percentiles = {"lower": 2, "upper": 97, "b_min": 0.0, "b_max": 1.0}
    yield from _of(
        mt.ScaleIntensityRangePercentilesd,
        (patch, percentiles | {"clip": True}),
        (slim, percentiles | {"channel_wise": True, "clip": True}),
        (slim, percentiles | {"relative": True}),
        (patch, percentiles | {"b_min": None, "b_max": None}),
    )
    yield from _of(
        mt.NormalizeIntensityd,
        (patch, {}),
        (slim, {"nonzero": True, "channel_wise": True}),
        (slim, {"nonzero": True, "subtrahend": 40.0, "divisor": 25.0}),
        (slim, {"channel_wise": True, "subtrahend": (40.0, 50.0), "divisor": (25.0, 30.0)}),
    )
    yield from _of(
        mt.ThresholdIntensityd,
        (patch, {"threshold": 30.0}),
        (slim, {"threshold": 70.0, "above": False, "cval": 70.0}),
    )


def _contrasts(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    within = {"prob": 1.0, "gamma": (0.5, 3.0)}
    yield from _of(
        mt.RandAdjustContrastd,
        (patch, within),
        (slim, within | {"retain_stats": True}),
        (slim, within | {"invert_image": True, "prob": 0.5}),
    )
    yield from _of(
        mt.AdjustContrastd,
        (patch, {"gamma": 1.7}),
        (plane, {"gamma": 0.6, "invert_image": True, "retain_stats": True}),
    )
    yield from _of(
        mt.RandHistogramShiftd,
        (patch, {"prob": 1.0}),
        (slim, {"prob": 1.0, "num_control_points": 5}),
        (plane, {"prob": 0.5, "num_control_points": (5, 15)}),
    )
    yield from _of(
        mt.RandBiasFieldd,
        (patch, {"prob": 1.0}),
        (slim, {"prob": 1.0, "degree": 5, "coeff_range": (-0.2, 0.2)}),
        (plane, {"prob": 0.5, "degree": 2}),
    )


def _filters(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    wide = {"sigma_x": (0.5, 2.5), "sigma_y": (0.25, 1.0), "sigma_z": (1.0, 3.0)}
    yield from _of(
        mt.RandGaussianSmoothd,
        (patch, {"prob": 1.0}),
        (slim, wide | {"prob": 1.0, "approx": "sampled"}),
        (slim, wide | {"prob": 1.0, "approx": "scalespace"}),
        (plane, {"prob": 0.5}),
    )
    yield from _of(mt.GaussianSmoothd, (patch, {"sigma": 1.5}), (slim, {"sigma": (0.5, 2.0, 3.0)}))
    yield from _of(
        mt.RandGaussianSharpend,
        (patch, {"prob": 1.0}),
        (slim, {"prob": 1.0, "sigma1_x": (1.0, 2.0), "alpha": (1.0, 5.0), "approx": "sampled"}),
        (plane, {"prob": 0.5}),
    )
    yield from _of(mt.GaussianSharpend, (patch, {}), (slim, {"sigma1": 2.0, "sigma2": 0.7, "alpha": 10.0}))


def _spectra(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    yield from _of(
        mt.RandGibbsNoised,
        (patch, {"prob": 1.0}),
        (slim, {"prob": 1.0, "alpha": (0.4, 0.8)}),
        (plane, {"prob": 0.5, "alpha": 0.7}),
    )
    yield from _of(mt.GibbsNoised, (patch, {"alpha": 0.5}), (plane, {"alpha": 0.9}))
    yield from _of(
        mt.RandKSpaceSpikeNoised,
        (patch, {"prob": 1.0}),
        (slim, {"prob": 1.0, "channel_wise": True, "intensity_range": ((11, 12), (12, 13))}),
        (plane, {"prob": 0.5, "intensity_range": (10, 13)}),
        tolerance=SPIKE_TOLERANCE,
    )


def _shuffles(side: int, patch: Make, slim: Make) -> Iterator[ParityCase]:
    size = scaled(side, 16, 16, 16)
    yield from _of(
        mt.RandCoarseShuffled,
        (patch, {"prob": 1.0, "holes": 6, "spatial_size": size}),
        (slim, {"prob": 1.0, "holes": 2, "max_holes": 8, "spatial_size": 4, "max_spatial_size": size}),
    )
