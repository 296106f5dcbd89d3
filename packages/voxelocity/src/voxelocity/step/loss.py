"""Losses by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from voxelocity.core.cases import MAX_CLASSES
from voxelocity.core.config import Config
from voxelocity.step.fused_loss import FusedLoss, can_fuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Total = Callable[[torch.Tensor], torch.Tensor]


def _alone(values: torch.Tensor) -> torch.Tensor:
    return values


class LossConfig(Config):
    """What a step minimizes."""

    name: Literal["dice_ce", "dice", "dice_focal", "tversky_ce"] = "dice_ce"
    """Soft Dice plus cross-entropy (MONAI's DiceCELoss, nnU-Net's default), soft Dice alone, soft Dice plus the focal
    loss (Lin et al., 10.1109/ICCV.2017.324), or the Tversky index plus cross-entropy (Salehi et al.,
    10.1007/978-3-319-67389-9_44). Of overlapping classes, each has a binary cross-entropy or focal loss of its own."""
    include_background: bool = False
    """Whether the background counts in the Dice or Tversky term."""
    focal_gamma: float = Field(default=2.0, ge=1.0, le=10.0)
    """dice_focal: the larger it is, the less weight voxels get that are already right."""
    tversky_alpha: float = Field(default=0.3, ge=0.0, le=1.0)
    """tversky_ce: weight of false positives; false negatives have the rest, and 0.5 equals Dice."""
    boundary_weight: float = Field(default=0.0, ge=0.0, le=10.0)
    """Weight of the boundary loss, added to the others: the mean of probability times signed distance to the true
    border in voxels (Kervadec et al., 10.1016/j.media.2020.101851, who begin at 0.01). SciPy computes the distances on
    the host: tens of milliseconds per patch and class, for which a GPU waits."""
    dice_over_batch: bool = True
    """Whether Dice is computed over the whole batch, which is more stable if a patch may lack a class."""
    smooth: float = Field(default=1e-5, gt=0.0)
    """Added to numerator and denominator of the Dice term."""


def build_loss(
    config: LossConfig,
    *,
    regions: Sequence[Sequence[int]] = (),
    ignored: int | None = None,
    total: Total = _alone,
) -> Loss:
    """The loss of logits (b, k, x, y, z) against class indices (b, x, y, z) uint8: a scalar tensor in float32.

    Equal to MONAI's DiceCELoss, DiceLoss and TverskyLoss with softmax=True, to_onehot_y=True, batch=dice_over_batch and
    both `smooth` terms set; own code because MONAI's one-hot target costs a full (b, k, x, y, z) float tensor and
    several passes over it. The focal loss is the mean over voxels, which is k times MONAI's mean over voxels and
    classes. Under autocast, results agree to 1e-5. With `regions`, Dice and focal loss equal
    MONAI's with sigmoid=True, and the cross-entropy is torch's binary one.

    On a CUDA device with Triton, `fused_loss` computes the same in two passes over the logits; the operations here are
    its reference, and take over for a boundary term, while torch compiles, and with `BackendConfig.fused_loss` off.

    Args:
        config: which loss.
        regions: of overlapping classes, the class indices that each channel of the logits stands for; empty if classes
            exclude each other.
        ignored: the index in labels of voxels that count in no term; None if there are none. The mean over voxels is
            then that of the batch's other voxels.
        total: sums a tensor over the ranks that make a batch together, each from its own patches, with gradient
            (`parallel.World.total`). Every rank then has the loss of the whole batch, whatever its share.
    """
    # Dice is the Tversky index with both kinds of wrong voxels weighted equally.
    alpha = config.tversky_alpha if config.name == "tversky_ce" else 0.5
    fused, table = FusedLoss(config, regions=regions, ignored=ignored), _RegionTable(regions)

    def summed(logits: torch.Tensor, label: torch.Tensor) -> Sums:
        if can_fuse(logits, label, config, len(regions)):
            return fused.sums(logits, label)
        is_known = None if ignored is None else label != ignored
        probability, is_class, mean = (
            _overlapping(logits.float(), label, is_known, table, config)
            if regions
            else _exclusive(logits.float(), label, is_known, config)
        )
        if is_known is not None:
            probability = probability * is_known.unsqueeze(1)
        sizes = _overlap_sizes(probability, is_class, alpha)
        if config.boundary_weight > 0.0:
            distance = _signed_distance_voxel(is_class.view_as(probability), 0 if regions else 1)
            # The probability of voxels that do not count is 0 by now.
            mean = mean + config.boundary_weight * _mean((probability * distance).mean(1), is_known)
        known = mean.new_full((), float(label.numel())) if is_known is None else is_known.sum().float()
        return sizes, mean, known

    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if total is _alone and can_fuse(logits, label, config, len(regions)):
            return fused.loss(logits, label)
        sizes, mean, known = summed(logits, label)
        patches = mean.new_full((), float(len(label)))
        count = patches if ignored is None else known
        first = 0 if regions or config.include_background else 1
        if config.dice_over_batch:
            sizes, mean = _over_ranks(total, sizes.sum(1, keepdim=True), mean, count)
            return _overlap_term(sizes, config.smooth, first) + mean
        overlap = _overlap_term(sizes, config.smooth, first)
        if ignored is None:
            return _over_ranks(total, sizes[:0], mean + overlap, patches)[1]
        # One is a mean over voxels, the other over patches.
        return _over_ranks(total, sizes[:0], mean, count)[1] + _over_ranks(total, sizes[:0], overlap, patches)[1]

    return loss


class _RegionTable:
    """Which class indices are in which region, (regions, classes) bool; copied to each device once, so that a step that
    is recorded as a CUDA graph needs no memory of the host."""

    def __init__(self, regions: Sequence[Sequence[int]]) -> None:
        self._regions = regions
        self._copies: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        if device in self._copies:
            return self._copies[device]
        table = torch.zeros(len(self._regions), MAX_CLASSES, dtype=torch.bool)
        for row, indices in enumerate(self._regions):
            table[row, list(indices)] = True
        table = table.to(device)
        if not torch.compiler.is_compiling():
            self._copies[device] = table
        return table


def _over_ranks(
    total: Total, sums: torch.Tensor, mean: torch.Tensor, count: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over patches, and a mean over this many patches or voxels, of all ranks, in one exchange."""
    if total is _alone:
        return sums, mean
    added = total(torch.cat([sums.flatten(), (mean * count).reshape(1), count.reshape(1)]))
    return added[:-2].view_as(sums), added[-2] / added[-1].clamp_min(1.0)


Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of each patch and class, the voxels on which prediction and truth agree and twice their mean size, (2, b, k); the
mean loss of a voxel; over how many voxels it is."""
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Probabilities (b, k, x, y, z), whether each voxel is of each class (b, k, v), and the mean loss of a voxel."""


