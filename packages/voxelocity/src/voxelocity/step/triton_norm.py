"""Instance norm with a leaky ReLU in channels_last_3d memory: two kernels forward, two backward, no atomics.

A tensor is (num_samples, num_rows, num_channels) in memory, one row a voxel. Programs are (groups of channels, chunks
of rows, samples). The first kernel of each direction leaves the sums of each chunk in `parts`; every program of the
second one adds the parts of its channels in the same order: nothing waits for the host, and results are the same each
time.
Kernels share these arguments:

- x, y, dy, dx: float32, bfloat16 or float16. weight, bias: (num_channels,), read if IS_AFFINE.
- parts: (num_samples, chunks, 2, num_channels) float32; moments: (num_samples, 2, num_channels) float32, the mean and
  the reciprocal of the deviation.
- num_rows: of a sample; size: rows of a chunk, the last one may have fewer.
- num_units: UNIT times this is num_channels, so that the compiler knows how far memory is aligned.
- ROWS, WIDTH: rows and channels in work at once, powers of two.

Sizes are not compiled in: a kernel is compiled once for each dtype, UNIT and WIDTH.
"""

from __future__ import annotations

import triton
import triton.language as tl

_SIZES = ["num_rows", "size", "num_units"]


@triton.jit(do_not_specialize=_SIZES)
def norm_measure(x, parts, num_rows, size, num_units, UNIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Mean, and sum of squared deviations from it, of each chunk.

    Both are summed relative to the mean of the chunk's first rows, so that a large mean costs no digits.
    """
    num_channels, channel, in_width = _channels(num_units, UNIT, WIDTH)
    chunk, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    count = tl.minimum(size, num_rows - chunk * size)
    row = tl.arange(0, ROWS)
    at = x + _begin(sample, chunk, num_rows, size, num_channels) + row[:, None] * num_channels + channel[None, :]
    here = (row < count)[:, None] & in_width
    v = tl.load(at, mask=here, other=0.0).to(tl.float32)
    shift = tl.sum(v, 0) / tl.minimum(count, ROWS)
    sums = tl.where(here, v - shift[None, :], 0.0)
    squares = sums * sums
    for first in range(ROWS, count, ROWS):
        at += ROWS * num_channels
        here = (first + row < count)[:, None] & in_width
        v = tl.load(at, mask=here, other=0.0).to(tl.float32)
        d = tl.where(here, v - shift[None, :], 0.0)
        sums += d
        squares += d * d
    total = tl.sum(sums, 0)
    deviations = tl.sum(squares, 0) - total * total / count
    _keep(parts, sample, chunk, num_channels, channel, shift + total / count, deviations)


@triton.jit(do_not_specialize=_SIZES)
def norm_apply(
    x,
    parts,
    weight,
    bias,
    y,
    moments,
    num_rows,
    size,
    num_units,
    eps,
    slope,
    IS_AFFINE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The normalized and activated values, and the moments for the way back.

    Samples and chunks run backward: what the first kernel read last is still in the cache.
    """
    num_channels, channel, in_width = _channels(num_units, UNIT, WIDTH)
    chunk = tl.num_programs(1) - 1 - tl.program_id(1)
    sample = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)
    mean, rstd = _mean_and_rstd(parts, sample, num_rows, size, num_channels, channel, in_width, eps, ROWS, WIDTH)
    if chunk == 0:
        kept = moments + sample * 2 * num_channels + channel
        tl.store(kept, mean, mask=channel < num_channels)
        tl.store(kept + num_channels, rstd, mask=channel < num_channels)
    factor, shift = _factor_and_shift(weight, bias, channel, num_channels, rstd, IS_AFFINE)
    count = tl.minimum(size, num_rows - chunk * size)
    row = tl.arange(0, ROWS)
    begin = _begin(sample, chunk, num_rows, size, num_channels)
    step = row[:, None] * num_channels + channel[None, :]
    at, to = x + begin + step, y + begin + step
    for first in range(0, count, ROWS):
        here = (first + row < count)[:, None] & in_width
        v = tl.load(at, mask=here, other=0.0).to(tl.float32)
        z = (v - mean[None, :]) * factor[None, :] + shift[None, :]
        tl.store(to, tl.where(z > 0.0, z, z * slope), mask=here)
        at += ROWS * num_channels
        to += ROWS * num_channels


