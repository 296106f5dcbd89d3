"""The kernels of a training step, compiled before the first one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.core.kernels import Launch, distinct
from voxelocity.core.region import Index3
from voxelocity.step import fused_loss, fused_norm
from voxelocity.step.fused import has_triton
from voxelocity.step.fused_loss import LossForm
from voxelocity.step.network import build_blank
from voxelocity.step.network_config import NetworkConfig
from voxelocity.step.network_table import NETWORKS
from voxelocity.step.precision import compute_dtype
from voxelocity.step.precision_config import BackendConfig, PrecisionConfig


def possible_launches(
    network: NetworkConfig,
    loss: LossForm,
    precision: PrecisionConfig,
    backend: BackendConfig,
    *,
    num_channels: int,
    patch_shapes: Sequence[Index3],
    is_shared: bool = False,
) -> list[Launch]:
    """What the norms and the loss of a step on a CUDA device launch, each once; those of validation are among them.

    Args:
        network: which network; a user's own is not looked into.
        loss: of the logits.
        precision: of the step.
        backend: which kernels are switched on.
        num_channels: of the images.
        patch_shapes: of the batches.
        is_shared: whether several ranks make a batch together.
    """
    if not has_triton() or precision.compile != "none":
        return []
    dtype, found = compute_dtype(precision), []
    if backend.fused_norm and precision.channels_last and NETWORKS[network.name].has_own_norms:
        # One of another toolkit may read values while it is built; its kernels are compiled with the first step.
        with contextlib.suppress(*((RuntimeError,) if network.name == "foreign" else ())):
            blank = build_blank(network, num_channels=num_channels, num_classes=loss.num_classes)
            found += fused_norm.possible_launches(blank, dtype)
    if backend.fused_loss and fused_loss.has_kernels(loss.config) and loss.num_classes <= MAX_BYTE_CLASSES:
        for shape in patch_shapes:
            found += fused_loss.possible_launches(loss, dtype, num_voxels=math.prod(shape), is_shared=is_shared)
    return distinct(found)
