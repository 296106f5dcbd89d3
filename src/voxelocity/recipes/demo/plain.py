"""Train a segmentation network the way most scripts do today: plain PyTorch and MONAI, every epoch from the files.

    python plain.py DATASET_FOLDER --target-dice 0.88 --max-minutes 10 --out result.json

The yardstick of the demonstration: it trains until a target Dice is reached and writes how long that took. It imports
nothing of this package and is set up as well as the usual script can be (workers, float32 resampling, low precision
where the processor has it). It caches nothing; that is what it stands for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
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
    CropForegroundd,
    EnsureChannelFirstd,
    LoadImaged,
    Orientationd,
    RandAffined,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    RandShiftIntensityd,
    ScaleIntensityRanged,
    Spacingd,
    SpatialPadd,
)
from monai.utils import set_determinism

KEYS = ("image", "label")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """Everything that decides the result, in plain numbers, so that another trainer can be given the same."""

    target_dice: float = 0.88
    """Mean foreground Dice of the held-out cases, on the prepared grid, at which training stops."""
    seed: int = 0
    """Seed of the initial weights, the order of the cases and all random transforms."""
    fold: int = 0
    """Which cases are held out: every `num_folds`-th in the order of dataset.json, from this one on."""
    num_folds: int = 4
    """At 22 cases and fold 0: 16 for training, 6 held out."""
    spacing_mm: tuple[float, float, float] = (3.0, 3.0, 3.0)
    """Target grid after turning to RAS; coarse, because the demonstration runs on a laptop without a GPU."""
    window_hu: tuple[float, float] = (-160.0, 240.0)
    """Mapped to 0 and 1, clipped outside: the usual abdominal window."""
    patch_voxel: tuple[int, int, int] = (40, 40, 40)
    """Size of training patches and of the windows at validation."""
    images_per_batch: int = 2
    """Scans in a batch."""
    patches_per_image: int = 2
    """Patches cut from a scan each time it is read, half of them around foreground voxels on average."""
    rotate_rad: float = 0.2
    """Largest rotation about each axis."""
    zoom: float = 0.1
    """Largest relative change of size along each axis."""
    intensity_factor: float = 0.1
    """Largest relative change of the intensities (probability 0.5)."""
    intensity_offset: float = 0.1
    """Largest shift of the windowed intensities (probability 0.5)."""
    noise_std: float = 0.02
    """Largest standard deviation of the added noise (probability 0.3)."""
    channels: tuple[int, ...] = (16, 32, 64, 128)
    """Feature channels of MONAI's UNet, one number a level."""
    strides: tuple[int, ...] = (2, 2, 2)
    """Down-sampling between the levels."""
    num_res_units: int = 0
    """Residual units a level; 0 means one convolution a level."""
    learning_rate: float = 3e-3
    """Of AdamW, constant."""
    weight_decay: float = 1e-4
    """Of AdamW."""
    low_precision: bool = True
    """bfloat16 autocast. Without bfloat16 instructions float32 is used in any case, as it is faster there;
    with them a step of 4 patches took 58 ms, in float32 76 ms (one core)."""
    window_overlap: float = 0.25
    """Of the windows at validation."""
    epochs_per_validation: int = 2
    """Validate after every so many epochs."""
    num_workers: int = 2
    """Loader processes, for training and for validation each."""
    num_threads: int = 1
    """Threads of the training process on a CPU. With two workers on two busy cores an epoch took 3.3 and 3.8 s at 1,
    14.0 and 15.4 s at 2 (four runs in turn): OpenMP threads that wait for each other spin on the loaders' cores."""


class Stopwatch:
    """Seconds by activity and since the start; on a GPU the queue is drained before booking."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent_s = {"data": 0.0, "step": 0.0, "validation": 0.0}
        self.start_s = self.mark_s = time.perf_counter()

    def since_start_s(self) -> float:
        """Seconds since the stopwatch was made."""
        return time.perf_counter() - self.start_s

    def charge(self, activity: str) -> None:
        """Book the time since the last booking."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now_s = time.perf_counter()
        self.spent_s[activity] += now_s - self.mark_s
        self.mark_s = now_s


