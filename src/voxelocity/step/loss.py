"""Losses by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from voxelocity.core.config import Config

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Total = Callable[[torch.Tensor], torch.Tensor]


def _alone(values: torch.Tensor) -> torch.Tensor:
    return values


class LossConfig(Config):
    """What a step minimizes."""

    name: Literal["dice_ce", "dice", "dice_focal", "tversky_ce"] = "dice_ce"
    """Soft Dice plus cross-entropy (MONAI's DiceCELoss, nnU-Net's default), soft Dice alone, soft Dice plus the focal
    loss (Lin et al., 10.1109/ICCV.2017.324), or the Tversky index plus cross-entropy (Salehi et al.,
    10.1007/978-3-319-67389-9_44)."""
    include_background: bool = False
    """Whether the background counts in the Dice or Tversky term."""
    focal_gamma: float = Field(default=2.0, ge=1.0, le=10.0)
    """dice_focal: the larger it is, the less voxels count that are already right."""
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


def build_loss(config: LossConfig, *, total: Total = _alone) -> Loss:
    """The loss of logits (b, k, x, y, z) against class indices (b, x, y, z) uint8: a scalar tensor in float32.

    Equal to MONAI's DiceCELoss, DiceLoss and TverskyLoss with softmax=True, to_onehot_y=True, batch=dice_over_batch and
    both `smooth` terms set; own code because MONAI's one-hot target costs a full (b, k, x, y, z) float tensor and
    several passes over it. The focal loss is the mean over voxels, which is k times MONAI's mean over voxels and
    classes. Under autocast, results agree to 1e-5.

    Args:
        config: which loss.
        total: sums a tensor over the ranks that make a batch together, each from its own patches, with gradient
            (`parallel.World.total`). Every rank then has the loss of the whole batch, whatever its share.
    """
    # Dice is the Tversky index with both kinds of wrong voxels weighted equally.
    alpha = config.tversky_alpha if config.name == "tversky_ce" else 0.5

    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        target = label.long()
        log_probability = torch.log_softmax(logits.float(), dim=1)
        probability = log_probability.exp()
        # (2, b, k): of each patch, the voxels on which prediction and truth agree, and twice their mean size.
        sizes = _overlap_sizes(probability, target, alpha)
        mean = logits.new_zeros((), dtype=torch.float32)
        if config.name == "dice_focal":
            mean = mean + _focal_term(log_probability, target, config.focal_gamma)
        elif config.name != "dice":
            mean = mean + torch.nn.functional.nll_loss(log_probability, target)
        if config.boundary_weight > 0.0:
            mean = mean + config.boundary_weight * (probability * _signed_distance_voxel(label, probability)).mean()
        if config.dice_over_batch:
            sizes, mean = _over_ranks(total, sizes.sum(1, keepdim=True), mean, len(label))
            return _overlap_term(sizes, config) + mean
        return _over_ranks(total, sizes[:0], mean + _overlap_term(sizes, config), len(label))[1]

    return loss


def _over_ranks(
    total: Total, sums: torch.Tensor, mean: torch.Tensor, num_patches: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over patches, and a mean over patches, of all ranks, in one exchange."""
    if total is _alone:
        return sums, mean
    count = mean.new_full((1,), num_patches)
    added = total(torch.cat([sums.flatten(), mean.reshape(1) * count, count]))
    return added[:-2].view_as(sums), added[-2] / added[-1]


@torch.no_grad()
def _signed_distance_voxel(label: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Distance to the border of each class but the background, (b, k, x, y, z): from 1 up outside, from 0 down inside.

    0 if the patch holds no voxel of the class, or no other voxel.
    """
    from scipy.ndimage import distance_transform_edt

    found = torch.zeros(like.shape)
    for row, classes in enumerate(label.cpu().numpy()):
        for index in range(1, like.shape[1]):
            inside = classes == index
            if 0 < inside.sum() < inside.size:
                signed = distance_transform_edt(~inside) - np.maximum(distance_transform_edt(inside) - 1.0, 0.0)
                found[row, index] = torch.from_numpy(signed)
    return found.to(like.device)


def _focal_term(log_probability: torch.Tensor, target: torch.Tensor, gamma: float) -> torch.Tensor:
    log_right = log_probability.gather(1, target.unsqueeze(1))
    return -((1.0 - log_right.exp()) ** gamma * log_right).mean()


def _overlap_sizes(probability: torch.Tensor, target: torch.Tensor, alpha: float) -> torch.Tensor:
    """(2, b, k): the intersection of prediction and truth, and twice their sizes, weighted by alpha and 1 - alpha."""
    flat = probability.flatten(2)
    classes = torch.arange(probability.shape[1], device=target.device)[:, None]
    # (b, k, v). A mask keeps one byte per voxel and class for the backward pass. A matrix product instead would be
    # rounded to half precision under autocast and to TF32 on a GPU, and overflows float16 beyond 65,504 voxels of a
    # class.
    is_class = target.flatten(1).unsqueeze(1) == classes
    intersection = torch.where(is_class, flat, 0.0).sum(2)
    return torch.stack([intersection, 2.0 * (alpha * flat.sum(2) + (1.0 - alpha) * is_class.sum(2))])


def _overlap_term(sizes: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """From (2, b, k): 1 minus the mean Dice or Tversky index."""
    intersection, total = sizes
    first = 0 if config.include_background or sizes.shape[-1] == 1 else 1
    dice: torch.Tensor = (2.0 * intersection + config.smooth) / (total + config.smooth)
    return 1.0 - dice[:, first:].mean()
