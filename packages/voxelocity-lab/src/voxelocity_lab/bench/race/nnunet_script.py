"""Train with nnU-Net's own planner, preprocessing and trainer, to a target Dice or for some seconds; write how it went.

    python nnunet_script.py JOB.json --out RESULT.json [--predictions FOLDER] [--began UNIX_SECONDS]

The job is the one of `monai_script`. nnU-Net takes its own fingerprint, prepares the scans, and trains with its own
loss, augmentation, SGD and deep supervision. Spacing, patch, batch and network are replaced in its plans file, as its
guide describes: its own take minutes a step without a GPU. It mirrors only the axes that the job flips, as its variants
for anatomy with sides do. Without a target its poly schedule ends with the budget.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_NAME = "Dataset001_race"
_CONFIGURATION = "3d_fullres"


def write_raw(job: dict[str, Any], raw: Path) -> dict[str, list[str]]:
    """The data set as nnU-Net takes it, which names the files where they are; case ids by part of the split."""
    folder = raw / _NAME
    folder.mkdir(parents=True)
    files, split = {}, {"train": list[str](), "val": list[str]()}
    for part, cases in (("train", job["training"]), ("val", job["held_out"])):
        for number, case in enumerate(cases):
            images = case["image"] if isinstance(case["image"], list) else [case["image"]]
            name = f"{part}_{number:03d}"
            files[name] = {"images": images, "label": case["label"]}
            split[part].append(name)
    first = next(iter(files.values()))
    kind = "MRI" if job["window"] is None else "CT"
    description = {
        "channel_names": {str(channel): kind for channel in range(len(first["images"]))},
        "labels": {"background": 0} | {f"class {index}": index for index in range(1, job["num_classes"])},
        "numTraining": len(files),
        "file_ending": ".nii.gz" if first["label"].endswith(".gz") else ".nii",
        "dataset": files,
    }
    (folder / "dataset.json").write_text(json.dumps(description))
    return split


def prepare(job: dict[str, Any], preprocessed: Path, split: dict[str, list[str]]) -> None:
    """Fingerprint, plan with the job's network, preprocessed cases and the split."""
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )

    num_processes = os.cpu_count() or 1
    extract_fingerprints([1], num_processes=num_processes, show_progress_bar=False)
    spacing = None if job["spacing_mm"] is None else job["spacing_mm"][::-1]
    plan_experiments([1], overwrite_target_spacing=spacing)
    path = preprocessed / _NAME / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    # Files are read as (z, y, x), and turned once more.
    order = [2 - axis for axis in plans["transpose_forward"]]
    configuration = plans["configurations"][_CONFIGURATION]
    strides = [[1, 1, 1], *([stride[axis] for axis in order] for stride in job["strides"])]
    configuration["patch_size"] = [job["patch_voxel"][axis] for axis in order]
    configuration["batch_size"] = job["images_per_batch"] * job["patches_per_image"]
    configuration["architecture"]["arch_kwargs"] |= {
        "n_stages": len(job["widths"]),
        "features_per_stage": job["widths"],
        "strides": strides,
        "kernel_sizes": [[3 if s > 1 or max(stride) == 1 else 1 for s in stride] for stride in strides],
        "n_conv_per_stage": [2] * len(job["widths"]),
        "n_conv_per_stage_decoder": [2] * (len(job["widths"]) - 1),
    }
    path.write_text(json.dumps(plans))
    (path.parent / "splits_final.json").write_text(json.dumps([split]))
    preprocess([1], configurations=(_CONFIGURATION,), num_processes=(num_processes,))


