"""What is said when a step does not fit into the memory of its device."""

from __future__ import annotations

import torch

from voxelocity.parallel import Place
from voxelocity_observe.core.errors import DeviceMemoryError


def in_pieces(image: torch.Tensor, step: int, num_pieces: int) -> str:
    """The warning that batches are divided from now on."""
    return (
        f"train: {_described(image)} do not fit into the memory of the device {image.device.type}; from step "
        f"{step} on, each batch is computed in {num_pieces} pieces, which trains the same weights up to "
        "roundings and takes one more forward pass; a smaller data.batch_size or data.patch.shape_voxel "
        "avoids it"
    )


def not_divisible(image: torch.Tensor, said: str) -> DeviceMemoryError:
    """The error where a batch must stay whole; `said` is the first line of torch's own error, here and below."""
    return DeviceMemoryError(
        f"train: {_described(image)} do not fit into the memory of the device {image.device.type} ({said}); "
        "pieces would change the result, because the network's batch norms use the whole batch: set a smaller "
        f"data.batch_size (now {len(image)}) or network.norm=instance"
    )


def too_small(image: torch.Tensor, said: str) -> DeviceMemoryError:
    """The error where even one patch is too large."""
    return DeviceMemoryError(
        f"train: a step on one patch of {_extent(image)} voxels does not fit into the memory of the device "
        f"{image.device.type} ({said}); set a smaller data.patch.shape_voxel or narrower network.widths, or free "
        "memory that other programs hold"
    )


def too_large(image: torch.Tensor, said: str, place: Place) -> DeviceMemoryError:
    """The error where one rank of several cannot compute its share."""
    return DeviceMemoryError(
        f"train: {_described(image)}, the share of rank {place.rank} of a batch, do not fit into the "
        f"memory of the device {image.device.type} ({said}); set a smaller data.batch_size, which counts the "
        f"patches of all {place.size} ranks"
    )


def _described(image: torch.Tensor) -> str:
    return f"{len(image)} patches of {_extent(image)} voxels"


def _extent(image: torch.Tensor) -> str:
    return " x ".join(str(n) for n in image.shape[2:])
