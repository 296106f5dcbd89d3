"""Everything that resamples: warps, zooms, resizing, elastic deformation, and low resolution simulated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import monai.transforms as mt
import numpy as np

from parity.case import Item, ParityCase, cases_of, item_of, scaled

TOLERANCE = 3e-5
"""A place is a float32 number: off by up to 2e-5 voxels where a side has 320. Neighbors in these images, which are
white noise, differ by as much as the whole range. MONAI also sums neighbors in another order, or in float64."""
Make = Callable[[int], Item]
_MODE = ("bilinear", "nearest")
_TURNS = {"rotate_range": (0.4, 0.4, 0.4), "scale_range": (0.2, 0.2, 0.2)}


def cases(side: int) -> Iterator[ParityCase]:
    """All of them, for patches of this many voxels a side."""
    patch: Make = functools.partial(item_of, shape=(side, side, side))
    # Odd sides, and integers.
    slim: Make = functools.partial(item_of, shape=scaled(side, 101, 90, 57), num_channels=2, dtype=np.int16)
    plane: Make = functools.partial(item_of, shape=scaled(side, 320, 288))
    yield from _affines(side, patch, slim, plane)
    yield from _rotations(patch, slim, plane)
    yield from _zooms(patch, slim, plane)
    yield from _resizings(side, patch, slim, plane)
    yield from _elastic(side, patch, slim, plane)
    yield from _low_resolutions(patch, slim, plane)


def _affines(side: int, patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    always = {"prob": 1.0, "mode": _MODE}
    shear = (0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    size = scaled(side, 80, 96, 48)
    yield from cases_of(
        mt.RandAffined,
        (patch, always | _TURNS | {"padding_mode": "zeros"}),
        (patch, always | {"shear_range": shear, "translate_range": (9, 9, 9), "padding_mode": ("border", "zeros")}),
        (slim, always | _TURNS | {"spatial_size": size, "padding_mode": "reflection"}),
        (patch, {"prob": 0.5, "mode": "nearest", "rotate_range": (0.0, 0.0, 1.5)}),
        (patch, always | _TURNS | {"spatial_size": (side, side, side), "cache_grid": True}),
        (plane, always | {"rotate_range": 0.8, "scale_range": (0.3, 0.3), "padding_mode": "border"}),
        tolerance=TOLERANCE,
    )
    moves = {"rotate_params": (0.2, -0.1, 0.3), "translate_params": (4.0, -3.0, 2.5), "scale_params": (1.1, 0.9, 1.2)}
    yield from cases_of(
        mt.Affined,
        (patch, moves | {"mode": _MODE, "padding_mode": "zeros"}),
        (slim, moves | {"mode": _MODE, "padding_mode": "reflection", "spatial_size": size}),
        (patch, {"shear_params": (0.1, 0.2, 0.0, 0.1, 0.0, 0.3), "mode": _MODE, "align_corners": True}),
        (plane, {"rotate_params": 0.5, "mode": "nearest", "padding_mode": "border"}),
        tolerance=TOLERANCE,
    )


def _rotations(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    always = {"prob": 1.0, "mode": _MODE}
    ranges = {"range_x": 0.4, "range_y": 0.3, "range_z": 0.5}
    yield from cases_of(
        mt.RandRotated,
        (patch, always | ranges),
        (patch, always | ranges | {"padding_mode": "zeros", "align_corners": True}),
        (slim, always | ranges | {"padding_mode": ("reflection", "border"), "keep_size": False}),
        (patch, {"prob": 0.5, "mode": "nearest", "range_x": (0.1, 1.5)}),
        (plane, always | {"range_x": 1.0, "padding_mode": "zeros"}),
        tolerance=TOLERANCE,
    )
    yield from cases_of(
        mt.Rotated,
        (patch, {"angle": (0.3, -0.2, 0.5), "mode": _MODE}),
        (slim, {"angle": (0.3, 0.0, 1.2), "mode": _MODE, "keep_size": False, "padding_mode": "zeros"}),
        (plane, {"angle": 0.7, "mode": _MODE, "padding_mode": "reflection", "align_corners": True}),
        tolerance=TOLERANCE,
    )


def _zooms(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    mode = ("trilinear", "nearest")
    within = {"prob": 1.0, "min_zoom": 0.7, "max_zoom": 1.4, "mode": mode}
    apart = {"min_zoom": (0.7, 0.9, 0.8), "max_zoom": (1.1, 1.4, 1.2)}
    yield from cases_of(
        mt.RandZoomd,
        (patch, within),
        (patch, within | {"padding_mode": "constant", "align_corners": (True, None)}),
        (slim, within | apart | {"padding_mode": "reflect"}),
        (slim, within | {"keep_size": False, "mode": ("area", "nearest-exact")}),
        (patch, {"prob": 0.5, "mode": "nearest", "min_zoom": 0.9, "max_zoom": 1.1}),
        (plane, within | {"mode": ("bilinear", "nearest"), "padding_mode": "edge"}),
        tolerance=TOLERANCE,
    )
    yield from cases_of(
        mt.Zoomd,
        (patch, {"zoom": 1.2, "mode": mode}),
        (slim, {"zoom": (0.8, 1.3, 0.6), "mode": mode, "keep_size": False}),
        (plane, {"zoom": 0.75, "mode": ("area", "nearest"), "padding_mode": "constant"}),
        tolerance=TOLERANCE,
    )


def _resizings(side: int, patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    size, mode = scaled(side, 80, 112, 48), ("trilinear", "nearest")
    yield from cases_of(
        mt.Resized,
        (patch, {"spatial_size": size, "mode": mode}),
        (patch, {"spatial_size": size, "mode": mode, "align_corners": (True, None)}),
        (slim, {"spatial_size": side, "size_mode": "longest", "mode": ("area", "nearest-exact")}),
        (plane, {"spatial_size": (side, -1), "mode": ("bilinear", "nearest")}),
        (slim, {"spatial_size": (-1, -1, -1), "mode": mode}),
        tolerance=TOLERANCE,
    )


def _elastic(side: int, patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    bent = {"prob": 1.0, "sigma_range": (3, 5), "magnitude_range": (50, 150), "mode": _MODE}
    yield from cases_of(
        mt.Rand3DElasticd,
        (patch, bent | {"padding_mode": "zeros"}),
        (patch, bent | _TURNS | {"translate_range": (5, 5, 5), "padding_mode": "border"}),
        (slim, bent | {"spatial_size": scaled(side, 80, 96, 48), "padding_mode": "reflection"}),
        (patch, bent | {"prob": 0.5, "mode": "nearest"}),
        tolerance=TOLERANCE,
    )
    waved = {"prob": 1.0, "spacing": (20, 20), "magnitude_range": (1, 4), "mode": _MODE}
    yield from cases_of(
        mt.Rand2DElasticd,
        (plane, waved | {"padding_mode": "zeros"}),
        (plane, waved | {"rotate_range": 0.4, "scale_range": (0.2, 0.2), "padding_mode": "border"}),
        (plane, waved | {"spatial_size": scaled(side, 256, 256), "padding_mode": "reflection", "mode": "nearest"}),
        tolerance=TOLERANCE,
    )


def _low_resolutions(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    always = {"prob": 1.0, "zoom_range": (0.4, 0.9)}
    linear = {"downsample_mode": "area", "upsample_mode": "bilinear"}
    yield from cases_of(
        mt.RandSimulateLowResolutiond,
        (patch, always),
        (patch, always | {"downsample_mode": "area", "align_corners": True}),
        (slim, always | {"downsample_mode": "nearest-exact", "prob": 0.5}),
        (plane, always | linear),
        keys="image",
        tolerance=TOLERANCE,
    )
    alike = always | {"downsample_mode": "nearest", "upsample_mode": "nearest"}
    yield from cases_of(mt.RandSimulateLowResolutiond, (patch, alike), tolerance=TOLERANCE)
