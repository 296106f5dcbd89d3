"""CT-like phantoms written as a Medical Segmentation Decathlon data set, for demonstrations and tests offline.

The upper abdomen as a cartoon: three labeled organs among look-alikes, drawn from numbers. Not a physical simulation;
Dice figures reached on them say nothing about patients.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform
from numpy.typing import NDArray

from voxelocity.core.volume import Grid
from voxelocity.data.decode.write import write_scan
from voxelocity_lab.bench.body_canvas import BodyCanvas, PhantomGrid, Point
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.whole_file import write_whole

FORMAT_VERSION = 1
"""Part of what decides reuse: raised whenever the voxels made from the same parameters change."""
NUM_FOLDS = 4
LABELS = {"0": "background", "1": "spleen", "2": "liver", "3": "kidney"}
ORIENTATIONS = ("RAS", "LPS", "LAS", "PIR", "LPS")
"""Axis codes by case index modulo five; the last of the five is tilted as well (see TILT_DEG)."""
TILT_DEG = (7.0, 0.0, 4.0)
"""Rotation about x, y and z of every fifth scan: a tilted gantry and a patient lying a little askew."""
BONE_PERIOD_MM = 27.0
"""From one vertebra to the next."""
_PARTS = (("image", "images"), ("label", "labels"))
DrawCase = Callable[[int], tuple[NDArray[np.int16], NDArray[np.uint8], PhantomGrid]]
"""Image, labels and grid of the case of a number, axes pointing to R, A and S."""


def make_bodies(folder: Path, num_cases: int = 22, seed: int = 0, scale: float = 1.0) -> Path:
    """Return `folder`, holding a complete data set of `num_cases` phantoms: `imagesTr`, `labelsTr` and `dataset.json`.

    Images are int16 in Hounsfield units and labels uint8 (names in `LABELS`), both `.nii.gz`. Spacing, shape and
    orientation differ from case to case. Case `i` depends on `(seed, i, scale)` alone, bit for bit on one machine.
    Files of a data set made with the same parameters are reused, and those that an interrupted call left out are made.

    `scale` is in voxels per axis relative to a clinical grid, above 0 and at most 1.5. At 1 a case costs about 0.65 s
    of one core and 5 MB of disk; at 0.25 the same anatomy is drawn in a sixty-fourth of the time: meant for tests.

    Raises:
        ConfigError: A parameter is out of its range.
        OutputError: `folder` holds something other than a data set made with these parameters.
    """
    _check_parameters(num_cases, seed, scale)
    return write_phantoms(
        Path(folder),
        num_cases,
        lambda index: draw_case(seed, index, scale),
        labels=LABELS,
        parameters={"format_version": FORMAT_VERSION, "num_cases": num_cases, "seed": seed, "scale": scale},
    )


def write_phantoms(
    folder: Path, num_cases: int, draw: DrawCase, *, labels: Mapping[str, str], parameters: Mapping[str, Any]
) -> Path:
    """Return `folder`, holding a complete data set of cases as `draw` makes them, of which files that are there stay.

    Args:
        folder: that holds nothing, or such a data set.
        num_cases: numbers that `draw` is called with, from 0; in threads.
        draw: image, labels and grid of a case.
        labels: names of the classes by their value.
        parameters: everything that decides the voxels.

    Raises:
        OutputError: `folder` holds something other than a data set made with these parameters.
    """
    is_begun = holds_phantoms(folder, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{key: f"./{part}Tr/phantom_{index:03d}.nii.gz" for key, part in _PARTS} for index in range(num_cases)]
    if not is_begun:
        description = _description(entries, labels, parameters)
        write_whole(folder / "dataset.json", json.dumps(description, indent=2).encode())
    for _, part in _PARTS:
        (folder / f"{part}Tr").mkdir(exist_ok=True)
    # NumPy and ISA-L release the GIL: threads fill the cores, and need no __main__ guard in the caller's script.
    # At most 4, because a case takes about 200 MB while it is drawn, and 1.5 GB at the full size of a CT.
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
        list(pool.map(partial(_write_case, folder, draw), range(num_cases), entries))
    return folder


def _affine(grid: PhantomGrid) -> NDArray[np.float64]:
    """The grid's voxel-to-world matrix, its middle at the world's origin, turned by the tilt."""
    affine = np.diag([*grid.spacing_mm, 1.0])
    for axis, angle_deg in enumerate(grid.tilt_deg):
        cosine, sine = math.cos(math.radians(angle_deg)), math.sin(math.radians(angle_deg))
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(4)
        turn[first, first], turn[first, second], turn[second, first], turn[second, second] = cosine, -sine, sine, cosine
        affine = turn @ affine
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(grid.shape) - 1) / 2)
    return affine


def _write_case(folder: Path, draw: DrawCase, index: int, entry: dict[str, str]) -> None:
    """Draw and write case `index` unless its files are there, each of which is whole."""
    if all((folder / name).is_file() for name in entry.values()):
        return
    image, labels, grid = draw(index)
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(grid.orientation))
    affine = _affine(grid) @ inv_ornt_aff(turn, grid.shape)
    for voxels, name in ((image, entry["image"]), (labels, entry["label"])):
        turned = apply_orientation(voxels, turn)
        write_scan(folder / name, turned, Grid.of(turned.shape, affine))


def _description(
    entries: list[dict[str, str]], labels: Mapping[str, str], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": "Phantoms",
        "description": "CT-like phantoms of the upper abdomen, made by voxelocity; not patients",
        "tensorImageSize": "3D",
        "modality": {"0": "CT"},
        "labels": dict(labels),
        "numTraining": len(entries),
        "numTest": 0,
        "training": [{**entry, "fold": index % NUM_FOLDS} for index, entry in enumerate(entries)],
        "test": [],
        "phantom": dict(parameters),
    }


def _check_parameters(num_cases: int, seed: int, scale: float) -> None:
    if num_cases < 1:
        raise ConfigError(f"bench.body: num_cases is {num_cases}; ask for at least 1 case")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"bench.body: seed is {seed}; use a number from 0 to 2**64 - 1")
    if not 0 < scale <= 1.5:
        raise ConfigError(f"bench.body: scale is {scale}; use a number above 0 and at most 1.5")


def holds_phantoms(folder: Path, parameters: Mapping[str, Any]) -> bool:
    """Whether `folder` is a data set made with `parameters`, or a part of one; False where there is nothing yet.

    Raises:
        OutputError: The folder holds something else, which is left unchanged.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    cure = "delete it or name another folder"
    try:
        found = json.loads((folder / "dataset.json").read_text())["phantom"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"bench.body: {folder} exists and holds no phantom data set; {cure}") from error
    if found != parameters:
        made = f"phantoms made with {found}, not {parameters}"
        raise OutputError(f"bench.body: {folder} holds {made}; {cure}")
    return True