def read_cases(folder: Path, settings: PlainSettings) -> tuple[list[dict[str, str]], list[dict[str, str]], list[str]]:
    """Training cases, held-out cases and class names of a Medical Segmentation Decathlon folder."""
    description = json.loads((folder / "dataset.json").read_text())
    cases = [{key: str(folder / entry[key]) for key in KEYS} for entry in description["training"]]
    held_out = cases[settings.fold :: settings.num_folds]
    names = [name for _, name in sorted(description["labels"].items(), key=lambda item: int(item[0]))]
    return [case for case in cases if case not in held_out], held_out, names


def preparation(settings: PlainSettings) -> list[Any]:
    """What happens to a scan every time it is read, before anything random."""
    low, high = settings.window_hu
    return [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        Orientationd(KEYS, axcodes="RAS", labels=None),
        # MONAI resamples in float64 unless told otherwise: 77 ms a case, 38 ms in float32 (one core).
        Spacingd(KEYS, pixdim=settings.spacing_mm, mode=("bilinear", "nearest"), dtype=torch.float32),
        ScaleIntensityRanged("image", low, high, 0.0, 1.0, clip=True),
        CropForegroundd(KEYS, source_key="image", allow_smaller=True),
        SpatialPadd(KEYS, settings.patch_voxel),
    ]


