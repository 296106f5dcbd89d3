"""The augmentation of a whole batch in plain torch, on whatever device the batch lies.

What is computed stands in `AugmentParams`; `testing.augment_reference` computes it once more, slowly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from voxelocity.core.errors import InputError
from voxelocity.core.region import Index3
from voxelocity.data.augment.params import AugmentParams


def apply(
    image: torch.Tensor, label: torch.Tensor, params: AugmentParams, *, margin_voxel: Index3 = (0, 0, 0)
) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch after its augmentation; dtypes are kept, and shapes but for the margin.

    Consumes its input: the tensors given may be overwritten and may or may not be those returned. Nothing is read
    back from the device, so a CUDA stream is not waited for. A sample comes out the same, bit for bit, whatever else
    is in the batch; between devices the noise differs and the rest agrees to rounding.

    Args:
        image: (b, c, x, y, z) float32.
        label: (b, x, y, z) uint8 on the same device.
        params: of b samples and c channels.
        margin_voxel: context around the patch on each side of (x, y, z), which turned and shrunk patches look into.
            The result is smaller by it on both sides.

    Raises:
        InputError: shapes or dtypes do not fit.
    """
    _check(image, label, params, margin_voxel)
    with torch.no_grad():
        rows = np.flatnonzero(params.has_affine)
        if len(rows) == params.num_samples:
            image, label = _warp(image, label, params, rows, margin_voxel)
        else:
            context_image, context_label = image, label
            image, label = _inside(image, margin_voxel), _inside(label, margin_voxel)
            _flip_only(image, label, params)
            if len(rows) > 0:
                index = _on(image.device, rows)
                part = context_image.index_select(0, index), context_label.index_select(0, index)
                warped_image, warped_label = _warp(*part, params, rows, margin_voxel)
                image.index_copy_(0, index, warped_image)
                label.index_copy_(0, index, warped_label)
        _bend(image, params)
        if (params.scale != 1.0).any() or (params.shift != 0.0).any():
            image.mul_(_per_channel(image, params.scale)).add_(_per_channel(image, params.shift))
        _add_noise(image, params)
    return image, label


def _flip_only(image: torch.Tensor, label: torch.Tensor, params: AugmentParams) -> None:
    """Flips the samples without an affine in place; for the others the flip is a part of the sampling grid."""
    for row in np.flatnonzero(params.flips.any(axis=1) & ~params.has_affine):
        axes = [int(axis) for axis in np.flatnonzero(params.flips[row])]
        image[row] = image[row].flip([axis + 1 for axis in axes])
        label[row] = label[row].flip(axes)


def _inside(batch: torch.Tensor, margin_voxel: Index3) -> torch.Tensor:
    """The last three axes without their margin: the same tensor where there is none, else a copy."""
    if margin_voxel == (0, 0, 0):
        return batch
    x, y, z = (slice(margin, n - margin) for margin, n in zip(margin_voxel, batch.shape[-3:], strict=True))
    return batch[..., x, y, z].contiguous()


def _warp(
    image: torch.Tensor,
    label: torch.Tensor,
    params: AugmentParams,
    rows: npt.NDArray[np.intp],
    margin_voxel: Index3,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Affine and flip of samples `rows`, which are all that `image` and `label` hold, without their margin."""
    grid = _sampling_grid(image, params, rows, margin_voxel)
    warped_image = functional.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False)
    label_bcxyz = label.unsqueeze(1).to(torch.float32)
    warped_label = functional.grid_sample(label_bcxyz, grid, mode="nearest", padding_mode="border", align_corners=False)
    return warped_image, warped_label.squeeze(1).to(torch.uint8)


def _sampling_grid(
    image: torch.Tensor, params: AugmentParams, rows: npt.NDArray[np.intp], margin_voxel: Index3
) -> torch.Tensor:
    """Where `grid_sample` finds each voxel's value: (b, x, y, z, 3), on axes (z, y, x), float32.

    With align_corners False, an offset of d voxels from the centre of an axis of n voxels is 2 d / n there, also for
    n = 1. Sums of outer products, not a matrix product: that would round differently for different batches.
    """
    shape = np.array(image.shape[2:], dtype=np.float64)
    direction = np.where(params.flips[rows], -1.0, 1.0)
    matrix = params.matrix[rows] * direction[:, None, :] * (2.0 / shape)[None, :, None]
    offset = params.offset_voxel[rows] * (2.0 / shape)
    x, y, z = (
        torch.from_numpy(
            ((np.arange(n) - (n - 1) / 2.0)[None, :, None] * matrix[:, None, ::-1, axis]).astype(np.float32)
        )
        for axis, n in enumerate(n - 2 * margin for n, margin in zip(image.shape[2:], margin_voxel, strict=True))
    )
    x += torch.from_numpy(offset[:, None, ::-1].astype(np.float32))
    x, y, z = (part.to(image.device, non_blocking=True) for part in (x, y, z))
    return (x[:, :, None] + y[:, None, :])[:, :, :, None] + z[:, None, None, :]


def _bend(image: torch.Tensor, params: AugmentParams) -> None:
    rows = np.flatnonzero((params.gamma != 1.0).any(axis=1))
    if len(rows) == 0:
        return
    gamma = _per_channel(image, params.gamma)
    for row in rows:
        sample_cxyz = image[row]
        low = sample_cxyz.amin(dim=(1, 2, 3), keepdim=True)
        span = sample_cxyz.amax(dim=(1, 2, 3), keepdim=True).sub_(low)
        # A constant channel stays constant: 0 / tiny is 0.
        sample_cxyz.sub_(low).div_(span.clamp_min(torch.finfo(torch.float32).tiny)).pow_(gamma[row])
        sample_cxyz.mul_(span).add_(low)


def _add_noise(image: torch.Tensor, params: AugmentParams) -> None:
    for row in np.flatnonzero(params.noise_std > 0.0):
        random = torch.Generator(image.device).manual_seed(int(params.noise_seed[row]))
        noise = torch.randn(image.shape[1:], generator=random, device=image.device, dtype=image.dtype)
        image[row].add_(noise, alpha=float(params.noise_std[row]))


def _per_channel(image: torch.Tensor, values: npt.NDArray[np.float32]) -> torch.Tensor:
    return _on(image.device, values)[:, :, None, None, None]


def _on(device: torch.device, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _check(image: torch.Tensor, label: torch.Tensor, params: AugmentParams, margin_voxel: Index3) -> None:
    if image.dtype != torch.float32 or label.dtype != torch.uint8:
        raise InputError(
            f"augment.apply: image is {image.dtype} and label {label.dtype}; give a float32 image and a uint8 label"
        )
    wanted = (params.num_samples, params.num_channels)
    if image.ndim != 5 or image.shape[:2] != wanted or label.shape != (image.shape[0], *image.shape[2:]):
        raise InputError(
            f"augment.apply: image {tuple(image.shape)} and label {tuple(label.shape)} do not fit parameters for "
            f"{wanted[0]} samples of {wanted[1]} channels; give (b, c, x, y, z) and (b, x, y, z)"
        )
    if any(2 * margin >= n for margin, n in zip(margin_voxel, image.shape[2:], strict=True)):
        raise InputError(
            f"augment.apply: a margin of {margin_voxel} voxels on both sides leaves nothing of patches of "
            f"{tuple(image.shape[2:])}; give larger patches or a smaller margin"
        )
