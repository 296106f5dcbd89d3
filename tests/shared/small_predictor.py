"""A small network that predicts scans of noise."""

import nibabel as nib
import numpy as np
import torch

from voxelocity.core.volume import VolumeRef
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.step import build_network


def small_spec(**changes):
    """The description of a small UNet for a CT and one organ; `changes` are other values of its keys."""
    return ModelSpec.parse(
        {
            "network": {"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]},
            "channels": ["CT"],
            "labels": {0: "background", 1: "organ"},
            "prepare": {},
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
            **changes,
        }
    )


def predictor(
    *,
    channels=("CT",),
    batch_size=4,
    num_classes=2,
    spacing_mm="keep",
    window=8,
    crop="none",
    region_order=(),
    **options,
):
    """Of a network without training. `options` are those of `Predictor`."""
    spec = small_spec(
        channels=list(channels),
        labels={0: "background"} | {6 + index: f"organ {index}" for index in range(1, num_classes)},
        prepare={"spacing_mm": spacing_mm, "crop": crop},
        region_order=list(region_order),
        window={"shape_voxel": [window] * 3, "batch_size": batch_size},
    )
    network = build_network(spec.network, num_channels=len(channels), num_classes=num_classes, seed=3).eval()
    return Predictor(network, spec, spec.preparation(), device=torch.device("cpu"), **options)


def scans(folder, num, *, shape=(8, 8, 8)):
    """References to `num` scans of noise."""
    refs = []
    for index in range(num):
        path = folder / f"case_{index}.nii.gz"
        voxels = np.random.default_rng(index).standard_normal(shape).astype(np.float32)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), path)
        refs.append(VolumeRef(case_id=f"case_{index}", images=(path,)))
    return refs
