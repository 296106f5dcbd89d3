"""The time budget on scans as large as those of a hospital, also on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import nibabel as nib
import numpy as np
import pytest

SHAPE, NUM_CLASSES, NUM_CASES = (224, 224, 224), 14, 6


def write_case(root, index):
    rng = np.random.default_rng(index)
    label = np.zeros(SHAPE, np.uint8)
    places = np.ogrid[tuple(slice(n) for n in SHAPE)]
    for value in range(1, NUM_CLASSES):
        centre = rng.uniform(40, 184, 3)
        label[sum((axis - at) ** 2 for axis, at in zip(places, centre, strict=True)) < rng.uniform(12, 28) ** 2] = value
    image = (100 * label + rng.normal(0, 20, SHAPE)).astype(np.int16)
    names = {"image": f"imagesTr/case_{index}.nii.gz", "label": f"labelsTr/case_{index}.nii.gz"}
    for name, array in zip(names.values(), (image, label), strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(array, np.eye(4)), root / name)
    return {**names, "fold": index % 3}


@pytest.fixture(scope="module")
def large_msd(tmp_path_factory):
    """Six cases, two of them in each fold."""
    root = tmp_path_factory.mktemp("large")
    entries = [write_case(root, index) for index in range(NUM_CASES)]
    labels = {"0": "background", **{str(value): f"organ {value}" for value in range(1, NUM_CLASSES)}}
    description = {"name": "Large", "modality": {"0": "CT"}, "labels": labels, "training": entries}
    (root / "dataset.json").write_text(json.dumps({**description, "numTraining": len(entries)}))
    return root


@pytest.mark.nightly
@pytest.mark.parametrize("num_busy", [0, 8])
def test_a_run_of_large_cases_ends_within_its_budget(large_msd, tmp_path, num_busy):
    budget_s = 60.0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        begin_s = time.monotonic()
        command = [sys.executable, "-m", "voxelocity", "train", large_msd, "-o", tmp_path / "run", "--device", "cpu"]
        ended = subprocess.run(
            [*map(str, command), "--time-budget", f"{budget_s:g}s"], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begin_s
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["cases"]
    assert seconds <= 1.1 * budget_s, ended.stdout
