"""CT-like phantoms written as a Medical Segmentation Decathlon data set, for demonstrations and tests offline.

Dice figures reached on them say nothing about patients. `anatomy` defines what a phantom looks like.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform
from numpy.typing import NDArray

from voxelocity.bench.anatomy import LABELS, PhantomGrid, draw_case
from voxelocity.core.errors import ConfigError, OutputError
from voxelocity.core.volume import Grid
from voxelocity.data.decode.write import write_scan

FORMAT_VERSION = 1
"""Part of what decides reuse: raised whenever the voxels made from the same parameters change."""
NUM_FOLDS = 4


def make_phantoms(folder: Path, num_cases: int = 22, seed: int = 0, scale: float = 1.0) -> Path:
    """Return `folder`, holding a complete data set of `num_cases` phantoms: `imagesTr`, `labelsTr` and `dataset.json`.

    Images are int16 in Hounsfield units and labels uint8 (names in `LABELS`), both `.nii.gz`. Spacing, shape and
    orientation differ from case to case. Case `i` depends on `(seed, i, scale)` alone, bit for bit on one machine.
    A complete data set made with the same parameters is reused. Files are made in a hidden folder next to `folder`,
    which takes the name in one step at the end, so an interrupted call leaves nothing that could be reused by mistake.

    Costs about 0.65 s of one core and 5 MB of disk for a case of scale 1; cases are made in threads.

    `scale` is in voxels per axis relative to a clinical grid, above 0 and at most 1.5. At 0.25 the same anatomy is
    drawn on a grid four times as coarse, in a sixty-fourth of the time: meant for tests.

    Raises:
        ConfigError: A parameter is out of its range.
        OutputError: `folder` holds something other than a complete data set made with these parameters.
    """
    _check_parameters(num_cases, seed, scale)
    folder = Path(folder)
    parameters = {"format_version": FORMAT_VERSION, "num_cases": num_cases, "seed": seed, "scale": scale}
    if _holds_data_set(folder, parameters):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _folder_beside(folder) as draft:
        (draft / "imagesTr").mkdir()
        (draft / "labelsTr").mkdir()
        # NumPy and ISA-L release the GIL: threads fill the cores, and need no __main__ guard in the caller's script.
        # At most 4, because a case takes about 200 MB while it is drawn.
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
            entries = list(pool.map(partial(_write_case, draft, seed, scale), range(num_cases)))
        (draft / "dataset.json").write_text(json.dumps(_description(entries, parameters), indent=2))
        try:
            os.replace(draft, folder)
        except OSError:
            # Another process may have finished the same data set first; then theirs is as good as ours.
            if not _holds_data_set(folder, parameters):
                raise
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


def _write_case(folder: Path, seed: int, scale: float, index: int) -> dict[str, str]:
    """Draw and write case `index`; returns its entry for `dataset.json`."""
    image, labels, grid = draw_case(seed, index, scale)
    entry = {"image": f"./imagesTr/phantom_{index:03d}.nii.gz", "label": f"./labelsTr/phantom_{index:03d}.nii.gz"}
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(grid.orientation))
    affine = _affine(grid) @ inv_ornt_aff(turn, grid.shape)
    for voxels, name in ((image, entry["image"]), (labels, entry["label"])):
        turned = apply_orientation(voxels, turn)
        write_scan(folder / name, turned, Grid.of(turned.shape, affine))
    return entry


def _description(entries: list[dict[str, str]], parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "Phantoms",
        "description": "CT-like phantoms of the upper abdomen, made by voxelocity; not patients",
        "tensorImageSize": "3D",
        "modality": {"0": "CT"},
        "labels": LABELS,
        "numTraining": len(entries),
        "numTest": 0,
        "training": [{**entry, "fold": index % NUM_FOLDS} for index, entry in enumerate(entries)],
        "test": [],
        "phantom": parameters,
    }


def _check_parameters(num_cases: int, seed: int, scale: float) -> None:
    if num_cases < 1:
        raise ConfigError(f"recipes.demo.phantom: num_cases is {num_cases}; ask for at least 1 case")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"recipes.demo.phantom: seed is {seed}; use a number from 0 to 2**64 - 1")
    if not 0 < scale <= 1.5:
        raise ConfigError(f"recipes.demo.phantom: scale is {scale}; use a number above 0 and at most 1.5")


def _holds_data_set(folder: Path, parameters: dict[str, Any]) -> bool:
    """Whether `folder` is a complete data set made with `parameters`; False where there is nothing yet.

    Raises:
        OutputError: The folder holds something else, which is left unchanged.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    cure = "delete it or name another folder"
    try:
        description = json.loads((folder / "dataset.json").read_text())
        found, entries = description["phantom"], description["training"]
        paths = [entry[key] for entry in entries for key in ("image", "label")]
        missing = [path for path in paths if not (folder / path).is_file()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"recipes.demo.phantom: {folder} exists and holds no phantom data set; {cure}") from error
    if found != parameters:
        made = f"phantoms made with {found}, not {parameters}"
        raise OutputError(f"recipes.demo.phantom: {folder} holds {made}; {cure}")
    if missing:
        raise OutputError(f"recipes.demo.phantom: {folder} lacks {missing[0]}, {len(missing)} files in all; {cure}")
    return True


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """A new folder on the target's file system, removed on the way out unless it was renamed."""
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent))
    draft.chmod(0o755)  # mkdtemp gives 0o700, which would keep colleagues from reading the data set
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
