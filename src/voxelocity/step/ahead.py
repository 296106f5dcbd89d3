"""The kernels of a training step, compiled before the first one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from voxelocity.core.kernels import Launch, distinct
from voxelocity.core.region import Index3
from voxelocity.step.fused import has_triton
from voxelocity.step.loss import LossConfig
from voxelocity.step.network import build_blank
from voxelocity.step.network_config import NetworkConfig
from voxelocity.step.precision import compute_dtype
from voxelocity.step.precision_config import BackendConfig, PrecisionConfig

_WITH_OUR_NORMS = ("dynunet", "unet", "segresnet")


def possible_launches(
    network: NetworkConfig,
    loss: LossConfig,
    precision: PrecisionConfig,
    backend: BackendConfig,
    *,
    num_channels: int,
    num_outputs: int,
    patch_shapes: Sequence[Index3],
    has_regions: bool = False,
    has_ignored: bool = False,
    is_shared: bool = False,
) -> list[Launch]:
    """What the norms and the loss of a step on a CUDA device launch, each once; those of validation are among them.

    Args:
        network: which network; a user's own is not looked into.
        loss: which loss.
        precision: of the step.
        backend: which kernels are switched on.
        num_channels: of the images.
        num_outputs: channels of the logits.
        patch_shapes: of the batches.
        has_regions: whether classes overlap.
        has_ignored: whether labels have voxels without a known class.
        is_shared: whether several ranks make a batch together.
    """
    if not has_triton() or precision.compile != "none":
        return []
    from voxelocity.step import fused_loss, fused_norm

    dtype, found = compute_dtype(precision), []
    if backend.fused_norm and precision.channels_last and network.name in _WITH_OUR_NORMS:
        blank = build_blank(network, num_channels=num_channels, num_classes=num_outputs)
        found += fused_norm.possible_launches(blank, dtype)
    if backend.fused_loss and loss.boundary_weight == 0.0:
        for shape in patch_shapes:
            found += fused_loss.possible_launches(
                num_outputs,
                dtype,
                num_voxels=math.prod(shape),
                is_channels_last=precision.channels_last and num_outputs > 1,
                config=loss,
                has_regions=has_regions,
                has_ignored=has_ignored,
                is_shared=is_shared,
            )
    return distinct(found)
