from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.volume import Grid, Volume

OBLIQUE = np.array([[0.1, 1.2, 0.2, -10.0], [-0.9, 0.1, 0.3, 5.0], [-0.2, 0.1, -2.5, 7.0], [0, 0, 0, 1.0]])


@pytest.fixture
def oblique() -> np.ndarray:
    """Axes near (P, R, I), turned by some degrees and of three spacings."""
    return OBLIQUE.copy()


@pytest.fixture
def make_volume() -> Callable[..., Volume]:
    def make(image: np.ndarray, affine: np.ndarray | None = None, label: np.ndarray | None = None) -> Volume:
        image = image[np.newaxis] if image.ndim == 3 else image
        grid = Grid.of(image.shape, np.eye(4) if affine is None else affine)
        return Volume(case_id="liver_01", image=image, label=label, grid=grid)

    return make


@pytest.fixture
def load(real_data: Path, make_volume) -> Callable[..., Volume]:
    """A real case read by nibabel, label values as class indices."""

    def read(image: str, label: str | None = None) -> Volume:
        scan = nib.load(real_data / image)
        classes = None
        if label is not None:
            values = np.asarray(nib.load(real_data / label).dataobj)
            classes = np.searchsorted(np.unique(values), values).astype(np.uint8)
        return make_volume(np.asarray(scan.dataobj), scan.affine, classes)

    return read
