from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import DataConfig


@pytest.fixture(scope="session")
def blob_refs(tmp_path_factory) -> tuple[VolumeRef, ...]:
    """Five small labelled scans of different shapes, with one ball each."""
    folder: Path = tmp_path_factory.mktemp("blobs")
    refs = []
    for i in range(5):
        rng = np.random.default_rng(i)
        shape = (18 + i, 20, 16)
        distance = np.linalg.norm(np.stack(np.indices(shape)) - np.array([9, 10, 8]).reshape(3, 1, 1, 1), axis=0)
        label = (distance < 5).astype(np.uint8)
        image = (rng.normal(size=shape) * 20 + 100 * label).astype(np.int16)
        paths = folder / f"case_{i}.nii.gz", folder / f"label_{i}.nii.gz"
        for array, path in zip((image, label), paths, strict=True):
            nib.save(nib.Nifti1Image(array, np.eye(4)), path)
        refs.append(VolumeRef(case_id=f"case_{i}", images=(paths[0],), label=paths[1], fold=i % 2))
    return tuple(refs)


@pytest.fixture
def data_config(tmp_path):
    """A function that makes the path's configuration with a choice of tier ("lmdb blosc2": and format) and threads."""

    def make(tier="memory", num_threads=0, **augment) -> DataConfig:
        tier, _, format = tier.partition(" ")
        return DataConfig.parse(
            {
                "prepare": {"intensity": {"mode": "zscore"}, "spacing_mm": [1.0, 1.0, 1.0]},
                "cache": {
                    "tier": tier,
                    "folder": str(tmp_path / f"cache{format}"),
                    "format": format or "raw",
                    "max_bytes": 2**30,
                },
                "patch": {"shape_voxel": [8, 12, 20], "foreground_share": 0.5},
                "batch_size": 3,
                "feed": {"num_threads": num_threads, "num_batches_ahead": 2},
                "augment": {"affine_probability": 0.5, "noise_probability": 0.5, **augment},
            }
        )

    return make
