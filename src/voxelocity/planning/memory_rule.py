"""How much GPU memory training takes, by patch, batch, channels and classes."""

from __future__ import annotations

import math
from itertools import pairwise

from voxelocity.core.region import Index3
from voxelocity.step import NetworkConfig

_GIB = 2**30
# Weight, gradient, two moments of AdamW, copy in half precision, running average.
_BYTES_PER_WEIGHT = 20
# Patches as float32 and labels as uint8: four batches ahead, one in use and one being made.
_BATCHES_ON_DEVICE = 6
# Workspaces of convolutions, copies between memory formats and fragmentation are not tensors we can count. With
# this factor nnU-Net's reference, two patches of 560 million features, comes to 8.7 GB; its planner gives them 8 GB
# (nnunetv2, ExperimentPlanner, UNet_reference_val_corresp_GB).
_MARGIN = 1.3
# Code and workspaces of cuDNN and cuBLAS, loaded with the first step.
_LIBRARIES_BYTES = _GIB // 2
# Activations that other networks keep relative to DynUNet's at equal widths: counted as in
# tests/planning/test_memory_rule.py. A UNet keeps less, because its finest level is computed once; its value covers up
# to four residual units. For a custom network nothing is known.
_KEPT_SHARE = {"dynunet": 1.0, "segresnet": 1.25, "unet": 0.5, "swinunetr": 2.0, "dints": 2.0, "custom": 2.0}
_RESIDUAL_SHARE = 1.3
_DROPOUT_SHARE = 1.7


def device_bytes(
    network: NetworkConfig,
    *,
    patch_voxel: Index3,
    batch_size: int,
    num_channels: int,
    num_classes: int,
    is_half: bool,
) -> int:
    """Bytes of a device's free memory that training is expected to take at its peak.

    Tensors that the backward pass needs are counted exactly for DynUNet and overestimated for other networks; our tests
    compare them with what a step holds on a CPU. A margin covers what cannot be counted there.

    Args:
        network: what is trained.
        patch_voxel: shape of a patch.
        batch_size: patches.
        num_channels: of the image.
        num_classes: outputs: classes with the background, or overlapping classes.
        is_half: whether convolutions compute in half precision.
    """
    step = step_bytes(
        network,
        patch_voxel=patch_voxel,
        num_channels=num_channels,
        num_classes=num_classes,
        is_half=is_half,
    )
    batches = _BATCHES_ON_DEVICE * math.prod(patch_voxel) * (4 * num_channels + 1)
    weights = _BYTES_PER_WEIGHT * _num_weights(network)
    return int(_LIBRARIES_BYTES + weights + batch_size * (batches + _MARGIN * step))


def step_bytes(
    network: NetworkConfig, *, patch_voxel: Index3, num_channels: int, num_classes: int, is_half: bool
) -> int:
    """Bytes of the tensors of one patch at the peak of a step; arguments as for `device_bytes`."""
    value = 2 if is_half else 4
    voxels, kept = math.prod(patch_voxel), 0.0
    coarse = voxels / math.prod(network.stem_stride)
    for level, width in enumerate(network.widths):
        # Results of each convolution and its norm: two convolutions down, two up, and the joined input of the latter.
        num_kept = 4 if level == len(network.widths) - 1 else 10
        kept += num_kept * width * value * coarse / math.prod(math.prod(s) for s in network.strides[:level])
    kept *= _KEPT_SHARE[network.name]
    kept *= _RESIDUAL_SHARE if network.num_res_units and network.name == "dynunet" else 1.0
    kept *= _DROPOUT_SHARE if network.dropout else 1.0
    image = num_channels * (4 + value)
    # Logits; for the loss their log-probability and probability in float32 and a mask; class indices as int64.
    loss = num_classes * (value + 4 + 4 + 1) + 9
    # The backward pass holds three more of the loss's float32 tensors, or gradients of the finest level.
    way_back = max(12 * num_classes, 5 * network.widths[0] * value)
    return int(kept) + voxels * (image + loss + way_back)


def _num_weights(network: NetworkConfig) -> int:
    """Weights of DynUNet without biases and norms; other networks of equal widths have about as many."""
    widths = network.widths
    down = sum(27 * (before * width + width * width) for before, width in pairwise((1, *widths)))
    up = sum(8 * below * width + 27 * 3 * width * width for width, below in pairwise(widths))
    return down + up
