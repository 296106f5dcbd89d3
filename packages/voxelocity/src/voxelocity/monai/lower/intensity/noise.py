"""MONAI's noise, in two ways: with MONAI's own numbers, or with numbers made from a seed of them.

MONAI draws a whole field from the transform's generator: tens of milliseconds per patch that hold the GIL. Without
`exact_noise` the generator gives the deviation as before and then one seed of 63 bits, from which compiled loops make
the field (`data.augment.noise`): the same distribution up to 6.23 deviations, beyond which one number in 2**31 would
lie, other numbers of more than 2**24 values, and another state of the generator afterwards.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from monai import transforms as mt
from monai.utils.misc import ensure_tuple_rep

from voxelocity.data.augment.noise import standard_normal
from voxelocity.monai.lower.intensity.float32 import (
    as_monai,
    cast_idle,
    gives_float32,
    linear,
    why_not_float32,
)
from voxelocity.monai.lower.lowering import EXACT_NOISE, adds_steps, seeing
from voxelocity.monai.lower.pending import PendingTensor
from voxelocity.monai.steps.intensity.field import Noise, NormalField, Rician
from voxelocity.monai.steps.intensity.pointwise import Floats
from voxelocity.monai.steps.intensity.statistic import RelativeRician


@dataclass(frozen=True, kw_only=True)
class _Seeded:
    """A field of noise that all keys share."""

    seed: int
    std: float
    shape: tuple[int, ...]


def _draw_seed(transform: Any) -> int:
    return int(transform.R.randint(0, 2**63 - 1, dtype=np.int64))


def _draw_whether(transform: Any, pending: PendingTensor) -> None:
    mt.RandomizableTransform.randomize(transform, None)


def _draw_gaussian(transform: Any, pending: PendingTensor) -> _Seeded | None:
    _draw_whether(transform, pending)
    if not transform._do_transform:
        return None
    std = float(transform.R.uniform(0, transform.std) if transform.sample_std else transform.std)
    return _Seeded(seed=_draw_seed(transform), std=std, shape=pending.shape)


_of_gaussian = functools.partial(adds_steps, mt.RandGaussianNoise, "rand_gaussian_noise", why_not=why_not_float32)


@_of_gaussian(draw=seeing, table=EXACT_NOISE)
def _add_gaussian_exactly(transform: Any, pending: PendingTensor, params: None) -> PendingTensor:
    # Where shapes differ the sum may have another shape than the image.
    if transform.noise.shape != pending.shape or not gives_float32(transform, pending):
        return as_monai(transform, pending)
    pending.add(Noise(field=_lifted(np.asarray(transform.noise), pending), std=1.0))
    return pending


@_of_gaussian(draw=_draw_gaussian)
def _add_gaussian(transform: Any, pending: PendingTensor, params: _Seeded) -> PendingTensor:
    num_channels, *shape = params.shape
    has_same_positions = tuple(shape) == pending.spatial_shape and num_channels in (1, pending.shape[0])
    if not has_same_positions or not gives_float32(transform, pending):
        rows = [standard_normal(params.seed, channel, int(np.prod(shape))) for channel in range(num_channels)]
        transform.noise = transform.mean + params.std * np.stack(rows).reshape(params.shape)
        return as_monai(transform, pending)
    pending.add(Noise(field=params.seed, std=params.std, is_shared=num_channels == 1))
    if transform.mean != 0:
        pending.add(linear(pending, shift=transform.mean))
    return pending


_of_rician = functools.partial(
    adds_steps,
    mt.RandRicianNoise,
    "rand_rician_noise",
    draw=_draw_whether,
    draws="each",
    idle=cast_idle,
    why_not=why_not_float32,
)


def _rician(transform: Any, pending: PendingTensor, params: None, *, is_exact: bool) -> PendingTensor:
    given = (transform.mean, transform.std)
    is_taken = transform.channel_wise or all(isinstance(value, int | float) for value in given)
    if not is_taken or not gives_float32(transform, pending):
        return as_monai(transform, pending)
    shape, draw = pending.shape, transform.R
    means, stds = (ensure_tuple_rep(value, shape[0]) for value in given)
    shares, firsts, seconds = [], [], []
    fields: tuple[NormalField, NormalField]
    for std in map(float, stds if transform.channel_wise else stds[:1]):
        # If `std` is relative, the measured one becomes a factor later: numbers are drawn from 0 to 1 and scaled.
        shares.append(float(draw.uniform(0, std)) if transform.sample_std else std)
        if is_exact:
            size = shape[1:] if transform.channel_wise else shape
            firsts.append(draw.normal(size=size))
            seconds.append(draw.normal(size=size))
    if is_exact:
        fields = _lifted(np.reshape(firsts, shape), pending), _lifted(np.reshape(seconds, shape), pending)
    else:
        seed = _draw_seed(transform)
        fields = seed, seed
    std_of_channel = np.broadcast_to(np.array(shares, np.float32), shape[:1]).copy()
    step = Rician(fields=fields, mean=np.array(means, np.float32), std=std_of_channel)
    pending.add(RelativeRician(rician=step, per_channel=transform.channel_wise) if transform.relative else step)
    return pending


_of_rician()(functools.partial(_rician, is_exact=False))
_of_rician(table=EXACT_NOISE)(functools.partial(_rician, is_exact=True))


def _lifted(field: np.ndarray[Any, np.dtype[Any]], pending: PendingTensor) -> Floats:
    """Float32 of three spatial axes."""
    numbers: Floats = field.astype(np.float32)
    return numbers[..., None] if pending.num_spatial == 2 else numbers
