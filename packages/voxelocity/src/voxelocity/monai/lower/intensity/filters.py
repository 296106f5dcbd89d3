"""MONAI's transforms that blur, sharpen, shade, filter the spectrum, shuffle voxels, or drop them out.

A spike keeps the phase of its frequency: where the image has next to nothing at that frequency (a flat image), the
phase is rounding on both sides, and the results differ.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai import transforms as mt
from monai.networks.layers.convutils import gaussian_1d
from scipy.special import erf

from voxelocity.monai.lower.intensity.float32 import REAL, Steps, as_monai, changes
from voxelocity.monai.lower.lowering import adds_steps, blindly, of_shape
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.steps import Fill
from voxelocity.monai.steps.intensity.field import Bias, Blur, LowPass, Shuffle, Spike, Spikes
from voxelocity.monai.steps.intensity.pointwise import Floats

_TRUNCATE = 4.0
_NO_BLUR: Floats = np.ones(1, np.float32)
_TO_FLOAT32 = REAL - {torch.float16, torch.float64}


@changes(mt.RandGaussianSmooth, "rand_smooth", dtypes=None, draw=blindly)
def _rand_smooth(transform: Any, pending: PendingTensor) -> Steps:
    return _blurs(pending, transform.approx, ((transform.x, transform.y, transform.z), None))


@changes(mt.GaussianSmooth, "converter", dtypes=None)
def _smooth(transform: Any, pending: PendingTensor) -> Steps:
    return _blurs(pending, transform.approx, (_per_axis(transform.sigma, pending), None))


@changes(mt.RandGaussianSharpen, "rand_sharpen", dtypes=None, draw=blindly)
def _rand_sharpen(transform: Any, pending: PendingTensor) -> Steps:
    first, second = (transform.x1, transform.y1, transform.z1), (transform.x2, transform.y2, transform.z2)
    return _blurs(pending, transform.approx, (first, None), (second, transform.a))


@changes(mt.GaussianSharpen, "converter", dtypes=None)
def _sharpen(transform: Any, pending: PendingTensor) -> Steps:
    first, second = (_per_axis(sigma, pending) for sigma in (transform.sigma1, transform.sigma2))
    return _blurs(pending, transform.approx, (first, None), (second, transform.alpha))


def _blurs(pending: PendingTensor, approx: str, *blurs: tuple[Sequence[float], float | None]) -> list[Blur]:
    """A step for the sigmas of each blur, with the share by which it sharpens."""
    found = []
    for sigmas, alpha in blurs:
        along = [gaussian_weights(float(sigma), approx) for sigma in sigmas[: pending.num_spatial]]
        x, y, z = (*along, _NO_BLUR)[:3]
        found.append(Blur(weights=(x, y, z), alpha=None if alpha is None else float(alpha)))
    return found


def _per_axis(sigma: Any, pending: PendingTensor) -> Sequence[float]:
    """One sigma for each axis.

    Raises:
        ValueError: there are more or fewer.
    """
    if np.ndim(sigma) == 0:
        return [float(sigma)] * pending.num_spatial
    if len(sigma) != pending.num_spatial:
        raise ValueError(f"sigma {tuple(sigma)} is not one number for each of {pending.num_spatial} spatial axes")
    return [float(value) for value in sigma]


def gaussian_weights(sigma: float, approx: str) -> Floats:
    """Weights of MONAI's `GaussianFilter`, (2 r + 1,): r is 4 sigma, rounded, at least 1; they need not sum to 1."""
    if approx.lower() != "erf":
        return np.asarray(gaussian_1d(torch.tensor(sigma), truncated=_TRUNCATE, approx=approx))
    deviation = np.float32(sigma)
    radius = int(max(float(deviation) * _TRUNCATE, 0.5) + 0.5)
    with np.errstate(divide="ignore"):
        steepness = np.float32(0.70710678) / np.abs(deviation)  # 1 / sqrt(2) in the digits that MONAI has
    edges = erf(steepness * (np.arange(-radius, radius + 2, dtype=np.float32) - np.float32(0.5)))
    weights: Floats = np.maximum(np.diff(edges) / 2, 0.0).astype(np.float32)
    return weights


@changes(mt.RandBiasField, "rand_bias_field", dtypes=REAL, draw=of_shape)
def _shade(transform: Any, pending: PendingTensor) -> Steps:
    degrees = transform.degree + 1
    coefficients = np.zeros((degrees,) * pending.num_spatial, np.float32)
    positions = _planes(degrees) if pending.num_spatial == 2 else _triples(degrees)
    coefficients[tuple(np.array(positions).T)] = transform._coeff
    return Bias(coefficients=coefficients.reshape(degrees, degrees, -1))


@functools.cache
def _triples(degrees: int) -> list[tuple[int, int, int]]:
    """Degrees along x, y and z of the coefficients that MONAI draws for a volume."""
    return [(i, j, k) for i, j, k in itertools.product(range(degrees), repeat=3) if i + j + k < degrees]


@functools.cache
def _planes(degrees: int) -> list[tuple[int, int]]:
    """The same for a plane: not those of a small total degree, but the lower triangle."""
    return [(i, j) for i in range(degrees) for j in range(i + 1)]


@changes(mt.RandGibbsNoise, "rand_gibbs_noise", dtypes=_TO_FLOAT32, draw=blindly)
@changes(mt.GibbsNoise, "transform", dtypes=_TO_FLOAT32)
def _low_pass(transform: Any, pending: PendingTensor) -> Steps:
    alpha = transform.sampled_alpha if isinstance(transform, mt.RandGibbsNoise) else transform.alpha
    return LowPass(radius=float((1 - alpha) * max(pending.spatial_shape) * np.sqrt(2) / 2.0))


