"""Compiled loops over the intensities of a patch: bias, blur, brightness, contrast, gamma, boxes, programs of `steps`.

All work on C-contiguous float32 without the GIL, and all but the blur in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel

LINEAR, LINEAR_BUT_ZERO, CLIP, KEEP_ABOVE, KEEP_BELOW, POWER, CURVE = range(7)
"""The steps of a program."""
_CHUNK_VOXELS = 2048
"""Voxels that go through all steps of a program before the next ones: they stay in the first-level cache."""

# Minimax-like polynomials (Chebyshev fits of ours) for log2(1 + t) / t on 1 + t in [sqrt(1/2), sqrt(2)], off by at
# most 5e-8, and 2**t on [-1/2, 1/2], off by 2e-9. They vectorize, while calls of the C library's powf do not.
_LOG2 = tuple(
    np.float32(value)
    for value in (
        1.4426950216293335,
        -0.7213473320007324,
        0.48091059923171997,
        -0.36070483922958374,
        0.2879183292388916,
        -0.23892034590244293,
        0.21566985547542572,
        -0.20742103457450867,
        0.12614846229553223,
    )
)
_EXP2 = tuple(
    np.float32(value)
    for value in (
        1.0,
        0.6931471824645996,
        0.24022650718688965,
        0.05550327152013779,
        0.00961802527308464,
        0.0013400432653725147,
        0.00015469732170458883,
    )
)
_LOG2_E = np.float32(1.4426950408889634)
_TINY = np.float32(1e-37)
"""Smallest number whose logarithm is taken: just above the denormal ones."""
_MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float without its sign."""


