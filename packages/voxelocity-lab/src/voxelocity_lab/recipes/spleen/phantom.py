"""CTs of the size of MSD's spleen, in which the neighbors of the spleen are as dense as it is. They show no patient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxelocity_lab.bench.body import TILT_DEG, paint_frame, paint_lookalikes, paint_trunk, write_phantoms
from voxelocity_lab.bench.body_canvas import BodyCanvas, PhantomGrid, Point
from voxelocity_observe.core.errors import ConfigError

NUM_CASES = 41
"""As many labeled scans as MSD's Task09 has."""
LABELS = {"0": "background", "1": "spleen"}
_SHAPE, _SPACING_MM = (512, 512, 90), (0.8, 0.8, 5.0)
# Bodies are drawn at half the size of an adult.
_ZOOM = 2.0
_VERSION = 1
_STREAM = 2**32
_FAT_HU = -85.0


def make_spleens(folder: Path, num_cases: int = NUM_CASES, *, seed: int = 0, scale: float = 1.0) -> Path:
    """Return `folder`, holding a data set as MSD's Task09 of `num_cases` phantoms, the spleen alone labeled.

    At `scale` 1 a scan has 512 x 512 x 90 voxels of 0.8 x 0.8 x 5 mm, takes about 30 MB on disk and 1.5 GB of memory
    while it is drawn. Smaller ones show the same anatomy in fewer voxels, down to half a scale at the same thickness of
    slices. Case `i` depends on `(seed, i, scale)` alone. Files that are there are kept.

    Raises:
        ConfigError: a parameter is out of its range.
        OutputError: `folder` holds something else.
    """
    if num_cases < 1 or not 0.05 <= scale <= 1.0 or not 0 <= seed < 2**31:
        raise ConfigError(
            f"spleen: phantoms of scale {scale:g}, {num_cases} of them, seed {seed}: use a scale from 0.05 to 1, at "
            "least one case and a seed from 0 to 2**31 - 1"
        )
    return write_phantoms(
        folder,
        num_cases,
        lambda index: draw_spleen(seed, index, scale),
        labels=LABELS,
        parameters={"hidden_spleens": _VERSION, "num_cases": num_cases, "seed": seed, "scale": scale},
    )


def draw_spleen(seed: int, index: int, scale: float = 1.0) -> tuple[NDArray[np.int16], NDArray[np.uint8], PhantomGrid]:
    """Return image (HU), labels and grid of case `index`, axes pointing to R, A and S. Deterministic, thread-safe."""
    rng = np.random.Generator(np.random.Philox(key=np.array([_STREAM + seed, index], dtype=np.uint64)))
    grid = _draw_grid(index, scale)
    zoom = _ZOOM * rng.uniform(0.94, 1.06)
    canvas = BodyCanvas(rng, replace(grid, spacing_mm=_scaled(grid.spacing_mm, 1.0 / zoom)))
    paint_trunk(canvas, rng)
    paint_lookalikes(canvas, rng)
    # Of spleen, liver, kidney, stomach and pancreas alike.
    hu = rng.uniform(85, 125)
    _paint_liver(canvas, rng, hu)
    center = _paint_spleen(canvas, rng, hu)
    _paint_neighbors(canvas, rng, hu, center)
    paint_frame(canvas, rng)
    return canvas.expose(rng), canvas.labels, grid


def _scaled(spacing_mm: Point, factor: float) -> Point:
    x, y, z = spacing_mm
    return factor * x, factor * y, factor * z


def _draw_grid(index: int, scale: float) -> PhantomGrid:
    # As thick as they are, slices would otherwise be too few to learn from.
    shares = (scale, scale, min(1.0, 2.0 * scale))
    x, y, z = (max(8, round(size * share)) for size, share in zip(_SHAPE, shares, strict=True))
    dx, dy, dz = (step / share for step, share in zip(_SPACING_MM, shares, strict=True))
    is_tilted = index % 5 == 4
    return PhantomGrid(
        shape=(x, y, z),
        spacing_mm=(dx, dy, dz),
        orientation=("LPS", "RAS", "LAS")[index % 3],
        tilt_deg=TILT_DEG if is_tilted else (0.0, 0.0, 0.0),
    )


