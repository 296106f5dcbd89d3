"""Train a segmentation network with PyTorch and MONAI alone until a target Dice is reached; write how long it took.

    python monai_script.py DATASET_FOLDER --recipe fast --target-dice 0.88 --max-minutes 10 --out result.json

The two yardsticks of the demonstration in one script, which imports nothing of this package. `--recipe plain` reads and
prepares every scan again each epoch, in two worker processes, as most scripts do. `--recipe fast` follows MONAI's guide
to fast training: every scan prepared once and cached without copies, voxels of each class indexed once, metadata
dropped, threads in place of processes, cached validation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import statistics
import time
from pathlib import Path
from typing import Any, Literal

import torch
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, ThreadDataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.networks.utils import one_hot
from monai.transforms import (
    ClassesToIndicesd,
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    EnsureTyped,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptSettings:
    """Everything that decides the result, in plain numbers, so that another trainer can be given the same."""

    recipe: Literal["plain", "fast"] = "plain"
    """Whether scans are read again each epoch, or prepared once as in MONAI's guide to fast training."""
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
    """Patches cut from a scan each time it is drawn, on average half of them around a voxel of a random organ."""
    affine_probability: float = 0.7
    """Of a rotation with a change of size."""
    rotate_degrees: float = 15.0
    """Largest rotation about each axis."""
    zoom: float = 0.15
    """Largest relative change of size."""
    factor_probability: float = 0.15
    """Of a change of all intensities by a factor."""
    factor: float = 0.25
    """Largest relative change of the intensities."""
    offset_probability: float = 0.15
    """Of a shift of all intensities."""
    offset: float = 0.1
    """Largest shift of the windowed intensities."""
    noise_probability: float = 0.1
    """Of Gaussian noise."""
    noise_std: float = 0.1
    """Largest standard deviation of the noise."""
    gamma_probability: float = 0.3
    """Of a change of contrast by an exponent."""
    gamma: tuple[float, float] = (0.7, 1.5)
    """Smallest and largest exponent."""
    channels: tuple[int, ...] = (16, 32, 64, 128)
    """Feature channels of MONAI's UNet, one number a level."""
    strides: tuple[int, ...] = (2, 2, 2)
    """Down-sampling between the levels."""
    num_res_units: int = 0
    """Residual units a level; 0 means one convolution a level."""
    learning_rate: float = 3e-3
    """Of AdamW, constant."""
    weight_decay: float = 1e-4
    """Of AdamW; biases and the scales of norms are left alone."""
    second_momentum: float = 0.99
    """Of AdamW; torch's 0.999 remembers a thousand steps, longer than this training."""
    clip_norm: float = 12.0
    """Gradients are scaled down to this norm where they exceed it."""
    low_precision: bool = True
    """bfloat16 autocast. Without bfloat16 instructions float32 is used in any case, as it is faster there;
    with them a step of 4 patches took 58 ms, in float32 76 ms (one core)."""
    window_overlap: float = 0.25
    """Of the windows at validation."""
    epochs_per_validation: int = 2
    """Validate after every so many epochs."""
    num_workers: int = 2
    """Loader processes of the plain recipe, for training and for validation each; threads that fill the fast recipe's
    cache."""
    num_threads: int = 1
    """Threads of the training process on a CPU. With two workers on two busy cores an epoch took 3.3 and 3.8 s at 1,
    14.0 and 15.4 s at 2 (four alternating runs): OpenMP threads that wait for each other spin on the loaders' cores."""


class Stopwatch:
    """Seconds by activity and since the start; on a GPU the queue is drained before booking."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent_s = {"start": 0.0, "data": 0.0, "step": 0.0, "validation": 0.0}
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


def read_cases(folder: Path, settings: ScriptSettings) -> tuple[list[dict[str, str]], list[dict[str, str]], list[str]]:
    """Training cases, held-out cases and class names of a Medical Segmentation Decathlon folder."""
    description = json.loads((folder / "dataset.json").read_text())
    cases = [{key: str(folder / entry[key]) for key in KEYS} for entry in description["training"]]
    held_out = cases[settings.fold :: settings.num_folds]
    names = [name for _, name in sorted(description["labels"].items(), key=lambda item: int(item[0]))]
    return [case for case in cases if case not in held_out], held_out, names


def preparation(settings: ScriptSettings) -> list[Any]:
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
        *([EnsureTyped(KEYS, track_meta=False)] if settings.recipe == "fast" else []),
    ]


def augmentation(settings: ScriptSettings, num_classes: int) -> list[Any]:
    """Patches and their random changes, one sample at a time. No flips: the liver lies on the right."""
    rotate, zoom = (math.radians(settings.rotate_degrees),) * 3, (settings.zoom,) * 3
    # Half of the patches anywhere around the background, the others around each organ alike.
    ratios = [0.5, *[0.5 / (num_classes - 1)] * (num_classes - 1)]
    return [
        RandCropByLabelClassesd(
            KEYS,
            label_key="label",
            spatial_size=settings.patch_voxel,
            ratios=ratios,
            num_classes=num_classes,
            num_samples=settings.patches_per_image,
            indices_key="label_cls_indices" if settings.recipe == "fast" else None,
            warn=False,
        ),
        RandAffined(
            KEYS,
            prob=settings.affine_probability,
            rotate_range=rotate,
            scale_range=zoom,
            mode=("bilinear", "nearest"),
            padding_mode="border",
        ),
        RandGaussianNoised("image", std=settings.noise_std, prob=settings.noise_probability),
        RandScaleIntensityd("image", factors=settings.factor, prob=settings.factor_probability),
        RandShiftIntensityd("image", offsets=settings.offset, prob=settings.offset_probability),
        RandAdjustContrastd("image", prob=settings.gamma_probability, gamma=settings.gamma),
    ]


def loaders(folder: Path, settings: ScriptSettings, device: torch.device) -> tuple[Any, Any, int]:
    """Loaders of training batches and of held-out scans, and the number of classes."""
    training, held_out, names = read_cases(folder, settings)
    fixed, random = preparation(settings), augmentation(settings, len(names))
    order = torch.Generator().manual_seed(settings.seed)
    shuffled = {"batch_size": settings.images_per_batch, "shuffle": True, "generator": order}
    if settings.recipe == "fast":
        indexed = [*fixed, ClassesToIndicesd("label", num_classes=len(names))]
        cached = {"copy_cache": False, "num_workers": settings.num_workers, "progress": False}
        train_set = CacheDataset(training, Compose([*indexed, *random]), **cached)
        held_out_set = CacheDataset(held_out, Compose(fixed), **cached)
        return (
            ThreadDataLoader(train_set, num_workers=0, **shuffled),
            ThreadDataLoader(held_out_set, num_workers=0),
            len(names),
        )
    workers = {
        "num_workers": settings.num_workers,
        "persistent_workers": settings.num_workers > 0,
        "prefetch_factor": 2 if settings.num_workers else None,
        "pin_memory": device.type == "cuda",
    }
    train_set, held_out_set = Dataset(training, Compose([*fixed, *random])), Dataset(held_out, Compose(fixed))
    return DataLoader(train_set, **shuffled, **workers), DataLoader(held_out_set, **workers), len(names)


def computes_in_bfloat16(settings: ScriptSettings, device: torch.device) -> bool:
    """Whether low precision is wanted and the hardware has instructions for it; emulated, it is slower than float32."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = torch.cpu._is_avx512_bf16_supported()
    return settings.low_precision and supported


