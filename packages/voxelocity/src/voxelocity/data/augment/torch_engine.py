"""The augmentation of one sample in plain torch, on any device: slow, easy to read, and the way to turn off the
compiled engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from voxelocity.core.region import Region
from voxelocity.data.augment.noise import standard_normal
from voxelocity.data.augment.params import (
    AugmentParams,
    ResidentSource,
    Source,
    blur_weights,
    coefficient_cube,
    legendre,
    low_positions,
    origin_and_step,
    scalings,
    spline_weights,
)

Tensor = torch.Tensor


def augment_sample(
    source: Source | ResidentSource,
    region: Region,
    params: AugmentParams,
    row: int,
    out_image: Tensor,
    out_label: Tensor,
) -> None:
    """Fills a patch with sample `row`.

    Args:
        source: the box that the sample needs, from `params.needed_box`.
        region: of the patch in its volume.
        params: of the batch.
        row: of this sample.
        out_image: (c, x, y, z) float32 on any device.
        out_label: (x, y, z) uint8 on the same device.
    """
    device = out_image.device
    image, label = _stored(source, device, params.num_channels)
    for channel, (slope, inter) in zip(image, scalings([source], len(image))[0], strict=True):
        channel.mul_(float(slope)).add_(float(inter))
    places = _places(source, region, params, row).to(device) if params.is_warped[row] else None
    if places is None:
        _crop(image, source, region, params.flips[row].tolist(), out_image)
    else:
        out_image.copy_(_interpolated(image, places))
    _place_label(label, places, source, region, params, row, out_label)
    for number, channel in enumerate(out_image):
        channel.copy_(_changed(channel, params, row, number))
    cut_out(out_image, params, row)


def augment_label(source: Source, region: Region, params: AugmentParams, row: int, out_label: Tensor) -> None:
    """Fills the label of a patch as `augment_sample`, for more classes than a byte holds.

    Args:
        source: as there, its label uint16.
        region: of the patch in its volume.
        params: of the batch.
        row: of this sample.
        out_label: (x, y, z) int32 on any device.
    """
    device = out_label.device
    label = torch.from_numpy(source.label.astype(np.int32)).to(device)
    places = _places(source, region, params, row).to(device) if params.is_warped[row] else None
    _place_label(label, places, source, region, params, row, out_label)


def _place_label(
    label: Tensor,
    places: Tensor | None,
    source: Source | ResidentSource,
    region: Region,
    params: AugmentParams,
    row: int,
    out_label: Tensor,
) -> None:
    """Warps a label to its places, or crops it where it has none; swaps the classes of its sides."""
    if places is None:
        _crop(label, source, region, params.flips[row].tolist(), out_label)
    else:
        out_label.copy_(_voted(label, places) if params.votes else _nearest(label, places))
    if params.is_swapped[row]:
        table, found = torch.from_numpy(params.swapped_classes).to(out_label.device), out_label.long()
        # Ignored voxels may follow the classes of the table.
        known = found.clamp(max=len(table) - 1)
        out_label.copy_(torch.where(found == known, table[known], out_label))


def cut_out(image: Tensor, params: AugmentParams, row: int) -> None:
    """Sets the boxes of sample `row` in its image (c, x, y, z), of any dtype and memory order, on any device."""
    for (x, y, z), (x_stop, y_stop, z_stop) in params.cutout[row].tolist():
        if x_stop > x:
            image[:, x:x_stop, y:y_stop, z:z_stop].fill_(float(params.cutout_value[row]))


def _stored(source: Source | ResidentSource, device: torch.device, num_channels: int) -> tuple[Tensor, Tensor]:
    """Stored numbers (c, x, y, z) float32, safe to change, and label (x, y, z) uint8."""
    if isinstance(source, Source):
        image, label = np.array(source.image, dtype=np.float32), np.array(source.label)
        return torch.from_numpy(image).to(device), torch.from_numpy(label).to(device)
    box = source.box
    voxels = box.memory.view(getattr(torch, box.dtype))
    stored = torch.as_strided(voxels, (num_channels, *box.shape), box.image_steps, box.image_offset)
    label_xyz = torch.as_strided(box.memory, box.shape, box.label_steps, box.label_offset)
    return stored.to(torch.float32, copy=True), label_xyz


def _crop(values: Tensor, source: Source | ResidentSource, region: Region, flips: Sequence[bool], out: Tensor) -> None:
    """Cuts values (..., x, y, z) out of their box, zeros beyond it, and mirrors them."""
    patch, shape = torch.zeros_like(out), values.shape[-3:]
    inside = tuple(slice(a - b, a - b + n) for a, b, n in zip(source.start, region.start, shape, strict=True))
    if values.numel() > 0:
        x, y, z = inside
        patch[..., x, y, z] = values
    out.copy_(patch.flip([axis - 3 for axis, is_flipped in enumerate(flips) if is_flipped]))


def _places(source: Source | ResidentSource, region: Region, params: AugmentParams, row: int) -> Tensor:
    """Place of each voxel in the box: (3, x, y, z) float32."""
    origin, step = origin_and_step(params, row, region, source.start)
    axes = [np.arange(side, dtype=np.float64) for side in region.shape]
    places = origin.reshape(3, 1, 1, 1) + np.einsum("ij,jxyz->ixyz", step, np.stack(np.meshgrid(*axes, indexing="ij")))
    if params.is_elastic[row]:
        tables = [spline_weights(*pair) for pair in zip(region.shape, params.elastic.shape[2:], strict=True)]
        shifts = np.einsum("jabc,xa,yb,zc->jxyz", params.elastic[row], *tables, optimize=True)
        places += np.einsum("ij,jxyz->ixyz", params.matrix[row].astype(np.float64), shifts)
    return torch.from_numpy(places.astype(np.float32))


def _corners(shape: Sequence[int], places: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each of the eight voxels around a place: its flat index in the box, whether it is inside, its weight."""
    below = places.floor()
    share = places - below
    corners = []
    for number in range(8):
        inside = torch.ones_like(places[0], dtype=torch.bool)
        index = torch.zeros_like(places[0], dtype=torch.int64)
        weight = torch.ones_like(places[0])
        for axis in range(3):
            step = number >> (2 - axis) & 1
            along = below[axis].to(torch.int64) + step
            inside &= (along >= 0) & (along < shape[axis])
            index = index * max(1, shape[axis]) + along.clamp(0, max(0, shape[axis] - 1))
            weight = weight * (share[axis] if step else 1.0 - share[axis])
        corners.append((index, inside, weight))
    return corners