@triton.jit(do_not_specialize=_SIZES)
def norm_measure_back(
    x,
    dy,
    moments,
    weight,
    bias,
    parts,
    num_rows,
    size,
    num_units,
    slope,
    IS_AFFINE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sums of each chunk: of the gradients before the activation, and of these times the normalized values."""
    num_channels, channel, in_width = _channels(num_units, UNIT, WIDTH)
    chunk, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    mean, rstd = _moments(moments, sample, num_channels, channel)
    factor, shift = _factor_and_shift(weight, bias, channel, num_channels, rstd, IS_AFFINE)
    count = tl.minimum(size, num_rows - chunk * size)
    row = tl.arange(0, ROWS)
    begin = _begin(sample, chunk, num_rows, size, num_channels)
    step = row[:, None] * num_channels + channel[None, :]
    at, slopes = x + begin + step, dy + begin + step
    sums, products = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, count, ROWS):
        here = (first + row < count)[:, None] & in_width
        d = tl.load(at, mask=here, other=0.0).to(tl.float32) - mean[None, :]
        g = tl.load(slopes, mask=here, other=0.0).to(tl.float32)
        g = tl.where(d * factor[None, :] + shift[None, :] > 0.0, g, g * slope)
        sums += g
        products += g * (d * rstd[None, :])
        at += ROWS * num_channels
        slopes += ROWS * num_channels
    _keep(parts, sample, chunk, num_channels, channel, tl.sum(sums, 0), tl.sum(products, 0))


@triton.jit(do_not_specialize=[*_SIZES, "num_samples"])
def norm_apply_back(
    x,
    dy,
    moments,
    parts,
    weight,
    bias,
    dx,
    dweights,
    num_rows,
    size,
    num_units,
    num_samples,
    slope,
    IS_AFFINE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The gradient of `x`, and those of bias and weight into `dweights` (2, num_channels) float32.

    There is one more chunk, the first: its programs add the gradients of the weights over all samples.
    """
    num_channels, channel, in_width = _channels(num_units, UNIT, WIDTH)
    num_chunks = tl.num_programs(1) - 1
    if tl.program_id(1) == 0:
        if IS_AFFINE and tl.program_id(2) == 0:
            sums, products = _added(parts, num_samples * num_chunks, num_channels, channel, in_width, ROWS, WIDTH)
            tl.store(dweights + channel, sums, mask=channel < num_channels)
            tl.store(dweights + num_channels + channel, products, mask=channel < num_channels)
    else:
        chunk = num_chunks - tl.program_id(1)
        sample = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)
        own = parts + sample * num_chunks * 2 * num_channels
        sums, products = _added(own, num_chunks, num_channels, channel, in_width, ROWS, WIDTH)
        mean, rstd = _moments(moments, sample, num_channels, channel)
        factor, shift = _factor_and_shift(weight, bias, channel, num_channels, rstd, IS_AFFINE)
        mean_g, mean_gh = sums / num_rows, rstd * (products / num_rows)
        count = tl.minimum(size, num_rows - chunk * size)
        row = tl.arange(0, ROWS)
        begin = _begin(sample, chunk, num_rows, size, num_channels)
        step = row[:, None] * num_channels + channel[None, :]
        at, slopes, to = x + begin + step, dy + begin + step, dx + begin + step
        for first in range(0, count, ROWS):
            here = (first + row < count)[:, None] & in_width
            d = tl.load(at, mask=here, other=0.0).to(tl.float32) - mean[None, :]
            g = tl.load(slopes, mask=here, other=0.0).to(tl.float32)
            g = tl.where(d * factor[None, :] + shift[None, :] > 0.0, g, g * slope)
            tl.store(to, factor[None, :] * (g - mean_g[None, :] - d * mean_gh[None, :]), mask=here)
            at += ROWS * num_channels
            slopes += ROWS * num_channels
            to += ROWS * num_channels


@triton.jit
def _channels(num_units, UNIT: tl.constexpr, WIDTH: tl.constexpr):
    """The number of channels, those of this program, and which of them there are: (1, WIDTH)."""
    num_channels = num_units * UNIT
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    return num_channels, channel, (channel < num_channels)[None, :]


@triton.jit
def _begin(sample, chunk, num_rows, size, num_channels):
    """Elements before a chunk, int64."""
    return (sample * num_rows + chunk * size) * num_channels


@triton.jit
def _keep(parts, sample, chunk, num_channels, channel, first, second):
    at = parts + (sample * tl.num_programs(1) + chunk) * 2 * num_channels + channel
    tl.store(at, first, mask=channel < num_channels)
    tl.store(at + num_channels, second, mask=channel < num_channels)


@triton.jit
def _moments(moments, sample, num_channels, channel):
    at = moments + sample * 2 * num_channels + channel
    mean = tl.load(at, mask=channel < num_channels, other=0.0)
    return mean, tl.load(at + num_channels, mask=channel < num_channels, other=0.0)


@triton.jit
def _factor_and_shift(weight, bias, channel, num_channels, rstd, IS_AFFINE: tl.constexpr):
    """What a deviation from the mean is multiplied by, and what is added."""
    factor, shift = rstd, tl.zeros_like(rstd)
    if IS_AFFINE:
        factor = rstd * tl.load(weight + channel, mask=channel < num_channels, other=0.0).to(tl.float32)
        shift = tl.load(bias + channel, mask=channel < num_channels, other=0.0).to(tl.float32)
    return factor, shift


@triton.jit
def _mean_and_rstd(
    parts, sample, num_rows, size, num_channels, channel, in_width, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Of a sample, from the means and squared deviations of its chunks, relative to the mean of the first."""
    num_chunks = tl.num_programs(1)
    own = parts + sample * num_chunks * 2 * num_channels
    base = tl.load(own + channel, mask=channel < num_channels, other=0.0)
    sums, squares = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, num_chunks, ROWS):
        chunk = first + tl.arange(0, ROWS)
        here = (chunk < num_chunks)[:, None] & in_width
        count = tl.minimum(size, num_rows - chunk * size).to(tl.float32)[:, None]
        at = own + chunk[:, None] * (2 * num_channels) + channel[None, :]
        d = tl.where(here, tl.load(at, mask=here, other=0.0) - base[None, :], 0.0)
        sums += count * d
        squares += tl.load(at + num_channels, mask=here, other=0.0) + count * d * d
    total = tl.sum(sums, 0)
    variance = (tl.sum(squares, 0) - total * (total / num_rows)) / num_rows
    return base + total / num_rows, tl.rsqrt(tl.maximum(variance, 0.0) + eps)


@triton.jit
def _added(parts, num_parts, num_channels, channel, in_width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of both numbers over all parts."""
    sums, products = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, num_parts, ROWS):
        part = first + tl.arange(0, ROWS)
        here = (part < num_parts)[:, None] & in_width
        at = parts + part[:, None] * (2 * num_channels) + channel[None, :]
        sums += tl.load(at, mask=here, other=0.0)
        products += tl.load(at + num_channels, mask=here, other=0.0)
    return tl.sum(sums, 0), tl.sum(products, 0)