def _paint_liver(canvas: BodyCanvas, rng: np.random.Generator, hu: float) -> None:
    """The liver, whose left lobe may reach the spleen; as dense as it, with vessels."""
    width, depth = canvas.half_width_mm, canvas.half_depth_mm
    shade = hu + rng.uniform(-8, 8)
    right = ((0.40 * width, 0.06 * depth, rng.uniform(8, 20)), (0.48 * width, 0.62 * depth, rng.uniform(36, 48)))
    left = ((-0.12 * width, 0.34 * depth, rng.uniform(18, 34)), (rng.uniform(0.3, 0.55) * width, 15.0, 16.0))
    for center, radius in (right, left):
        window, level = canvas.ellipsoid(center, radius, turn_deg=rng.uniform(-30, 0), roughness=0.13)
        vessels = np.exp(-6 * (canvas.bumps[window] ** 2 + canvas.grain[window] ** 2))
        inside = (level < 0) & canvas.cavity[window]
        canvas.fill(window, inside, (shade + 9 * canvas.grain[window] + 35 * vessels).astype(np.float32))


def _paint_spleen(canvas: BodyCanvas, rng: np.random.Generator, hu: float) -> Point:
    """The spleen, of one to three lobes and with notches, small and large.

    Returns:
        Its middle.
    """
    width, depth = canvas.half_width_mm, canvas.half_depth_mm
    size = rng.uniform(0.55, 1.2)
    center: Point = (-0.58 * width, -0.22 * depth + rng.uniform(-6, 8), rng.uniform(2, 26))
    for number in range(int(rng.integers(1, 4))):
        place, share = center, 1.0
        if number:
            x, y, z = rng.normal(0.0, 1.0, 3) * (8.0, 14.0, 16.0) * size
            place, share = (center[0] + 0.5 * x, center[1] + y, center[2] + z), rng.uniform(0.5, 0.75)
        radius = (size * share * rng.uniform(13, 22), size * share * rng.uniform(22, 34),
                  size * share * rng.uniform(20, 38))  # fmt: skip
        window, level = canvas.ellipsoid(place, radius, turn_deg=rng.uniform(-40, 20), roughness=0.2)
        inside = (level < 0) & canvas.cavity[window]
        canvas.fill(window, inside, (hu + 9 * canvas.grain[window]).astype(np.float32), label=1)
    for _ in range(int(rng.integers(0, 4))):
        # Inward from the side of the vessels.
        place = (
            center[0] + size * rng.uniform(8, 18),
            center[1] + rng.uniform(-15, 15),
            center[2] + rng.uniform(-18, 18),
        )
        window, level = canvas.ellipsoid(place, (size * 9.0, 3.5, 5.0), turn_deg=rng.uniform(-30, 30))
        canvas.fill(window, (level < 0) & canvas.cavity[window], _FAT_HU + 12 * canvas.grain[window])
    return center


def _paint_neighbors(canvas: BodyCanvas, rng: np.random.Generator, hu: float, center: Point) -> None:
    """Kidney, stomach, pancreas and bowel against the spleen, a thin layer of fat between; and accessory spleens."""
    x, y, z = center
    width = canvas.half_width_mm
    neighbors = [
        ((x + rng.uniform(12, 20), y - rng.uniform(8, 16), z - rng.uniform(26, 40)), (14.0, 14.0, 26.0)),
        ((x + rng.uniform(24, 34), y + rng.uniform(16, 26), z + rng.uniform(-4, 14)), (22.0, 17.0, 24.0)),
        ((x + rng.uniform(22, 32), y + rng.uniform(-4, 6), z - rng.uniform(2, 14)), (0.26 * width, 7.0, 7.0)),
        ((x + rng.uniform(-2, 8), y + rng.uniform(16, 28), z - rng.uniform(16, 30)), (14.0, 13.0, 14.0)),
    ]
    for place, radius in neighbors:
        window, level = canvas.ellipsoid(place, radius, turn_deg=rng.uniform(-25, 25), roughness=0.15)
        is_free = canvas.cavity[window]
        # Of about a millimeter and a half, which thick slices hardly show.
        canvas.fill(window, (level < 1.5 / min(radius)) & is_free, _FAT_HU + 15 * canvas.grain[window])
        shade = hu + rng.uniform(-10, 10)
        canvas.fill(window, (level < 0) & is_free, (shade + 11 * canvas.grain[window]).astype(np.float32))
    for _ in range(int(rng.integers(0, 4))):
        place = (x + rng.uniform(16, 34), y + rng.uniform(-14, 22), z + rng.uniform(-26, 26))
        size = rng.uniform(3, 7)
        window, level = canvas.ellipsoid(place, (size, size, size))
        inside = (level < 0) & canvas.cavity[window] & (canvas.labels[window] == 0)
        canvas.fill(window, inside, (hu + 9 * canvas.grain[window]).astype(np.float32))
