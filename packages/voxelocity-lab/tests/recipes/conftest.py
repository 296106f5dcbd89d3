"""Data of the recipes, drawn small."""

import json

import numpy as np
import pytest
from recipes.pathology.conftest import tiles
from recipes.tractography.conftest import bundles_file

from voxelocity.core.volume import Grid
from voxelocity.data.decode.write import write_scan
from voxelocity_lab.recipes.brain.phantom import make_brains

__all__ = ["bundles_file", "tiles"]


@pytest.fixture
def brains(tmp_path):
    """Phantoms with three overlapping classes."""
    return make_brains(tmp_path / "brains", 5, scale=0.1)


@pytest.fixture
def task09(tmp_path):
    """A folder as MSD's Task09_Spleen."""
    folder, numbers = tmp_path / "Task09_Spleen", np.random.default_rng(0)
    grid = Grid.of((20, 22, 10), np.diag([0.8, 0.8, 5.0, 1.0]))
    entries = []
    for part in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / part).mkdir(parents=True)
    for number in range(6):
        label = np.zeros(grid.shape, np.uint8)
        label[4:12, 5 : 14 + number % 2, 2:8] = 1
        image = (40.0 + 80.0 * label + numbers.normal(0, 5, grid.shape)).astype(np.int16)
        write_scan(folder / "imagesTr" / f"spleen_{number}.nii.gz", image, grid)
        write_scan(folder / "labelsTr" / f"spleen_{number}.nii.gz", label, grid)
        entries.append({key: f"./{key}sTr/spleen_{number}.nii.gz" for key in ("image", "label")})
    write_scan(folder / "imagesTs" / "spleen_9.nii.gz", image, grid)
    description = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "spleen"}, "training": entries}
    (folder / "dataset.json").write_text(json.dumps({"name": "Spleen", "numTraining": 6, "test": [], **description}))
    return folder