@inlined
def _log2(value: Any) -> Any:
    """Of a positive float32."""
    # The bits of sqrt(1/2): anything above it goes into the exponent.
    bits = np.int32(np.float32(value).view(np.int32) - np.int32(0x3F3504F3))
    exponent = bits >> np.int32(23)
    mantissa = np.int32((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    t = mantissa - np.float32(1.0)
    total = _LOG2[8]
    total = total * t + _LOG2[7]
    total = total * t + _LOG2[6]
    total = total * t + _LOG2[5]
    total = total * t + _LOG2[4]
    total = total * t + _LOG2[3]
    total = total * t + _LOG2[2]
    total = total * t + _LOG2[1]
    total = total * t + _LOG2[0]
    return np.float32(exponent) + total * t


@inlined
def _exp2(value: Any) -> Any:
    """Of a float32 between -126 and 127."""
    whole = np.int32(np.floor(value + np.float32(0.5)))
    t = value - np.float32(whole)
    total = _EXP2[6]
    total = total * t + _EXP2[5]
    total = total * t + _EXP2[4]
    total = total * t + _EXP2[3]
    total = total * t + _EXP2[2]
    total = total * t + _EXP2[1]
    total = total * t + _EXP2[0]
    return total * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@kernel
def apply_bias(channel: Any, cube: Any, legendre_x: Any, legendre_y: Any, legendre_z: Any) -> None:
    """Times the bias field. Channel (nx, ny, nz), cube (i, j, k), Legendre tables (nx, i), (ny, j), (k, nz)."""
    nx, ny, nz = channel.shape
    field = np.empty(nz, np.float32)
    for i in range(nx):
        for j in range(ny):
            field[:] = np.float32(0.0)
            for c in range(cube.shape[2]):
                total = np.float32(0.0)
                for a in range(cube.shape[0]):
                    along = np.float32(0.0)
                    for b in range(cube.shape[1]):
                        along += legendre_y[j, b] * cube[a, b, c]
                    total += legendre_x[i, a] * along
                for k in range(nz):
                    field[k] += total * legendre_z[c, k]
            for k in range(nz):
                exponent = min(max(field[k] * _LOG2_E, np.float32(-126.0)), np.float32(126.0))
                channel[i, j, k] *= _exp2(exponent)


@kernel
def blur_mirrored(source: Any, target: Any, weights: Any, axis: Any) -> None:
    """The blur of one axis, mirrored about the outermost voxels: (nx, ny, nz) to another array of that shape."""
    nx, ny, nz = source.shape
    radius = weights.size // 2
    if axis == 2:
        padded = np.empty(nz + 2 * radius, np.float32)
        for i in range(nx):
            for j in range(ny):
                padded[radius : radius + nz] = source[i, j]
                for r in range(1, radius + 1):
                    padded[radius - r] = source[i, j, r]
                    padded[radius + nz - 1 + r] = source[i, j, nz - 1 - r]
                row = target[i, j]
                for k in range(nz):
                    row[k] = weights[0] * padded[k]
                for w in range(1, weights.size):
                    weight = weights[w]
                    for k in range(nz):
                        row[k] += weight * padded[k + w]
        return
    length = nx if axis == 0 else ny
    for i in range(nx):
        for j in range(ny):
            row = target[i, j]
            middle = i if axis == 0 else j
            for w in range(weights.size):
                place = abs(middle + w - radius)
                if place >= length:
                    place = 2 * (length - 1) - place
                line = source[place, j] if axis == 0 else source[i, place]
                weight = weights[w]
                if w == 0:
                    for k in range(nz):
                        row[k] = weight * line[k]
                else:
                    for k in range(nz):
                        row[k] += weight * line[k]


@kernel
def scale_and_shift(flat: Any, scale: Any, shift: Any) -> None:
    """`v * scale + shift`."""
    for t in range(flat.size):
        flat[t] = flat[t] * scale + shift


@kernel
def spread(flat: Any, contrast: Any) -> None:
    """Contrast about the mean, clipped to the range."""
    low, high, mean, _ = moments(flat)
    center = np.float32(mean)
    for t in range(flat.size):
        flat[t] = min(max((flat[t] - center) * contrast + center, low), high)


@kernel
def bend(flat: Any, gamma: Any, is_inverted: Any, keeps_moments: Any) -> None:
    """Gamma from the lower end, or from the upper one if inverted."""
    low, high, mean, std = moments(flat)
    span = high - low
    if span <= np.float32(0.0):
        return
    zero, one = np.float32(0.0), np.float32(1.0)
    sign = -one if is_inverted else one
    base = high if is_inverted else low
    inverse = sign / span
    for t in range(flat.size):
        unit = min(max((flat[t] - base) * inverse, np.float32(1e-30)), one)
        flat[t] = base + sign * span * _exp2(max(gamma * _log2(unit), np.float32(-126.0)))
    if keeps_moments:
        _, _, new_mean, new_std = moments(flat)
        if new_std > zero:
            factor = np.float32(std / new_std)
            shift = np.float32(mean - new_mean * (std / new_std))
            for t in range(flat.size):
                flat[t] = flat[t] * factor + shift


@kernel
def moments(flat: Any) -> Any:
    """Minimum, maximum, mean and standard deviation of float32 numbers, summed in float64."""
    low = high = flat[0]
    total = squares = 0.0
    # About the first number, so that digits are not lost when the mean is large.
    pivot = np.float64(flat[0])
    for t in range(flat.size):
        value = flat[t]
        low, high = min(low, value), max(high, value)
        centered = np.float64(value) - pivot
        total += centered
        squares += centered * centered
    mean = total / flat.size
    variance = max(squares / flat.size - mean * mean, 0.0)
    return low, high, pivot + mean, np.sqrt(variance)


@kernel
def _make_one(chunk: Any, code: Any, numbers: Any, at: Any) -> None:
    """Applies one step of a program, whose numbers begin at index `at`, to a chunk of voxels."""
    zero = np.float32(0.0)
    a, b = numbers[at], numbers[at + 1]
    if code == LINEAR:
        c = numbers[at + 2]
        for t in range(chunk.size):
            chunk[t] = (chunk[t] - a) * b + c
    elif code == LINEAR_BUT_ZERO:
        c = numbers[at + 2]
        for t in range(chunk.size):
            value = chunk[t]
            chunk[t] = value if value == zero else (value - a) * b + c
    elif code == CLIP:
        for t in range(chunk.size):
            value = chunk[t]
            value = a if value < a else value
            chunk[t] = b if value > b else value
    elif code == KEEP_ABOVE:
        for t in range(chunk.size):
            chunk[t] = chunk[t] if chunk[t] > a else b
    elif code == KEEP_BELOW:
        for t in range(chunk.size):
            chunk[t] = chunk[t] if chunk[t] < a else b
    elif code == POWER:
        gamma, span, at_zero = numbers[at + 2], numbers[at + 3], numbers[at + 4]
        for t in range(chunk.size):
            unit = (chunk[t] - a) * b
            exponent = min(max(gamma * _log2(max(unit, _TINY)), np.float32(-126.0)), np.float32(126.0))
            chunk[t] = (at_zero if unit <= zero else _exp2(exponent)) * span + a
    elif code == CURVE:
        last = np.int64(numbers[at + 2])
        for t in range(chunk.size):
            place = min(max((chunk[t] - a) * b, zero), np.float32(last))
            # Clamped for a NaN too, whose place is an arbitrary number.
            below = max(min(np.int64(place), last - np.int64(1)), np.int64(0))
            value = numbers[at + 3 + below]
            chunk[t] = value + (place - np.float32(below)) * (numbers[at + 4 + below] - value)


@kernel
def _measure(chunk: Any, keys: Any, sums: Any, is_nonzero: Any) -> None:
    """Adds a chunk to the statistics: keys of the extremes; number of voxels, sum and squares about `sums[3]`."""
    zero = np.float32(0.0)
    # The bits of floats mapped to integers of the same order: their extremes vectorize, while those of floats do not if
    # a NaN must not get lost (1.1 to 0.3 ms for 96^3 voxels, with the two loops separate).
    bits = chunk.view(np.int32)
    low, high = keys[0], keys[1]
    pivot, count = sums[3], 0
    total = squares = np.float64(0.0)
    if is_nonzero:
        for t in range(chunk.size):
            key = bits[t] ^ ((bits[t] >> np.int32(31)) & _MAGNITUDE)
            is_some = chunk[t] != zero
            low = min(low, key if is_some else low)
            high = max(high, key if is_some else high)
        for t in range(chunk.size):
            is_some = chunk[t] != zero
            count += 1 if is_some else 0
            centered = np.float64(chunk[t]) - pivot if is_some else np.float64(0.0)
            total += centered
            squares += centered * centered
    else:
        count = chunk.size
        for t in range(chunk.size):
            key = bits[t] ^ ((bits[t] >> np.int32(31)) & _MAGNITUDE)
            low, high = min(low, key), max(high, key)
        for t in range(chunk.size):
            centered = np.float64(chunk[t]) - pivot
            total += centered
            squares += centered * centered
    keys[0], keys[1] = low, high
    sums[0] += count
    sums[1] += total
    sums[2] += squares


@kernel
def run_program(flat: Any, codes: Any, starts: Any, numbers: Any, facts: Any, takes: Any) -> None:
    """Applies the steps of a program to a channel, chunk by chunk, and computes statistics of the result.

    Args:
        flat: of the channel.
        codes: (n,) of the steps.
        starts: (n,) where the numbers of each step begin.
        numbers: float32, of all steps.
        facts: (5,) float64, filled where `takes` is not 0: number of voxels, smallest, largest, mean, variance.
        takes: 0 for no statistics, 1 for those of all voxels, 2 for those of voxels that are not 0.
    """
    keys = np.array([_MAGNITUDE, ~_MAGNITUDE], np.int32)
    sums = np.zeros(4, np.float64)
    for start in range(0, flat.size, _CHUNK_VOXELS):
        chunk = flat[start : min(start + _CHUNK_VOXELS, flat.size)]
        for o in range(codes.size):
            _make_one(chunk, codes[o], numbers, starts[o])
        if takes != 0:
            if start == 0:
                sums[3] = chunk[0]
            _measure(chunk, keys, sums, takes == 2)
    if takes == 0:
        return
    keys ^= (keys >> np.int32(31)) & _MAGNITUDE
    count, mean = sums[0], sums[1] / sums[0]
    facts[0], facts[1], facts[2] = count, keys.view(np.float32)[0], keys.view(np.float32)[1]
    facts[3], facts[4] = sums[3] + mean, max(sums[2] / count - mean * mean, np.float64(0.0))
    if count == 0 or np.isnan(mean):
        facts[1:] = np.nan


@kernel
def fill_boxes(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """Fills the boxes in place.

    Args:
        patch: (c, x, y, z) float32.
        places: (n, 2, 3) int64, start and stop.
        noise: float64, a number for each voxel of box after box, or empty.
        low: the fill value without noise.
        width: of the range that the noise is spread over.
    """
    has_noise = len(noise) > 0
    place = 0
    for b in range(len(places)):
        first, last = places[b, 0, 2], places[b, 1, 2]
        for c in range(patch.shape[0]):
            for i in range(places[b, 0, 0], places[b, 1, 0]):
                for j in range(places[b, 0, 1], places[b, 1, 1]):
                    for k in range(first, last):
                        patch[c, i, j, k] = np.float32(low + noise[place] * width) if has_noise else np.float32(low)
                        place += 1


@kernel
def fill_outside(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """As `fill_boxes`, for all voxels outside the boxes; `noise` has a number for each voxel of the patch."""
    has_noise = len(noise) > 0
    num_channels, nx, ny, nz = patch.shape
    is_kept = np.empty(nz, np.bool_)
    for i in range(nx):
        for j in range(ny):
            is_kept[:] = False
            for b in range(len(places)):
                if places[b, 0, 0] <= i < places[b, 1, 0] and places[b, 0, 1] <= j < places[b, 1, 1]:
                    is_kept[places[b, 0, 2] : places[b, 1, 2]] = True
            for c in range(num_channels):
                place = ((c * nx + i) * ny + j) * nz
                for k in range(nz):
                    if not is_kept[k]:
                        patch[c, i, j, k] = np.float32(low + noise[place + k] * width) if has_noise else np.float32(low)