def train_epoch(
    net: Any, loader: Any, optimizer: torch.optim.Optimizer, settings: ScriptSettings, watch: Stopwatch
) -> tuple[float, int]:
    """Mean loss of one epoch and the number of patches seen."""
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
    low_precision = computes_in_bfloat16(settings, watch.device)
    losses, num_patches = [], 0
    net.train()
    for batch in loader:
        watch.charge("data")
        images, labels = (_plain_tensor(batch[key]).to(watch.device, non_blocking=True) for key in KEYS)
        with torch.autocast(watch.device.type, dtype=torch.bfloat16, enabled=low_precision):
            logits = net(images)
        loss = loss_of(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), settings.clip_norm)
        optimizer.step()
        losses.append(loss.item())
        num_patches += len(images)
        watch.charge("step")
    watch.charge("data")
    return statistics.fmean(losses), num_patches


def _plain_tensor(data: torch.Tensor) -> torch.Tensor:
    """Without MONAI's metadata, which slows every operation."""
    return data.as_tensor() if isinstance(data, MetaTensor) else data


@torch.no_grad()
def validate(net: Any, loader: Any, num_classes: int, settings: ScriptSettings, watch: Stopwatch) -> float:
    """Mean foreground Dice of the held-out cases on the prepared grid."""
    dice = DiceMetric(include_background=False, reduction="mean")
    low_precision = computes_in_bfloat16(settings, watch.device)
    net.eval()
    for case in loader:
        images, labels = (_plain_tensor(case[key]).to(watch.device) for key in KEYS)
        with torch.autocast(watch.device.type, dtype=torch.bfloat16, enabled=low_precision):
            logits = sliding_window_inference(
                images, settings.patch_voxel, 4, net, overlap=settings.window_overlap, mode="gaussian"
            )
        predicted = one_hot(logits.argmax(1, keepdim=True), num_classes)
        dice(predicted, one_hot(labels, num_classes))
    mean = float(dice.aggregate().item())
    watch.charge("validation")
    return mean


def build_optimizer(net: Any, settings: ScriptSettings) -> torch.optim.Optimizer:
    """AdamW that decays weights, and neither biases nor the scales of norms."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.second_momentum), fused=True)


def train(folder: Path, settings: ScriptSettings, max_minutes: float, max_epochs: int) -> dict[str, Any]:
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
    optimizer = build_optimizer(net, settings)
    watch.charge("start")
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
        "peak_host_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
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
    parser.add_argument("--recipe", choices=("plain", "fast"), default=ScriptSettings.recipe)
    parser.add_argument("--target-dice", type=float, default=ScriptSettings.target_dice)
    parser.add_argument("--fold", type=int, default=ScriptSettings.fold)
    parser.add_argument("--seed", type=int, default=ScriptSettings.seed)
    parser.add_argument("--max-minutes", type=float, default=10.0)
    parser.add_argument("--max-epochs", type=int, default=1000)
    parser.add_argument("--set", dest="changes", type=json.loads, default={}, metavar="JSON", help="other settings")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes, as JSON")
    options = parser.parse_args()
    named = {key: getattr(options, key) for key in ("recipe", "target_dice", "fold", "seed")}
    changes = {**named, **options.changes}
    settings = dataclasses.replace(ScriptSettings(), **changes)
    record = train(options.folder, settings, options.max_minutes, options.max_epochs)
    options.out.write_text(json.dumps(record, indent=2))
    print(f"{'reached' if record['reached'] else 'did not reach'} {settings.target_dice} in {record['seconds']:.1f} s")


if __name__ == "__main__":
    main()
