"""Lowerings of MONAI's noise, in two ways: with MONAI's own numbers, or with numbers made from a seed of them.

MONAI draws a whole field from the transform's generator: tens of milliseconds per patch that hold the GIL. With
`exact=False` the generator gives the deviation as before and then one seed of 63 bits, from which compiled loops make
the field (`data.augment.noise`): the same distribution up to 6.2 deviations, other numbers, and another state of the
generator afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from monai.transforms.intensity import array, dictionary
from monai.transforms.transform import RandomizableTransform
from monai.utils.misc import ensure_tuple_rep

from voxelocity.data.augment.noise import standard_normal
from voxelocity.data.augment.steps import Linear
from voxelocity.data.augment.steps.intensity.field import Noise, Rician
from voxelocity.data.augment.steps.intensity.pointwise import Floats
from voxelocity.data.augment.steps.intensity.statistic import RelativeRician
from voxelocity.interop.monai.lower.intensity.form import (
    Change,
    array_form,
    as_monai,
    dictionary_form,
    gives_float32,
    same,
    why_not_float32,
)
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def noise_lowerings(*, exact: bool) -> Lowerings:
    """The lowerings of RandGaussianNoise(d) and RandRicianNoise(d).

    Args:
        exact: whether to draw each number from the transform's generator as MONAI does: the same noise, and about as
            slow. Otherwise the noise is equal in distribution only: normal numbers of more than 2**24 values, up to
            6.23 deviations, beyond which one number in 2**31 would lie.
    """
    gaussian, rician = (_EXACT_GAUSSIAN, _EXACT_RICIAN) if exact else (_GAUSSIAN, _RICIAN)
    return {
        array.RandGaussianNoise: array_form(gaussian),
        dictionary.RandGaussianNoised: dictionary_form(gaussian, "rand_gaussian_noise", draws="first"),
        array.RandRicianNoise: array_form(rician),
        dictionary.RandRicianNoised: dictionary_form(rician, "rand_rician_noise", draws="each"),
    }


@dataclass(frozen=True, kw_only=True)
class _Seeded:
    """A field of noise that all keys share."""

    seed: int
    std: float
    shape: tuple[int, ...]


def _draw_seed(transform: Any) -> int:
    return int(transform.R.randint(0, 2**63 - 1, dtype=np.int64))


def _draw_gaussian_exactly(transform: Any, sketch: Sketch) -> None:
    transform.randomize(img=sketch)


def _add_gaussian_exactly(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    # Where shapes differ the sum may have another shape than the image.
    if transform.noise.shape != sketch.shape or not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    sketch.add(Noise(field=_lifted(np.asarray(transform.noise), sketch), std=1.0))
    return sketch


def _draw_gaussian(transform: Any, sketch: Sketch) -> _Seeded | None:
    RandomizableTransform.randomize(transform, None)
    if not transform._do_transform:
        return None
    std = float(transform.R.uniform(0, transform.std) if transform.sample_std else transform.std)
    return _Seeded(seed=_draw_seed(transform), std=std, shape=sketch.shape)


def _add_gaussian(transform: Any, sketch: Sketch, drawn: _Seeded) -> Sketch:
    num_channels, *shape = drawn.shape
    has_same_places = tuple(shape) == sketch.spatial_shape and num_channels in (1, sketch.shape[0])
    if not has_same_places or not gives_float32(transform, sketch):
        rows = [standard_normal(drawn.seed, channel, int(np.prod(shape))) for channel in range(num_channels)]
        transform.noise = transform.mean + drawn.std * np.stack(rows).reshape(drawn.shape)
        return as_monai(transform, sketch)
    sketch.add(Noise(field=drawn.seed, std=drawn.std, is_shared=num_channels == 1))
    if transform.mean != 0:
        sketch.add(Linear(scale=same(sketch.shape[0], 1.0), shift=same(sketch.shape[0], transform.mean)))
    return sketch


def _draw_whether(transform: Any, sketch: Sketch) -> None:
    RandomizableTransform.randomize(transform, None)


def _add_rician_exactly(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    if not _is_plain_rician(transform, sketch):
        return as_monai(transform, sketch)
    means, stds = _numbers_of(transform, sketch)
    shape = sketch.shape
    if transform.channel_wise:
        shares, firsts, seconds = [], [], []
        for std in stds:
            shares.append(_drawn_std(transform, std))
            firsts.append(transform.R.normal(size=shape[1:]))
            seconds.append(transform.R.normal(size=shape[1:]))
        first, second = np.stack(firsts), np.stack(seconds)
    else:
        shares = [_drawn_std(transform, stds[0])] * len(stds)
        first, second = transform.R.normal(size=shape), transform.R.normal(size=shape)
    fields = (_lifted(first, sketch), _lifted(second, sketch))
    return _with_rician(transform, sketch, Rician(fields=fields, mean=means, std=np.array(shares, np.float32)))


def _add_rician(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    if not _is_plain_rician(transform, sketch):
        return as_monai(transform, sketch)
    means, stds = _numbers_of(transform, sketch)
    if transform.channel_wise:
        shares = [_drawn_std(transform, std) for std in stds]
    else:
        shares = [_drawn_std(transform, stds[0])] * len(stds)
    seed = _draw_seed(transform)
    return _with_rician(transform, sketch, Rician(fields=(seed, seed), mean=means, std=np.array(shares, np.float32)))


def _is_plain_rician(transform: Any, sketch: Sketch) -> bool:
    """Whether the result is float32 and the arguments are those that MONAI takes."""
    given = (transform.mean, transform.std)
    is_taken = transform.channel_wise or all(isinstance(value, int | float) for value in given)
    return is_taken and gives_float32(transform, sketch)


def _numbers_of(transform: Any, sketch: Sketch) -> tuple[Floats, list[float]]:
    """Mean and standard deviation, of each channel."""
    means, stds = (ensure_tuple_rep(value, sketch.shape[0]) for value in (transform.mean, transform.std))
    return np.array(means, np.float32), [float(std) for std in stds]


def _drawn_std(transform: Any, std: float) -> float:
    # If `std` is relative, the measured one becomes a factor later: numbers are drawn from 0 to 1 and scaled.
    return float(transform.R.uniform(0, std)) if transform.sample_std else std


def _with_rician(transform: Any, sketch: Sketch, step: Rician) -> Sketch:
    sketch.add(RelativeRician(rician=step, per_channel=transform.channel_wise) if transform.relative else step)
    return sketch


def _lifted(field: np.ndarray[Any, np.dtype[Any]], sketch: Sketch) -> Floats:
    """Float32 of three spatial axes."""
    numbers: Floats = field.astype(np.float32)
    return numbers[..., None] if sketch.num_spatial == 2 else numbers


_EXACT_GAUSSIAN = Change(add=_add_gaussian_exactly, draw=_draw_gaussian_exactly, why_not=why_not_float32)
_GAUSSIAN = Change(add=_add_gaussian, draw=_draw_gaussian, why_not=why_not_float32)
_EXACT_RICIAN = Change(add=_add_rician_exactly, draw=_draw_whether, casts=True, why_not=why_not_float32)
_RICIAN = Change(add=_add_rician, draw=_draw_whether, casts=True, why_not=why_not_float32)