def augmentation(settings: PlainSettings) -> list[Any]:
    """Patches and their random changes, one sample at a time."""
    rotate, zoom = (settings.rotate_rad,) * 3, (settings.zoom,) * 3
    return [
        RandCropByPosNegLabeld(
            KEYS,
            label_key="label",
            spatial_size=settings.patch_voxel,
            pos=1,
            neg=1,
            num_samples=settings.patches_per_image,
        ),
        *(RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        RandAffined(
            KEYS, prob=1.0, rotate_range=rotate, scale_range=zoom, mode=("bilinear", "nearest"), padding_mode="border"
        ),
        RandScaleIntensityd("image", factors=settings.intensity_factor, prob=0.5),
        RandShiftIntensityd("image", offsets=settings.intensity_offset, prob=0.5),
        RandGaussianNoised("image", std=settings.noise_std, prob=0.3),
    ]


def loaders(folder: Path, settings: PlainSettings, device: torch.device) -> tuple[Any, Any, int]:
    """Loaders of training batches and of held-out scans, and the number of classes."""
    training, held_out, names = read_cases(folder, settings)
    workers = {
        "num_workers": settings.num_workers,
        "persistent_workers": settings.num_workers > 0,
        "prefetch_factor": 2 if settings.num_workers else None,
        "pin_memory": device.type == "cuda",
    }
    order = torch.Generator().manual_seed(settings.seed)
    train_transforms = Compose([*preparation(settings), *augmentation(settings)])
    train_loader = DataLoader(
        Dataset(training, train_transforms),
        batch_size=settings.images_per_batch,
        shuffle=True,
        generator=order,
        **workers,
    )
    return train_loader, DataLoader(Dataset(held_out, Compose(preparation(settings))), **workers), len(names)


def computes_in_bfloat16(settings: PlainSettings, device: torch.device) -> bool:
    """Whether low precision is wanted and the hardware has instructions for it; emulated, it is slower than float32."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = torch.cpu._is_avx512_bf16_supported()
    return settings.low_precision and supported


def train_epoch(
    net: Any, loader: Any, optimizer: torch.optim.Optimizer, settings: PlainSettings, watch: Stopwatch
) -> tuple[float, int]:
    """Mean loss of one epoch and the number of patches seen."""
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
    low_precision = computes_in_bfloat16(settings, watch.device)
    losses, num_patches = [], 0
    net.train()
    for batch in loader:
        watch.charge("data")
        images = batch["image"].as_tensor().to(watch.device, non_blocking=True)
        labels = batch["label"].as_tensor().to(watch.device, non_blocking=True)
        with torch.autocast(watch.device.type, dtype=torch.bfloat16, enabled=low_precision):
            logits = net(images)
        loss = loss_of(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        num_patches += len(images)
        watch.charge("step")
    watch.charge("data")
    return statistics.fmean(losses), num_patches


@torch.no_grad()
def validate(net: Any, loader: Any, num_classes: int, settings: PlainSettings, watch: Stopwatch) -> float:
    """Mean foreground Dice of the held-out cases on the prepared grid."""
    dice = DiceMetric(include_background=False, reduction="mean")
    low_precision = computes_in_bfloat16(settings, watch.device)
    net.eval()
    for case in loader:
        images = case["image"].as_tensor().to(watch.device)
        labels = case["label"].as_tensor().to(watch.device)
        with torch.autocast(watch.device.type, dtype=torch.bfloat16, enabled=low_precision):
            logits = sliding_window_inference(
                images, settings.patch_voxel, 4, net, overlap=settings.window_overlap, mode="gaussian"
            )
        predicted = one_hot(logits.argmax(1, keepdim=True), num_classes)
        dice(predicted, one_hot(labels, num_classes))
    mean = float(dice.aggregate().item())
    watch.charge("validation")
    return mean


def train(folder: Path, settings: PlainSettings, max_minutes: float, max_epochs: int) -> dict[str, Any]:
    """Train until the target is reached or a limit is passed; returns the record that `--out` writes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began_unix_s = time.time()
    watch = Stopwatch(device)
    set_determinism(settings.seed)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True  # the seed is wanted, slowness not
    if device.type == "cpu":
        torch.set_num_threads(settings.num_threads)
    train_loader, held_out_loader, num_classes = loaders(folder, settings, device)
    net = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=num_classes,
        channels=settings.channels,
        strides=settings.strides,
        num_res_units=settings.num_res_units,
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    losses, dices, epoch_s, num_patches, reached = [], [], [], 0, False
    epoch = 0
    while not reached and epoch < max_epochs and watch.since_start_s() < 60 * max_minutes:
        epoch += 1
        before_s = watch.since_start_s()
        loss, seen = train_epoch(net, train_loader, optimizer, settings, watch)
        epoch_s.append(watch.since_start_s() - before_s)
        losses.append(loss)
        num_patches += seen
        if epoch % settings.epochs_per_validation == 0 or epoch == max_epochs:
            dice = validate(net, held_out_loader, num_classes, settings, watch)
            dices.append([watch.since_start_s(), epoch, dice])
            reached = dice >= settings.target_dice
            print(f"epoch {epoch:3d}  {watch.since_start_s():6.1f} s  loss {loss:.3f}  Dice {dice:.3f}", flush=True)
    total_s = watch.since_start_s()
    return {
        "began_unix_s": began_unix_s,
        "reached": reached,
        "seconds_to_target": total_s if reached else None,
        "seconds": total_s,
        "epochs": epoch,
        "seconds_per_epoch": statistics.median(epoch_s),
        "patches_per_second": num_patches / sum(epoch_s),
        "seconds_by_activity": watch.spent_s,
        "dice_history": dices,
        "loss_history": losses,
        "device": str(device),
        "precision": "bfloat16" if computes_in_bfloat16(settings, device) else "float32",
        "num_parameters": sum(p.numel() for p in net.parameters()),
        "settings": dataclasses.asdict(settings),
    }


def main() -> None:
    """The command line: trains and writes the record."""
    parser = argparse.ArgumentParser(description="Train to a target Dice with plain PyTorch and MONAI; time it.")
    parser.add_argument("folder", type=Path, help="data set with dataset.json, imagesTr and labelsTr")
    parser.add_argument("--target-dice", type=float, default=PlainSettings.target_dice)
    parser.add_argument("--fold", type=int, default=PlainSettings.fold)
    parser.add_argument("--seed", type=int, default=PlainSettings.seed)
    parser.add_argument("--max-minutes", type=float, default=10.0)
    parser.add_argument("--max-epochs", type=int, default=1000)
    parser.add_argument("--set", dest="changes", type=json.loads, default={}, metavar="JSON", help="other settings")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes, as JSON")
    options = parser.parse_args()
    changes = {"target_dice": options.target_dice, "fold": options.fold, "seed": options.seed, **options.changes}
    settings = dataclasses.replace(PlainSettings(), **changes)
    record = train(options.folder, settings, options.max_minutes, options.max_epochs)
    options.out.write_text(json.dumps(record, indent=2))
    print(f"{'reached' if record['reached'] else 'did not reach'} {settings.target_dice} in {record['seconds']:.1f} s")


if __name__ == "__main__":
    main()
