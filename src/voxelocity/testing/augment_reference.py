"""The augmentation once more, one sample at a time in NumPy and SciPy: what `data.augment.apply` must agree with."""

from __future__ import annotations

import numpy as np
import torch
from scipy.ndimage import map_coordinates

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.data.augment import AugmentParams


def augment_one(
    image_cxyz: Array, label_xyz: Array, params: AugmentParams, row: int, margin_voxel: Index3 = (0, 0, 0)
) -> tuple[Array, Array]:
    """Sample `row` of a batch after its augmentation; the arguments stay as they are.

    Computes in float64. Noise is drawn by torch's CPU generator, so it equals that of a batch on the CPU only.

    Args:
        image_cxyz: (c, x, y, z) of this sample before.
        label_xyz: (x, y, z) of this sample before.
        params: of the batch.
        row: which sample of the batch this is.
        margin_voxel: context around the patch on each side, which the result is without.

    Returns:
        Image (c, x, y, z) float32 and label (x, y, z) with its dtype kept.
    """
    image, label = image_cxyz.astype(np.float64), label_xyz.copy()
    if params.has_affine[row]:
        coordinates = source_coordinates(label.shape, params, row)
        channels = [map_coordinates(channel, coordinates, order=1, mode="nearest") for channel in image]
        image = np.stack(channels)
        label = map_coordinates(label, coordinates, order=0, mode="nearest")
    inside = tuple(slice(margin, n - margin) for margin, n in zip(margin_voxel, label.shape, strict=True))
    image, label = image[:, *inside], label[inside]
    for axis in range(3):
        if params.flips[row, axis]:
            image, label = np.flip(image, axis + 1), np.flip(label, axis)
    channels = [_change_intensity(channel, params, row, number) for number, channel in enumerate(image)]
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(int(params.noise_seed[row]))).numpy()
    image = np.stack(channels) + noise * float(params.noise_std[row])
    return image.astype(np.float32), np.ascontiguousarray(label)


def source_coordinates(shape: tuple[int, ...], params: AugmentParams, row: int) -> Array:
    """Where each voxel is taken from by the affine of this sample, before any flip: (3, x, y, z) float64, in voxels."""
    centre = (np.array(shape, dtype=np.float64).reshape(3, 1, 1, 1) - 1.0) / 2.0
    offsets = np.indices(shape, dtype=np.float64) - centre
    matrix = params.matrix[row].astype(np.float64)
    shift = params.offset_voxel[row].astype(np.float64).reshape(3, 1, 1, 1)
    coordinates: Array = np.einsum("ij,jxyz->ixyz", matrix, offsets) + shift + centre
    return coordinates


def _change_intensity(channel: Array, params: AugmentParams, row: int, number: int) -> Array:
    gamma = float(params.gamma[row, number])
    low, span = channel.min(), np.ptp(channel)
    if gamma != 1.0 and span > 0.0:
        channel = ((channel - low) / span) ** gamma * span + low
    changed: Array = channel * float(params.scale[row, number]) + float(params.shift[row, number])
    return changed