def draw_case(seed: int, index: int, scale: float = 1.0) -> tuple[NDArray[np.int16], NDArray[np.uint8], PhantomGrid]:
    """Return image (HU), labels and grid of case `index`, axes pointing to R, A and S. Deterministic, thread-safe."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    grid = _draw_grid(rng, index, scale)
    canvas = BodyCanvas(rng, grid)
    paint_trunk(canvas, rng)
    paint_lookalikes(canvas, rng)
    _paint_organs(canvas, rng)
    paint_frame(canvas, rng)
    return canvas.expose(rng), canvas.labels, grid


def paint_trunk(canvas: BodyCanvas, rng: np.random.Generator) -> None:
    """Skin, fat rim, muscle with ribs, and the fatty mesentery that fills the cavity."""
    x, y, z = canvas.position_mm
    whole = (slice(None), slice(None), slice(None))
    radius = np.sqrt((x / np.float32(canvas.half_width_mm)) ** 2 + (y / np.float32(canvas.half_depth_mm)) ** 2)
    rim = 1 - rng.uniform(7, 13) / canvas.half_width_mm
    wall = rim - rng.uniform(0.09, 0.12)
    canvas.fill(whole, radius < 1, -105 + 6 * canvas.grain)
    canvas.fill(whole, radius < rim, 55 + 8 * canvas.grain)
    slope = np.abs(np.arctan2(x, y + np.float32(10)))  # 0 in front, pi at the back: ribs fall towards the front
    band = np.sin((z - 9 * slope) * np.float32(2 * math.pi / rng.uniform(20, 24)))
    ribs = (np.abs(radius - (wall + 0.035)) < 0.028) & (band > 0.45) & (slope > 0.8)
    canvas.fill(whole, ribs, 330 + 90 * canvas.grain)
    canvas.fill(whole, radius < wall, -75 + 22 * canvas.grain + 12 * canvas.bumps)
    canvas.cavity = radius < wall - 0.02


def paint_lookalikes(canvas: BodyCanvas, rng: np.random.Generator) -> None:
    """Unlabeled structures whose densities overlap with the organs: bowel, stomach, muscles, vessels, heart."""
    width, depth = canvas.half_width_mm, canvas.half_depth_mm
    for side in (-1, 1):
        window, level = canvas.ellipsoid((side * 24.0, -0.42 * depth, -45.0), (11.0, 12.0, 60.0))
        canvas.fill(window, level < 0, 65 + 9 * canvas.grain[window])
    for _ in range(16):
        center = (rng.uniform(-0.6, 0.6) * width, rng.uniform(-0.15, 0.6) * depth, rng.uniform(-85, 5))
        radius = (rng.uniform(9, 18), rng.uniform(8, 14), rng.uniform(9, 18))
        window, level = canvas.ellipsoid(center, radius, turn_deg=rng.uniform(0, 180), roughness=0.2)
        inside = (level < 0) & canvas.cavity[window]
        canvas.fill(window, inside, rng.uniform(50, 140) + 14 * canvas.grain[window])
        lumen = inside & (level < -0.3)
        gas = rng.random() < 0.25
        canvas.fill(window, lumen, -850.0 if gas else rng.uniform(10, 120) + 16 * canvas.grain[window])
    stomach: Point = (-0.38 * width, 0.3 * depth, 22.0)
    window, level = canvas.ellipsoid(stomach, (30.0, 20.0, 30.0), turn_deg=rng.uniform(10, 40))
    inside = (level < 0) & canvas.cavity[window]
    canvas.fill(window, inside, rng.uniform(70, 110) + 10 * canvas.grain[window])
    inside &= level < -0.18
    canvas.fill(window, inside, rng.uniform(15, 60) + 14 * canvas.grain[window])
    bubble = inside & (canvas.position_mm[1][window] > stomach[1] + rng.uniform(4, 14))
    canvas.fill(window, bubble, -900.0)


def _paint_organs(canvas: BodyCanvas, rng: np.random.Generator) -> None:
    """The labeled organs; they touch each other and the cavity's wall."""
    width, depth = canvas.half_width_mm, canvas.half_depth_mm
    phase = rng.uniform(0.85, 1.15)  # how much contrast agent has arrived: moves all organs together

    center = (0.40 * width, 0.06 * depth, rng.uniform(8, 20))
    radius = (0.50 * width * rng.uniform(0.9, 1.08), 0.66 * depth * rng.uniform(0.9, 1.05), rng.uniform(38, 48))
    window, level = canvas.ellipsoid(center, radius, turn_deg=rng.uniform(-35, -15), roughness=0.13)
    inside = (level < 0) & canvas.cavity[window]
    vessels = np.exp(-6 * (canvas.bumps[window] ** 2 + canvas.grain[window] ** 2))
    canvas.fill(window, inside, 98 * phase + 5 * canvas.grain[window] + 65 * phase * vessels, label=2)
    gallbladder = (center[0] - 0.1 * width, 0.45 * depth, center[2] - 30)
    window, level = canvas.ellipsoid(gallbladder, (10.0, 12.0, 14.0))
    canvas.fill(window, (level < 0) & canvas.cavity[window], 12.0)

    center = (-0.60 * width, -0.24 * depth, rng.uniform(8, 22))
    radius = (rng.uniform(17, 22), rng.uniform(25, 32), rng.uniform(24, 34))
    window, level = canvas.ellipsoid(center, radius, turn_deg=rng.uniform(-25, 10), roughness=0.14)
    canvas.fill(window, (level < 0) & canvas.cavity[window], 112 * phase + 13 * canvas.grain[window], label=1)

    for side in (-1, 1):
        center = (side * rng.uniform(0.42, 0.48) * width, -0.45 * depth, rng.uniform(-38, -24))
        radius = (rng.uniform(15, 19), rng.uniform(15, 18), rng.uniform(27, 34))
        window, level = canvas.ellipsoid(center, radius, turn_deg=rng.uniform(0, 90), roughness=0.1)
        inside = (level < 0) & canvas.cavity[window]
        pyramids = (level < -0.3) & (canvas.grain[window] > -0.2)
        cortex = (165 * phase + 8 * canvas.grain[window]).astype(np.float32)
        canvas.fill(window, inside, np.where(pyramids, np.float32(118 * phase), cortex), label=3)
        sinus = (center[0] - side * 10.0, center[1] + 3, center[2])
        window, level = canvas.ellipsoid(sinus, (8.0, 6.0, 11.0))
        canvas.fill(window, level < 0, -60 + 20 * canvas.grain[window])


