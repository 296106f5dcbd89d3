"""Losses by name, as `loss_table` describes them: by torch's operations, or in two passes by `fused_loss`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.step import native_loss
from voxelocity.step.fused_loss import FusedLoss, can_fuse
from voxelocity.step.loss_table import LOSSES, LossConfig, mean_of_known, share_of_positives
from voxelocity.step.many_classes import Sums, many_class_sums

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Total = Callable[[torch.Tensor], torch.Tensor]


def _alone(values: torch.Tensor) -> torch.Tensor:
    return values


def build_loss(
    config: LossConfig,
    *,
    regions: Sequence[Sequence[int]] = (),
    ignored: int | None = None,
    total: Total = _alone,
) -> Loss:
    """The loss of logits (b, k, x, y, z) against class indices (b, x, y, z): a scalar tensor in float32.

    Equal to MONAI's DiceCELoss, DiceLoss and TverskyLoss with softmax=True, to_onehot_y=True, batch=dice_over_batch and
    both `smooth` terms set; own code because MONAI's one-hot target costs a full (b, k, x, y, z) float tensor and
    several passes over it. The focal loss is the mean over voxels, which is k times MONAI's mean over voxels and
    classes. Under autocast, results agree to 1e-5. With `regions`, Dice and focal loss equal
    MONAI's with sigmoid=True, and the cross-entropy is torch's binary one.

    On a CUDA device with Triton `fused_loss` computes the same in two passes over the logits, and on a CPU
    `native_loss`; the operations here are their reference, and take over for a boundary term, while torch compiles, and
    with `BackendConfig.fused_loss` off; of more than 256 classes in the form of `many_classes`, some at a time.

    Args:
        config: which loss.
        regions: of overlapping classes, the class indices that each channel of the logits stands for; empty if classes
            exclude each other.
        ignored: the index in labels of voxels that count in no term; None if there are none. The mean over voxels is
            then that of the batch's other voxels.
        total: sums a tensor over the ranks that make a batch together, each from its own patches, with gradient
            (`parallel.World.total`). Every rank then has the loss of the whole batch, whatever its share.
    """
    kind = LOSSES[config.name]
    fused, table = FusedLoss(config, regions=regions, ignored=ignored), _RegionTable(regions)

    def summed(logits: torch.Tensor, label: torch.Tensor) -> Sums:
        if can_fuse(logits, label, config, len(regions)):
            return fused.sums(logits, label)
        if native_loss.can_run(logits, label, config, len(regions)):
            return native_loss.sums(logits, label, config, ignored)
        is_known = None if ignored is None else label != ignored
        if not regions and logits.shape[1] > MAX_BYTE_CLASSES and config.boundary_weight == 0.0:
            return many_class_sums(logits, label, is_known, config)
        probability, is_class, mean = (
            _overlapping(logits.float(), label, is_known, table, config)
            if regions
            else _exclusive(logits.float(), label, is_known, config)
        )
        if is_known is not None:
            probability = probability * is_known.unsqueeze(1)
        sizes = _overlap_sizes(probability, is_class, share_of_positives(config))
        if config.boundary_weight > 0.0:
            distance = _signed_distance_voxel(is_class.view_as(probability), 0 if regions else 1)
            # The probability of voxels that do not count is 0 by now.
            mean = mean + config.boundary_weight * mean_of_known((probability * distance).mean(1), is_known)
        known = mean.new_full((), float(label.numel())) if is_known is None else is_known.sum().float()
        return sizes, mean, known

    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if total is _alone and kind.of_index is None and can_fuse(logits, label, config, len(regions)):
            return fused.loss(logits, label)
        sizes, mean, known = summed(logits, label)
        patches = mean.new_full((), float(len(label)))
        count = patches if ignored is None else known
        first = 0 if regions or config.include_background else 1
        if config.dice_over_batch:
            sizes, mean = _over_ranks(total, sizes.sum(1, keepdim=True), mean, count)
            return kind.overlap(sizes, config, first) + mean
        overlap = kind.overlap(sizes, config, first)
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
        table = torch.zeros(len(self._regions), MAX_BYTE_CLASSES, dtype=torch.bool)
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


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Probabilities (b, k, x, y, z), whether each voxel is of each class (b, k, v), and the mean loss of a voxel."""


def _exclusive(logits: torch.Tensor, label: torch.Tensor, is_known: torch.Tensor | None, config: LossConfig) -> Parts:
    # Any class will do for a voxel that does not count.
    target = (label if is_known is None else label * is_known).long()
    log_probability, term = torch.log_softmax(logits, dim=1), LOSSES[config.name].of_voxels
    mean = logits.new_zeros(()) if term is None else term.exclusive(log_probability, target, is_known, config)
    # A mask keeps one byte per voxel and class for the backward pass.
    classes = torch.arange(logits.shape[1], device=label.device)[:, None]
    return log_probability.exp(), label.flatten(1).unsqueeze(1) == classes, mean


def _overlapping(
    logits: torch.Tensor,
    label: torch.Tensor,
    is_known: torch.Tensor | None,
    table: _RegionTable,
    config: LossConfig,
) -> Parts:
    # (b, k, v).
    is_class = table.on(label.device)[:, label.flatten(1).long()].transpose(0, 1)
    mean, term = logits.new_zeros(()), LOSSES[config.name].of_voxels
    if term is not None:
        flat = logits.flatten(2)
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(flat, is_class.to(flat.dtype), reduction="none")
        mean = mean_of_known(term.overlapping(entropy, config).mean(1).view(label.shape), is_known)
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


def _overlap_sizes(probability: torch.Tensor, is_class: torch.Tensor, alpha: float) -> torch.Tensor:
    """(2, b, k): the intersection of prediction and truth, and twice their sizes, weighted by alpha and 1 - alpha."""
    flat = probability.flatten(2)
    # A matrix product instead would be rounded to half precision under autocast and to TF32 on a GPU, and overflows
    # float16 beyond 65,504 voxels of a class.
    intersection = torch.where(is_class, flat, 0.0).sum(2)
    return torch.stack([intersection, 2.0 * (alpha * flat.sum(2) + (1.0 - alpha) * is_class.sum(2))])
