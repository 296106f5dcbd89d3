"""Small raw data sets in nnU-Net's layout, and plans for them, as its planner would write them."""

import json

import nibabel as nib
import numpy as np

LABELS = {"background": 0, "liver": 1, "kidney": 2}


def write_raw(
    raw, *, name="Dataset901_Small", num=3, channels=("CT",), labels=LABELS, border=2, spacing=(0.8, 0.9, 2.0), **more
):
    """The folder of a data set of phantoms: two boxes in noise, and a border of zeros of this many voxels."""
    folder = raw / name
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(num):
        shape = (22 + number, 19, 14)
        label = np.zeros(shape, np.uint8)
        label[5:15, 4:12, 3:10] = 1
        label[12:18, 6:15, 5:11] = 2
        affine = np.diag([*(np.array(spacing) * (1 + 0.1 * number)), 1.0])
        affine[:3, 3] = 3.0, -7.5, number
        for channel in range(len(channels)):
            image = rng.normal(40 * (channel + 1), 30, shape) + 50 * label
            if border:
                inside = np.zeros(shape, bool)
                inside[border:-border, border:-border, border:-border] = True
                # A hole, and a bay that opens to the border.
                inside[8:10, 8:10, 6:8], inside[:6, 9:11, 6:8] = False, False
                image[~inside] = 0
            image = np.round(image).astype(np.int16)
            nib.save(nib.Nifti1Image(image, affine), folder / "imagesTr" / f"case_{number}_{channel:04d}.nii.gz")
        nib.save(nib.Nifti1Image(label, affine), folder / "labelsTr" / f"case_{number}.nii.gz")
    description = {
        "channel_names": {str(number): channel for number, channel in enumerate(channels)},
        "labels": labels,
        "numTraining": num,
        "file_ending": ".nii.gz",
        **more,
    }
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def write_plans(folder, *, channels=("CT",), spacing=(1.5, 1.0, 1.1), patch=(8, 16, 16), **changes):
    """A plans file in the folder of preprocessed cases."""
    resampling = {"order": 3, "order_z": 0, "force_separate_z": None}
    schemes = ["CTNormalization" if channel == "CT" else "ZScoreNormalization" for channel in channels]
    configuration = {
        "data_identifier": "nnUNetPlans_3d_fullres",
        "preprocessor_name": "DefaultPreprocessor",
        "patch_size": list(patch),
        "batch_size": 2,
        "spacing": list(spacing),
        "normalization_schemes": schemes,
        "use_mask_for_norm": [scheme == "ZScoreNormalization" for scheme in schemes],
        "resampling_fn_data": "resample_data_or_seg_to_shape",
        "resampling_fn_data_kwargs": {"is_seg": False, **resampling},
        "resampling_fn_seg": "resample_data_or_seg_to_shape",
        "resampling_fn_seg_kwargs": {"is_seg": True, **resampling, "order": 1},
        "architecture": {"network_class_name": "Net", "arch_kwargs": {}, "_kw_requires_import": []},
        **changes.pop("configuration", {}),
    }
    flat = {
        **configuration,
        "data_identifier": "nnUNetPlans_2d",
        "patch_size": list(patch[1:]),
        "spacing": list(spacing[1:]),
    }
    facts = {"mean": 61.5, "std": 33.25, "percentile_00_5": -20.5, "percentile_99_5": 170.75}
    plans = {
        "dataset_name": folder.name,
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 2, 1],
        "transpose_backward": [0, 2, 1],
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {str(n): facts for n in range(len(channels))},
        "configurations": {"3d_fullres": configuration, "2d": flat},
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nnUNetPlans.json").write_text(json.dumps(plans))
    return plans
