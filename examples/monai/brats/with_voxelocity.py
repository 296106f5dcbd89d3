"""Brain tumors in four MR contrasts: cached preparation, random crops and flips, SegResNet, Dice of three regions.

    python SCRIPT --data Task01_BrainTumour --out runs/brats

DATA is a folder in the format of the Medical Segmentation Decathlon: `dataset.json`, images and labels. An image is one
file of four channels or a list of four files. The last fifth of the cases is held out. OUT gets `losses.csv`,
`metrics.csv` and `summary.json`.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.data import decollate_batch, load_decathlon_datalist
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import SegResNet
from monai.transforms import (
    Activations,
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    MapTransform,
    NormalizeIntensityd,
    Orientationd,
    RandFlipd,
    RandScaleIntensityd,
    RandShiftIntensityd,
    RandSpatialCropd,
    Spacingd,
)
from monai.utils import set_determinism

from voxelocity.monai import CacheDataset, ThreadDataLoader, sliding_window_inference

KEYS = ("image", "label")
REGIONS = ("tumour core", "whole tumour", "enhancing tumour")
EDEMA, NON_ENHANCING, ENHANCING = 1, 2, 3
IMAGES_PER_BATCH = 2


class TumourRegionsd(MapTransform):
    """A label (1, x, y, z) of classes becomes (3, x, y, z) of 0 and 1: nested regions."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        changed = dict(data)
        for key in self.key_iterator(changed):
            label = changed[key]
            core = (label == NON_ENHANCING) | (label == ENHANCING)
            changed[key] = torch.cat([core, core | (label == EDEMA), label == ENHANCING]).float()
        return changed


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with dataset.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for losses, metrics and summary")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many batches in total; 0: never")
    parser.add_argument(
        "--patch", type=int, default=0, help="side in voxels, a multiple of 8; default 128, with --small 32"
    )
    parser.add_argument("--cache-rate", type=float, default=1.0, help="share of the cases to cache")
    parser.add_argument("--validate-every", type=int, default=10, help="epochs; the last one is always validated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="use a tiny network, to see that the script runs")
    options = parser.parse_args(words)
    options.patch = options.patch or (32 if options.small else 128)
    return options


def preparing() -> list[Any]:
    """Transforms that give the same result for a case every time, and are cached."""
    return [
        LoadImaged(keys=KEYS),
        EnsureChannelFirstd(keys=KEYS),
        TumourRegionsd(keys="label"),
        Orientationd(keys=KEYS, axcodes="RAS", labels=None),
        Spacingd(keys=KEYS, pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest")),
        EnsureTyped(keys=KEYS, track_meta=False),
    ]


def augmenting(patch: int) -> list[Any]:
    """Transforms that are drawn again for each patch, and those that follow them."""
    return [
        RandSpatialCropd(keys=KEYS, roi_size=(patch, patch, patch), random_size=False),
        *(RandFlipd(keys=KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True),
        RandScaleIntensityd(keys="image", factors=0.1, prob=1.0),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=1.0),
    ]


def network(*, small: bool) -> SegResNet:
    return SegResNet(
        spatial_dims=3,
        in_channels=4,
        out_channels=len(REGIONS),
        init_filters=8 if small else 16,
        blocks_down=(1, 1) if small else (1, 2, 2, 4),
        blocks_up=(1,) if small else (1, 1, 1),
        dropout_prob=0.2,
    )


class Training:
    """Data, network and figures of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        set_determinism(options.seed)
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        cases = load_decathlon_datalist(options.data / "dataset.json", True, "training")
        held_out = max(1, len(cases) // 5)
        start = time.perf_counter()
        cache: dict[str, Any] = {"cache_rate": options.cache_rate, "progress": False}
        self.train_data = CacheDataset(cases[:-held_out], Compose([*preparing(), *augmenting(options.patch)]), **cache)
        normalize = NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True)
        self.val_data = CacheDataset(cases[-held_out:], Compose([*preparing(), normalize]), **cache)
        self.cache_s = time.perf_counter() - start
        self.train_loader = ThreadDataLoader(self.train_data, num_workers=0, batch_size=IMAGES_PER_BATCH, shuffle=True)
        self.val_loader = ThreadDataLoader(self.val_data, num_workers=0, batch_size=1)
        self.model = network(small=options.small).to(self.device)
        self.loss = DiceLoss(smooth_nr=0.0, smooth_dr=1e-5, squared_pred=True, to_onehot_y=False, sigmoid=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, weight_decay=1e-5)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=options.epochs)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.device.type == "cuda")
        self.prediction = Compose([Activations(sigmoid=True), AsDiscrete(threshold=0.5)])
        self.dice = DiceMetric(include_background=True, reduction="mean_batch")
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
        self.schedule.step()
        return time.perf_counter() - start

    def validate(self) -> list[float]:
        """Dice of each region over the held-out cases."""
        self.model.eval()
        side = self.options.patch
        with torch.no_grad():
            for batch in self.val_loader:
                image, label = batch["image"].to(self.device), batch["label"].to(self.device)
                with torch.autocast(self.device.type, enabled=self.scaler.is_enabled()):
                    predicted = sliding_window_inference(image, (side, side, side), 1, self.model, overlap=0.5)
                self.dice(
                    y_pred=[self.prediction(item) for item in decollate_batch(predicted)], y=decollate_batch(label)
                )
        scores = [float(score) for score in self.dice.aggregate()]
        self.dice.reset()
        return scores


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    epochs_s: list[float] = []
    scores: list[tuple[float, ...]] = []
    for number in range(options.epochs):
        epochs_s.append(training.epoch(number))
        is_last = training.is_over or number == options.epochs - 1
        if is_last or (number + 1) % options.validate_every == 0:
            regions = training.validate()
            scores.append((number, sum(regions) / len(regions), *regions))
            print(f"epoch {number}: loss {training.losses[-1][2]:.4f}, Dice {scores[-1][1]:.4f}")
        if is_last:
            break
    write_table(options.out / "losses.csv", ("step", "epoch", "loss"), training.losses)
    write_table(options.out / "metrics.csv", ("epoch", "mean_dice", *REGIONS), scores)
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