def paint_frame(canvas: BodyCanvas, rng: np.random.Generator) -> None:
    """What pushes the organs aside: lungs, heart, spine and the great vessels."""
    width, depth = canvas.half_width_mm, canvas.half_depth_mm
    dome_mm = rng.uniform(72, 80)
    for side in (-1, 1):
        center: Point = (side * 0.44 * width, -0.05 * depth, dome_mm + 35)
        window, level = canvas.ellipsoid(center, (36.0, 44.0, 62.0), roughness=0.06)
        branches = np.exp(-10 * (canvas.bumps[window] ** 2 + canvas.grain[window] ** 2))
        lung = -860 + 25 * canvas.grain[window] + 700 * branches
        canvas.fill(window, (level < 0) & canvas.cavity[window], lung)
    window, level = canvas.ellipsoid((-8.0, 0.25 * depth, dome_mm + 20), (30.0, 24.0, 32.0), turn_deg=30)
    canvas.fill(window, (level < 0) & canvas.cavity[window], rng.uniform(100, 150) + 8 * canvas.grain[window])
    spine_y = -0.60 * depth
    tubes = ((-6.0, spine_y + 24, 9.0, rng.uniform(140, 190)), (13.0, spine_y + 23, 9.5, rng.uniform(95, 150)))
    for x_mm, y_mm, radius_mm, hu in tubes:
        window, level = canvas.ellipsoid((x_mm, y_mm, 0.0), (radius_mm, radius_mm, 900.0), roughness=0.06)
        canvas.fill(window, level < 0, hu)
    window, level = canvas.ellipsoid((0.0, spine_y, 0.0), (17.0, 14.0, 900.0), roughness=0.04)
    disc = np.sin(canvas.position_mm[2][window] * np.float32(2 * math.pi / BONE_PERIOD_MM)) > 0.8
    bone = 190 + 45 * canvas.grain[window] + 260 * (level > -0.14)
    canvas.fill(window, level < 0, np.where(disc, np.float32(75), bone).astype(np.float32))
    window, level = canvas.ellipsoid((0.0, spine_y - 24, 0.0), (5.0, 11.0, 900.0), roughness=0.1)
    between = np.sin(canvas.position_mm[2][window] * np.float32(2 * math.pi / BONE_PERIOD_MM)) > 0.3
    canvas.fill(window, (level < 0) & ~between, 380 + 60 * canvas.grain[window])
    window, level = canvas.ellipsoid((0.0, spine_y - 15, 0.0), (7.0, 6.0, 900.0), roughness=0.02)
    canvas.fill(window, level < 0, 25.0)


def _draw_grid(rng: np.random.Generator, index: int, scale: float) -> PhantomGrid:
    """Shape, spacing and orientation of case `index`: clinical at scale 1, the same field of view at any scale."""
    width_mm, height_mm = rng.uniform(195, 205), rng.uniform(165, 180)
    # Cubed, because most scans of a series are fine and a few are coarse.
    in_plane_mm, slice_mm = 0.9 + 0.3 * rng.random() ** 3, 1.55 + 1.2 * rng.random() ** 3
    columns, slices = (max(round(scale * n), 8) for n in (width_mm / in_plane_mm, height_mm / slice_mm))
    return PhantomGrid(
        shape=(columns, columns, slices),
        spacing_mm=(in_plane_mm / scale, in_plane_mm / scale, slice_mm / scale),
        orientation=ORIENTATIONS[index % len(ORIENTATIONS)],
        tilt_deg=TILT_DEG if index % len(ORIENTATIONS) == len(ORIENTATIONS) - 1 else (0.0, 0.0, 0.0),
    )
