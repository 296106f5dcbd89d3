"""Train a segmentation network with PyTorch and MONAI alone, to a target Dice or for some seconds; write how it went.

    python monai_script.py JOB.json --out RESULT.json [--weights WEIGHTS.pt] [--began UNIX_SECONDS]

The yardstick of `voxelocity demo` and `voxelocity bench time-to-target`; it imports nothing of this package. With
`"recipe": "plain"` in the job it reads and prepares every scan again each epoch, in two worker processes, as most
scripts do. With `"fast"` it follows MONAI's guide to fast training: every scan prepared once and cached without copies,
voxels of each class indexed once, metadata dropped, threads in place of processes, cached validation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, ThreadDataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss, DiceLoss, FocalLoss
from monai.metrics import compute_dice
from monai.networks.nets import DynUNet, SegResNet, UNet
from monai.networks.utils import one_hot
from monai.optimizers import Novograd
from monai.transforms import (
    ClassesToIndicesd,
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    RandAdjustContrastd,
    RandAffined,
    RandCropByLabelClassesd,
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
class ScriptSettings:
    """Everything that decides the result, in plain values; `voxelocity train` is given the same."""

    recipe: Literal["plain", "fast"]
    """Whether scans are read again each epoch, or prepared once as in MONAI's guide to fast training."""
    training: list[dict[str, Any]]
    """Cases to learn from: a file, or one a channel, under "image", and a file under "label"."""
    held_out: list[dict[str, Any]]
    """Cases to validate on."""
    num_classes: int
    """Background included; labels hold 0 to one less."""
    target_dice: float
    """Mean foreground Dice of the held-out cases, on the prepared grid, at which training stops; 0 sets no target."""
    budget_s: float
    """Seconds from `--began` after which training stops; the learning rate falls to 0 by then where it falls at all."""
    seed: int
    """Of the initial weights, the order of the cases and all random transforms."""
    spacing_mm: tuple[float, float, float] | None
    """Target grid after turning to RAS; None keeps each scan's own."""
    window: tuple[float, float, float, float] | None
    """Intensities are clipped at the first two, less the third, by the fourth; None: mean 0, deviation 1 a case."""
    crops_foreground: bool
    """Whether scans are cropped to what is not 0 once prepared."""
    patch_voxel: tuple[int, int, int]
    """Size of training patches and of the windows at validation."""
    images_per_batch: int
    """Scans in a batch."""
    patches_per_image: int
    """Patches cut from a scan each time it is drawn."""
    foreground_share: float
    """Of the patches that lie around a voxel of a random foreground class."""
    flip_probability: tuple[float, float, float]
    """Of a flip along each axis."""
    affine_probability: float
    """Of a rotation with a change of size."""
    rotate_degrees: tuple[float, float, float]
    """Largest rotation about each axis."""
    zoom: tuple[float, float]
    """Smallest and largest size."""
    factor_probability: float
    """Of a change of all intensities by a factor."""
    factor: float
    """Largest relative change of the intensities."""
    offset_probability: float
    """Of a shift of all intensities."""
    offset: float
    """Largest shift of the prepared intensities."""
    noise_probability: float
    """Of Gaussian noise."""
    noise_std: float
    """Largest standard deviation of the noise."""
    gamma_probability: float
    """Of a change of contrast by an exponent."""
    gamma: tuple[float, float]
    """Smallest and largest exponent."""
    network: Literal["unet", "dynunet", "segresnet"]
    """MONAI's UNet, DynUNet or SegResNet."""
    widths: tuple[int, ...]
    """Feature channels, one number a level."""
    strides: tuple[tuple[int, int, int], ...]
    """Down-sampling between the levels."""
    num_res_units: int
    """Residual units a level; 0 means one convolution a level (UNet), or no residual blocks (DynUNet)."""
    include_background: bool
    """Whether the background counts in the Dice term of the loss."""
    learning_rate: float
    """Of AdamW, at its peak."""
    warmup_share: float
    """Share of the budget over which the learning rate rises."""
    decay: Literal["constant", "cosine"]
    """How the learning rate falls afterwards, by the share of the budget that is spent."""
    weight_decay: float
    """Of AdamW; biases and the scales of norms are left alone."""
    second_momentum: float
    """Of AdamW; torch's 0.999 remembers a thousand steps, longer than a short training."""
    clip_norm: float
    """Gradients are scaled down to this norm where they exceed it."""
    precision: Literal["float32", "bfloat16"]
    """Of autocast."""
    channels_last: bool
    """Whether network and images are in torch's channels_last_3d."""
    window_overlap: float
    """Of the windows at validation."""
    epochs_per_validation: int
    """Epochs between two validations; 0 never validates."""
    regions: tuple[tuple[int, ...], ...] = ()
    """The label values of each overlapping class; none where classes exclude each other."""
    loss: Literal["dice_ce", "dice_focal"] = "dice_ce"
    """Dice and cross-entropy, or, of overlapping classes, Dice and focal loss."""
    optimizer: Literal["adamw", "novograd"] = "adamw"
    """Which follows the gradients."""
    num_workers: int = 2
    """Loader processes of the plain recipe, for training and for validation each; threads that fill the fast recipe's
    cache."""
    num_threads: int = 1
    """Threads of the training process on a CPU. With two workers on two busy cores an epoch took 3.3 and 3.8 s at 1,
    14.0 and 15.4 s at 2 (four alternating runs): OpenMP threads that wait for each other spin on the loaders' cores."""


