"""Heads with gliomas in four contrasts, as BraTS has them, drawn from numbers. They show no patient."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxelocity.core.rng import generator
from voxelocity.core.volume import Grid
from voxelocity.data.decode.write import write_scan
from voxelocity_lab.bench.body import holds_phantoms
from voxelocity_lab.bench.body_canvas import BoolArray, FloatArray, Point, blur, smooth_field
from voxelocity_lab.recipes.brain.dataset import CHANNELS, region_keys
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.whole_file import write_whole

NUM_CASES = 20
_SHAPE = (240, 240, 155)
_VERSION = 2
NECROSIS, EDEMA, ENHANCING = 1, 2, 3
_WHITE, _GRAY, _FLUID = 4, 5, 6
# By tissue, in the order of `CHANNELS`.
_INTENSITIES = {
    0: (0, 0, 0, 0),
    NECROSIS: (400, 300, 310, 640),
    EDEMA: (600, 440, 450, 540),
    ENHANCING: (540, 430, 760, 470),
    _WHITE: (420, 560, 580, 320),
    _GRAY: (480, 450, 470, 410),
    _FLUID: (170, 210, 220, 800),
}


def make_brains(
    folder: Path, num_cases: int = NUM_CASES, *, seed: int = 0, scale: float = 1.0, slice_mm: float = 1.0
) -> Path:
    """Return `folder`, holding a data set of phantoms, of which one in four has no enhancing tumor.

    At `scale` 1 they have BraTS' size, 240 x 240 x 155 voxels of 1 mm in four contrasts: zeros outside the brain, and
    blank slices above and below it. `slice_mm` makes slices thicker, in which case there are fewer. Case `i` depends on
    the other parameters and on `i` alone. Files that are there are kept.

    Raises:
        ConfigError: a parameter is out of its range.
        OutputError: `folder` holds something else.
    """
    if num_cases < 1 or not 0.05 <= scale <= 1.0 or not 1.0 <= slice_mm <= 10.0:
        raise ConfigError(
            f"brain: phantoms of scale {scale:g} in slices of {slice_mm:g} mm, {num_cases} of them: use a scale from "
            "0.05 to 1, slices of 1 to 10 mm and at least one case"
        )
    x, y, z = (max(16, round(scale * size)) for size in (*_SHAPE[:2], _SHAPE[2] / slice_mm))
    grid = Grid.of((x, y, z), np.diag([1.0 / scale, 1.0 / scale, slice_mm / scale, 1.0]))
    names = [f"brain_{number:03d}" for number in range(num_cases)]
    cases = {
        name: {
            "images": [f"imagesTr/{name}_{channel:04d}.nii.gz" for channel in range(len(CHANNELS))],
            "label": f"labelsTr/{name}.nii.gz",
        }
        for name in names
    }
    parameters = {"gliomas": _VERSION, "num_cases": num_cases, "seed": seed, "scale": scale, "slice_mm": slice_mm}
    description = {
        "name": "Brains",
        "channel_names": {str(number): name for number, name in enumerate(CHANNELS)},
        **region_keys(core=NECROSIS, edema=EDEMA, enhancing=ENHANCING),
        "file_ending": ".nii.gz",
        "dataset": cases,
        "phantom": parameters,
    }
    if not holds_phantoms(folder, parameters):
        write_whole(folder / "dataset.json", json.dumps(description, indent=1).encode())
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        case: dict[str, Any] = cases[names[number]]
        if (folder / case["label"]).exists():
            return
        channels, classes = draw_brain(grid, number, seed=seed)
        for image, values in zip(case["images"], channels, strict=True):
            write_scan(folder / image, values, grid)
        # Last, as the mark of a whole case.
        write_scan(folder / case["label"], classes, grid)

    # At most 4, because a case of full size takes about 1 GB while it is drawn.
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
        list(pool.map(write, range(num_cases)))
    return folder


def draw_brain(grid: Grid, number: int, *, seed: int = 0) -> tuple[list[NDArray[np.int16]], NDArray[np.uint8]]:
    """Four contrasts, and the classes: 1 necrotic core, 2 edema, 3 enhancing tumor. Deterministic, thread-safe."""
    rng = generator(seed, stage="gliomas", case=number)
    head = _Head.draw(rng, grid)
    tissue = _draw_tissue(head, rng)
    classes = _draw_glioma(head, rng, tissue, has_enhancing=number % 4 > 0)
    tissue[classes > 0] = classes[classes > 0]
    return _expose(head, rng, tissue), classes


@dataclass(frozen=True, kw_only=True)
class _Head:
    """Where voxels lie, in millimeters from the middle and warped so that no shape is regular, and random fields."""

    grid: Grid
    position_mm: tuple[FloatArray, FloatArray, FloatArray]
    coarse: FloatArray
    fine: FloatArray
    radius_mm: Point

    @classmethod
    def draw(cls, rng: np.random.Generator, grid: Grid) -> _Head:
        def field(wavelength_mm: float) -> FloatArray:
            return smooth_field(rng, grid.shape, grid.spacing_mm, wavelength_mm)

        position = []
        for axis, (num, step) in enumerate(zip(grid.shape, grid.spacing_mm, strict=True)):
            line = ((np.arange(num) - (num - 1) / 2) * step - rng.uniform(-3, 3)).astype(np.float32)
            position.append(line.reshape([-1 if i == axis else 1 for i in range(3)]) + np.float32(3) * field(40.0))
        x, y, z = position
        size = rng.uniform(0.92, 1.06)
        radius_mm = (66.0 * size, 84.0 * size * rng.uniform(0.97, 1.03), 61.0 * size)
        return cls(grid=grid, position_mm=(x, y, z), coarse=field(24.0), fine=field(9.0), radius_mm=radius_mm)

    def level(self, center_mm: Point, radius_mm: Point, *, coarse: float = 0.0, fine: float = 0.0) -> FloatArray:
        """Of a bumpy ellipsoid: -1 in its middle, below 0 inside."""
        squares: Any = 0.0
        for position, center, radius in zip(self.position_mm, center_mm, radius_mm, strict=True):
            squares = squares + ((position - np.float32(center)) / np.float32(radius)) ** 2
        level: FloatArray = np.sqrt(squares, dtype=np.float32) - np.float32(1)
        for share, field in ((coarse, self.coarse), (fine, self.fine)):
            if share:
                level += np.float32(share) * field
        return level


def _draw_tissue(head: _Head, rng: np.random.Generator) -> NDArray[np.uint8]:
    """White and gray matter, folded, with fluid in sulci and ventricles; 0 outside."""
    tissue = np.zeros(head.grid.shape, np.uint8)
    surface = head.level((0.0, 0.0, 0.0), head.radius_mm, coarse=0.015)
    brain = surface < 0
    tissue[brain] = _WHITE
    # A ribbon of a few millimeters, whose inner side folds.
    tissue[brain & (surface > -0.08 + 0.05 * head.fine)] = _GRAY
    tissue[brain & (surface > -0.14) & (head.fine > 1.3)] = _FLUID
    for side in (-1.0, 1.0):
        nucleus = head.level((side * 14.0, 2.0, -4.0), (9.0, 15.0, 9.0), coarse=0.1)
        tissue[nucleus < 0] = _GRAY
        ventricle = head.level((side * rng.uniform(8, 11), -2.0, 9.0), (rng.uniform(4, 9), 30.0, 9.0), coarse=0.15)
        tissue[ventricle < 0] = _FLUID
    return tissue


def _draw_glioma(
    head: _Head, rng: np.random.Generator, tissue: NDArray[np.uint8], *, has_enhancing: bool
) -> NDArray[np.uint8]:
    """A tumor of nested parts, the smallest a twentieth of the largest; edema reaches along the white matter."""
    classes = np.zeros(head.grid.shape, np.uint8)
    radius = rng.uniform(20, 40)
    x, y, z = rng.uniform(-0.5, 0.5, 3) * head.radius_mm
    brain: BoolArray = tissue > 0

    def radii(size: float) -> Point:
        a, b, c = size * rng.uniform(0.75, 1.25, 3)
        return float(a), float(b), float(c)

    whole = head.level((x, y, z), radii(radius), coarse=0.25, fine=0.1)
    is_stopped: BoolArray = (tissue == _FLUID) | ((tissue == _GRAY) & (head.fine > 0.2) & (whole > -0.45))
    classes[(whole < 0) & brain & ~is_stopped] = EDEMA
    share = rng.uniform(0.45, 0.7)
    dx, dy, dz = rng.uniform(-0.25, 0.25, 3) * radius
    inner = head.level((x + dx, y + dy, z + dz), radii(share * radius), coarse=0.2, fine=0.08)
    core: BoolArray = (inner < 0) & (whole < 0.1) & brain
    classes[core] = NECROSIS
    if has_enhancing:
        # A rim of uneven thickness with gaps, and islands inside.
        rim = (inner > -rng.uniform(0.3, 0.5) + 0.15 * head.fine) & (head.coarse < 1.4)
        classes[core & (rim | (head.fine > 1.7))] = ENHANCING
    return classes


def _expose(head: _Head, rng: np.random.Generator, tissue: NDArray[np.uint8]) -> list[NDArray[np.int16]]:
    """The contrasts: what distinguishes a tumor differs from case to case, in all of them together."""
    grid, brain = head.grid, tissue > 0
    strength, noise = rng.uniform(0.55, 1.1), rng.uniform(25, 45)
    shading = smooth_field(rng, grid.shape, grid.spacing_mm, 110.0)
    channels = []
    for channel in range(len(CHANNELS)):
        values = np.array([_INTENSITIES[value][channel] for value in range(len(_INTENSITIES))], np.float32)
        lesion = slice(NECROSIS, ENHANCING + 1)
        values[lesion] = values[_WHITE] + strength * rng.uniform(0.85, 1.15, 3) * (values[lesion] - values[_WHITE])
        image = values[tissue]
        if channel == list(CHANNELS).index("T1Gd"):
            # Vessels near the surface, as bright as enhancing tumor.
            image[brain & (head.fine > 2.0) & (tissue != _FLUID)] = values[ENHANCING]
        for axis in range(3):
            image = blur(image, axis)
        image *= np.exp(np.float32(0.1) * shading + np.float32(0.03) * head.coarse) * np.float32(rng.uniform(0.8, 1.25))
        image += np.float32(noise) * rng.standard_normal(grid.shape, dtype=np.float32) + np.float32(8) * head.fine
        # Skulls are stripped: what is not brain is 0.
        channels.append(np.where(brain, np.rint(image).clip(1, 4000), 0).astype(np.int16))
    return channels
