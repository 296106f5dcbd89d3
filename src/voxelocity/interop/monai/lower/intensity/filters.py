"""Lowerings of MONAI's transforms that blur, sharpen, shade, filter the spectrum, or shuffle voxels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from monai.networks.layers.convutils import gaussian_1d
from monai.transforms.intensity import array, dictionary
from scipy.special import erf

from voxelocity.data.augment.steps.intensity.field import Bias, Blur, LowPass, Shuffle, Spike, Spikes
from voxelocity.data.augment.steps.intensity.pointwise import Floats
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.intensity.form import (
    REAL,
    Change,
    array_form,
    as_monai,
    dictionary_form,
    gives_float32,
    why_not_float32,
)
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch

_TRUNCATE = 4.0
_NO_BLUR: Floats = np.ones(1, np.float32)
_TO_FLOAT32 = REAL - {torch.float16, torch.float64}


def _draw_blindly(transform: Any, sketch: Sketch | None) -> None:
    transform.randomize(None)


def _smooth(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandGaussianSmooth."""
    return _add_blurs(sketch, [((transform.x, transform.y, transform.z), None)], transform.approx)


def _smooth_always(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """GaussianSmooth."""
    return _add_blurs(sketch, [(_per_axis(transform.sigma, sketch), None)], transform.approx)


def _sharpen(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandGaussianSharpen."""
    first, second = (transform.x1, transform.y1, transform.z1), (transform.x2, transform.y2, transform.z2)
    return _add_blurs(sketch, [(first, None), (second, transform.a)], transform.approx)


def _sharpen_always(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """GaussianSharpen."""
    first, second = (_per_axis(sigma, sketch) for sigma in (transform.sigma1, transform.sigma2))
    return _add_blurs(sketch, [(first, None), (second, transform.alpha)], transform.approx)


def _add_blurs(sketch: Sketch, blurs: Sequence[tuple[Sequence[float], float | None]], approx: str) -> Sketch:
    for sigmas, alpha in blurs:
        along = [gaussian_weights(float(sigma), approx) for sigma in sigmas[: sketch.num_spatial]]
        x, y, z = (*along, _NO_BLUR)[:3]
        sketch.add(Blur(weights=(x, y, z), alpha=None if alpha is None else float(alpha)))
    return sketch


def _per_axis(sigma: Any, sketch: Sketch) -> Sequence[float]:
    """One sigma for each axis.

    Raises:
        ValueError: there are more or fewer.
    """
    if np.ndim(sigma) == 0:
        return [float(sigma)] * sketch.num_spatial
    if len(sigma) != sketch.num_spatial:
        raise ValueError(f"sigma {tuple(sigma)} is not one number for each of {sketch.num_spatial} spatial axes")
    return [float(value) for value in sigma]


def gaussian_weights(sigma: float, approx: str) -> Floats:
    """Weights of MONAI's `GaussianFilter`, (2 r + 1,): r is 4 sigma, rounded, at least 1; they need not sum to 1."""
    if approx.lower() != "erf":
        return np.asarray(gaussian_1d(torch.tensor(sigma), truncated=_TRUNCATE, approx=approx))
    deviation = np.float32(sigma)
    radius = int(max(float(deviation) * _TRUNCATE, 0.5) + 0.5)
    with np.errstate(divide="ignore"):
        steepness = np.float32(0.70710678) / np.abs(deviation)
    edges = erf(steepness * (np.arange(-radius, radius + 2, dtype=np.float32) - np.float32(0.5)))
    weights: Floats = np.maximum(np.diff(edges) / 2, 0.0).astype(np.float32)
    return weights


def _draw_bias(transform: Any, sketch: Sketch) -> None:
    transform.randomize(img_size=sketch.spatial_shape)


def _shade(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandBiasField."""
    if not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    degrees = transform.degree + 1
    coefficients = np.zeros((degrees,) * sketch.num_spatial, np.float32)
    places = _planes(degrees) if sketch.num_spatial == 2 else _triples(degrees)
    coefficients[tuple(np.array(places).T)] = transform._coeff
    sketch.add(Bias(coefficients=coefficients.reshape(degrees, degrees, -1)))
    return sketch


@functools.cache
def _triples(degrees: int) -> list[tuple[int, int, int]]:
    """Degrees along x, y and z of the coefficients that MONAI draws for a volume."""
    return [(i, j, k) for i, j, k in itertools.product(range(degrees), repeat=3) if i + j + k < degrees]


@functools.cache
def _planes(degrees: int) -> list[tuple[int, int]]:
    """The same for a plane: not those of a small total degree, but the lower triangle."""
    return [(i, j) for i in range(degrees) for j in range(i + 1)]


def _filter(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandGibbsNoise."""
    return _low_pass(array.GibbsNoise(transform.sampled_alpha), sketch, None)


def _low_pass(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """GibbsNoise."""
    if sketch.dtype not in _TO_FLOAT32:
        return as_monai(transform, sketch)
    sketch.add(LowPass(radius=float((1 - transform.alpha) * max(sketch.spatial_shape) * np.sqrt(2) / 2.0)))
    return sketch


def _draw_spikes(transform: Any, sketch: Sketch) -> tuple[Spike, ...] | None:
    """One spike for each channel, or None if the draw is to do nothing.

    Raises:
        RuntimeError: there are ranges of intensities for more or fewer channels.
    """
    ranges = transform.intensity_range
    has_rows = ranges is not None and isinstance(ranges[0], Sequence)
    num_channels = sketch.shape[0]
    if has_rows and len(ranges) != num_channels:
        raise RuntimeError(f"intensity_range has {len(ranges)} pairs (low, high) for {num_channels} channels")
    super(array.RandKSpaceSpikeNoise, transform).randomize(None)
    if not transform._do_transform:
        return None
    shape, draw = sketch.spatial_shape, transform.R
    # Without ranges it is 0.95 to 1.1 times 2.5 mean logarithms of the channel's spectrum.
    rows = [(0.95, 1.1) if ranges is None else ranges[c] if has_rows else ranges for c in range(num_channels)]
    places, sizes = [], []
    if transform.channel_wise:
        for low, high in rows:
            places.append(tuple(draw.randint(0, side) for side in shape))
            sizes.append(draw.uniform(low, high))
    else:
        places = [tuple(draw.randint(0, side) for side in shape)] * num_channels
        sizes = [draw.uniform(low, high) for low, high in rows]
    return tuple(
        Spike(
            channel=channel,
            place=(*place, 0)[:3],
            log_magnitude=size if ranges is not None else 2.5 * size,
            is_relative=ranges is None,
        )
        for channel, (place, size) in enumerate(zip(places, sizes, strict=True))
    )


def _set_spikes(transform: Any, sketch: Sketch, spikes: tuple[Spike, ...]) -> Sketch:
    """RandKSpaceSpikeNoise."""
    if sketch.dtype == torch.float32:
        sketch.add(Spikes(spikes=spikes))
        return sketch
    num_spatial = sketch.num_spatial
    means = [1.0] * len(spikes)
    if spikes[0].is_relative:
        image = finish(sketch)
        means = [float(low) / (0.95 * 2.5) for low, _ in transform._set_default_range(image)]
    setter = array.KSpaceSpikeNoise(
        [(spike.channel, *spike.place[:num_spatial]) for spike in spikes],
        [spike.log_magnitude * mean for spike, mean in zip(spikes, means, strict=True)],
    )
    return as_monai(setter, sketch)


def _draw_holes(transform: Any, sketch: Sketch) -> None:
    transform.randomize(sketch.spatial_shape)


def _shuffle(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandCoarseShuffle: the orders are drawn here, image by image, as MONAI does."""
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch)
    for _, *box in transform.hole_coords:
        starts, lengths = zip(*((part.start, part.stop - part.start) for part in box), strict=True)
        orders = np.tile(np.arange(int(np.prod(lengths))), (sketch.shape[0], 1))
        for order in orders:
            transform.R.shuffle(order)
        sketch.add(Shuffle(start=(*starts, 0)[:3], shape=(*lengths, 1)[:3], orders=orders))
    return sketch


_SMOOTH = Change(add=_smooth, draw=_draw_blindly)
_SHARPEN = Change(add=_sharpen, draw=_draw_blindly)
_SHADE = Change(add=_shade, draw=_draw_bias, why_not=why_not_float32)
_FILTER = Change(add=_filter, draw=_draw_blindly)
_SPIKES = Change(add=_set_spikes, draw=_draw_spikes)
_SHUFFLE = Change(add=_shuffle, draw=_draw_holes)

LOWERINGS: Lowerings = {
    array.GaussianSmooth: array_form(Change(add=_smooth_always)),
    dictionary.GaussianSmoothd: dictionary_form(Change(add=_smooth_always), "converter"),
    array.RandGaussianSmooth: array_form(_SMOOTH),
    dictionary.RandGaussianSmoothd: dictionary_form(_SMOOTH, "rand_smooth"),
    array.GaussianSharpen: array_form(Change(add=_sharpen_always)),
    dictionary.GaussianSharpend: dictionary_form(Change(add=_sharpen_always), "converter"),
    array.RandGaussianSharpen: array_form(_SHARPEN),
    dictionary.RandGaussianSharpend: dictionary_form(_SHARPEN, "rand_sharpen"),
    array.RandBiasField: array_form(_SHADE),
    dictionary.RandBiasFieldd: dictionary_form(_SHADE, "rand_bias_field", draws="first"),
    array.GibbsNoise: array_form(Change(add=_low_pass)),
    dictionary.GibbsNoised: dictionary_form(Change(add=_low_pass), "transform"),
    array.RandGibbsNoise: array_form(_FILTER),
    dictionary.RandGibbsNoised: dictionary_form(_FILTER, "rand_gibbs_noise"),
    array.RandKSpaceSpikeNoise: array_form(_SPIKES),
    dictionary.RandKSpaceSpikeNoised: dictionary_form(_SPIKES, "rand_noise", draws="each"),
    array.RandCoarseShuffle: array_form(_SHUFFLE),
    dictionary.RandCoarseShuffled: dictionary_form(_SHUFFLE, "shuffle", draws="first"),
}
"""A spike keeps the phase of its frequency: where the image has next to nothing at that frequency (a flat image), the
phase is rounding on both sides, and the results differ."""
