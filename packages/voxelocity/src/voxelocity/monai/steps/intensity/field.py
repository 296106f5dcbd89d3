"""Changes of intensities that depend on where a voxel lies, or on other voxels: noise, fields, filters, boxes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3
from voxelocity.monai.steps.intensity.pointwise import Floats

NormalField = int | Floats
"""Standard normal numbers: a seed for `augment.noise`, or the numbers themselves, (c, x, y, z)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """Adds `std` times the field.

    Attributes:
        field: each channel takes its own numbers from it.
        std: of the noise.
        is_shared: whether all channels take the numbers of the first one.
    """

    field: NormalField
    std: float
    is_shared: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Rician:
    """`sqrt((v + n1) ** 2 + n2 ** 2)`, each n being `mean + std * field`: noise in a magnitude image.

    Attributes:
        fields: the two; with a seed, the first takes the numbers of channels 0 to c - 1 and the second those from
            channel c, with the same seed.
        mean: (c,), one for each channel.
        std: (c,).
    """

    fields: tuple[NormalField, NormalField]
    mean: Floats
    std: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Bias:
    """Multiplies by exp of a polynomial over the patch, whose axes run from -1 to 1; the same for each channel.

    Attributes:
        coefficients: (i, j, k), of the products of Legendre polynomials of these degrees along x, y and z.
    """

    coefficients: Floats


@functools.lru_cache(maxsize=64)
def legendre_table(side: int, num_degrees: int) -> Floats:
    """The Legendre polynomials of degree 0 to `num_degrees - 1` at the voxels of an axis from -1 to 1: (side, degrees).

    Rounded as in MONAI; a single voxel lies at -1.

    Do not write to it: it is cached for the next caller.
    """
    places = np.linspace(-1.0, 1.0, side, dtype=np.float32).astype(np.float64)
    table: Floats = np.ascontiguousarray(np.polynomial.legendre.legvander(places, num_degrees - 1), dtype=np.float32)
    return table


@dataclass(frozen=True, kw_only=True, eq=False)
class Blur:
    """A blur along each axis, with zeros beyond the patch; or `v + alpha * (v - blurred)`.

    Attributes:
        weights: along x, y and z: each symmetric and of odd length, (1,) of [1.0] for no blur.
        alpha: None for the blur itself.
    """

    weights: tuple[Floats, Floats, Floats]
    alpha: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class LowPass:
    """Removes the frequencies beyond `radius` from the middle of the spectrum, then keeps the real part.

    The middle refers to the array of frequencies with 0 shifted to `n // 2`: half a step below 0 for even n.
    """

    radius: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Spike:
    """One frequency of one channel.

    Attributes:
        channel: of the patch.
        place: in the channel's spectrum with frequency 0 shifted to `n // 2`.
        log_magnitude: natural logarithm of its new magnitude (its phase is kept); or, if `is_relative`, a multiple of
            the mean logarithm of the channel's magnitudes.
        is_relative: see `log_magnitude`.
        share: what was drawn for it.
    """

    channel: int
    place: Index3
    log_magnitude: float
    is_relative: bool = False
    share: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Spikes:
    """Single frequencies made stronger or weaker, at most one per channel; the real part of the result is kept."""

    spikes: tuple[Spike, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shuffle:
    """The voxels of a box in another order, separately for each channel.

    Attributes:
        start: first voxel of the box, which lies within the patch.
        shape: of the box.
        orders: (c, voxels of the box): which voxel, in C order, comes at each place.
    """

    start: Index3
    shape: Index3
    orders: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Fill:
    """Fills each box with one value or with noise spread evenly over a range, computed in float64.

    One box after the other, or with `is_outside` everything except the boxes.

    Attributes:
        boxes: (n, 2, 3) int64, start and stop of each on x, y, z, within the array.
        is_outside: keeps the boxes and fills everything outside them.
        low: the fill value; None for the smallest value of the array before this step.
        high: upper end of the noise; None for the largest value of the array before this step.
        noise: numbers from 0 to 1, float64; each filled voxel is `low + noise * (high - low)` with its own number: box
            after box, each in C order over (c, x, y, z), or with `is_outside` one for each voxel of the array, in C
            order. None fills with `low`.
    """

    boxes: npt.NDArray[np.int64]
    is_outside: bool = False
    low: float | None
    high: float | None = None
    noise: npt.NDArray[np.float64] | None = None


Field = Noise | Rician | Bias | Blur | LowPass | Spikes | Shuffle | Fill
