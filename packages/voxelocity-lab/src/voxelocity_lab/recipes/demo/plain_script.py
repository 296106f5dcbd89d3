"""Train a segmentation network on CT scans with MONAI alone, the way most scripts do.

    python plain_script.py DATASET --seconds 60

DATASET is a folder in the format of the Medical Segmentation Decathlon, with a fold for each case; fold 0 is held out.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from monai.data import DataLoader, Dataset
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.networks.utils import one_hot
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    Orientationd,
    RandAdjustContrastd,
    RandAffined,
    RandCropByLabelClassesd,
    RandGaussianNoised,
    RandScaleIntensityd,
    RandShiftIntensityd,
    ScaleIntensityRanged,
    Spacingd,
    SpatialPadd,
)
from monai.utils import set_determinism

KEYS = ("image", "label")
PATCH = (40, 40, 40)
NUM_CLASSES = 4
EPOCHS_PER_VALIDATION = 2

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("dataset", type=Path)
parser.add_argument("--seconds", type=float, default=600.0, help="when to stop, imports included")
parser.add_argument("--target", type=float, default=1.0, help="Dice at which to stop")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--began", type=float, default=time.time(), help="Unix time at which the process was started")


def transforms() -> tuple[list[Any], list[Any]]:
    """What is the same for a scan each time, and what is random."""
    fixed = [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        Orientationd(KEYS, axcodes="RAS", labels=None),
        Spacingd(KEYS, pixdim=(3.0, 3.0, 3.0), mode=("bilinear", "nearest"), dtype=torch.float32),
        ScaleIntensityRanged("image", -160.0, 240.0, 0.0, 1.0, clip=True),
        SpatialPadd(KEYS, PATCH),
    ]
    random = [
        RandCropByLabelClassesd(
            KEYS, "label", PATCH, ratios=[3, 1, 1, 1], num_classes=NUM_CLASSES, num_samples=2, warn=False
        ),
        RandAffined(
            KEYS, prob=0.7, rotate_range=(0.26,) * 3, scale_range=((-0.15, 0.15),) * 3, mode=("bilinear", "nearest"),
            padding_mode="border",
        ),
        RandGaussianNoised("image", prob=0.1, std=0.1),
        RandScaleIntensityd("image", factors=0.25, prob=0.15),
        RandShiftIntensityd("image", offsets=0.1, prob=0.15),
        RandAdjustContrastd("image", prob=0.3, gamma=(0.7, 1.5)),
    ]  # fmt: skip
    return fixed, random


def loaders(dataset: Path, seed: int) -> tuple[Any, Any]:
    """Batches of two patches from each of two scans, and the held-out scans one by one."""
    cases = json.loads((dataset / "dataset.json").read_text())["training"]
    files = [{key: str(dataset / case[key]) for key in KEYS} for case in cases]
    training = [file for file, case in zip(files, cases, strict=True) if case["fold"] != 0]
    held_out = [file for file, case in zip(files, cases, strict=True) if case["fold"] == 0]
    fixed, random = transforms()
    order = torch.Generator().manual_seed(seed)
    workers: Any = {"num_workers": 2, "persistent_workers": True}
    train_set, held_out_set = Dataset(training, Compose(fixed + random)), Dataset(held_out, Compose(fixed))
    return DataLoader(train_set, batch_size=2, shuffle=True, generator=order, **workers), DataLoader(
        held_out_set, **workers
    )


@torch.no_grad()
def validate(net: UNet, loader: Any) -> float:
    """Mean foreground Dice of the held-out scans."""
    dice = DiceMetric(include_background=False, reduction="mean_batch")
    net.eval()
    for case in loader:
        logits = sliding_window_inference(case["image"], PATCH, 4, net, overlap=0.25, mode="gaussian")
        dice(one_hot(logits.argmax(1, keepdim=True), NUM_CLASSES), one_hot(case["label"], NUM_CLASSES))
    return float(dice.aggregate().nanmean().item())


def main() -> None:
    """The command line."""
    options = parser.parse_args()
    set_determinism(options.seed)
    # The two workers keep the cores busy; on two cores, a second thread here makes an epoch four times slower.
    torch.set_num_threads(1)
    train_loader, held_out_loader = loaders(options.dataset, options.seed)
    net = UNet(3, 1, NUM_CLASSES, channels=(16, 32, 64, 128), strides=(2, 2, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
    epoch, dice = 0, 0.0
    while dice < options.target:
        epoch, begin = epoch + 1, time.time()
        net.train()
        for batch in train_loader:
            loss = loss_of(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 12.0)
            optimizer.step()
            if time.time() - options.began >= options.seconds:
                return
        end = time.time()
        if epoch % EPOCHS_PER_VALIDATION == 0:
            dice = validate(net, held_out_loader)
            passed = f"{time.time() - options.began:6.1f} s  loss {loss.item():.3f}  Dice {dice:.3f}"
            print(f"epoch {epoch:3d}  {passed}  {end - begin:.2f} s an epoch", flush=True)


if __name__ == "__main__":
    main()