def _interpolated(image: Tensor, places: Tensor) -> Tensor:
    total = torch.zeros((len(image), *places.shape[1:]), device=image.device)
    if image.numel() > 0:
        for index, inside, weight in _corners(image.shape[1:], places):
            total += image.reshape(len(image), -1)[:, index] * (weight * inside)
    return total


def _nearest(label: Tensor, places: Tensor) -> Tensor:
    if label.numel() == 0:
        return torch.zeros(places.shape[1:], dtype=torch.uint8, device=label.device)
    nearest = (places + 0.5).floor().to(torch.int64)
    sizes = torch.tensor(label.shape, device=label.device).reshape(3, 1, 1, 1)
    inside = ((nearest >= 0) & (nearest < sizes)).all(0)
    x, y, z = torch.minimum(nearest.clamp_min(0), sizes - 1)
    return label[x, y, z] * inside


def _voted(label: Tensor, places: Tensor) -> Tensor:
    best = torch.zeros(places.shape[1:], dtype=torch.uint8, device=label.device)
    if label.numel() == 0:
        return best
    found = [(label.reshape(-1)[index] * inside, weight) for index, inside, weight in _corners(label.shape, places)]
    best_share = torch.full(places.shape[1:], -1.0, device=label.device)
    for candidate, _ in found:
        share = torch.zeros_like(best_share)
        for other, weight in found:
            share += weight * (other == candidate)
        is_better = (share > best_share) | ((share == best_share) & (candidate < best))
        best, best_share = torch.where(is_better, candidate, best), torch.where(is_better, share, best_share)
    return best


def _changed(channel: Tensor, params: AugmentParams, row: int, number: int) -> Tensor:
    if params.has_bias[row]:
        tables = [torch.from_numpy(legendre(side)) for side in channel.shape]
        cube = torch.from_numpy(coefficient_cube(params.bias[row, number]))
        channel = channel * torch.einsum("abc,xa,yb,zc->xyz", cube, *tables).exp().to(channel.device)
    if params.noise_std[row] > 0.0:
        noise = standard_normal(int(params.noise_seed[row]), number, channel.numel()).reshape(channel.shape)
        channel = channel + torch.from_numpy(noise).to(channel.device) * float(params.noise_std[row])
    channel = _blurred(channel, params.blur_sigma_voxel[row, number].tolist())
    channel = channel * float(params.scale[row, number]) + float(params.shift[row, number])
    contrast = float(params.contrast[row, number])
    if contrast != 1.0:
        mean = channel.mean(dtype=torch.float64).to(torch.float32)
        channel = torch.clamp((channel - mean) * contrast + mean, channel.min(), channel.max())
    if params.low_resolution[row, number] != 1.0:
        channel = _coarse(channel, params.zooms(row, number))
    channel = -_bent(-channel, float(params.gamma_inverted[row, number]), keeps_moments=params.gamma_keeps_moments)
    return _bent(channel, float(params.gamma[row, number]), keeps_moments=params.gamma_keeps_moments)


def _blurred(channel: Tensor, sigma_voxel: list[float]) -> Tensor:
    for axis, sigma in enumerate(sigma_voxel):
        kernel = torch.from_numpy(blur_weights(sigma, channel.shape[axis])).to(channel.device)
        radius = len(kernel) // 2
        if radius > 0:
            lines = channel.movedim(axis, 2)
            padded = functional.pad(lines, (radius, radius), mode="reflect")
            channel = functional.conv1d(padded.reshape(-1, 1, padded.shape[2]), kernel[None, None])
            channel = channel.reshape(lines.shape).movedim(2, axis)
    return channel


def _coarse(channel: Tensor, zooms: list[float]) -> Tensor:
    for axis, zoom in enumerate(zooms):
        below, above, weight = (
            torch.from_numpy(t).to(channel.device) for t in low_positions(channel.shape[axis], zoom)
        )
        low, high = channel.index_select(axis, below), channel.index_select(axis, above)
        along = [1, 1, 1]
        along[axis] = -1
        channel = low + (high - low) * weight.reshape(along)
    return channel


def _bent(channel: Tensor, gamma: float, *, keeps_moments: bool) -> Tensor:
    low, span = channel.min(), channel.max() - channel.min()
    if gamma == 1.0 or not span > 0.0:
        return channel
    bent = ((channel - low) / span) ** gamma * span + low
    if keeps_moments:
        wide, new = channel.double(), bent.double()
        deviation = new.std(correction=0)
        if deviation > 0.0:
            bent = ((new - new.mean()) * (wide.std(correction=0) / deviation) + wide.mean()).float()
    return bent
