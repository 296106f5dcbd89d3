"""Hounsfield units and labels of a phantom under construction: a grid, smooth random fields, bumpy ellipsoids."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
Window = tuple[slice, slice, slice]
Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class PhantomGrid:
    """The voxel grid of one scan before it is turned to its stored orientation; axes point to R, A and S."""

    shape: tuple[int, int, int]
    spacing_mm: tuple[float, float, float]
    orientation: str
    tilt_deg: tuple[float, float, float]


class BodyCanvas:
    """Hounsfield units and labels under construction, with warped body coordinates so that no shape is regular."""

    def __init__(self, rng: np.random.Generator, grid: PhantomGrid) -> None:
        self.spacing_mm = grid.spacing_mm
        self.shape = grid.shape
        self.hu: FloatArray = np.full(grid.shape, -1000.0, dtype=np.float32)
        self.labels: NDArray[np.uint8] = np.zeros(grid.shape, dtype=np.uint8)
        extent_mm = [n * s for n, s in zip(grid.shape, grid.spacing_mm, strict=True)]
        self.half_width_mm = extent_mm[0] * rng.uniform(0.42, 0.46)
        self.half_depth_mm = self.half_width_mm * rng.uniform(0.70, 0.78)
        self.middle_mm: Point = (rng.uniform(-4, 4), rng.uniform(-6, 2), rng.uniform(-12, 12))
        self.axes: list[FloatArray] = []
        self.position_mm: list[FloatArray] = []
        for axis, (count, spacing_mm) in enumerate(zip(grid.shape, grid.spacing_mm, strict=True)):
            line = ((np.arange(count) - (count - 1) / 2) * spacing_mm - self.middle_mm[axis]).astype(np.float32)
            self.axes.append(line)
            warp_mm = self.field(rng, wavelength_mm=45.0) * np.float32(3.5)
            self.position_mm.append(warp_mm + line.reshape([-1 if i == axis else 1 for i in range(3)]))
        self.bumps = self.field(rng, wavelength_mm=22.0)
        self.grain = self.field(rng, wavelength_mm=7.0)
        self.cavity: BoolArray = np.ones(grid.shape, dtype=np.bool_)

    def field(self, rng: np.random.Generator, wavelength_mm: float) -> FloatArray:
        """A `smooth_field` on the grid."""
        return smooth_field(rng, self.shape, self.spacing_mm, wavelength_mm)

    def ellipsoid(
        self, center_mm: Point, radius_mm: Point, *, turn_deg: float = 0.0, roughness: float = 0.12
    ) -> tuple[Window, FloatArray]:
        """The box around a bumpy ellipsoid and its level there: -1 in the middle, below 0 inside."""
        # Bumps and warp have normal tails: the box holds 3 deviations and more of both, so that no shape is cut flat.
        bulge, in_plane_mm = 1 + 3.5 * roughness, max(radius_mm[:2])
        reach_mm = bulge * in_plane_mm + 11, bulge * in_plane_mm + 11, bulge * radius_mm[2] + 11
        window = self._window(center_mm, reach_mm)
        x, y, z = (p[window] - np.float32(c) for p, c in zip(self.position_mm, center_mm, strict=True))
        cosine, sine = np.float32(math.cos(math.radians(turn_deg))), np.float32(math.sin(math.radians(turn_deg)))
        along, across = (x * cosine + y * sine) / radius_mm[0], (y * cosine - x * sine) / radius_mm[1]
        level = np.sqrt(along**2 + across**2 + (z / np.float32(radius_mm[2])) ** 2)
        level += np.float32(roughness) * self.bumps[window]
        return window, np.subtract(level, 1, dtype=np.float32)

    def fill(self, window: Window, inside: BoolArray, hu: FloatArray | float, label: int = 0) -> None:
        """Overwrite what lies `inside`; a later organ takes the place of an earlier one."""
        np.copyto(self.hu[window], np.float32(hu) if isinstance(hu, float) else hu, where=inside)
        np.copyto(self.labels[window], np.uint8(label), where=inside)

    def expose(self, rng: np.random.Generator) -> NDArray[np.int16]:
        """The scan: blurred by the scanner's point spread, with noise of the grain that reconstruction gives."""
        image = self.hu
        for axis in range(3):
            image = blur(image, axis)
        noise = rng.standard_normal(self.shape, dtype=np.float32)
        for axis in range(2):
            noise = blur(noise, axis)
        image += noise * np.float32(rng.uniform(12, 18) / 0.375)  # two blurs leave 0.375 of the deviation
        return np.clip(np.rint(image), -1024, 1500).astype(np.int16)

    def _window(self, center_mm: Point, reach_mm: Point) -> Window:
        bounds = []
        for line, center, reach in zip(self.axes, center_mm, reach_mm, strict=True):
            start, stop = np.searchsorted(line, (center - reach, center + reach))
            bounds.append(slice(int(start), int(stop)))
        return bounds[0], bounds[1], bounds[2]


def smooth_field(
    rng: np.random.Generator, shape: tuple[int, int, int], spacing_mm: tuple[float, float, float], wavelength_mm: float
) -> FloatArray:
    """A smooth random field on a grid with mean 0 and standard deviation 1: cubic B-splines on random knots."""
    knots = [_spline_weights(n, s / wavelength_mm) for n, s in zip(shape, spacing_mm, strict=True)]
    values = rng.standard_normal([k.shape[1] for k in knots], dtype=np.float32)
    for weights in knots:  # each turn contracts the first axis and appends its fine version as the last
        values = np.tensordot(values, weights, axes=(0, 1))
    # A cubic B-spline keeps 151/315 of the variance of its knots along each axis.
    return np.multiply(values, np.float32((315 / 151) ** 1.5), dtype=np.float32)


def _spline_weights(num_points: int, points_per_knot: float) -> FloatArray:
    """Weights (num_points, num_knots) of the uniform cubic B-spline at `num_points` points that far apart in knots."""
    position = np.arange(num_points) * points_per_knot
    num_knots = int(position[-1]) + 4
    distance = np.abs(position[:, None] + 1 - np.arange(num_knots)[None, :])
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.clip(2 - distance, 0, None) ** 3 / 6
    weights: FloatArray = np.where(distance < 1, near, far).astype(np.float32)
    return weights


def blur(volume: FloatArray, axis: int) -> FloatArray:
    """A new volume blurred along one axis by (1, 2, 1) / 4; the two outermost planes stay unchanged."""
    source = np.moveaxis(volume, axis, 0)
    result = volume.copy()
    target = np.moveaxis(result, axis, 0)[1:-1]
    target *= np.float32(0.5)
    target += np.float32(0.25) * source[:-2]
    target += np.float32(0.25) * source[2:]
    return result