def mirror_axes(flip_probability: Sequence[float], transpose_forward: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of nnU-Net's patches that are flipped along (x, y, z) with a probability; None for none.

    nnU-Net reads files as (z, y, x) and turns them once more.
    """
    flipped = [flip_probability[2 - axis] > 0.0 for axis in transpose_forward]
    return tuple(axis for axis, is_flipped in enumerate(flipped) if is_flipped) or None


class SteppedTrainer:
    """nnU-Net's trainer, stepped until its time or its target comes."""

    def __init__(self, job: dict[str, Any], preprocessed: Path, began_unix_s: float) -> None:
        import torch
        from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        torch.manual_seed(job["seed"])
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        base = preprocessed / _NAME
        plans, description = (json.loads((base / name).read_text()) for name in ("nnUNetPlans.json", "dataset.json"))
        # As nnU-Net's own command gives it; the trainer takes it out again.
        plans["continue_training"] = False
        axes = mirror_axes(job["flip_probability"], plans["transpose_forward"])

        class Trainer(nnUNetTrainer):  # type: ignore[misc]
            def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> Any:  # noqa: N802
                *others, _ = super().configure_rotation_dummyDA_mirroring_and_inital_patch_size()
                self.inference_allowed_mirroring_axes = axes
                return (*others, axes)

        self.trainer: Any = Trainer(plans, _CONFIGURATION, 0, description, device)
        self.trainer.disable_checkpointing = True
        self.trainer.on_train_start()
        self.predictor: Any = nnUNetPredictor(
            tile_step_size=1.0 - job["window_overlap"], use_mirroring=False, device=device, allow_tqdm=False
        )
        self.predictor.manual_initialization(
            self.trainer.network,
            self.trainer.plans_manager,
            self.trainer.configuration_manager,
            None,
            description,
            "nnUNetTrainer",
            None,
        )
        self.job, self.began_unix_s = job, began_unix_s
        self.begin_s = self.since_start_s()
        self.num_patches = 0

    def since_start_s(self) -> float:
        """Seconds since the process was started."""
        return time.time() - self.began_unix_s

    def spent_share(self) -> float:
        """Of the time from the first step to the end of the budget."""
        budget_s = float(self.job["budget_s"])
        return (self.since_start_s() - self.begin_s) / max(budget_s - self.begin_s, 1e-3)

    def epoch(self) -> tuple[float, float, float]:
        """One pass over the cases: its mean loss, seconds of waiting and of steps."""
        losses, waited_s, stepped_s = [], 0.0, 0.0
        self.trainer.network.train()
        for _ in range(max(1, len(self.job["training"]) // self.job["images_per_batch"])):
            start_s = time.perf_counter()
            batch = next(self.trainer.dataloader_train)
            got_s = time.perf_counter()
            if not self.job["target_dice"]:
                for group in self.trainer.optimizer.param_groups:
                    group["lr"] = self.trainer.initial_lr * max(0.0, 1.0 - self.spent_share()) ** 0.9
            losses.append(float(self.trainer.train_step(batch)["loss"]))
            self.num_patches += len(batch["data"])
            waited_s, stepped_s = waited_s + got_s - start_s, stepped_s + time.perf_counter() - got_s
            if self.spent_share() >= 1.0:
                break
        return statistics.fmean(losses), waited_s, stepped_s

    def validate(self) -> float:
        """Mean foreground Dice of the held-out cases on the prepared grid: over cases, then over classes."""
        import numpy as np

        by_class: list[list[float]] = [[] for _ in range(1, self.job["num_classes"])]
        for logits, truth, _ in self._predict():
            found = logits.argmax(0).numpy()
            for index, dice in enumerate(by_class, start=1):
                a, b = found == index, truth == index
                if total := np.count_nonzero(a) + np.count_nonzero(b):
                    dice.append(2.0 * np.count_nonzero(a & b) / total)
        return statistics.fmean(statistics.fmean(dice) for dice in by_class if dice)

    def predict(self, folder: Path) -> None:
        """Predictions of the held-out cases on their own grids, named by their place in the job."""
        from nnunetv2.inference.export_prediction import export_prediction_from_logits

        trainer = self.trainer
        folder.mkdir(parents=True, exist_ok=True)
        for number, (logits, _, properties) in enumerate(self._predict()):
            export_prediction_from_logits(
                logits,
                properties,
                trainer.configuration_manager,
                trainer.plans_manager,
                trainer.dataset_json,
                str(folder / f"{number:03d}"),
            )

    def _predict(self) -> Iterator[tuple[Any, Any, Any]]:
        import torch

        self.trainer.set_deep_supervision_enabled(False)
        self.trainer.network.eval()
        dataset = self.trainer.dataset_class(self.trainer.preprocessed_dataset_folder, self.trainer.do_split()[1])
        for name in dataset.identifiers:
            data, truth, _, properties = dataset.load_case(name)
            logits = self.predictor.predict_sliding_window_return_logits(torch.from_numpy(data[:].copy()))
            yield logits.float().cpu(), truth[:][0], properties
        self.trainer.set_deep_supervision_enabled(self.trainer.enable_deep_supervision)


def train(job: dict[str, Any], began_unix_s: float, predictions: Path | None) -> dict[str, Any]:
    """Trains until the target is reached or the budget is spent: the record that `--out` writes."""
    with tempfile.TemporaryDirectory(prefix="nnunet-") as name:
        folders = {key: Path(name) / key for key in ("raw", "preprocessed", "results")}
        # Read when nnU-Net is imported.
        os.environ.update({f"nnUNet_{key}": str(folder) for key, folder in folders.items()} | {"nnUNet_compile": "f"})
        split = write_raw(job, folders["raw"])
        prepare(job, folders["preprocessed"], split)
        training = SteppedTrainer(job, folders["preprocessed"], began_unix_s)
        spent_s = {"start": training.since_start_s(), "data": 0.0, "step": 0.0, "validation": 0.0}
        losses, dices, epoch_s, reached = list[float](), list[list[float]](), list[float](), False
        while not losses or (not reached and training.since_start_s() < job["budget_s"]):
            loss, waited_s, stepped_s = training.epoch()
            losses.append(loss)
            epoch_s.append(waited_s + stepped_s)
            spent_s["data"], spent_s["step"] = spent_s["data"] + waited_s, spent_s["step"] + stepped_s
            if job["epochs_per_validation"] and len(losses) % job["epochs_per_validation"] == 0:
                before_s = training.since_start_s()
                dice = training.validate()
                dices.append([training.since_start_s(), len(losses), dice])
                spent_s["validation"] += dices[-1][0] - before_s
                reached = 0.0 < job["target_dice"] <= dice
                print(f"epoch {len(losses):3d}  {dices[-1][0]:6.1f} s  loss {loss:.3f}  Dice {dice:.3f}", flush=True)
        total_s = training.since_start_s()
        if predictions is not None:
            training.predict(predictions)
        training.trainer.on_train_end()
    return {
        "reached": reached,
        "seconds_to_target": total_s if reached else None,
        "seconds": total_s,
        "epochs": len(losses),
        "seconds_per_epoch": statistics.median(epoch_s),
        "patches_per_second": training.num_patches / sum(epoch_s),
        "seconds_by_activity": spent_s,
        "peak_host_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "dice_history": dices,
        "loss_history": losses,
        "settings": job,
    }


def main() -> None:
    """The command line: trains and writes the record."""
    parser = argparse.ArgumentParser(description="Train with nnU-Net's own trainer, and time it.")
    parser.add_argument("job", type=Path, help="the settings as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes, as JSON")
    parser.add_argument("--predictions", type=Path, help="folder for predictions of the held-out cases")
    parser.add_argument("--began", type=float, default=time.time(), help="Unix time at which the process was started")
    options = parser.parse_args()
    record = train(json.loads(options.job.read_text()), options.began, options.predictions)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
