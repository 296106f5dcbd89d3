"""nnU-Net's commands over our trainers: a killed training that continues, validation, prediction, the best model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("nnunetv2", reason="nnU-Net v2")
from nnunet_folder import Scenario, plan, write_dataset
from shared.limits import HANGS_S

pytestmark = [pytest.mark.nightly, pytest.mark.data]
SCENARIO = Scenario(name="hippocampus", dataset_id=421, patch=(24, 32, 24), num_train=4, num_test=1)
TRAINERS = """
import torch
from voxelocity.nnunet.trainer import trainer_class

# Without mirroring, validation and prediction take an eighth of the time.
NAMES = ("nnUNetTrainerVoxelocityNoMirroring", "nnUNetTrainerVoxelocityFastNoMirroring")

def tiny(name):
    class Tiny(trainer_class(name)):
        def __init__(self, plans, configuration, fold, dataset_json, device=torch.device("cuda")):
            super().__init__(plans, configuration, fold, dataset_json, device)
            self.num_epochs, self.save_every = 4, 1
            self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 6, 2

    Tiny.__name__ = Tiny.__qualname__ = f"{name}_tiny"
    return Tiny

globals().update({f"{name}_tiny": tiny(name) for name in NAMES})
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The environment of nnU-Net's commands, with a data set that it preprocessed."""
    work = tmp_path_factory.mktemp("nnunet")
    (work / "trainers").mkdir()
    (work / "trainers" / "tiny.py").write_text(TRAINERS)
    settings = {f"nnUNet_{part}": str(work / part) for part in ("raw", "preprocessed", "results")}
    settings |= {"nnUNet_extTrainer": str(work / "trainers"), "nnUNet_compile": "f", "nnUNet_def_n_proc": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, "nnUNet_n_proc_DA": "1"}.items():
            patch.setenv(name, value)
        write_dataset(SCENARIO, work / "raw")
        plan(SCENARIO, work / "preprocessed")
    return work, {**os.environ, **settings, "OMP_NUM_THREADS": "1"}


def run(folders, name, *words):
    command = [sys.executable, str(Path(sys.executable).with_name(name)), *map(str, words)]
    done = subprocess.run(command, env=folders[1], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def kill_after_a_checkpoint(folders, fold, *words):
    command = [sys.executable, str(Path(sys.executable).with_name("nnUNetv2_train")), *map(str, words)]
    process = subprocess.Popen(command, env=folders[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + HANGS_S
    while not (fold / "checkpoint_latest.pth").exists():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < end_s
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "trainer", ["nnUNetTrainerVoxelocityNoMirroring_tiny", "nnUNetTrainerVoxelocityFastNoMirroring_tiny"]
)
def test_each_command_of_nnunet_works_on_what_our_trainers_make(folders, trainer):
    work, _ = folders
    results = work / "results" / "Dataset421_small" / f"{trainer}__nnUNetPlans__3d_fullres"
    train = ("421", "3d_fullres", "-tr", trainer, "-device", "cpu")
    kill_after_a_checkpoint(folders, results / "fold_0", *train[:2], 0, *train[2:])
    said = run(folders, "nnUNetv2_train", *train[:2], 0, *train[2:], "--c", "--npz")
    assert "Epoch 0" not in said
    assert "Epoch 3" in said
    assert "Mean Validation Dice" in said
    for name in ("checkpoint_final.pth", "progress.png", "validation/summary.json", "validation/case_000.npz"):
        assert (results / "fold_0" / name).exists(), name

    kept = torch.load(results / "fold_0" / "checkpoint_final.pth", weights_only=False)
    assert kept["trainer_name"] == trainer
    assert kept["current_epoch"] == 4
    assert [len(values) for values in kept["logging"].values()] == [4] * len(kept["logging"])
    if "Fast" in trainer:
        average = kept["optimizer_state"]["step"]["average"]
        weights = kept["network_weights"]
        assert all(torch.equal(weights[name], average[f"module.{name}"]) for name in weights)
        assert kept["optimizer_state"]["num_steps"] == 24
        assert kept["optimizer_state"]["spent_s"] > 0.0

    begun = str(results / "fold_0" / "checkpoint_final.pth")
    said = run(folders, "nnUNetv2_train", *train[:2], 1, *train[2:], "--npz", "-pretrained_weights", begun)
    assert "Loading pretrained weights" in said
    before = json.loads((results / "fold_0" / "validation" / "summary.json").read_text())["foreground_mean"]["Dice"]
    said = run(folders, "nnUNetv2_train", *train[:2], 0, *train[2:], "--val")
    assert float(said.rsplit("Mean Validation Dice:", 1)[1].split()[0]) == pytest.approx(before, abs=1e-4)

    out = work / f"predicted {trainer}"
    scans = work / "raw" / "Dataset421_small" / "imagesTs"
    run(folders, "nnUNetv2_predict", "-i", scans, "-o", out, "-d", 421, "-c", "3d_fullres", "-tr", trainer,
        "-f", 0, 1, "-device", "cpu", "-npp", 1, "-nps", 1)  # fmt: skip
    assert [path.name for path in out.glob("*.nii.gz")] == ["case_004.nii.gz"]
    run(folders, "nnUNetv2_find_best_configuration", 421, "-c", "3d_fullres", "-tr", trainer, "-f", 0, 1, "-np", 1)
    found = json.loads((work / "results" / "Dataset421_small" / "inference_information.json").read_text())
    assert trainer in found["best_model_or_ensemble"]["selected_model_or_models"][0]["trainer"]


def test_a_fold_of_absent_cases_ends_with_their_names(folders):
    path = folders[0] / "preprocessed" / "Dataset421_small" / "splits_final.json"
    folds = json.loads(path.read_text())
    path.write_text(json.dumps([*folds[:2], {"train": ["case_000", "case_777"], "val": ["case_001"]}]))
    words = ["421", "3d_fullres", "2", "-tr", "nnUNetTrainerVoxelocityNoMirroring_tiny", "-device", "cpu"]
    command = [sys.executable, str(Path(sys.executable).with_name("nnUNetv2_train")), *words]
    done = subprocess.run(command, env=folders[1], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert done.returncode != 0
    assert "nnunet: fold 2 trains on 1 case that" in done.stderr
    assert "(case_777); preprocess them, or correct" in done.stderr


@pytest.mark.gpu
def test_several_gpus_train_together(folders):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    trainer = "nnUNetTrainerVoxelocityNoMirroring_tiny"
    run(folders, "nnUNetv2_train", 421, "3d_fullres", 0, "-tr", trainer, "-num_gpus", 2)
    made = folders[0] / "results" / "Dataset421_small" / f"{trainer}__nnUNetPlans__3d_fullres" / "fold_0"
    assert (made / "checkpoint_final.pth").exists()
