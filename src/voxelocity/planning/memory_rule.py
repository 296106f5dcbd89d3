"""How much GPU memory training takes, by patch, batch, channels and classes, and what fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from voxelocity.core.errors import ConfigError
from voxelocity.core.region import Index3
from voxelocity.planning.facts import Facts
from voxelocity.planning.patch_rule import PatchFit, fit_patch, strides_for
from voxelocity.planning.precision_rule import planned_compute
from voxelocity.step import NetworkConfig

Vector = npt.NDArray[np.float64]

MEMORY_KEYS = (
    "data.patch.shape_voxel",
    "data.batch_size",
    "network.name",
    "network.stem_stride",
    "network.strides",
    "network.widths",
)
"""Keys that depend on the free memory of a device."""
GPU_PATCH_VOXELS = 128**3
"""nnU-Net's maximum."""
GPU_WIDTHS = (32, 64, 128, 256, 320, 320)
"""nnU-Net's widths, finest level first."""

# If memory is short, patches shrink to the first size before networks become narrower: context is worth more.
_SHORT_PATCH_VOXELS, _LEAST_PATCH_VOXELS = 64**3, 24**3
_LEAST_BATCH, _MOST_BATCH = 2, 8
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
        num_classes: with the background.
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


def network_name(strides: Sequence[Sequence[int]]) -> str:
    """The network for this many levels."""
    return "dynunet" if len(strides) >= 2 else "unet"


def fit_device(facts: Facts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """The largest patch, then the widest network, whose smallest batch fits the device; the smallest if none fits.

    Returns:
        Patch and strides, widths, and the most voxels that a patch may have.
    """
    given = facts.overrides.get("data.patch.shape_voxel")
    for size in _sizes(shape, spacing):
        fit, widths, _ = size
        patch = given or fit.shape_voxel
        strides = fit.strides if given is None else strides_for(tuple(given), spacing, max_levels=len(GPU_WIDTHS))
        section = {
            "name": network_name(strides),
            "strides": [list(s) for s in strides],
            "widths": widths[: len(strides) + 1],
        }
        batch_size = int(facts.overrides.get("data.batch_size", _LEAST_BATCH))
        if _needed_bytes(facts, section | facts.section("network"), patch, batch_size) <= _room_bytes(facts):
            break
    return size


def _sizes(shape: Vector, spacing: Vector) -> Iterator[tuple[PatchFit, Sequence[int], int]]:
    """Patches, widths and the most voxels of a patch, best first."""
    short, least = _SHORT_PATCH_VOXELS, _LEAST_PATCH_VOXELS
    for share, first, last in ((1, GPU_PATCH_VOXELS, short), (2, short, short), (4, short, least)):
        widths = [width // share for width in GPU_WIDTHS]
        max_voxels = first
        while True:
            yield fit_patch(shape, spacing, max_voxels=max_voxels, max_levels=len(widths)), widths, max_voxels
            if max_voxels <= last:
                break
            max_voxels = max(last, int(0.85 * max_voxels))


def _needed_bytes(facts: Facts, network: dict[str, object], patch: Sequence[int], batch_size: int) -> int:
    """Device memory that training takes; 0 if keys do not fit together, which the check of the plan reports."""
    try:
        config = NetworkConfig.parse(network)
    except ConfigError:
        return 0
    x, y, z = patch
    return device_bytes(
        config,
        patch_voxel=(x, y, z),
        batch_size=batch_size,
        num_channels=len(facts.data.channels),
        num_classes=len(facts.data.class_names),
        is_half=planned_compute(facts) != "float32",
    )


def _room_bytes(facts: Facts) -> int:
    """Free device memory besides the cases kept there; less if a trial has shown that it is not enough."""
    kept = int(facts.settled["data"]["cache"].get("device_max_bytes", 0))
    return min(facts.machine.device_free_bytes - kept, facts.room_bytes or facts.machine.device_free_bytes)


def settle_device_batch(facts: Facts) -> None:
    """As many patches as fit the device, 2 to 8."""
    network, patch = facts.section("network"), facts.settled["data"]["patch"]["shape_voxel"]
    sizes = {n: _needed_bytes(facts, network, patch, n) for n in range(_LEAST_BATCH, _MOST_BATCH + 1)}
    room = _room_bytes(facts)
    batch = max((n for n, needed in sizes.items() if needed <= room), default=_LEAST_BATCH)
    takes = f"{batch} patches take an estimated {sizes[batch] / _GIB:.1f} of the {room / _GIB:.1f} GiB"
    if sizes[batch] > room:
        reason = (
            f"does not fit: {takes} free on {facts.machine.device_name}, even at this size; training computes the "
            "patches one by one if that helps, and stops if it does not"
        )
    else:
        least = f"as many as fit, {_LEAST_BATCH} to {_MOST_BATCH}"
        reason = f"{least}: {takes} free on {facts.machine.device_name} (docs/plan.md says how this is counted)"
    value = facts.settle("data.batch_size", batch, reason)
    facts.planned_bytes = _needed_bytes(facts, network, patch, int(value))
