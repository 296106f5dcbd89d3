"""Spleen segmentation, trained fast: cached preparation, patches balanced between organ and background, UNet, DiceCE.

    python SCRIPT --data Task09_Spleen --out runs/spleen

DATA is a folder in the format of the Medical Segmentation Decathlon: `dataset.json`, images and labels. The last fifth
of its cases is held out. OUT gets `losses.csv`, `metrics.csv` and `summary.json`.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from monai.data import CacheDataset, ThreadDataLoader, decollate_batch, load_decathlon_datalist
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.optimizers import Novograd
from monai.transforms import (
    AsDiscrete,
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    EnsureTyped,
    FgBgToIndicesd,
    LoadImaged,
    Orientationd,
    RandAffined,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandScaleIntensityd,
    RandShiftIntensityd,
    ScaleIntensityRanged,
    Spacingd,
)
from monai.utils import set_determinism

KEYS = ("image", "label")
IMAGES_PER_BATCH = 2
PATCHES_PER_IMAGE = 4


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with dataset.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for losses, metrics and summary")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many batches in total; 0: never")
    parser.add_argument("--patch", type=int, default=0, help="side in voxels; default 96, with --small 32")
    parser.add_argument("--cache-rate", type=float, default=1.0, help="share of the cases to cache")
    parser.add_argument("--validate-every", type=int, default=10, help="epochs; the last one is always validated")
    parser.add_argument("--optimizer", choices=("sgd", "novograd"), default="sgd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="use a tiny network, to see that the script runs")
    options = parser.parse_args(words)
    options.patch = options.patch or (32 if options.small else 96)
    return options


def preparing(device: torch.device) -> list[Any]:
    """Transforms that give the same result for a case every time, and are cached."""
    return [
        LoadImaged(keys=KEYS),
        EnsureChannelFirstd(keys=KEYS),
        Orientationd(keys=KEYS, axcodes="RAS", labels=None),
        Spacingd(keys=KEYS, pixdim=(1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
        ScaleIntensityRanged(keys="image", a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True),
        CropForegroundd(keys=KEYS, source_key="image", allow_smaller=True),
        # Found once, so choosing a patch does not have to search the label.
        FgBgToIndicesd(keys="label", fg_postfix="_fg", bg_postfix="_bg", image_key="image"),
        EnsureTyped(keys=KEYS, device=device, track_meta=False),
    ]


def augmenting(patch: int) -> list[Any]:
    """Transforms that are drawn again for each patch."""
    return [
        RandCropByPosNegLabeld(
            keys=KEYS,
            label_key="label",
            spatial_size=(patch, patch, patch),
            pos=1,
            neg=1,
            num_samples=PATCHES_PER_IMAGE,
            fg_indices_key="label_fg",
            bg_indices_key="label_bg",
            allow_smaller=False,
        ),
        RandAffined(
            keys=KEYS,
            prob=1.0,
            spatial_size=(patch, patch, patch),
            rotate_range=(0.26, 0.26, 0.26),
            scale_range=(0.1, 0.1, 0.1),
            mode=("bilinear", "nearest"),
            padding_mode="zeros",
        ),
        *(RandFlipd(keys=KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        RandScaleIntensityd(keys="image", factors=0.1, prob=0.5),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=0.5),
    ]


def network(num_classes: int, *, small: bool) -> UNet:
    return UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=num_classes,
        channels=(4, 8) if small else (16, 32, 64, 128, 256),
        strides=(2,) if small else (2, 2, 2, 2),
        num_res_units=0 if small else 2,
    )


def optimizer_of(model: UNet, name: str) -> Any:
    if name == "novograd":
        return Novograd(model.parameters(), lr=2e-3)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=4e-5)


class Training:
    """Data, network and figures of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        set_determinism(options.seed)
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        cases = load_decathlon_datalist(options.data / "dataset.json", True, "training")
        labels = json.loads((options.data / "dataset.json").read_text())["labels"]
        held_out = max(1, len(cases) // 5)
        start = time.perf_counter()
        prepare = preparing(self.device)
        self.train_data = CacheDataset(
            cases[:-held_out],
            Compose([*prepare, *augmenting(options.patch)]),
            cache_rate=options.cache_rate,
            progress=False,
        )
        self.val_data = CacheDataset(cases[-held_out:], Compose(prepare), cache_rate=options.cache_rate, progress=False)
        self.cache_s = time.perf_counter() - start
        # Augmentation stays in one thread next to the training, so no data goes to another process.
        self.train_loader = ThreadDataLoader(self.train_data, num_workers=0, batch_size=IMAGES_PER_BATCH, shuffle=True)
        self.val_loader = ThreadDataLoader(self.val_data, num_workers=0, batch_size=1)
        self.model = network(len(labels), small=options.small).to(self.device)
        self.loss = DiceCELoss(to_onehot_y=True, softmax=True, squared_pred=True, batch=True)
        self.optimizer = optimizer_of(self.model, options.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.device.type == "cuda")
        self.prediction = AsDiscrete(argmax=True, to_onehot=len(labels))
        self.truth = AsDiscrete(to_onehot=len(labels))
        self.dice = DiceMetric(include_background=False, reduction="mean")
        self.losses: list[tuple[int, int, float]] = []
        self.num_patches = 0

    @property
    def is_over(self) -> bool:
        return bool(self.options.steps) and len(self.losses) >= self.options.steps

    def epoch(self, number: int) -> float:
        """One pass over the training cases, or over the remaining steps; returns its seconds."""
        self.model.train()
        start = time.perf_counter()
        for batch in self.train_loader:
            images, labels = batch["image"].to(self.device), batch["label"].to(self.device)
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, enabled=self.scaler.is_enabled()):
                loss = self.loss(self.model(images), labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.losses.append((len(self.losses), number, loss.item()))
            self.num_patches += len(images)
            if self.is_over:
                break
        return time.perf_counter() - start

    def validate(self) -> float:
        """Mean foreground Dice of the held-out cases."""
        self.model.eval()
        side = self.options.patch
        with torch.no_grad():
            for batch in self.val_loader:
                image, label = batch["image"].to(self.device), batch["label"].to(self.device)
                with torch.autocast(self.device.type, enabled=self.scaler.is_enabled()):
                    predicted = sliding_window_inference(image, (side, side, side), 4, self.model, overlap=0.5)
                self.dice(
                    y_pred=[self.prediction(item) for item in decollate_batch(predicted)],
                    y=[self.truth(item) for item in decollate_batch(label)],
                )
        mean = self.dice.aggregate().item()
        self.dice.reset()
        return float(mean)


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    epochs_s: list[float] = []
    scores: list[tuple[int, float]] = []
    for number in range(options.epochs):
        epochs_s.append(training.epoch(number))
        is_last = training.is_over or number == options.epochs - 1
        if is_last or (number + 1) % options.validate_every == 0:
            scores.append((number, training.validate()))
            print(f"epoch {number}: loss {training.losses[-1][2]:.4f}, Dice {scores[-1][1]:.4f}")
        if is_last:
            break
    write_table(options.out / "losses.csv", ("step", "epoch", "loss"), training.losses)
    write_table(options.out / "metrics.csv", ("epoch", "mean_dice"), scores)
    summary = {
        "seconds_to_fill_cache": training.cache_s,
        "seconds_per_epoch": sum(epochs_s) / len(epochs_s),
        "samples_per_s": training.num_patches / sum(epochs_s),
        "num_steps": len(training.losses),
        "final_loss": training.losses[-1][2],
        "mean_dice": scores[-1][1],
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
