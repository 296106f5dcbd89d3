"""A second implementation of the augmentation, on the whole volume in float64 with NumPy, SciPy and torch's resizing.

`data.augment` must agree with it, whichever engine computes. Only the noise is taken from there (`noise.py`): its
numbers are checked against published values of their generator.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.polynomial.legendre import legval3d
from scipy.interpolate import BSpline
from scipy.ndimage import gaussian_filter1d, map_coordinates

from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Volume
from voxelocity.data.augment import AugmentParams
from voxelocity.data.augment.noise import standard_normal
from voxelocity.data.augment.params import DEGREES


def augment_one(volume: Volume, region: Region, params: AugmentParams, row: int) -> tuple[Array, Array]:
    """Sample `row` of a batch: the patch at `region` of `volume`, changed as `params` says.

    Returns:
        Image (c, x, y, z) float32 and label (x, y, z) uint8.
    """
    assert volume.label is not None, "patches to learn from have labels"
    places = source_places(region, params, row)
    image = np.stack(
        [
            map_coordinates(channel.astype(np.float64), places, order=1, mode="grid-constant", cval=0.0)
            for channel in volume.intensities()
        ]
    )
    if params.votes and params.is_warped[row]:
        label = _most_voted(volume.label, places)
    else:
        label = map_coordinates(volume.label, np.floor(places + 0.5), order=0, mode="grid-constant", cval=0)
    if params.is_swapped[row]:
        label = params.swapped_classes[label]
    channels = [_changed(channel, params, row, number) for number, channel in enumerate(image)]
    changed = np.stack(channels).astype(np.float32)
    for start, stop in params.cutout[row]:
        changed[:, start[0] : stop[0], start[1] : stop[1], start[2] : stop[2]] = params.cutout_value[row]
    return changed, label


def source_places(region: Region, params: AugmentParams, row: int) -> Array:
    """Where each voxel of the patch is taken from: (3, x, y, z) float64, in voxels of the volume."""
    shape = region.shape
    half = (np.array(shape, dtype=np.float64).reshape(3, 1, 1, 1) - 1.0) / 2.0
    offsets = np.indices(shape, dtype=np.float64) - half
    offsets *= np.where(params.flips[row], -1.0, 1.0).reshape(3, 1, 1, 1)
    if params.is_elastic[row]:
        offsets += np.stack([_spline(component, shape) for component in params.elastic[row].astype(np.float64)])
    center = np.array(region.start, dtype=np.float64).reshape(3, 1, 1, 1) + half
    shift = params.offset_voxel[row].astype(np.float64).reshape(3, 1, 1, 1)
    places: Array = np.einsum("ij,jxyz->ixyz", params.matrix[row].astype(np.float64), offsets) + shift + center
    return places


def _spline(points: Array, shape: tuple[int, int, int]) -> Array:
    for axis, side in enumerate(shape):
        num = points.shape[axis]
        # Knots are one apart; the patch spans those at which all four functions exist.
        spline = BSpline(np.arange(num + 4) - 3.0, np.moveaxis(points, axis, 0), 3)
        along = spline(np.arange(side) * ((num - 3) / max(1, side - 1)))
        points = np.moveaxis(along, 0, axis)
    return points


def _most_voted(label: Array, places: Array) -> Array:
    shares = [
        map_coordinates(
            (label == index).astype(np.float64), places, order=1, mode="grid-constant", cval=float(index == 0)
        )
        for index in range(int(label.max()) + 1)
    ]
    most: Array = np.argmax(shares, axis=0).astype(np.uint8)
    return most


def _changed(channel: Array, params: AugmentParams, row: int, number: int) -> Array:
    if params.has_bias[row]:
        cube = np.zeros((4, 4, 4))
        for value, degrees in zip(params.bias[row, number], DEGREES, strict=True):
            cube[degrees] = value
        axes = [np.linspace(-1.0, 1.0, side) if side > 1 else np.zeros(1) for side in channel.shape]
        x, y, z = np.meshgrid(*axes, indexing="ij")
        channel = channel * np.exp(legval3d(x, y, z, cube))
    noise = standard_normal(int(params.noise_seed[row]), number, channel.size).reshape(channel.shape)
    channel = channel + noise * float(params.noise_std[row])
    for axis, sigma in enumerate(params.blur_sigma_voxel[row, number]):
        if sigma > 0.0:
            channel = gaussian_filter1d(channel, float(sigma), axis=axis, mode="mirror", truncate=4.0)
    channel = channel * float(params.scale[row, number]) + float(params.shift[row, number])
    mean = channel.mean()
    spread = (channel - mean) * float(params.contrast[row, number]) + mean
    channel = np.clip(spread, channel.min(), channel.max())
    channel = _coarse(channel, params.zooms(row, number))
    keeps_moments = params.gamma_keeps_moments
    channel = -_bent(-channel, float(params.gamma_inverted[row, number]), keeps_moments=keeps_moments)
    return _bent(channel, float(params.gamma[row, number]), keeps_moments=keeps_moments)


def _coarse(channel: Array, zooms: list[float]) -> Array:
    if set(zooms) == {1.0}:
        return channel
    size = [max(1, int(np.floor(side * zoom + 0.5))) for side, zoom in zip(channel.shape, zooms, strict=True)]
    low = torch.nn.functional.interpolate(torch.from_numpy(channel)[None, None], size=size, mode="nearest-exact")
    back = torch.nn.functional.interpolate(low, size=channel.shape, mode="trilinear", align_corners=False)
    array: Array = back[0, 0].numpy()
    return array


def _bent(channel: Array, gamma: float, *, keeps_moments: bool) -> Array:
    low, span = channel.min(), np.ptp(channel)
    if gamma == 1.0 or span == 0.0:
        return channel
    bent: Array = ((channel - low) / span) ** gamma * span + low
    if keeps_moments and bent.std() > 0.0:
        bent = (bent - bent.mean()) / bent.std() * channel.std() + channel.mean()
    return bent