def _draw_spikes(transform: Any, pending: PendingTensor) -> tuple[Spike, ...] | None:
    """One spike for each channel, or None if the draw is to do nothing.

    Raises:
        RuntimeError: there are ranges of intensities for more or fewer channels.
    """
    ranges = transform.intensity_range
    has_rows = ranges is not None and isinstance(ranges[0], Sequence)
    num_channels = pending.shape[0]
    if has_rows and len(ranges) != num_channels:
        raise RuntimeError(f"intensity_range has {len(ranges)} pairs (low, high) for {num_channels} channels")
    super(mt.RandKSpaceSpikeNoise, transform).randomize(None)
    if not transform._do_transform:
        return None
    shape, draw = pending.spatial_shape, transform.R
    # Without ranges only the share of the range is drawn, which depends on the channel's spectrum.
    rows = [(0.0, 1.0) if ranges is None else ranges[c] if has_rows else ranges for c in range(num_channels)]
    positions, sizes = [], []
    if transform.channel_wise:
        for low, high in rows:
            positions.append(tuple(draw.randint(0, side) for side in shape))
            sizes.append(draw.uniform(low, high))
    else:
        positions = [tuple(draw.randint(0, side) for side in shape)] * num_channels
        sizes = [draw.uniform(low, high) for low, high in rows]
    return tuple(
        Spike(
            channel=channel,
            place=(*place, 0)[:3],
            # MONAI's default: 0.95 to 1.1 times 2.5 mean logarithms of the spectrum.
            log_magnitude=size if ranges is not None else 2.5 * (0.95 + 0.15 * size),
            is_relative=ranges is None,
            share=size,
        )
        for channel, (place, size) in enumerate(zip(positions, sizes, strict=True))
    )


@adds_steps(mt.RandKSpaceSpikeNoise, "rand_noise", draw=_draw_spikes, draws="each")
def _set_spikes(transform: Any, pending: PendingTensor, spikes: tuple[Spike, ...]) -> PendingTensor:
    if pending.dtype == torch.float32:
        pending.add(Spikes(spikes=spikes))
        return pending
    num_spatial = pending.num_spatial
    magnitudes = [spike.log_magnitude for spike in spikes]
    if spikes[0].is_relative:
        # To the last bit as MONAI's: an integer type turns -1.0 and -0.99 into 255 and 0.
        ranges = [(float(low), float(high)) for low, high in transform._set_default_range(finish(pending))]
        magnitudes = [low + (high - low) * spike.share for spike, (low, high) in zip(spikes, ranges, strict=True)]
    positions = [(spike.channel, *spike.place[:num_spatial]) for spike in spikes]
    return as_monai(mt.KSpaceSpikeNoise(positions, magnitudes), pending)


@changes(mt.RandCoarseShuffle, "shuffle", draw=of_shape)
def _shuffle(transform: Any, pending: PendingTensor) -> Steps:
    """The orders are drawn here, image by image, as MONAI does."""
    steps = []
    for _, *box in transform.hole_coords:
        starts, lengths = zip(*((part.start, part.stop - part.start) for part in box), strict=True)
        orders = np.tile(np.arange(int(np.prod(lengths))), (pending.shape[0], 1))
        for order in orders:
            transform.R.shuffle(order)
        steps.append(Shuffle(start=(*starts, 0)[:3], shape=(*lengths, 1)[:3], orders=orders))
    return steps


def _why_not_fill(transform: Any, inner: Any) -> str:
    value = inner.fill_value
    is_number = isinstance(value, int | float | np.number)
    if value is None or is_number or (isinstance(value, tuple | list) and np.isfinite(np.subtract(*value))):
        return ""
    return f"fill_value={value!r} is neither a number nor a finite range"


@changes(mt.RandCoarseDropout, "dropper", draw=of_shape, why_not=_why_not_fill)
def _drop_out(dropper: Any, pending: PendingTensor) -> Steps:
    """Boxes filled with a number, or with noise of a range, drawn here from `dropper.R`; or all but the boxes."""
    boxes = _boxes(dropper.hole_coords, pending.spatial_shape)
    if not len(boxes):
        return None
    low, high, noise = dropper.fill_value, None, None
    if low is None or isinstance(low, tuple | list):
        low, high = (None, None) if low is None else low
        sides = boxes[:, 1] - boxes[:, 0]
        num_channels = pending.shape[0]
        num = num_channels * int(sides.prod(axis=1).sum())
        if not dropper.dropout_holes:
            num = int(np.prod(pending.shape))
        # `R.uniform(low, high)` takes the same numbers from 0 to 1 and spreads them.
        noise = dropper.R.random_sample(num)
    return Fill(boxes=boxes, is_outside=not dropper.dropout_holes, low=low, high=high, noise=noise)


def _boxes(holes: list[tuple[slice, ...]], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """(n, 2, 3), as far as they lie within the array; a plane is one voxel thick."""
    positions = np.zeros((len(holes), 2, 3), np.int64)
    positions[:, 1] = 1
    for number, hole in enumerate(holes):
        for axis, (along, side) in enumerate(zip(hole[1:], shape, strict=False)):
            positions[number, :, axis] = along.indices(side)[:2]
    positions[:, 1] = np.maximum(positions[:, 0], positions[:, 1])
    return positions
