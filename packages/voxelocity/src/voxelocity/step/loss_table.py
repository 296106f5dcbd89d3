"""The losses by name: what each adds up, which keys it reads, who described it. `loss` and `fused_loss` compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from voxelocity.core.config import Config

LossName = Literal["dice_ce", "dice", "dice_focal", "tversky_ce", "focal_tversky"]

# 1 minus an index this small is mostly rounding in float32.
_LEAST_WRONG = 1e-6


class LossConfig(Config):
    """What a step minimizes."""

    name: LossName = "dice_ce"
    """A row of `LOSSES`, which docs/plan.md shows. Of overlapping classes, each has a binary cross-entropy or focal
    loss of its own."""
    include_background: bool = False
    """Whether the background counts in the Dice or Tversky term."""
    focal_gamma: float = Field(default=2.0, ge=1.0, le=10.0)
    """dice_focal: the larger it is, the less weight voxels get that are already right."""
    tversky_alpha: float = Field(default=0.3, ge=0.0, le=1.0)
    """tversky_ce, focal_tversky: weight of false positives. In tversky_ce, false negatives have the rest, and 0.5
    equals Dice."""
    tversky_beta: float = Field(default=0.7, ge=0.0, le=1.0)
    """focal_tversky: weight of false negatives."""
    tversky_gamma: float = Field(default=4.0 / 3.0, ge=1.0, le=3.0)
    """focal_tversky: the larger it is, the more a class counts that is nearly right; 1 is the Tversky loss."""
    boundary_weight: float = Field(default=0.0, ge=0.0, le=10.0)
    """Weight of the boundary loss, added to the others: the mean of probability times signed distance to the true
    border in voxels (Kervadec et al., 10.1016/j.media.2020.101851, who begin at 0.01). SciPy computes the distances on
    the host: tens of milliseconds per patch and class, for which a GPU waits."""
    dice_over_batch: bool = True
    """Whether Dice is computed over the whole batch, which is more stable if a patch may lack a class."""
    smooth: float = Field(default=1e-5, gt=0.0)
    """Added to numerator and denominator of the Dice term."""

    @model_validator(mode="after")
    def _weighs_errors(self) -> Self:
        if sum(LOSSES[self.name].weights(self)) == 0.0:
            raise ValueError(
                f"tversky_alpha and tversky_beta are both 0, so {self.name} would count no wrong voxel; raise one"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class VoxelTerm:
    """A mean over voxels that a loss adds to the overlap. Everything is float32.

    Attributes:
        exclusive: the mean, from log-probabilities (b, k, x, y, z), class indices (b, x, y, z) int64, and which voxels
            count (b, x, y, z) bool or None if all do.
        overlapping: the loss of each voxel and class (b, k, v), from its binary cross-entropy (b, k, v).
        kernel: the name of the term in `triton_loss`; "" if the kernels lack it, so that torch computes the loss.
    """

    exclusive: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, LossConfig], torch.Tensor]
    overlapping: Callable[[torch.Tensor, LossConfig], torch.Tensor]
    kernel: str = ""


@dataclass(frozen=True, kw_only=True)
class LossKind:
    """A loss: of each class 1 minus its overlap index, averaged over classes, plus a mean over voxels.

    The index is that of Tversky, tp / (tp + alpha fp + beta fn), which is Dice if both weights are 0.5. Its sums are
    over the patches of all ranks, or over each patch alone (`LossConfig.dice_over_batch`).

    Attributes:
        words: what it is, for documentation.
        paper: who described it.
        keys: of `LossConfig` that it reads and that other losses may not.
        weights: alpha and beta.
        of_index: the loss of each class from its index, of the same shape; None is 1 minus the index, which the kernels
            compute in their two passes. For others, torch finishes the sums that the kernels make.
        of_voxels: the mean over voxels; None if there is none.
    """

    words: str
    paper: str
    keys: tuple[str, ...] = ()
    weights: Callable[[LossConfig], tuple[float, float]] = lambda config: (0.5, 0.5)
    of_index: Callable[[torch.Tensor, LossConfig], torch.Tensor] | None = None
    of_voxels: VoxelTerm | None

    @property
    def has_kernels(self) -> bool:
        """Whether the kernels of `fused_loss` make its sums and its gradient."""
        return self.of_voxels is None or self.of_voxels.kernel != ""

    def overlap(self, sizes: torch.Tensor, config: LossConfig, first: int) -> torch.Tensor:
        """The overlap part of the loss, a scalar.

        Args:
            sizes: (2, b, k) of each class: where prediction and truth agree, and twice their sizes, weighted by the
                weights as shares of their sum.
            config: the settings.
            first: the class from which on they count, if there are several.
        """
        agreed, total = sizes
        scale = sum(self.weights(config))
        if scale != 1.0:
            total = scale * total + 2.0 * (1.0 - scale) * agreed
        index: torch.Tensor = (2.0 * agreed + config.smooth) / (total + config.smooth)
        index = index[:, 0 if sizes.shape[-1] == 1 else first :]
        return 1.0 - index.mean() if self.of_index is None else self.of_index(index, config).mean()


def share_of_positives(config: LossConfig) -> float:
    """The weight of false positives, as a share of both weights of the overlap index."""
    alpha, beta = LOSSES[config.name].weights(config)
    return alpha / (alpha + beta)


def mean_of_known(values: torch.Tensor, is_known: torch.Tensor | None) -> torch.Tensor:
    """The mean over voxels (b, x, y, z) that are known; 0 if none is."""
    return values.mean() if is_known is None else (values * is_known).sum() / is_known.sum().clamp_min(1)


def _cross_entropy(
    log_probability: torch.Tensor, target: torch.Tensor, is_known: torch.Tensor | None, config: LossConfig
) -> torch.Tensor:
    if is_known is None:
        return torch.nn.functional.nll_loss(log_probability, target)
    return mean_of_known(torch.nn.functional.nll_loss(log_probability, target, reduction="none"), is_known)


def _focal(
    log_probability: torch.Tensor, target: torch.Tensor, is_known: torch.Tensor | None, config: LossConfig
) -> torch.Tensor:
    log_right = log_probability.gather(1, target.unsqueeze(1)).squeeze(1)
    return mean_of_known(-((1.0 - log_right.exp()) ** config.focal_gamma * log_right), is_known)


def _focal_of_entropy(entropy: torch.Tensor, config: LossConfig) -> torch.Tensor:
    # The cross-entropy is minus the log of the probability of what is right.
    return (1.0 - (-entropy).exp()) ** config.focal_gamma * entropy


def _root_of_wrong(index: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """(1 - index) to the power of 1 / gamma, below a millionth in a straight line: a root has no slope at 0."""
    wrong, power = (1.0 - index).clamp_min(0.0), 1.0 / config.tversky_gamma
    root = wrong.clamp_min(_LEAST_WRONG) ** power
    return torch.where(wrong > _LEAST_WRONG, root, wrong * _LEAST_WRONG ** (power - 1.0))


_CROSS_ENTROPY = VoxelTerm(exclusive=_cross_entropy, overlapping=lambda entropy, config: entropy, kernel="ENTROPY")
_FOCAL = VoxelTerm(exclusive=_focal, overlapping=_focal_of_entropy, kernel="FOCAL")

LOSSES: Mapping[LossName, LossKind] = {
    "dice_ce": LossKind(
        words="soft Dice plus cross-entropy, nnU-Net's default and MONAI's DiceCELoss",
        paper="Isensee et al., 10.1038/s41592-020-01008-z",
        of_voxels=_CROSS_ENTROPY,
    ),
    "dice": LossKind(words="soft Dice alone", paper="Milletari et al., 10.1109/3DV.2016.79", of_voxels=None),
    "dice_focal": LossKind(
        words="soft Dice plus the focal loss",
        paper="Lin et al., 10.1109/ICCV.2017.324",
        keys=("focal_gamma",),
        of_voxels=_FOCAL,
    ),
    "tversky_ce": LossKind(
        words="the Tversky loss plus cross-entropy",
        paper="Salehi et al., 10.1007/978-3-319-67389-9_44",
        keys=("tversky_alpha",),
        weights=lambda config: (config.tversky_alpha, 1.0 - config.tversky_alpha),
        of_voxels=_CROSS_ENTROPY,
    ),
    "focal_tversky": LossKind(
        words="the focal Tversky loss: the Tversky loss of each class to the power of 1 / gamma",
        paper="Abraham and Khan, 10.1109/ISBI.2019.8759329",
        keys=("tversky_alpha", "tversky_beta", "tversky_gamma"),
        weights=lambda config: (config.tversky_alpha, config.tversky_beta),
        of_index=_root_of_wrong,
        of_voxels=None,
    ),
}
"""By name, the default first. A test fails if documentation lacks one."""
