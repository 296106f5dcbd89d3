"""Folders as the BraTS challenge has them, described as a data set with overlapping classes; and phantoms like them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from voxelocity.core.rng import generator
from voxelocity.core.scan_formats import NIFTI, stem_of
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode import label_values_in
from voxelocity.data.decode.write import write_scan
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.whole_file import write_whole

# Names of the contrasts in the releases of the challenge, the first one ours.
CHANNELS: Mapping[str, tuple[str, ...]] = {
    "FLAIR": ("flair", "t2f"),
    "T1": ("t1", "t1n"),
    "T1Gd": ("t1ce", "t1c", "t1gd"),
    "T2": ("t2", "t2w"),
}
REGIONS = ("whole tumor", "tumor core", "enhancing tumor")
_IS_LABEL = re.compile(r"(^|[_-])seg([_-]|$)")
_SHAPE = (240, 240, 155)


def describe_brains(data: Path, out: Path) -> Path:
    """The data set to open: `data` itself if it has a `dataset.json`, else one that is written into `out`.

    Args:
        data: a data set, or a folder with a folder of each case, which holds four contrasts and a label `*seg*`.
        out: a folder for the description.

    Raises:
        DatasetError: there are no cases, or one lacks a contrast or a label.
    """
    if (data / "dataset.json").is_file() or data.is_file():
        return data
    folders = [path for path in sorted(data.iterdir()) if path.is_dir()] if data.is_dir() else []
    cases = {folder.name: _case(folder) for folder in folders if any(map(_is_scan, folder.iterdir()))}
    if not cases:
        raise DatasetError(
            f"brain: {data} has neither a dataset.json nor folders of cases such as BraTS-001/BraTS-001_flair.nii.gz; "
            "name a folder that does"
        )
    with ThreadPoolExecutor() as pool:
        values = set().union(*pool.map(lambda case: set(label_values_in(Path(case["label"]))), cases.values()))
    unknown = sorted(values - {0, 1, 2, 3, 4})
    if unknown or {3, 4} <= values:
        raise DatasetError(
            f"brain: the labels in {data} have the values {sorted(values)}; BraTS has 1, 2 and 4, or since 2023 1, 2 "
            "and 3: describe other labels in a dataset.json"
        )
    enhancing = 3 if 3 in values else 4
    description = {
        "name": data.name,
        "channel_names": {str(number): name for number, name in enumerate(CHANNELS)},
        "labels": _labels(enhancing),
        "regions_class_order": [2, 1, enhancing],
        "file_ending": ".nii.gz",
        "dataset": cases,
    }
    write_whole(out / "dataset.json", json.dumps(description, indent=1).encode())
    return out


def _labels(enhancing: int) -> dict[str, int | list[int]]:
    """The regions of labels in which the core is 1 and the edema 2."""
    whole, inner, bright = REGIONS
    return {"background": 0, whole: [1, 2, enhancing], inner: [1, enhancing], bright: enhancing}


def _is_scan(path: Path) -> bool:
    return path.name.endswith(NIFTI.endings)


def _case(folder: Path) -> dict[str, object]:
    scans = {stem_of(path.name).lower(): path for path in sorted(folder.iterdir()) if _is_scan(path)}
    images = []
    for channel, words in CHANNELS.items():
        found = [path for stem, path in scans.items() if re.split(r"[_-]", stem)[-1] in words]
        if len(found) != 1:
            raise DatasetError(
                f"brain: {folder} has {len(found)} files of the contrast {channel}, whose names end in "
                f"{' or '.join(words)}; it must have one (found: {', '.join(sorted(scans)) or 'no scan'})"
            )
        images.append(str(found[0].resolve()))
    labels = [path for stem, path in scans.items() if _IS_LABEL.search(stem)]
    if len(labels) != 1:
        raise DatasetError(f"brain: {folder} has {len(labels)} labels (*seg*.nii.gz); it must have one")
    return {"images": images, "label": str(labels[0].resolve())}


def make_brains(folder: Path, num_cases: int, *, scale: float = 1.0) -> Path:
    """A data set of phantoms: an ellipsoid in four contrasts, with a tumor of three nested parts, one case in four
    without an enhancing one. At `scale` 1 they have BraTS' size, 240 x 240 x 155 voxels of 1 mm.

    The same arguments give the same voxels. Files that are there are kept.
    """
    shape = tuple(max(16, round(scale * size)) for size in _SHAPE)
    grid = Grid.of((shape[0], shape[1], shape[2]), np.diag([*(1.0 / scale,) * 3, 1.0]))
    cases = {}
    for number in range(num_cases):
        name = f"brain_{number:03d}"
        images = [f"imagesTr/{name}_{channel:04d}.nii.gz" for channel in range(len(CHANNELS))]
        label = f"labelsTr/{name}.nii.gz"
        cases[name] = {"images": images, "label": label}
        if not (folder / label).exists():
            channels, classes = _draw_case(grid, number)
            for image, values in zip(images, channels, strict=True):
                (folder / image).parent.mkdir(parents=True, exist_ok=True)
                write_scan(folder / image, values, grid)
            (folder / label).parent.mkdir(parents=True, exist_ok=True)
            # Last, as the mark of a whole case.
            write_scan(folder / label, classes, grid)
    description = {
        "name": "Brains",
        "channel_names": {str(number): name for number, name in enumerate(CHANNELS)},
        "labels": _labels(3),
        "regions_class_order": [2, 1, 3],
        "file_ending": ".nii.gz",
        "dataset": cases,
    }
    write_whole(folder / "dataset.json", json.dumps(description, indent=1).encode())
    return folder


def _draw_case(grid: Grid, number: int) -> tuple[list[Array], Array]:
    """Four contrasts int16, and the classes uint8: 1 necrotic core, 2 edema, 3 enhancing rim."""
    numbers = generator(0, stage="brains", case=number)
    half = np.array(grid.shape) / 2.0
    place = [(np.arange(size, dtype=np.float32) - middle) for size, middle in zip(grid.shape, half, strict=True)]
    x, y, z = np.meshgrid(*place, indexing="ij", sparse=True)

    def distance(center: Array, radii: Array) -> Array:
        parts = [((axis - c) / r) ** 2 for axis, c, r in zip((x, y, z), center, radii, strict=True)]
        result: Array = np.sqrt(parts[0] + parts[1] + parts[2])
        return result

    brain = distance(np.zeros(3), 0.8 * half) < 1.0
    center = numbers.uniform(-0.3, 0.3, 3) * half
    tumor = distance(center, numbers.uniform(0.18, 0.3, 3) * half)
    classes = np.zeros(grid.shape, np.uint8)
    classes[(tumor < 1.0) & brain] = 2
    if number % 4:
        classes[(tumor < 0.65) & brain] = 3
    classes[(tumor < 0.45) & brain] = 1
    # Of brain, core, edema and rim in each contrast.
    values = np.array([[300, 350, 600, 420], [500, 350, 430, 450], [480, 330, 420, 800], [350, 560, 620, 450]])
    channels = []
    for row in values:
        image = np.where(brain, row[classes.astype(np.intp)], 0).astype(np.float32)
        noise = numbers.standard_normal(grid.shape, dtype=np.float32)
        channels.append(np.where(brain, image + 40.0 * noise, 0.0).clip(0).astype(np.int16))
    return channels, classes
