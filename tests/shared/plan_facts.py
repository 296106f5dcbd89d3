"""A data set and a machine as rules of the plan see them, made up."""

import numpy as np

from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.fingerprint import DatasetFingerprint, Intensity, Spread
from voxelocity.planning.machine import Machine

GIB = 2**30


def spread(*median):
    return Spread(low=median, median=median, high=median)


def fingerprint(shape=(35.0, 50.0, 36.0), spacing=(1.0, 1.0, 1.0), channels=("MRI",), num_cases=100, **changes):
    intensity = Intensity(
        percentile_00_5=10, median=50, percentile_99_5=90, mean=51, std=20, lowest=0, highest=100
    )  # fmt: skip
    values = {
        "num_cases": num_cases,
        "channels": channels,
        "class_names": ("background", "a"),
        "shape_voxel": spread(*shape),
        "spacing_mm": spread(*spacing),
        "extent_mm": spread(*np.multiply(shape, spacing)),
        "stored_dtypes": {"int16": num_cases},
        "file_bytes": 10**8,
        "num_voxels": int(np.prod(shape)) * num_cases,
        "num_sampled": 8,
        "intensity": (intensity,) * len(channels),
        "class_shares": {"background": 0.9, "a": 0.1},
        "crop_share": 1.0,
        "prepare_s": 0.1,
        "sampled_voxels": int(np.prod(shape)) * 8,
    }
    return DatasetFingerprint(**{**values, **changes})


def machine(device="cpu", **changes):
    values = {
        "device": device,
        "device_name": "CPU" if device == "cpu" else "some GPU",
        "device_memory_bytes": 0 if device == "cpu" else 24 * GIB,
        "device_free_bytes": 0 if device == "cpu" else 23 * GIB,
        "fast_bfloat16": True,
        "num_cpus": 8,
        "memory_bytes": 32 * GIB,
        "shared_bytes": 16 * GIB,
        "disk_bytes": 500 * GIB,
    }
    return Machine(**{**values, **changes})


def plan_facts(data, on, overrides=None, **changes):
    """What rules begin with, for a run of 80 cases without a time budget."""
    values = {"num_training": 80, "time_budget_s": 0.0, "seed": 0, "cache_folder": "cache"}
    return PlanFacts(data=data, machine=on, overrides=overrides or {}, **{**values, **changes})
