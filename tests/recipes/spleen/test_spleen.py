"""The recipe of the spleen, on a folder as MSD's Task09_Spleen has it, drawn small."""

import numpy as np
import pytest
import torch
from rich.console import Console

from voxelocity.core.errors import DatasetError
from voxelocity.data.decode import read_scan
from voxelocity.recipes.call import Call
from voxelocity.recipes.spleen import recipe

SETS = {
    "data.prepare.spacing_mm": "keep",
    "data.patch.shape_voxel": [16, 16, 8],
    "data.batch_size": 2,
    "data.cache.tier": "memory",
    "network.name": "unet",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
    "optimizer.name": "novograd",
    "planner.measure": "never",
    "precision.compute": "float32",
    "train.steps": 4,
    "window.shape_voxel": [16, 16, 8],
}


def call_of(data, out, **options):
    return Call(
        data=data, out=out, device=torch.device("cpu"), fast_bfloat16=False, console=Console(quiet=True), **options
    )


def test_it_trains_and_predicts_the_scans_without_labels(task09, tmp_path):
    recipe.train(call_of(task09, tmp_path / "run", overrides=SETS))
    recipe.predict(call_of(task09, tmp_path / "run"))
    voxels, grid = read_scan(tmp_path / "run" / "predictions" / "spleen_9.nii.gz")
    assert grid.shape == (20, 22, 10)
    assert set(np.unique(voxels)) <= {0, 1}
    assert list((tmp_path / "run" / "predictions").glob("**/*.png")), "previews"


def test_data_of_several_organs_are_refused(tiny_msd, tmp_path):
    with pytest.raises(DatasetError, match="this recipe is for one organ"):
        recipe.train(call_of(tiny_msd, tmp_path / "run"))