def read_settings(job: Path) -> ScriptSettings:
    """The settings in a file, where tuples are lists."""
    values = json.loads(job.read_text())
    cases = {key: values.pop(key) for key in ("training", "held_out")}
    return ScriptSettings(**cases, **{key: _as_tuple(value) for key, value in values.items()})


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(inner) for inner in value) if isinstance(value, list) else value


class ActivityTimer:
    """Seconds by activity and since the start.

    A GPU's queue is drained before what took whole epochs or validations is booked, and not after each step: the host
    would wait for what it could have queued, and the recipe would be slower for being timed.
    """

    def __init__(self, device: torch.device, began_unix_s: float) -> None:
        self.device = device
        self.spent_s = {"start": 0.0, "data": 0.0, "step": 0.0, "validation": 0.0}
        self.start_s = self.mark_s = time.perf_counter() - (time.time() - began_unix_s)

    def since_start_s(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self.start_s

    def charge(self, activity: str, *, drains: bool = True) -> None:
        """Book the time since the last booking."""
        if drains and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now_s = time.perf_counter()
        self.spent_s[activity] += now_s - self.mark_s
        self.mark_s = now_s


def preparation(settings: ScriptSettings, device: torch.device, *, is_indexed: bool = False) -> list[Any]:
    """What happens to a scan every time it is read, before anything random; the fast recipe keeps it on a GPU."""
    if settings.window is None:
        intensity: Any = NormalizeIntensityd("image", channel_wise=True)
    else:
        low, high, mean, std = settings.window
        intensity = ScaleIntensityRanged("image", low, high, (low - mean) / std, (high - mean) / std, clip=True)
    # MONAI resamples in float64 by default: 77 ms a case of the demo, 38 ms in float32 (one core).
    resampling = {"mode": ("bilinear", "nearest"), "dtype": torch.float32}
    return [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        Orientationd(KEYS, axcodes="RAS", labels=None),
        *([Spacingd(KEYS, pixdim=settings.spacing_mm, **resampling)] if settings.spacing_mm else []),
        intensity,
        *([CropForegroundd(KEYS, source_key="image", allow_smaller=True)] if settings.crops_foreground else []),
        SpatialPadd(KEYS, settings.patch_voxel),
        *([ClassesToIndicesd("label", num_classes=settings.num_classes)] if is_indexed else []),
        *([EnsureTyped(KEYS, device=device, track_meta=False)] if settings.recipe == "fast" else []),
    ]


def augmentation(settings: ScriptSettings) -> list[Any]:
    """Patches and their random changes, one sample at a time."""
    degrees = tuple(math.radians(angle) for angle in settings.rotate_degrees)
    zoom = (settings.zoom[0] - 1.0, settings.zoom[1] - 1.0)
    # The others anywhere around the background, these around each class alike.
    each = settings.foreground_share / (settings.num_classes - 1)
    ratios = [1.0 - settings.foreground_share, *[each] * (settings.num_classes - 1)]
    flips = [
        RandFlipd(KEYS, prob=probability, spatial_axis=axis)
        for axis, probability in enumerate(settings.flip_probability)
        if probability > 0.0
    ]
    return [
        RandCropByLabelClassesd(
            KEYS,
            label_key="label",
            spatial_size=settings.patch_voxel,
            ratios=ratios,
            num_classes=settings.num_classes,
            num_samples=settings.patches_per_image,
            indices_key="label_cls_indices" if settings.recipe == "fast" else None,
            warn=False,
        ),
        *flips,
        RandAffined(
            KEYS,
            prob=settings.affine_probability,
            rotate_range=degrees,
            scale_range=(zoom,) * 3,
            mode=("bilinear", "nearest"),
            padding_mode="border",
        ),
        RandGaussianNoised("image", std=settings.noise_std, prob=settings.noise_probability),
        RandScaleIntensityd("image", factors=settings.factor, prob=settings.factor_probability),
        RandShiftIntensityd("image", offsets=settings.offset, prob=settings.offset_probability),
        RandAdjustContrastd("image", prob=settings.gamma_probability, gamma=settings.gamma),
    ]


def loaders(settings: ScriptSettings, device: torch.device) -> tuple[Any, Any]:
    """Loaders of training batches and of held-out scans."""
    fixed, random = preparation(settings, device), augmentation(settings)
    order = torch.Generator().manual_seed(settings.seed)
    shuffled = {"batch_size": settings.images_per_batch, "shuffle": True, "generator": order}
    held_out = settings.held_out if settings.epochs_per_validation else []
    if settings.recipe == "fast":
        indexed = preparation(settings, device, is_indexed=True)
        cached = {"copy_cache": False, "num_workers": settings.num_workers, "progress": False}
        train_set = CacheDataset(settings.training, Compose([*indexed, *random]), **cached)
        held_out_set = CacheDataset(held_out, Compose(fixed), **cached)
        return ThreadDataLoader(train_set, num_workers=0, **shuffled), ThreadDataLoader(held_out_set, num_workers=0)
    workers = {
        "num_workers": settings.num_workers,
        "persistent_workers": settings.num_workers > 0,
        "prefetch_factor": 2 if settings.num_workers else None,
        "pin_memory": device.type == "cuda",
    }
    train_set, held_out_set = Dataset(settings.training, Compose([*fixed, *random])), Dataset(held_out, Compose(fixed))
    return DataLoader(train_set, **shuffled, **workers), DataLoader(held_out_set, **workers)


def build_network(settings: ScriptSettings, num_channels: int) -> Any:
    """MONAI's network, with its norms, activations and initial weights as `voxelocity train` has them."""
    num_outputs = len(settings.regions) or settings.num_classes
    if settings.network == "segresnet":
        levels = len(settings.widths)
        return SegResNet(
            spatial_dims=3,
            init_filters=settings.widths[0],
            in_channels=num_channels,
            out_channels=num_outputs,
            blocks_down=(1, *(2 for _ in range(levels - 2)), 4)[:levels],
            blocks_up=tuple(1 for _ in range(levels - 1)),
            norm="INSTANCE",
        )
    if settings.network == "unet":
        return UNet(
            spatial_dims=3,
            in_channels=num_channels,
            out_channels=num_outputs,
            channels=settings.widths,
            strides=settings.strides,
            num_res_units=settings.num_res_units,
        )
    strides = [(1, 1, 1), *settings.strides]
    return DynUNet(
        spatial_dims=3,
        in_channels=num_channels,
        out_channels=num_outputs,
        kernel_size=[tuple(3 if s > 1 or max(stride) == 1 else 1 for s in stride) for stride in strides],
        strides=strides,
        upsample_kernel_size=settings.strides,
        filters=settings.widths,
        res_block=settings.num_res_units > 0,
    )


def build_optimizer(net: Any, settings: ScriptSettings) -> torch.optim.Optimizer:
    """An optimizer that decays weights, and neither biases nor the scales of norms."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = (0.9, settings.second_momentum)
    if settings.optimizer == "novograd":
        novograd: torch.optim.Optimizer = Novograd(groups, lr=settings.learning_rate, betas=betas)
        return novograd
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)


def build_loss(settings: ScriptSettings) -> Any:
    """The loss of logits (b, k, x, y, z) and what `Trainer.target` makes of the labels."""
    if not settings.regions:
        return DiceCELoss(include_background=settings.include_background, to_onehot_y=True, softmax=True, batch=True)
    dice = DiceLoss(sigmoid=True, batch=True)
    # Of several channels, DiceCELoss takes the cross-entropy of exclusive classes.
    other = FocalLoss(gamma=2.0) if settings.loss == "dice_focal" else torch.nn.BCEWithLogitsLoss()
    return lambda logits, target: dice(logits, target) + other(logits, target)


def learning_rate(settings: ScriptSettings, share: float) -> float:
    """The learning rate when this share of the budget is spent."""
    if share < settings.warmup_share:
        return settings.learning_rate * max(share / settings.warmup_share, 0.01)
    if settings.decay == "constant":
        return settings.learning_rate
    rest = min(1.0, (share - settings.warmup_share) / (1.0 - settings.warmup_share))
    return settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * rest))


class Trainer:
    """One training; `epoch` and `validate` are called by `train`."""

    def __init__(self, settings: ScriptSettings, watch: ActivityTimer) -> None:
        self.settings, self.watch = settings, watch
        self.train_loader, self.held_out_loader = loaders(settings, watch.device)
        first = settings.training[0]["image"]
        net = build_network(settings, len(first) if isinstance(first, list) else 1).to(watch.device)
        self.memory_format = torch.channels_last_3d if settings.channels_last else torch.contiguous_format
        self.net = net.to(memory_format=self.memory_format)
        self.optimizer = build_optimizer(self.net, settings)
        self.loss_of = build_loss(settings)
        self.begin_s = watch.since_start_s()
        self.num_patches = 0

    def spent_share(self) -> float:
        """Of the time from the first step to the end of the budget."""
        return (self.watch.since_start_s() - self.begin_s) / max(self.settings.budget_s - self.begin_s, 1e-3)

    def epoch(self) -> float:
        """The mean loss of one epoch, which ends early where the budget does."""
        losses = []
        self.net.train()
        for batch in self.train_loader:
            self.watch.charge("data", drains=False)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.settings, self.spent_share())
            images, labels = self._on_device(batch)
            with self._autocast():
                logits = self.net(images)
            loss = self.loss_of(logits.float(), self.target(labels))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.settings.clip_norm)
            self.optimizer.step()
            losses.append(loss.detach())
            self.num_patches += len(images)
            self.watch.charge("step", drains=False)
            if self.spent_share() >= 1.0:
                break
        self.watch.charge("step")
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def validate(self) -> float:
        """Mean foreground Dice of the held-out cases on the prepared grid: over cases, then over classes."""
        num_classes, found = self.settings.num_classes, list[torch.Tensor]()
        self.net.eval()
        for case in self.held_out_loader:
            images, labels = self._on_device(case)
            with self._autocast():
                logits = sliding_window_inference(
                    images,
                    self.settings.patch_voxel,
                    4,
                    self.net,
                    overlap=self.settings.window_overlap,
                    mode="gaussian",
                )
            if self.settings.regions:
                mask, truth = (logits > 0.0).float(), self.target(labels)
            else:
                classes = logits.argmax(1, keepdim=True)
                mask, truth = (one_hot(values, num_classes)[:, 1:] for values in (classes, labels))
            # MONAI's metric forgives a class that is predicted but not there. Here it is 0, as on the other sides, and
            # a class that is in neither has no Dice.
            found.append(compute_dice(mask, truth, ignore_empty=False))
            found[-1][(mask + truth).flatten(2).sum(-1) == 0.0] = torch.nan
        mean = float(torch.cat(found).nanmean(0).nanmean().item())
        self.watch.charge("validation")
        return mean

    def target(self, labels: torch.Tensor) -> torch.Tensor:
        """The labels (b, 1, x, y, z), or of overlapping classes a mask for each, (b, k, x, y, z)."""
        if not self.settings.regions:
            return labels
        values = [torch.tensor(values, device=labels.device) for values in self.settings.regions]
        return torch.cat([torch.isin(labels, region) for region in values], dim=1).float()

    def _on_device(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        # Without MONAI's metadata, which slows every operation.
        plain = (data.as_tensor() if isinstance(data, MetaTensor) else data for data in (batch[key] for key in KEYS))
        images, labels = (data.to(self.watch.device, non_blocking=True) for data in plain)
        return images.to(memory_format=self.memory_format), labels

    def _autocast(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.watch.device.type, dtype=torch.bfloat16, enabled=enabled)


def train(settings: ScriptSettings, began_unix_s: float, max_epochs: int) -> tuple[dict[str, Any], torch.nn.Module]:
    """Trains until the target is reached or the budget is spent: the record that `--out` writes, and the network."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    watch = ActivityTimer(device, began_unix_s)
    set_determinism(settings.seed)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True  # the seed is wanted, slowness not
    if device.type == "cpu":
        torch.set_num_threads(settings.num_threads)
    trainer = Trainer(settings, watch)
    watch.charge("start")
    losses, dices, epoch_s, reached = list[float](), list[list[float]](), list[float](), False
    while not losses or (not reached and len(losses) < max_epochs and watch.since_start_s() < settings.budget_s):
        before_s = watch.since_start_s()
        losses.append(trainer.epoch())
        epoch_s.append(watch.since_start_s() - before_s)
        epoch, every = len(losses), settings.epochs_per_validation
        if every and (epoch % every == 0 or epoch == max_epochs):
            dice = trainer.validate()
            dices.append([watch.since_start_s(), epoch, dice])
            reached = 0.0 < settings.target_dice <= dice
            print(
                f"epoch {epoch:3d}  {watch.since_start_s():6.1f} s  loss {losses[-1]:.3f}  Dice {dice:.3f}", flush=True
            )
    total_s = watch.since_start_s()
    record = {
        "reached": reached,
        "seconds_to_target": total_s if reached else None,
        "seconds": total_s,
        "epochs": len(losses),
        "seconds_per_epoch": statistics.median(epoch_s),
        "patches_per_second": trainer.num_patches / sum(epoch_s),
        "seconds_by_activity": watch.spent_s,
        "peak_host_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "dice_history": dices,
        "loss_history": losses,
        "device": str(device),
        "num_parameters": sum(p.numel() for p in trainer.net.parameters()),
        "settings": dataclasses.asdict(settings),
    }
    return record, trainer.net


def main() -> None:
    """The command line: trains and writes the record."""
    parser = argparse.ArgumentParser(description="Train with plain PyTorch and MONAI, and time it.")
    parser.add_argument("job", type=Path, help="the settings as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes, as JSON")
    parser.add_argument("--weights", type=Path, help="where the trained weights go")
    parser.add_argument("--began", type=float, default=time.time(), help="Unix time at which the process was started")
    parser.add_argument("--max-epochs", type=int, default=100_000)
    options = parser.parse_args()
    settings = read_settings(options.job)
    record, net = train(settings, options.began, options.max_epochs)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.weights:
        torch.save(net.state_dict(), options.weights)


if __name__ == "__main__":
    main()
