from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

SHAPE, SPACING_MM = (12, 10, 8), (1.0, 2.0, 1.5)
VALUES = {0: "background", 3: "organ", 7: "tumor"}


def label(*boxes):
    """Boxes of a value each, as (value, start, stop)."""
    voxels = np.zeros(SHAPE, np.uint8)
    for value, start, stop in boxes:
        voxels[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = value
    return voxels


TRUTH = {
    "a": label((3, (2, 2, 2), (8, 8, 6)), (7, (4, 4, 3), (6, 6, 5))),
    "b": label((3, (1, 1, 1), (5, 5, 5))),
    "c": label((3, (3, 3, 3), (7, 7, 7)), (7, (8, 8, 1), (10, 10, 3))),
}
PREDICTED = {
    "a": label((3, (3, 2, 2), (9, 8, 6)), (7, (4, 4, 3), (6, 6, 5))),
    "b": label((3, (1, 1, 1), (5, 5, 5))),
    "c": label((3, (3, 3, 3), (7, 7, 7))),
}


def save(folder: Path, volumes, *, affine=None, ending=".nii.gz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, voxels in volumes.items():
        image = nib.Nifti1Image(voxels, np.diag([*SPACING_MM, 1.0]) if affine is None else affine)
        nib.save(image, folder / f"{name}{ending}")
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Predictions and truth of three cases, with a `dataset.json` next to the truth, as nnU-Net has it."""
    predictions, truth = save(tmp_path / "predicted", PREDICTED), save(tmp_path / "raw" / "labelsTr", TRUTH)
    labels = {name: value for value, name in VALUES.items()}
    (tmp_path / "raw" / "dataset.json").write_text(json.dumps({"labels": labels}))
    return predictions, truth
