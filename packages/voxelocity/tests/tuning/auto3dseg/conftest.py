"""A work folder of Auto3DSeg with small networks, and trials of milliseconds in place of its trainings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml

from auto3dseg_on_cpu import seeming_gpu, shrink
from voxelocity_observe.core.environment import CHECKOUT

SHAPE = (48, 44, 40)
# The statistics of a data set of 4 cases that the templates are filled with.
STATS = {
    "stats_summary": {
        "n_cases": 4,
        "image_stats": {
            "channels": {"max": 1},
            "shape": {name: [*SHAPE] for name in ("max", "mean")},
            "sizemm": {name: [*map(float, SHAPE)] for name in ("max", "median", "percentile_90_0", "percentile_99_5")},
            "spacing": {
                name: [1.0, 1.0, 1.0]
                for name in ("median", "percentile_10_0", "percentile_00_5", "percentile_99_5")
            },
        },
        "image_foreground_stats": {"intensity": {"percentile_00_5": 100.0, "percentile_99_5": 220.0}},
        "label_stats": {"labels": [0, 1, 2]},
    }
}  # fmt: skip


@pytest.fixture(scope="session")
def templates() -> Path:
    """MONAI's templates, which no registry holds."""
    pytest.importorskip("optuna")
    pytest.importorskip("fire", reason="MONAI's templates import fire, which is not installed")
    default = CHECKOUT.parent / "shared" / "peers"
    folder = Path(os.environ.get("VOXELOCITY_PEERS", default)) / "auto3dseg" / "algorithm_templates"
    if not folder.is_dir():
        pytest.skip(f"Auto3DSeg's templates not found at {folder}; name the folder above auto3dseg in VOXELOCITY_PEERS")
    return folder


def write_inputs(folder: Path) -> dict[str, str]:
    """Four cases with their list and statistics; returns the arguments of BundleGen that describe them."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(4):
        label = np.zeros(SHAPE, np.uint8)
        label[10:30, 10:30, 10:30], label[20:28, 20:28, 20:28] = 1, 2
        image = rng.normal(100, 20, SHAPE).astype(np.float32) + 60 * label
        for name, voxels in (("image", image), ("label", label)):
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), folder / f"{name}_{number}.nii.gz")
        items.append({"image": f"image_{number}.nii.gz", "label": f"label_{number}.nii.gz", "fold": number % 2})
    (folder / "datalist.json").write_text(json.dumps({"training": items, "testing": []}))
    (folder / "datastats.yaml").write_text(yaml.safe_dump(STATS))
    source = {"modality": "MRI", "datalist": str(folder / "datalist.json"), "dataroot": str(folder)}
    (folder / "input.yaml").write_text(yaml.safe_dump(source))
    return {"data_stats_filename": str(folder / "datastats.yaml"), "data_src_cfg_name": str(folder / "input.yaml")}


@pytest.fixture(scope="session")
def filled(templates, tmp_path_factory):
    """A work folder as MONAI's own BundleGen makes it: four algorithms, two folds."""
    from monai.apps.auto3dseg import BundleGen

    root = tmp_path_factory.mktemp("auto3dseg")
    with seeming_gpu(16 << 30), contextlib.chdir(root):
        made = BundleGen(str(root / "work"), templates_path_or_url=str(templates), **write_inputs(root))
        made.generate(str(root / "work"), num_fold=2)
    shrink(root / "work")
    return root / "work"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The templates log into runner.log of the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def inputs(tmp_path):
    """The arguments of a user's own BundleGen."""
    with seeming_gpu(16 << 30):
        yield write_inputs(tmp_path)


@pytest.fixture
def work(filled, tmp_path):
    """A copy of one's own."""
    copy = tmp_path / "work"
    shutil.copytree(filled, copy)
    for file in [*copy.glob("*/algo_object.json"), *copy.glob("*/configs/*.yaml")]:
        file.write_text(file.read_text().replace(str(filled), str(copy)))
    return copy


# Reads the task as the real process does and answers with figures, without importing us. It says what memory it took:
# on a busy machine it is over before anyone looks.
_TRIAL = """
import json, pathlib, signal, sys, time
task, answer = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
def write(measurements, **about):
    answer.write_text(json.dumps({"measurements": measurements, "about": about, "peak_host_bytes": 1 << 26}))
if task["settings"] is None:
    own = dict(patches=2, windows=1, data_on="cpu", patches_per_case=1200, num_cases=2, num_validations=10,
               epoch_crops=4, images_per_batch=2, epochs_per_validation=2, crop_mode="ratio", fixed={})
    OWN
    write({"found": [1.0]}, own=own)
    sys.exit()
patches, windows = task["settings"]["patches_per_step"], task["settings"]["num_sw_batch_size"]
LINES
"""


@pytest.fixture
def trials(monkeypatch, quick_commits):
    """Replaces the process of a trial: Python lines that see `patches` and `windows` and call `write`."""

    def plant(lines="write({'images_per_s': [float(patches)], 'validation_s': [1.0 / windows]})", own="pass"):
        code = _TRIAL.replace("LINES", lines).replace("OWN", own)
        monkeypatch.setattr(
            "voxelocity.tuning.auto3dseg.customizing._process",
            lambda task, answer: [sys.executable, "-I", "-S", "-c", code, str(task), str(answer)],
        )

    return plant