def _exclusive(logits: torch.Tensor, label: torch.Tensor, is_known: torch.Tensor | None, config: LossConfig) -> Parts:
    # Any class will do for a voxel that does not count.
    target = (label if is_known is None else label * is_known).long()
    log_probability = torch.log_softmax(logits, dim=1)
    mean = logits.new_zeros(())
    if config.name == "dice_focal":
        mean = _mean(_focal_term(log_probability, target, config.focal_gamma), is_known)
    elif config.name != "dice" and is_known is None:
        mean = torch.nn.functional.nll_loss(log_probability, target)
    elif config.name != "dice":
        mean = _mean(torch.nn.functional.nll_loss(log_probability, target, reduction="none"), is_known)
    # A mask keeps one byte per voxel and class for the backward pass.
    classes = torch.arange(logits.shape[1], device=label.device)[:, None]
    return log_probability.exp(), label.flatten(1).unsqueeze(1) == classes, mean


def _mean(values: torch.Tensor, is_known: torch.Tensor | None) -> torch.Tensor:
    """The mean over voxels (b, x, y, z) that are known; 0 if none is."""
    return values.mean() if is_known is None else (values * is_known).sum() / is_known.sum().clamp_min(1)


def _overlapping(
    logits: torch.Tensor,
    label: torch.Tensor,
    is_known: torch.Tensor | None,
    table: _RegionTable,
    config: LossConfig,
) -> Parts:
    # (b, k, v).
    is_class = table.on(label.device)[:, label.flatten(1).long()].transpose(0, 1)
    mean = logits.new_zeros(())
    if config.name != "dice":
        flat = logits.flatten(2)
        each = torch.nn.functional.binary_cross_entropy_with_logits(flat, is_class.to(flat.dtype), reduction="none")
        if config.name == "dice_focal":
            # The cross-entropy is minus the log of the probability of what is right.
            each = (1.0 - (-each).exp()) ** config.focal_gamma * each
        mean = _mean(each.mean(1).view(label.shape), is_known)
    return logits.sigmoid(), is_class, mean


@torch.no_grad()
def _signed_distance_voxel(is_class: torch.Tensor, first: int) -> torch.Tensor:
    """Distance to the border of each class from the first on, (b, k, x, y, z): from 1 up outside, from 0 down inside.

    0 if the patch holds no voxel of the class, or no other voxel.
    """
    from scipy.ndimage import distance_transform_edt

    found = torch.zeros(is_class.shape)
    for row, classes in enumerate(is_class.cpu().numpy()):
        for index, inside in enumerate(classes[first:], start=first):
            if 0 < inside.sum() < inside.size:
                signed = distance_transform_edt(~inside) - np.maximum(distance_transform_edt(inside) - 1.0, 0.0)
                found[row, index] = torch.from_numpy(signed)
    return found.to(is_class.device)


def _focal_term(log_probability: torch.Tensor, target: torch.Tensor, gamma: float) -> torch.Tensor:
    log_right = log_probability.gather(1, target.unsqueeze(1)).squeeze(1)
    return -((1.0 - log_right.exp()) ** gamma * log_right)


def _overlap_sizes(probability: torch.Tensor, is_class: torch.Tensor, alpha: float) -> torch.Tensor:
    """(2, b, k): the intersection of prediction and truth, and twice their sizes, weighted by alpha and 1 - alpha."""
    flat = probability.flatten(2)
    # A matrix product instead would be rounded to half precision under autocast and to TF32 on a GPU, and overflows
    # float16 beyond 65,504 voxels of a class.
    intersection = torch.where(is_class, flat, 0.0).sum(2)
    return torch.stack([intersection, 2.0 * (alpha * flat.sum(2) + (1.0 - alpha) * is_class.sum(2))])


def _overlap_term(sizes: torch.Tensor, smooth: float, first: int) -> torch.Tensor:
    """From (2, b, k): 1 minus the mean Dice or Tversky index of the classes from the first on."""
    intersection, total = sizes
    dice: torch.Tensor = (2.0 * intersection + smooth) / (total + smooth)
    return 1.0 - dice[:, 0 if sizes.shape[-1] == 1 else first :].mean()
