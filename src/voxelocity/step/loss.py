"""Losses by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field

from voxelocity.core.config import Config

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LossConfig(Config):
    """What a step minimises."""

    name: Literal["dice_ce", "dice"] = "dice_ce"
    """Soft Dice plus cross-entropy (MONAI's DiceCELoss, nnU-Net's default), or soft Dice alone."""
    include_background: bool = False
    """Whether the background counts in the Dice term."""
    dice_over_batch: bool = True
    """Whether Dice is taken over the whole batch, which is steadier where a patch may lack a class."""
    smooth: float = Field(default=1e-5, gt=0.0)
    """Added to numerator and denominator of the Dice term."""


def build_loss(config: LossConfig) -> Loss:
    """The loss of logits (b, k, x, y, z) against class indices (b, x, y, z) uint8: a scalar tensor in float32.

    Equal to MONAI's DiceCELoss(softmax=True, to_onehot_y=True, batch=dice_over_batch) with both `smooth` terms set;
    own code because MONAI's one-hot target costs a full (b, k, x, y, z) float tensor and several passes over it. The
    same to 1e-5 inside of any autocast.
    """

    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        target = label.long()
        log_probability = torch.log_softmax(logits.float(), dim=1)
        dice = _dice_term(log_probability.exp(), target, config)
        if config.name == "dice":
            return dice
        return dice + torch.nn.functional.nll_loss(log_probability, target)

    return loss


def _dice_term(probability: torch.Tensor, target: torch.Tensor, config: LossConfig) -> torch.Tensor:
    num_classes = probability.shape[1]
    flat = probability.flatten(2)
    classes = torch.arange(num_classes, device=target.device)[:, None]
    # (b, k, v). A mask keeps a byte a voxel and class for the way back. A matrix product in its place would be rounded
    # to half precision under autocast and to TF32 on a GPU, and overflows float16 beyond 65,504 voxels of a class.
    is_class = target.flatten(1).unsqueeze(1) == classes
    intersection = torch.where(is_class, flat, 0.0).sum(2)
    total = flat.sum(2) + is_class.sum(2)
    if config.dice_over_batch:
        intersection, total = intersection.sum(0, keepdim=True), total.sum(0, keepdim=True)
    first = 0 if config.include_background or num_classes == 1 else 1
    dice = (2.0 * intersection + config.smooth) / (total + config.smooth)
    return 1.0 - dice[:, first:].mean()
